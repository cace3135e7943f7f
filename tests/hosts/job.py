"""A job that trains until something breaks it: ``mpirun -n 4 python -m tests.hosts.job
[RANK]``.

A signal USR1 lets a rank raise after its step. RANK raises on the first line, before
there is a group. The start has the time that MINIPIPE_TIMEOUT allows, and each step
TIMEOUT. Eight ranks are a grid. With COMPILES_REPLICAS=1 steps are compiled, of two
replicas.
"""

import os
import signal
import sys

if __name__ == "__main__" and sys.argv[1:] == [os.environ["PMI_RANK"]]:
    print("fault", flush=True)
    raise ValueError("boom on the first line")

import numpy as np

from minipipe import Grid, Pipeline, init_process_group, nn

TIMEOUT = 3.0  # seconds


def train(group, told):
    """Take steps until somebody has told this rank to raise."""
    model = nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())]
    )
    where = Grid(group, pipeline=2, data=2, tensor=2) if group.size == 8 else group
    options = {"num_microbatches": 8}
    if os.environ.get("COMPILES_REPLICAS"):
        options = {"num_microbatches": 4, "replicas": 2, "compile": True}
    pipeline = Pipeline(model, where, loss=nn.MSELoss(), **options)
    samples = np.ones((256, 64), np.float32)
    for step in range(100_000):
        pipeline.step(samples, samples)
        if told:
            raise ValueError("boom")
        if step == 2:
            group.barrier()
            grid = pipeline.grid
            for each in [
                group,
                *([grid.group, grid.pipeline, grid.data, grid.tensor] if grid else []),
            ]:
                each.timeout = TIMEOUT
            if group.rank == 0:
                print("training", flush=True)


if __name__ == "__main__":
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    with init_process_group() as group:
        train(group, told)
