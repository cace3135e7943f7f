"""How long building, verifying, lowering and simulating take as schedules grow. Aim:
1.57 million in under 3 s.

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/schedule_scale.py [--varied]

Each size runs in a process of its own, several times in turn; the medians are printed.
``actions`` counts computations and messages. ``growth`` is the time for each of them
over that of the first row: 1 is linear.

``explain``, the time to explain idle times, is not in the total.

``--varied`` measures tables in which actions of one kind and stage differ in the values
that they take and give: recomputed, offloaded, sliced, with overlaps, with all-reduces
of replicas, with updates. The first row of each size is plain 1F1B, with which they
compare.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.data_parallel import data_parallel
from minipipe.schedules.registry import build
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.transforms import offloaded, recomputed

SIZES = [
    ("1f1b", 8, 64, None),
    ("1f1b", 64, 256, None),
    ("1f1b", 256, 1024, None),
    ("1f1b", 1024, 256, None),
    ("interleaved-1f1b", 64, 256, 4),
]
KINDS = (
    "1f1b",
    "recomputed",
    "offloaded",
    "sliced",
    "dualpipe-v",
    "replicated",
    "pipedream",
)
VARIED = [(kind, p, m, None) for p, m in ((16, 64), (64, 256)) for kind in KINDS]
# the last is not in the total
STEPS = ("build", "verify", "lower", "simulate", "explain")


def table_of(name, num_ranks, num_microbatches, chunks):
    """Return a schedule of the registry, or 1F1B that varies."""
    if name == "recomputed":
        return recomputed(build("1f1b", num_ranks, num_microbatches))
    if name == "offloaded":
        return offloaded(
            build("1f1b", num_ranks, num_microbatches), num_held=num_ranks // 2
        )
    if name == "sliced":
        return build("seq1f1b", num_ranks, num_microbatches // 4, num_slices=4)
    if name == "replicated":
        return data_parallel(
            build("1f1b", num_ranks // 2, num_microbatches // 2), num_replicas=2
        )
    return build(name, num_ranks, num_microbatches, chunks)


def measure(*size):
    """Return the number of actions and messages, and the seconds of each step."""
    times = [time.perf_counter()]
    schedule = table_of(*size)
    times.append(time.perf_counter())
    verify(schedule)
    times.append(time.perf_counter())
    lowered = lower(schedule)
    times.append(time.perf_counter())
    timeline = simulate(schedule)
    times.append(time.perf_counter())
    assert timeline.idle
    times.append(time.perf_counter())
    return sum(map(len, lowered.actions)), [b - a for a, b in zip(times, times[1:])]


def in_its_own_process(size):
    command = [sys.executable, __file__, "--size", json.dumps(size)]
    return json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--varied",
        action="store_true",
        help="tables whose actions differ in their values",
    )
    parser.add_argument("--sizes", type=int, help="how many of them, from the smallest")
    parser.add_argument("--size", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size:
        print(json.dumps(measure(*options.size)))
        return
    sizes = (VARIED if options.varied else SIZES)[: options.sizes]
    found = [
        [in_its_own_process(size) for size in sizes] for _ in range(options.repeats)
    ]
    print(
        f"{'schedule':18}{'p':>5}{'m':>6}{'v':>3}{'actions':>10}"
        + "".join(f"{step:>10}" for step in STEPS),
        end="",
    )
    print(f"{'total s':>9}{'us each':>9}{'growth':>8}")
    smallest = None
    for i, (name, p, m, v) in enumerate(sizes):
        count = found[0][i][0]
        seconds = [
            median(run[i][1][step] for run in found) for step in range(len(STEPS))
        ]
        total = median(sum(run[i][1][:-1]) for run in found)
        each = total / count
        smallest = smallest or each
        print(
            f"{name:18}{p:5}{m:6}{v or 1:3}{count:10}"
            + "".join(f"{s:10.3f}" for s in seconds),
            end="",
        )
        print(f"{total:9.3f}{1e6 * each:9.2f}{each / smallest:8.2f}")


if __name__ == "__main__":
    main()
