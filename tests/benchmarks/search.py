"""How good the schedules are that a search finds: the zero-bubble paper's tables 5 and
9 beside ours.

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/search.py

For each of its models and numbers of microbatches, the times in ms of table 9 and the
memory of activations (per layer 34 h + 5 a s from F until I, 32 h from I until W),
within p and within 2 p microbatches of memory: the bubble rate of the longest own span,
as published for the automatic schedules ZB-1p and ZB-2p, as found here, and the least
that any schedule can have (`minipipe.schedules.analysis.bounds`). The search tries so
many schedules that all of them have ten million actions, or a tenth of that with
`--part 0.1`, and stops where it reaches the bound: the same on every machine. The last
column shows when it found something better: evaluations, and the gap to the bound. With
--exact, OR-tools go on.
"""

import argparse
import json
from typing import NamedTuple

from minipipe import Costs
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search.clock import schedule_of
from minipipe.search.exact import solve
from minipipe.search.heuristic import Search


class Row(NamedTuple):
    """A row of the tables: the model, its sizes, times in ms, and the published bubble
    rates.
    """

    model: str
    num_ranks: int
    num_microbatches: int
    forward: float
    backward_input: float
    backward_weight: float
    latency: float
    once: float
    twice: float

    def workload(self, times):
        """Return the question: memory for ``times`` p microbatches on each rank."""
        heads, width, length = SIZES[self.model]
        activation, weight_activation = 34 * width + 5 * heads * length, 32 * width
        costs = Costs(
            *(self.forward, self.backward_input, self.backward_weight, self.latency),
            activation=activation,
            weight_activation=weight_activation,
        )
        return costs.workload(
            range(self.num_ranks),
            self.num_microbatches,
            times * self.num_ranks * activation,
        )


SIZES = {  # heads, width, length
    "1.5B": (24, 2304, 1024),
    "6.2B": (32, 4096, 1024),
    "14.6B": (40, 5120, 1024),
    "28.3B": (48, 6144, 1024),
}
ROWS = [
    Row("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.1585, 0.0433),
    Row("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1242, 0.0039),
    Row("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.0674, 0.0026),
    Row("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.1323, 0.0029),
    Row("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1045, 0.0022),
    Row("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.0554, 0.0010),
    Row("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.1397, 0.0066),
    Row("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.1088, 0.0054),
    Row("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.0576, 0.0028),
    Row("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.1421, 0.0038),
    Row("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.1106, 0.0029),
    Row("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, 0.0594, 0.0018),
]


def measure(row, times, options):
    """Return the figures of one cell of the table as plain data."""
    workload = row.workload(times)
    bound, work = lower_bound(workload), workload.work(0)
    actions = 3 * workload.num_stages * workload.num_microbatches
    search = Search(workload, Objective.SPAN, bound.value, options.seed)
    best = search.run(evaluations=max(options.part * 10**7 / actions, 1))
    schedule = schedule_of(best.run.orders, workload, "found")
    value, found_by, least, proved_by = (
        best.value,
        best.found_by,
        bound.value,
        bound.name,
    )
    assert abs(evaluate(schedule, workload, Objective.SPAN) - value) < 1e-6 * value
    if options.exact and value > least * (1 + 1e-9):
        exact = solve(workload, Objective.SPAN, options.exact, schedule)
        least, proved_by = exact.bound, exact.bound_by
        value, found_by = min((value, found_by), (exact.value, exact.found_by))
    return {
        **{
            "model": row.model,
            "ranks": row.num_ranks,
            "microbatches": row.num_microbatches,
        },
        "memory": f"{times}p",
        "published": row.once if times == 1 else row.twice,
        "found": 1 - work / value,
        "least": 1 - work / least,
        "gap": max(value / least - 1, 0.0),
        "evaluations": search.progress[-1][0],
        "variables": actions,
        **{"found_by": found_by, "proved_by": proved_by},
        "progress": [
            (number, max(value / bound.value - 1, 0.0))
            for number, value in search.progress
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--part",
        type=float,
        default=1.0,
        help="of ten million actions (default: %(default)s)",
    )
    parser.add_argument(
        "--exact", type=float, metavar="SECONDS", help="then CP-SAT, for so long"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rows", type=int, default=len(ROWS), metavar="N", help="only the first N"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(
            f"{'model':6}{'p':>3}{'m':>4}{'memory':>8}{'published':>11}{'found':>9}{'least':>9}{'gap':>8}",
            end="",
        )
        print(f"{'evaluation':>11}{'variables':>11}  found by, proved by; gaps")
    for times in (1, 2):
        for row in ROWS[: options.rows]:
            cell = measure(row, times, options)
            print(json.dumps(cell) if options.json else as_line(cell), flush=True)


def as_line(cell):
    """Return a line of the table; rates and gaps in parts of one, as the paper has
    them.
    """
    progress = ", ".join(f"{number} {gap:.4f}" for number, gap in cell["progress"][-4:])
    return (
        f"{cell['model']:6}{cell['ranks']:3}{cell['microbatches']:4}{cell['memory']:>8}{cell['published']:11.4f}"
        f"{cell['found']:9.4f}{cell['least']:9.4f}{cell['gap']:8.4f}{cell['evaluations']:11}{cell['variables']:11}"
        f"  {cell['found_by']}, {cell['proved_by']}; {progress}"
    )


if __name__ == "__main__":
    main()
