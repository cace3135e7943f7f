"""A training of four stages that saves after every step, and on one rank of which
something happens.

    mpirun -n 4 python tests/pipeline/checkpoint/job.py FOLDER STEPS RANK WHAT NUMBER
    [KEEP [REPLICAS]]

WHAT happens on RANK: ``warm-up``, ``steady`` or ``cool-down``: it is killed there, in
step 2; ``call``: it is killed at call NUMBER of the file system in the second save,
half of what it writes being there; ``limit``: from the second save on a file may have
NUMBER bytes; ``nothing``, as after a restart. REPLICAS have the bits of as many blocks.
"""

import os
import resource
import signal
import sys
from types import SimpleNamespace

import numpy as np

from minipipe import Pipeline, checkpoint, init_process_group, nn, optim
from minipipe.cli.supervision.launching import RESTART
from tests.faults import training
from tests.faults.deeds import Due
from tests.pipeline.checkpoint.seam import LOOKS, Seam

INPUTS, TARGETS = (
    np.random.default_rng(0).standard_normal((2, 16, 4)).astype(np.float32)
)


def dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def kills(number):
    def act(count, name):
        if count == number and name == "write":
            return 0.5  # and the rest of it is the next call
        if count >= number and name not in LOOKS:
            dies()
        return 1.0

    return act


def pipeline_of(group, replicas=1, blocks=1):
    stages = group.size // replicas == 4  # on other ranks it is cut elsewhere
    partition = (
        [range(2 * stage, 2 * stage + 2) for stage in range(4)] if stages else None
    )
    options = {
        "num_microbatches": training.NUM_MICROBATCHES // replicas,
        "partition": partition,
    }
    options |= {"replicas": replicas, "gradient_blocks": blocks}
    pipeline = Pipeline(training.model(), group, loss=nn.MSELoss(), **options)
    return pipeline, optim.SGD(pipeline.parameters(), 0.1, momentum=0.9)


def train(
    group, folder, num_steps, due, before_save=lambda step: None, keep=2, **layout
):
    training._due, due.group = due, group
    pipeline, optimiser = pipeline_of(group, **layout)
    restored = checkpoint.restore(folder, pipeline, optimiser, required=False)
    for step in range(restored.step if restored else 0, num_steps):
        pipeline.step(INPUTS, TARGETS)
        optimiser.step()
        before_save(step + 1)
        checkpoint.save(folder, pipeline, optimiser, step=step + 1, keep=keep)
    return restored.step if restored else 0


def main(folder, num_steps, rank, what, number=0, keep=2, replicas=1):
    rank, number, replicas = int(rank), int(number), int(replicas)
    what = what if os.environ.get(RESTART, "0") == "0" else "nothing"
    seam = None
    if what == "call":
        seam = Seam(SimpleNamespace(setattr=setattr), folder, kills(number))

    def before_save(step):
        if seam and rank == group.rank:
            seam.is_armed = step == 2
        if step == 2 and what == "limit" and rank == group.rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))

    with init_process_group(timeout=30) as group:
        due = Due(dies, what, rank)
        layout = {"replicas": replicas, "blocks": replicas}
        print(
            "began at",
            train(group, folder, int(num_steps), due, before_save, int(keep), **layout),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
