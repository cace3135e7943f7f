"""Prove the optima of the gallery, ``minipipe/search/optima.csv``, with CP-SAT: hours
on one core.

    python -m tests.slow.gallery --seconds 120

It goes on where it was interrupted: what is proved stays, what is not is tried again. A
row is proved from its end: first without a limit, then for 1, 2, 3, … units until that
optimum is reached.
"""

import argparse
import contextlib
import itertools
from pathlib import Path

from minipipe import Costs, schedules
from minipipe.errors import ScheduleError
from minipipe.io import write_whole
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search import gallery
from minipipe.search.clock import one_after_another
from minipipe.search.exact import solve

FILE = Path(gallery.__file__).with_name("optima.csv")
# the last in microbatches for each rank
MOST_RANKS, MOST_MICROBATCHES, MOST_LIMIT = 4, 16, 2


def as_text(optima):
    """Return the text that ``gallery_from`` reads."""
    return "".join(_line(exhibit, best) for exhibit, best in optima.items())


def _line(exhibit, optima):
    ranks = 1 + max(exhibit.placement)
    name = next(
        name
        for name, placement in gallery.PLACEMENTS.items()
        if placement(ranks) == exhibit.placement
    )
    times, best = (
        ":".join(map(str, exhibit.times)),
        ["?" if value is None else f"{value:g}" for value in optima],
    )
    return f"{name},{ranks},{times},{exhibit.objective},{exhibit.num_microbatches},{' '.join(best)}\n"


def exhibits():
    """Yield what the gallery shows, the easy ones first."""
    for microbatches, ranks in itertools.product(
        range(1, MOST_MICROBATCHES + 1), range(1, MOST_RANKS + 1)
    ):
        for placement, times, objective in itertools.product(
            gallery.PLACEMENTS.values(), gallery.TIMES, Objective
        ):
            yield gallery.Exhibit(placement(ranks), times, objective, microbatches)


def named(workload, objective):
    """Return the named schedules that answer a workload, and the simplest one."""
    found = [one_after_another(workload)]
    for name in schedules.REGISTRY:
        with contextlib.suppress(ScheduleError):
            schedule = schedules.build(
                name, workload.num_ranks, workload.num_microbatches
            )
            schedule = schedules.split_backward(schedule)
            evaluate(schedule, workload, objective)
            found.append(schedule)
    return found


def prove(exhibit, limit, seconds, hints):
    """Return the certificate of one optimum; hints are schedules within the limit."""
    workload = Costs(*exhibit.times).workload(
        exhibit.placement, exhibit.num_microbatches, limit
    )
    candidates = [*named(workload, exhibit.objective), *hints]
    best = min(
        candidates, key=lambda schedule: evaluate(schedule, workload, exhibit.objective)
    )
    return solve(workload, exhibit.objective, seconds, best)


def row(exhibit, seconds, known):
    """Return the optima for 1, 2, 3, … units, up to the one that holds for all more;
    some may be known.
    """
    unlimited = prove(exhibit, None, seconds, [])
    least = unlimited.bound if unlimited.gap == 0 else 0.0
    chunks = len(exhibit.placement) // (1 + max(exhibit.placement))
    most = (
        exhibit.num_microbatches * chunks
        if least
        else MOST_LIMIT * len(exhibit.placement)
    )
    optima, hints = [None] * (chunks - 1), []
    for limit in range(chunks, most + 1):
        if known[limit - 1 : limit] in [(), (None,)]:
            found = prove(exhibit, limit, seconds, hints)
            hints = [found.schedule]
            optima.append(
                found.value if found.gap == 0 or found.value == least else None
            )
        else:
            optima.append(known[limit - 1])
        if optima[-1] == least:
            break
    return tuple(optima) if optima[-1] == least else (*optima, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="for one optimum")
    parser.add_argument("--placement", choices=gallery.PLACEMENTS)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--objective", choices=list(Objective))
    options = parser.parse_args()
    found = gallery.gallery_from(FILE.read_text()) if FILE.exists() else {}
    for exhibit in exhibits():
        ranks = 1 + max(exhibit.placement)
        chunks = len(exhibit.placement) // ranks
        is_placed = (
            options.placement is None
            or exhibit.placement == gallery.PLACEMENTS[options.placement](ranks)
        )
        is_wanted = options.ranks in (None, ranks) and options.objective in (
            None,
            exhibit.objective,
        )
        known = found.get(exhibit, ())
        if is_placed and is_wanted and (not known or None in known[chunks - 1 :]):
            found[exhibit] = row(exhibit, options.seconds, known)
            write_whole(FILE, as_text(found))
            print(exhibit, *found[exhibit], flush=True)


if __name__ == "__main__":
    main()
