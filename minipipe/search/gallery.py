"""The gallery: optima of small pipelines, proved once and shipped with the package.

``optima.csv`` has a line for each placement, number of ranks, times of F, I and W,
objective and number of microbatches. It lists the optima for 1, 2, 3, … units of memory
on each rank, a unit being the activations of one microbatch on one stage; the last
optimum also holds for all larger limits. ``?`` means that no proof is known, or that 1
unit is too small for the two stages of a rank of a V. Messages take no time, and stages
are alike. ``python -m tests.slow.gallery`` made it, with
:func:`minipipe.search.exact.solve`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import floor, isinf
from typing import NamedTuple

from minipipe.core.schedules.placement import looped_placement
from minipipe.errors import FileError
from minipipe.schedules.analysis.bounds import Bound, lower_bound
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.placements import v_placement


class Exhibit(NamedTuple):
    """The problem of a line of the gallery.

    Attributes
    ----------
    placement : tuple of int
    times : tuple of int
        The times of F, I and W of a stage.
    objective : Objective
    num_microbatches : int
    """

    placement: tuple[int, ...]
    times: tuple[int, int, int]
    objective: Objective
    num_microbatches: int


GALLERY = "gallery"
TIMES = ((1, 1, 1), (2, 2, 1), (1, 1, 2))
PLACEMENTS = {"straight": looped_placement, "v": v_placement}
Optima = dict[Exhibit, tuple[float | None, ...]]


def proved_optimum(workload: Workload, objective: Objective) -> float | None:
    """Return the optimum of a workload, in the unit of its times, or None.

    The gallery has straight and V placements of up to 4 ranks and 16 microbatches, with
    equal stages, F:I:W of 1:1:1, 2:2:1 or 1:1:2 in any unit, neither messages nor
    overhead, and the same limit on every rank. A ``FileError`` with code ``damaged``
    says that its file is not the one that was shipped.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs().workload((0, 1, 2, 3), num_microbatches=8, memory_limit=3)
    >>> proved_optimum(workload, Objective.MAKESPAN)
    31.0
    >>> half = Costs(0.5, 0.5, 0.5)
    >>> proved_optimum(half.workload((0, 1, 2, 3), num_microbatches=8), Objective.SPAN)
    12.0
    """
    times_of = workload.forward, workload.backward_input, workload.backward_weight
    stages = set(zip(*times_of))
    units = _units(workload)
    if len(stages) > 1 or not units or any(workload.message) or workload.overhead:
        return None
    (stage,) = stages
    for times in TIMES:
        unit = sum(stage) / sum(times)
        errors = [abs(has - unit * time) for has, time in zip(stage, times)]
        if unit and max(errors) <= ROUNDING * unit:
            m = workload.num_microbatches
            exhibit = Exhibit(workload.placement, times, objective, m)
            optima = _gallery().get(exhibit, (None,))
            best = optima[min(units, len(optima)) - 1]
            if best is not None:
                return best * unit
    return None


def known_bound(workload: Workload, objective: Objective) -> Bound:
    """Return the largest known lower bound: from a formula, or from the gallery.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs().workload((0, 1, 2, 3), num_microbatches=8, memory_limit=3)
    >>> known_bound(workload, Objective.MAKESPAN)[:2]
    (31.0, 'gallery')
    """
    formula = lower_bound(workload, objective)
    best = proved_optimum(workload, objective)
    if best is None or best <= formula.value:
        return formula
    why = (
        "Recorded in the gallery, where exact search proved it; not proved again here."
    )
    return Bound(best, GALLERY, why)


def gallery_from(text: str) -> Optima:
    """Return the lines of a gallery.

    Examples
    --------
    >>> gallery_from("v,2,1:1:1,makespan,4,28 25 ? 24")
    {Exhibit(placement=(0, 1, 1, 0), times=(1, 1, 1), ...): (28.0, 25.0, None, 24.0)}
    """
    try:
        return dict(map(_exhibit, text.splitlines()))
    except (ValueError, KeyError):
        message = "optima.csv of this package is damaged; install minipipe again."
        raise FileError("damaged", message) from None


def _exhibit(line: str) -> tuple[Exhibit, tuple[float | None, ...]]:
    name, ranks, times, objective, microbatches, optima = line.split(",")
    forward, inputs, weights = map(int, times.split(":"))
    placement = PLACEMENTS[name](int(ranks))
    stage = forward, inputs, weights
    exhibit = Exhibit(placement, stage, Objective(objective), int(microbatches))
    known = (None if best == "?" else float(best) for best in optima.split())
    return exhibit, tuple(known)


@cache
def _gallery() -> Optima:
    return gallery_from((files("minipipe.search") / "optima.csv").read_text())


def _units(workload: Workload) -> int | None:
    """Return how many (stage, microbatch) pairs a rank may hold; None if the limits are
    not a number of pairs.
    """
    activation, weight_activation, transient = workload.footprint
    limits = set(workload.memory_limit)
    pairs = workload.num_stages * workload.num_microbatches
    if all(map(isinf, limits)):
        return pairs
    if len({*activation, *weight_activation}) > 1 or any(transient) or len(limits) > 1:
        return None
    (limit,) = limits
    amount = activation[0]
    if not amount:
        return pairs
    return min(floor(limit / amount * (1 + ROUNDING)), pairs)
