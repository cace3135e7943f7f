"""Steps over a slow link, measured, and predicted from what is known of the link.

    mpirun -n 2 python -m tests.hosts.slow_link LATENCY BANDWIDTH

in seconds and bytes per second. Prints a line of JSON: for each schedule the makespan
measured, the one predicted with the link, and the one predicted without it, in seconds.
"""

import json
import sys
import time
from dataclasses import replace
from statistics import median
from warnings import catch_warnings, filterwarnings

import numpy as np

from minipipe import Pipeline, init_process_group, nn, schedules, simulate
from minipipe.core.tensor import record
from minipipe.testing import one_process_step

ROWS, WIDTH, MICROBATCHES = 16, 512, 8  # messages of 32 KiB
PAUSE = 0.005  # seconds
SCHEDULES = ("gpipe", "1f1b", "zb-h1")
STEPS = 5


class Slow(nn.Module):
    """Multiplies by a weight, and takes 5 ms for each of F, I and W, whatever else the
    machine does.
    """

    def __init__(self):
        self.weight = nn.Parameter((WIDTH,), nn.initialisers.constant(0.5))

    def forward(self, x):
        data, weight = x.data, self.weight.data

        def of_x(gradient):
            time.sleep(PAUSE)
            return gradient * weight

        def of_weight(gradient):
            time.sleep(PAUSE)
            return (gradient * data).sum(axis=0)

        time.sleep(PAUSE)
        return record(data * weight, (x, of_x), (self.weight, of_weight))


def model():
    return nn.Sequential(Slow(), Slow())


def pipeline_with(name, group):
    schedule = schedules.build(name, group.size, MICROBATCHES)
    return Pipeline(model(), group, loss=nn.MSELoss(), schedule=schedule)


def makespans(pipeline, batch, expected):
    """Yield the makespan of each step, after the first one; the link changes none of
    the bits.
    """
    for step in range(STEPS + 1):
        assert pipeline.step(*batch) == expected
        makespan = pipeline.timeline().makespan
        if step:
            yield makespan


def main(latency, bandwidth):
    batch = (
        np.random.default_rng(0)
        .standard_normal((2, ROWS * MICROBATCHES, WIDTH))
        .astype(np.float32)
    )
    with init_process_group() as group:
        expected = one_process_step(
            model().initialise(0), nn.MSELoss(), *batch, MICROBATCHES
        ).loss
        with catch_warnings():
            # its layers sleep
            filterwarnings("ignore", "These costs were measured on a busy machine")
            measured = pipeline_with("1f1b", group).measure_costs(
                *batch, num_steps=STEPS
            )
        alone = replace(measured, latency=0.0)
        size = ROWS * WIDTH * batch.itemsize
        linked = replace(
            measured, latency=latency, bandwidth=bandwidth, message_size=size
        )
        rows = {}
        for name in SCHEDULES:
            pipeline = pipeline_with(name, group)
            seen = median(makespans(pipeline, batch, expected))
            rows[name] = [
                seen,
                *(
                    simulate(pipeline.schedule, costs).makespan
                    for costs in (linked, alone)
                ),
            ]
        if group.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
