"""One elastic training, as a user's script, in which ranks are killed: ``job.py
OPTIONS``, which are JSON.

``kills`` lists [rank, place, further victims]: when the rank, by its number in the
world, comes to the place, it kills itself and the victims. A place is [step, what,
number]:

* ``"F"``, ``"B"``: in the forward or backward of a microbatch;
* ``"stepped"``, ``"updated"``: before and after the update of the parameters;
* ``"message"``: before its next copy or barrier, the number of messages of that
  exchange after which it dies;
* ``"trained"``: behind the training;
* ``"make"``: in ``make`` for so many ranks (the step is that in which the group before
  was left).

With ``replicas``, there are as many wherever the ranks can be divided among them, and
one otherwise, with the bits of ``blocks``; ``shards`` divides the state of the
optimiser among them. A ``mutant`` forgets a part of the state, or the blocks, after a
loss, or raises in place of dying. With ``late``, MPI reports the failure of a send in
the old group only when the new group sends.

Prints a line of JSON: what is left, a digest of all values, how many groups were made,
and when the first step of each was finished.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from hashlib import blake2b

import numpy as np

from minipipe import Pipeline, elastic, init_process_group, nn, optim
from minipipe.comm import ProcessGroup
from minipipe.core.autograd.modes import current_place
from minipipe.core.tensor import record
from minipipe.errors import LaunchError
from minipipe.pipeline.elastic.vault import Made

OPTIONS = {
    "kills": [],
    "steps": 6,
    "copies": 1,
    "every": 1,
    "wait": True,
    "schedule": "1f1b",
    "optimiser": "Adam",
}
OPTIONS |= {
    "dtype": "float32",
    "mutant": "",
    "replicas": 1,
    "blocks": 1,
    "shards": False,
    "late": False,
}
MUTANTS = {
    "optimiser": lambda state: {
        **state,
        "optimiser": {**state["optimiser"], "kept": {}},
    },
    "dropout": lambda state: {**state, "num_steps": 0},
}


class Doom:
    """Kills this process, and others, at a place."""

    def __init__(self, kills):
        self.kills = {(rank, *place): victims for rank, place, *victims in kills}
        self.rank, self.step, self.num_messages = 0, 0, 0
        self.pids = []

    def learn_pids(self, group):
        self.rank = group.rank
        self.pids = [int(pid) for pid in group.all_gather(np.array(os.getpid()))]

    def reach(self, what, number):
        victims = self.kills.get((self.rank, self.step, what, number))
        if victims is None:
            return
        if OPTIONS["mutant"] == "raise":
            raise RuntimeError("a bug")
        print(json.dumps({"killed": time.time()}), flush=True)
        time.sleep(0.05)  # for the launcher to take it
        for rank in [*victims, self.rank]:
            os.kill(self.pids[rank], signal.SIGKILL)


DOOM = Doom([])


class Trap(nn.Module):
    """Passes on activations and gradients, unless it is time to die."""

    def forward(self, x):
        microbatch = current_place().microbatch
        DOOM.reach("F", microbatch)

        def vjp(gradient):
            DOOM.reach("B", microbatch)
            return gradient

        return record(x.data, (x, vjp))


class StepCounter:
    """What training changes beside parameters, alike on all ranks."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count, "row": [np.array([self.count])]}

    def load_state_dict(self, state):
        self.count = state["count"]
        assert state["row"][0].tolist() == [self.count]


def send_under_doom(send):
    """Count the messages of copies and barriers."""

    def isend(group, array, destination, tag=0, *, step=0):
        if DOOM.pids and tag in (-3, -6):
            DOOM.reach("message", DOOM.num_messages)
            DOOM.num_messages += 1
        return send(group, array, destination, tag, step=step)

    return isend


def survivors_with_a_late_failure(of_survivors):
    """Leave a send of the old group unfinished, which fails when it is tested again."""
    from minipipe.core.comm.mpi import MPI, _Send

    class Revoked:
        def Test(self):
            raise MPI.Exception(MPI.ERR_REVOKED)

    def make_survivors(group):
        survivors = of_survivors(group)
        group.job.keep(_Send(group, [Revoked()], [], 0, str).is_over)
        return survivors

    return make_survivors


def check_closed(group):
    """A group of which a rank was lost says so, instead of an error of MPI's."""
    try:
        group.barrier()
    except LaunchError as error:
        assert error.code == "closed"
    else:
        raise AssertionError


def main(options):
    dtype = np.dtype(options["dtype"])

    num_made = 0

    def make(group):
        nonlocal num_made
        num_made += 1
        DOOM.reach("make", group.size)
        embedding = nn.Embedding(16, 8, dtype=dtype)
        layers = [embedding, Trap()]
        for _ in range(4):
            layers += [nn.Linear(8, 8, dtype=dtype), nn.Tanh(), nn.Dropout(0.1), Trap()]
        model = nn.Sequential(*layers, nn.Unembedding(embedding))
        replicas = options["replicas"] if group.size % options["replicas"] == 0 else 1
        run = {
            "schedule": options["schedule"],
            "num_microbatches": 8 // replicas,
            "seed": 1,
        }
        run |= {"replicas": replicas, "gradient_blocks": options["blocks"]}
        if options["mutant"] == "blocks":
            run["gradient_blocks"] = replicas
        pipeline = Pipeline(model, group, loss=nn.CrossEntropyLoss(), **run)
        if options["shards"]:
            return (
                pipeline,
                pipeline.sharded(optim.Adam, learning_rate=0.01),
                StepCounter(),
            )
        rule = {
            "Adam": optim.Adam,
            "SGD": lambda p, rate: optim.SGD(p, rate, momentum=0.9),
        }[options["optimiser"]]
        return pipeline, rule(pipeline.parameters(), 0.01), StepCounter()

    finished, sizes = {}, Counter()

    def step(k, pipeline, optimiser, counter):
        assert counter.count == k
        DOOM.step = k
        optimiser.learning_rate = 0.01 / (k + 1)
        inputs = np.random.default_rng(k).integers(0, 16, (16, 5))
        loss = pipeline.step(inputs, (inputs + 1) % 16, wait=options["wait"])
        pipeline.clip_grad_norm(1.0)
        DOOM.reach("stepped", 0)
        optimiser.step()
        counter.count += 1
        DOOM.reach("updated", 0)
        DOOM.num_messages = 0
        finished.setdefault(pipeline.group.size, time.time())
        sizes[pipeline.group.size] += 1
        return loss

    if options["mutant"] in MUTANTS:
        load = Made.load
        Made.load = lambda self, state: load(self, MUTANTS[options["mutant"]](state))
    if options["late"]:
        from minipipe.pipeline.elastic.survivors import SurvivorGroup

        SurvivorGroup.of_survivors = survivors_with_a_late_failure(
            SurvivorGroup.of_survivors
        )
    ProcessGroup.isend = send_under_doom(ProcessGroup.isend)
    with init_process_group(timeout=20) as group:
        DOOM.kills = Doom(options["kills"]).kills
        DOOM.learn_pids(group)
        trained = elastic.train(
            make,
            step,
            group,
            options["steps"],
            copies=options["copies"],
            every=options["every"],
        )
        if trained.pipeline.group.size < group.size:
            check_closed(group)
        DOOM.step = options["steps"]
        DOOM.reach("trained", 0)
        state = trained.pipeline.state_dict()
        kept = [
            trained.optimiser.state_dict()["groups"],
            list(map(float, trained.results)),
        ]
        digest = blake2b(json.dumps(kept).encode(), digest_size=8)
        for name in sorted(state):
            digest.update(name.encode() + state[name].tobytes())
        if trained.pipeline.group.rank == 0:
            size = trained.pipeline.group.size
            found = {
                "size": size,
                "digest": digest.hexdigest(),
                "finished": finished,
                "steps": sizes,
            }
            found["num_made"] = num_made
            print(
                json.dumps({**found, "num_steps": trained.pipeline.num_steps}),
                flush=True,
            )


if __name__ == "__main__":
    OPTIONS |= json.loads(sys.argv[1])
    main(OPTIONS)
