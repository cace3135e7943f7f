"""Replicas on two hosts, whose sums pass over a slow link: measured, and predicted from
what is known of the link.

    mpirun -n 8 python -m tests.hosts.slow_sums BANDWIDTH

in bytes per second. The first half of the ranks is on one host, the second on the
other. Prints a line of JSON: by number of replicas the makespan measured, the one
predicted with the link, and the one predicted without it, in seconds.
"""

import json
import sys
import time
from dataclasses import replace
from statistics import median
from warnings import catch_warnings, filterwarnings

import numpy as np

from minipipe import Pipeline, init_process_group, nn, simulate
from minipipe.core.tensor import record
from minipipe.testing import one_process_step

# gradients of 512 KiB a layer, messages of 256 bytes
ROWS, WIDTH, WEIGHTS, MICROBATCHES = 4, 16, 1 << 17, 16
PAUSE = 0.005  # seconds
STEPS = 5
FRAME = 1448 / 1514  # of a frame on Ethernet is payload of TCP


class Slow(nn.Module):
    """Multiplies by some of its weights, and takes 5 ms for each of F, I and W,
    whatever else the machine does.
    """

    def __init__(self):
        self.weight = nn.Parameter((WEIGHTS,), nn.initialisers.constant(0.5))

    def forward(self, x):
        data, weight = x.data, self.weight.data[:WIDTH]

        def of_x(gradient):
            time.sleep(PAUSE)
            return gradient * weight

        def of_weight(gradient):
            time.sleep(PAUSE)
            found = np.zeros(WEIGHTS, np.float32)
            found[:WIDTH] = (gradient * data).sum(axis=0)
            return found

        time.sleep(PAUSE)
        return record(data * weight, (x, of_x), (self.weight, of_weight))


def model():
    return nn.Sequential(*(Slow() for _ in range(8)))


def makespans(pipeline, batch, expected):
    """Yield the makespan of each step, after the first one; the link changes none of
    the bits.
    """
    for step in range(STEPS + 1):
        assert pipeline.step(*batch) == expected
        makespan = pipeline.timeline().makespan
        if step:
            yield makespan


def main(bandwidth):
    batch = (
        np.random.default_rng(0)
        .standard_normal((2, ROWS * MICROBATCHES, WIDTH))
        .astype(np.float32)
    )
    rows, latency = {}, None
    with init_process_group() as group:
        hosts = [int(rank >= group.size // 2) for rank in range(group.size)]
        expected = one_process_step(
            model().initialise(0), nn.MSELoss(), *batch, MICROBATCHES
        ).loss
        for replicas in (n for n in range(1, group.size + 1) if group.size % n == 0):
            count = MICROBATCHES // replicas
            pipeline = Pipeline(
                model(),
                group,
                loss=nn.MSELoss(),
                num_microbatches=count,
                replicas=replicas,
            )
            with catch_warnings():
                # its layers sleep
                filterwarnings("ignore", "These costs were measured on a busy machine")
                measured = pipeline.measure_costs(*batch, num_steps=2)
            # of small messages alone
            latency = measured.latency if latency is None else latency
            link = {"latency": latency, "bandwidth": bandwidth * FRAME, "hosts": hosts}
            linked, alone = (
                replace(measured, **link),
                replace(measured, latency=latency, bandwidth=float("inf")),
            )
            seen = median(makespans(pipeline, batch, expected))
            rows[replicas] = [
                seen,
                *(
                    simulate(pipeline.schedule, costs).makespan
                    for costs in (linked, alone)
                ),
            ]
        if group.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main(float(sys.argv[1]))
