"""The figures in DESIGN.md that follow from the package: ``python -m
tests.design_figures`` prints them.

``schedule_table`` is a table of the document. ``SENTENCES`` are parts of its sentences
with the computed numbers. test_design.py compares both with the document.
"""

import numpy as np

from minipipe import Costs, partition_by_cost, schedules, simulate
from minipipe.comm import persistent
from minipipe.core.comm import message, mpi
from minipipe.schedules.registry import REGISTRY
from minipipe.schedules.simulation.paper_scale import TABLES, predict, published_runs

RANKS, MICROBATCHES = 4, 8
IN_TABLE = (
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "dualpipe",
)
HEAD = """\
| schedule | stages on a rank | time | bubble | peak activations |
|---|---|---|---|---|
"""


def schedule_table():
    """Return the time, bubble and memory of some named schedules as a table in
    Markdown.
    """
    rows = {row["schedule"]: row for row in schedules.table(RANKS, MICROBATCHES)}
    lines = [
        f"| `{name}` | {row['chunks_per_rank']} | {row['makespan']:g} | "
        f"{100 * row['bubble_fraction']:.1f} % | {row['peak']:g} |"
        for name, row in ((name, rows[name]) for name in IN_TABLE)
    ]
    return HEAD + "\n".join(lines)


def makespan(name, costs=None, **options):
    """Return the simulated time of a named schedule of one stage on each rank."""
    return simulate(
        schedules.build(name, RANKS, MICROBATCHES), costs or Costs(), **options
    ).makespan


def per_step(name, wait):
    """Return the time of each of ten steps that follow each other."""
    return makespan(name, num_steps=10, wait=wait) / 10


def with_w_at_once():
    """Return the bubble of 1F1B whose backward is split, with each W right after its
    I.
    """
    rows = []
    for row in schedules.one_f_one_b(RANKS, MICROBATCHES).actions:
        cells = map(str, row)
        rows.append(
            " ".join(
                f"{c.replace('B', 'I')} {c.replace('B', 'W')}" if "B" in c else c
                for c in cells
            )
        )
    timeline = simulate(schedules.Schedule.from_text("\n".join(rows)))
    return timeline.makespan - 3 * MICROBATCHES


def microbatch_major():
    """Return the time, in F of one chunk, if each microbatch passes all chunks of a
    rank before the next one.
    """
    rows = []
    for r in range(RANKS):
        forwards = [
            f"{chunk * RANKS + r}F{k}" for k in range(MICROBATCHES) for chunk in (0, 1)
        ]
        backwards = [
            f"{chunk * RANKS + r}B{k}" for k in range(MICROBATCHES) for chunk in (1, 0)
        ]
        rows.append(" ".join(forwards + backwards))
    return simulate(schedules.Schedule.from_text("\n".join(rows)), EQUAL).makespan


EQUAL = Costs(forward=1, backward_input=1, backward_weight=0)


def greedy_partition(costs, num_stages):
    """Return the largest stage if each is closed as soon as it has the mean of all."""
    stages, share = [[]], sum(costs) / num_stages
    for cost in costs:
        if sum(stages[-1]) >= share and len(stages) < num_stages:
            stages.append([])
        stages[-1].append(cost)
    return max(map(sum, stages))


def best_partition(costs, num_stages):
    """Return the largest stage of the best partition."""
    return max(
        sum(costs[i] for i in stage) for stage in partition_by_cost(costs, num_stages)
    )


def reordered():
    """Return the part of float32 sums, in %, that the reverse order of microbatches
    changes.
    """
    terms = (
        np.random.default_rng(0)
        .standard_normal((MICROBATCHES, 100_000))
        .astype(np.float32)
    )
    ascending, descending = terms[0].copy(), terms[-1].copy()
    for term, other in zip(terms[1:], terms[-2::-1]):
        ascending += term
        descending += other
    return 100 * np.mean(ascending != descending)


def num_actions(num_ranks, num_microbatches):
    """Return how many actions a lowered 1F1B has: an F and a B for each stage, two
    messages at each boundary.
    """
    return 2 * num_ranks * num_microbatches + 4 * (num_ranks - 1) * num_microbatches


def sentence_about_papers():
    """Return the part of a sentence about the errors of all predicted published times;
    this takes seconds.
    """
    runs = [run for table in TABLES for run in published_runs(table)]
    errors = [100 * abs(predict(run) / run.seconds() - 1) for run in runs]
    return (
        f"of {len(errors)} published times is {np.mean(errors):.1f} %, the largest "
        f"{max(errors):.1f} %"
    )


def versions(name):
    """Return how many versions of the weights each stage needs at once, over a long
    run.
    """
    schedule = schedules.build(name, RANKS, 4 * MICROBATCHES)
    return max(max(stage) for stage in schedules.staleness(schedule)) + 1


def sentences():
    """Return parts of sentences of DESIGN.md, with the numbers as the package computes
    them.
    """
    late = Costs(forward=2, backward_input=2, backward_weight=2, latency=1)
    replicas = schedules.data_parallel(schedules.one_f_one_b(RANKS, MICROBATCHES), 2)
    recomputed = schedules.recomputed(schedules.one_f_one_b(RANKS, MICROBATCHES))
    slices = [
        simulate(schedules.seq1f1b(RANKS, MICROBATCHES, num_slices=k)).makespan - 24
        for k in (1, 2, 4)
    ]
    return [
        f"{len(REGISTRY)} named schedules",
        f"{reordered():.0f} % of the results",
        f"header of {message.HEADER_SIZE} bytes",
        f"up to {persistent.LONGEST >> 10} KiB",
        f"yields the core up to {max(mpi._YIELDS)} times",
        "sleeps {:.0f} to {:.0f} µs".format(*(1e6 * pause for pause in mpi._SLEEPS)),
        (
            f"a step of ZB-H2 takes {per_step('zb-h2', True):g} units, or "
            f"{per_step('zb-h2', False):g}"
        ),
        f"1F1B takes {per_step('1f1b', True):g} units either way",
        (
            f"from {makespan('1f1b'):g} to "
            f"{simulate(replicas, Costs(gradient_size=6, bandwidth=1)).makespan:g} "
            "units"
        ),
        (
            f"{simulate(recomputed).makespan:g} units instead of "
            f"{makespan('1f1b', Costs(backward_input=2)):g}"
        ),
        "bubble of {:g}, {:g} and {:g} units for 1, 2 and 4 slices".format(*slices),
        (
            f"PipeDream needs {versions('pipedream')} versions on four ranks, 2BW "
            f"{versions('2bw')}"
        ),
        f"{num_actions(256, 1024):,} actions with its messages",
        (
            f"{makespan('1f1b', late):g} units for 1F1B, {makespan('gpipe', late):g} "
            "for GPipe"
        ),
        (
            f"keeps {with_w_at_once():g} units of bubble; ZB-H1 has "
            f"{makespan('zb-h1') - 24:g}"
        ),
        f"takes {microbatch_major():g} units of one chunk, "
        "not "
        f"{simulate(schedules.interleaved_1f1b(RANKS, MICROBATCHES, 2), EQUAL).makespan:g}",
        (
            f"{greedy_partition([99, 100, 1], 2)} instead of "
            f"{best_partition([99, 100, 1], 2)}"
        ),
    ]


if __name__ == "__main__":
    print(schedule_table(), *sentences(), sentence_about_papers(), sep="\n")
