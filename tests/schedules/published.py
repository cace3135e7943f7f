"""What papers say of their schedules, in numbers, beside a function that has ours: for
tests, and for the site.
"""

from collections.abc import Callable
from typing import NamedTuple

from minipipe import Costs, schedules, simulate
from minipipe.core.flow import flow_of
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.copies import copies_held
from minipipe.schedules.analysis.workload import Objective

UNITS = Costs(1, 0.5, 0.5)  # a whole backward takes as long as a forward


class Figures(NamedTuple):
    """One table of a paper, or one of its formulas over some sizes.

    Attributes
    ----------
    paper : str
        The name of the page.
    names : tuple of str
        Schedules, the first of which names the paper in its docstring.
    claim : str
        What the paper says, and where.
    given, columns : tuple of str
        The heads of the sizes, and of the figures.
    rows : tuple of (sizes, figures)
    ours : function
        Takes the sizes, returns the figures.
    holds : str
        How ours compare: ``"equal"``, or ``"at most"``.
    """

    paper: str
    names: tuple[str, ...]
    claim: str
    given: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple, tuple], ...]
    ours: Callable[..., tuple]
    holds: str = "equal"

    def hold(self, sizes, published):
        """Return whether our figures are those of the paper, to half of its last digit,
        or no larger.
        """
        pairs = zip(self.ours(*sizes), published, strict=True)
        if self.holds == "at most":
            return all(mine <= theirs + 0.00006 for mine, theirs in pairs)
        return all(abs(mine - theirs) <= 0.00006 for mine, theirs in pairs)


# Qi et al. 2023, tables 5 and 9: p, m, the times in ms, (heads, width, length), the
# bubble rates of ZB-1p and ZB-2p; and the rate of the bound for twice the memory.
TABLE_5 = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), (24, 2304, 1024), 0.1585, 0.0433, 0.0433),
    (8, 32, (18.513, 18.086, 9.331, 0.626), (24, 2304, 1024), 0.1242, 0.0039, 0),
    (8, 64, (18.546, 18.097, 9.321, 0.762), (24, 2304, 1024), 0.0674, 0.0026, 0),
    (8, 24, (29.718, 29.444, 19.927, 0.527), (32, 4096, 1024), 0.1323, 0.0029, 0),
    (8, 32, (29.802, 29.428, 19.530, 0.577), (32, 4096, 1024), 0.1045, 0.0022, 0),
    (8, 64, (29.935, 29.621, 19.388, 0.535), (32, 4096, 1024), 0.0554, 0.0010, 0),
    (16, 48, (11.347, 11.248, 8.132, 0.377), (40, 5120, 1024), 0.1397, 0.0066, 0),
    (16, 64, (11.307, 11.254, 8.101, 0.379), (40, 5120, 1024), 0.1088, 0.0054, 0),
    (16, 128, (11.325, 11.308, 8.109, 0.378), (40, 5120, 1024), 0.0576, 0.0028, 0),
    (32, 96, (10.419, 10.207, 7.715, 0.408), (48, 6144, 1024), 0.1421, 0.0038, 0.0030),
    (32, 128, (10.408, 10.204, 7.703, 0.408), (48, 6144, 1024), 0.1106, 0.0029, 0.0024),
    (32, 256, (10.402, 10.248, 7.698, 0.460), (48, 6144, 1024), 0.0594, 0.0018, 0.0018),
]


def least_rates(p, m, times, sizes):
    """Return the least bubble rate within a rank's own span for the memory of p
    microbatches, and of 2p.
    """
    heads, width, length = sizes
    held = 34 * width + 5 * heads * length
    costs = Costs(*times, activation=held, weight_activation=32 * width)
    bounds = (
        lower_bound(costs.workload(range(p), m, times_p * p * held), Objective.SPAN)
        for times_p in (1, 2)
    )
    return tuple(1 - m * sum(times[:3]) / bound.value for bound in bounds)


def most_held(schedule, what):
    """Return for each rank the largest number of versions, or of sums of gradients,
    that it holds at once.
    """
    rows = (copies_held(flow_of(schedule), rank) for rank in range(schedule.num_ranks))
    return [max(getattr(during, what) for during, _ in row) for row in rows]


def versions_and_staleness(schedule):
    """Return the versions of weights that the first and the last rank hold, and the
    largest staleness of each.
    """
    held, stale = most_held(schedule, "versions"), schedules.staleness(schedule)
    return held[0], held[-1], max(stale[0]), max(stale[-1])


def time_and_idle(schedule):
    """Return the makespan, and the most idle time of a rank, where F and B take a unit
    each.
    """
    timeline = simulate(schedule, UNITS)
    return timeline.makespan, max(
        sum(slot.end - slot.start for slot in row) for row in timeline.idle
    )


def of_chimera(p, m):
    """Return time and idle units of a rank, and the fewest and most microbatches that a
    rank holds at its peak.
    """
    peaks = schedules.peak_activations(schedules.chimera(p, m))
    return *time_and_idle(schedules.chimera(p, m)), min(peaks), max(peaks)


def copies_of_the_model(schedule):
    """Return on how many ranks a stage is, the mean over all stages."""
    homes = [len(schedule.ranks_of(stage)) for stage in range(schedule.num_stages)]
    return sum(homes) / len(homes)


def of_dualpipe(p, m, times, pair):
    """Return the bubble of the ranks in the middle, and the microbatches held."""
    shorter = min(times[0], times[1] + times[2])
    timeline = simulate(
        schedules.dualpipe(p, m, joined=True),
        Costs(*times, overlap=(sum(times) - pair) / shorter),
    )
    return timeline.makespan - timeline.busy(p // 2), max(timeline.peak_activations)


def of_seq1f1b(p, m, k):
    """Return the bubble, and the sequences that rank 0 holds."""
    timeline = simulate(schedules.seq1f1b(p, m, k))
    return timeline.makespan - 3 * m, timeline.peak_memory[0]


def of_a_v(name, p, m):
    """Return the microbatches that a rank holds, and the units beyond those of a step
    without a bubble.
    """
    schedule = schedules.build(name, p, m)
    return max(schedules.peak_activations(schedule)) / 2, simulate(
        schedule
    ).makespan - 6 * m


_HELD = (
    "versions, first rank",
    "versions, last rank",
    "staleness, first rank",
    "staleness, last rank",
)
PUBLISHED = [
    Figures(
        "pipedream",
        ("pipedream",),
        "Stage s of p keeps p - s versions of its weights, and its gradients are "
        "p - 1 - s updates old (section 3.3).",
        ("ranks",),
        _HELD,
        tuple(((p,), (p, 1, p - 1, 0)) for p in (2, 4, 8)),
        lambda p: versions_and_staleness(schedules.pipedream(p, 3 * p)),
    ),
    Figures(
        "pipedream",
        ("vertical-sync",),
        "With vertical sync, all stages use the version of the first one: "
        "staleness p - 1 everywhere (section 3.3).",
        ("ranks",),
        ("staleness, first rank", "staleness, last rank"),
        tuple(((p,), (p - 1, p - 1)) for p in (2, 4, 8)),
        lambda p: versions_and_staleness(schedules.vertical_sync(p, 3 * p))[2:],
    ),
    Figures(
        "2bw",
        ("2bw",),
        "Two versions of the weights are enough, and the staleness is one update "
        "on every stage (section 3.1).",
        ("ranks", "microbatches of an update"),
        ("versions, first rank", "staleness, first rank", "staleness, last rank"),
        tuple(((p, m), (2, 1, 1)) for p, m in ((4, 4), (4, 8), (8, 8), (3, 5))),
        lambda p, m: (lambda first, last, *stale: (max(first, last), *stale))(
            *versions_and_staleness(schedules.two_buffered(p, 5 * m, m))
        ),
    ),
    Figures(
        "paci",
        ("paci",),
        "Between forward and backward, weights drift by at most (p - 1) / a "
        "updates, rounded up, with one every a "
        "microbatches.",
        ("ranks", "microbatches of an update"),
        ("largest drift",),
        tuple(((p, a), (-(-(p - 1) // a),)) for p in (4, 8) for a in (1, 2, 4, 8)),
        lambda p, a: (max(map(max, schedules.drift(schedules.paci(p, 5 * p, a)))),),
    ),
    Figures(
        "chimera",
        ("chimera",),
        "Where F and B take as long, a rank is idle for p - 2 units and holds "
        "p/2 + 1 to p microbatches (table 2).",
        ("ranks", "microbatches"),
        ("time", "idle", "least peak", "largest peak"),
        tuple(
            ((p, m), (2 * m + p - 2, p - 2, p // 2 + 1, p))
            for p, m in ((4, 4), (4, 8), (8, 8), (8, 16))
        ),
        of_chimera,
    ),
    Figures(
        "bitpipe",
        ("bitpipe", "chimera"),
        "Where B takes twice as long as F and m = p, BitPipe is idle for (p - "
        "2)/(3m + p - 2) of the time, Chimera for "
        "(p - 2)/(3/2 m + p - 2).",
        ("ranks",),
        ("bubble of BitPipe", "bubble of Chimera"),
        tuple(
            ((p,), ((p - 2) / (4 * p - 2), (p - 2) / (2.5 * p - 2))) for p in (4, 6, 8)
        ),
        lambda p: (
            simulate(schedules.bitpipe(p, p), Costs().cut(2)).bubble_fraction,
            simulate(schedules.chimera(p, p)).bubble_fraction,
        ),
    ),
    Figures(
        "hanayo",
        ("hanayo", "chimera"),
        "Waves need no duplicates of the model, unlike Chimera (abstract). Not "
        "compared: the paper's lists of "
        "actions and its formula of the bubble, which were not at hand; and its "
        "throughput, up to 30.4 % above the "
        "best of others on up to 32 GPUs.",
        ("ranks", "microbatches"),
        ("copies of the model in waves", "in Chimera"),
        tuple(((p, m), (1, 2)) for p, m in ((4, 4), (4, 8), (8, 8))),
        lambda p, m: (
            copies_of_the_model(schedules.hanayo(p, m)),
            copies_of_the_model(schedules.chimera(p, m)),
        ),
    ),
    Figures(
        "hanayo",
        ("hanayo", "chimera"),
        "One wave is Chimera on twice as many ranks, with halves of its two "
        "pipelines swapped (section 3). So p "
        "ranks take, and are idle for, what Chimera's paper says of 2p ranks and "
        "2m microbatches (its table 2), "
        "where F and B take a unit each.",
        ("ranks", "microbatches"),
        ("time", "idle"),
        tuple(
            ((p, m), (4 * m + 2 * p - 2, 2 * p - 2))
            for p, m in ((2, 2), (4, 4), (4, 8), (8, 16))
        ),
        lambda p, m: time_and_idle(schedules.hanayo(p, m)),
    ),
    Figures(
        "dualpipe",
        ("dualpipe",),
        "The bubble is (p/2 - 1)(F&B + B - 3W), and a rank holds p + 1 "
        "microbatches (README of deepseek-ai/DualPipe).",
        ("ranks", "microbatches", "F, I, W", "F&B"),
        ("bubble", "held"),
        tuple(
            (
                (p, 20, times, pair),
                ((p // 2 - 1) * (pair + times[1] - 2 * times[2]), p + 1),
            )
            for p in (2, 4, 8)
            for times, pair in (((1, 1, 1), 3), ((1, 1, 1), 2), ((2, 2, 1), 4))
        ),
        of_dualpipe,
    ),
    Figures(
        "seq1f1b",
        ("seq1f1b",),
        "Of k slices, the bubble is (p - 1)(tF + tB) / k, and rank 0 holds (p + "
        "k - 1) / k sequences.",
        ("ranks", "sequences", "slices"),
        ("bubble", "held"),
        (((4, 8, 1), (9, 4)), ((4, 8, 2), (4.5, 2.5)), ((4, 8, 4), (2.25, 1.75))),
        of_seq1f1b,
    ),
    Figures(
        "zero-bubble",
        ("zb-h1", "zb-h2"),
        "The bubble rates of the automatic schedules ZB-1p and ZB-2p (tables 5 "
        "and 9). Ours are bounds: the least that "
        "any schedule with that memory can have. ZB-1p reaches them, so that it "
        "cannot be improved.",
        ("ranks", "microbatches", "tF, tI, tW, latency in ms", "heads, width, length"),
        ("ZB-1p", "ZB-2p"),
        tuple((row[:4], row[4:6]) for row in TABLE_5),
        least_rates,
        "at most",
    ),
    Figures(
        "controllable-memory",
        ("v-min",),
        "The published generator of V-Min: (p + 4)/3 microbatches held, rounded "
        "down, and these units more than a step "
        "without a bubble.",
        ("schedule", "ranks", "microbatches"),
        ("held", "units more"),
        tuple(
            (("v-min", p, 24), ((p + 4) // 3, more))
            for p, more in zip(range(2, 9), (3, 5, 11, 15, 17, 23, 27))
        ),
        of_a_v,
        "at most",
    ),
]
