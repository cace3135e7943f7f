"""The fault bench: ``python -m tests.faults [--full] [--only PATTERN] [--repeats N]``.

Injects each fault into jobs of real processes and prints the project's table of faults
with measured figures. Without ``--full`` it takes each fault at one place on one rank;
with it, at every place and on every rank, and at every place also in a program without
a with-block. Exits with 1 if anything falls short.

T is the time from the fault until no process of the job is left, in seconds: the median
and the longest of the runs, and what is promised. "named" counts the runs whose last
line names the culprit, and none that blames another rank. "lines" is the most that was
printed, of which in brackets ours; "left" the most processes that had to be killed.
"""

import argparse
import os
import re
import sys
from collections import Counter, defaultdict
from statistics import median

from tests.faults.bench import is_named, run, shortfalls
from tests.faults.table import FAULTS, Case, cases

HEAD = (
    "row",
    "fault",
    "place",
    "runs",
    "T",
    "longest",
    "limit",
    "named",
    "lines",
    "left",
    "code",
    "falls short",
)
FORM = "{:>3}  {:<38} {:<17} {:>4} {:>6} {:>7} {:>6}  {:>6}  {:>8}  {:>4}  {:<8} {}"


MOST_SHOWN = 4  # runs of a line whose shortfalls are told


def judged(case):
    """Run a case; return it with its outcome and what falls short."""
    outcome = run(case)
    return case, outcome, shortfalls(case, outcome)


def selected(full):
    """Return all cases, or one for each fault."""
    if full:
        return [case for fault in FAULTS for case in cases(fault)]
    return [
        Case(
            fault,
            fault.places[len(fault.places) // 2],
            fault.ranks[len(fault.ranks) // 2],
        )
        for fault in FAULTS
    ]


def name(fault):
    return " ".join(
        (
            fault.name.replace("_", " "),
            *(f"{k.removeprefix('FAULT_')}={v}" for k, v in fault.variables),
        )
    )


def line(fault, place, results):
    """Return one line of the table, from (case, outcome, what falls short) of every run
    at one place.
    """
    outcomes = [outcome for _, outcome, _ in results]
    seconds = [
        outcome.seconds for outcome in outcomes if outcome.seconds is not None
    ] or [float("nan")]
    named = [
        is_named(case, outcome)
        for case, outcome, _ in results
        if is_named(case, outcome) is not None
    ]
    codes = Counter(
        "hangs" if outcome.code is None else str(outcome.code) for outcome in outcomes
    )
    short = sum(1 for *_, found in results if found)
    return FORM.format(
        fault.row,
        name(fault),
        place,
        len(results),
        f"{median(seconds):.2f}",
        f"{max(seconds):.2f}",
        f"{fault.limit:.1f}",
        f"{sum(named)}/{len(named)}" if named else "-",
        f"{max(o.num_lines for o in outcomes)} ({max(len(o.ours) for o in outcomes)})",
        max(outcome.left for outcome in outcomes),
        ",".join(sorted(codes)),
        f"{short} of {len(results)}" if short else "",
    ).rstrip()


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--full", action="store_true", help="every place and every rank"
    )
    parser.add_argument(
        "--only",
        default="",
        help="a regular expression: 'row 4 ', 'stops steady rank 2'",
    )
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    by_line = defaultdict(list)
    for case in selected(options.full):
        if re.search(options.only, f"row {case.fault.row} {case}"):
            by_line[case.fault, case.place].append(case)
    print(
        f"Load average when it began: {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores\n"
    )
    print(FORM.format(*HEAD))
    num_short = 0
    for (fault, place), chosen in by_line.items():
        results = [judged(case) for case in chosen * options.repeats]
        print(line(fault, place, results))
        short = [(case, found) for case, _, found in results if found]
        for case, found in short[:MOST_SHOWN]:
            print("".join(f"       {case}: {reason}\n" for reason in found), end="")
        sys.stdout.flush()
        num_short += len(short)
    print(
        f"\n{num_short} runs fall short. Load average when it ended: "
        f"{os.getloadavg()[0]:.1f}"
    )
    sys.exit(num_short > 0)


if __name__ == "__main__":
    main()
