"""How far the sums of gradients over replicas are hidden behind what their ranks
compute, predicted and measured.

    python tests/benchmarks/sums.py

Layers that sleep, for one unit of F, I and W on a rank, and messages of gradients that
are late by what a slow link would take: both leave the cores free, so that nothing but
waiting is measured. Each rank has a link of its own, which its sums share. Thread
ranks, two replicas of four ranks; ``chimera`` and ``dualpipe`` have two of their own.
Shown are the units of a step without its sums, with its sums as measured, as
``simulate`` predicts it, and how far the measurement is from that; and what it would be
if all ranks summed at the end of the step.
"""

import argparse
import sys
import time
from statistics import median

import numpy as np
from overlap import Sleep

from minipipe import Costs, Pipeline, nn, schedules, simulate, spawn

SCHEDULES = [
    "gpipe",
    "1f1b",
    "zb-h1",
    "interleaved-1f1b",
    "zb-v",
    "chimera",
    "dualpipe",
]
OWN = {"chimera", "dualpipe", "bitpipe"}  # schedules with replicas


class SlowLink:
    """Lets the messages of sums arrive late, at a group of thread ranks; those of a
    sender one after another.

    Parameters
    ----------
    group : ThreadGroup
    first_tag : int
        Of the sums.
    bandwidth : float
        Bytes per second.
    due : dict
        That of all ranks: by source, destination and tag, when the last message
        arrives.
    """

    def __init__(self, group, first_tag, bandwidth, due):
        self._group, self._first_tag, self._bandwidth, self._due = (
            group,
            first_tag,
            bandwidth,
            due,
        )
        self._post_send, self._take, self._has_arrived, self._free = (
            group._post_send,
            group._take,
            group.has_arrived,
            0.0,
        )
        group._post_send, group._take, group.has_arrived = (
            self.post_send,
            self.take,
            self.has_arrived,
        )

    def post_send(self, header, array, destination, tag):
        # packed: parts of gradients
        if tag >= self._first_tag and array.dtype == np.uint8:
            self._free = (
                max(self._free, time.perf_counter()) + array.nbytes / self._bandwidth
            )
            self._due[self._group.rank, destination, tag] = self._free
        return self._post_send(header, array, destination, tag)

    def take(self, expected, timeout):
        array = self._take(expected, timeout)
        time.sleep(
            max(
                0.0,
                self._due.get((expected.source, self._group.rank, expected.tag), 0.0)
                - time.perf_counter(),
            )
        )
        return array

    def has_arrived(self, source, tag):
        is_due = (
            self._due.get((source, self._group.rank, tag), 0.0) <= time.perf_counter()
        )
        return is_due and self._has_arrived(source, tag)


def measure(group, name, options, due):
    """Return the seconds of the steps, and the schedule."""
    replicas = 1 if name in OWN else 2
    one = schedules.build(name, options.ranks, options.microbatches)
    chunks = (
        max(len(one.stages_of(rank)) for rank in range(one.num_ranks))
        if name not in OWN
        else 1
    )
    model = nn.Sequential(
        *(
            Sleep(options.unit / chunks, options.weights // chunks)
            for _ in range(one.num_stages)
        )
    )
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), schedule=one, replicas=replicas
    )
    SlowLink(
        group,
        2 * one.num_stages * pipeline.schedule.num_microbatches,
        options.bandwidth,
        due,
    )
    x, found = np.ones((pipeline.schedule.num_microbatches, 1), np.float32), []
    for _ in range(1 + options.steps):
        group.barrier()
        pipeline.step(x, x)
        found.append(pipeline.timeline().makespan)
    return found[1:], pipeline.schedule, chunks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--unit", type=float, default=0.02, help="seconds of F, I and W on a rank"
    )
    parser.add_argument(
        "--sum", type=float, default=6.0, help="units of the sum of a rank"
    )
    parser.add_argument("--ranks", type=int, default=4, help="of a replica")
    parser.add_argument("--microbatches", type=int, default=8, help="of a replica")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--schedule", action="append")
    options = parser.parse_args()
    options.weights = 1 << 14
    options.bandwidth = 4 * options.weights / (options.sum * options.unit)
    print(
        f"{'':18}{'alone':>8}{'measured':>10}{'predicted':>11}{'off':>8}{'at the end':>12}"
    )
    for name in options.schedule or SCHEDULES:
        num_ranks = options.ranks * (1 if name in OWN else 2)
        times, schedule, chunks = spawn(
            lambda group, n=name, due={}: measure(group, n, options, due), num_ranks
        )[0]
        share = 1 / chunks
        costs = Costs(
            forward=share,
            backward_input=share,
            backward_weight=share,
            bandwidth=1 / options.sum,
        )
        whole = simulate(
            schedule,
            Costs(
                **{**vars(costs), "gradient_size": share, "hosts": [*range(num_ranks)]}
            ),
        ).makespan
        alone, seen = (
            simulate(schedule.without_sums(), costs).makespan,
            median(times) / options.unit,
        )
        at_the_end = alone + share * options.sum * len(schedule.stages_of(0))
        cells = f"{alone:8.2f}{seen:10.2f}{whole:11.2f}{100 * (seen / whole - 1):7.1f}%{at_the_end:12.2f}"
        print(f"{name:18}{cells}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
