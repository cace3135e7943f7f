"""The claim of a certificate: this schedule takes so long, and none takes less than that.

Whoever claims it, the check begins anew: the verifier, the simulator and the formulas of
``schedules/analysis/bounds.py``. It knows nothing of the searches; the rooms of the house keep them apart. A bound that
no formula proves here, whoever is said to have proved it, stays a claim.
"""

from __future__ import annotations

from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.analysis.bounds import Bound, Formula, lower_bounds
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.simulation.evaluation import evaluate


class Claim(NamedTuple):
    """What is claimed of a schedule.

    Attributes
    ----------
    objective : Objective
    value : float
        What the schedule takes.
    bound : float
        What every schedule takes at least.
    bound_by : str
        A :class:`~minipipe.schedules.analysis.bounds.Formula`, which must prove just this; or anything else, in which
        case it is only somebody's claim.
    """

    objective: Objective
    value: float
    bound: float
    bound_by: str


class Finding(NamedTuple):
    """What a check has found, where nothing is wrong: facts, computed here.

    Attributes
    ----------
    value : float
        What the schedule takes, simulated.
    formula : Bound
        The largest bound that a formula proves.
    is_proved : bool
        Whether a formula proves the bound of the claim, or more.
    """

    value: float
    formula: Bound
    is_proved: bool


def check_claim(schedule: Schedule, workload: Workload, claim: Claim) -> Finding:
    """Check a claim about a schedule: legal, within memory, its value simulated, its bound computed.

    Raises
    ------
    ScheduleError
        Code ``certificate``, where a number is not what it should be; the codes of
        :func:`~minipipe.schedules.simulation.evaluation.evaluate`, where the schedule is no answer to the workload.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> workload = Costs().workload((0, 1, 2, 3), num_microbatches=8, memory_limit=4)
    >>> found = check_claim(schedules.zb_h1(4, 8), workload, Claim(Objective.SPAN, 27.0, 27.0, "warm-up"))
    >>> found.is_proved, found.formula.value
    (True, 27.0)
    """
    value = evaluate(schedule, workload, claim.objective)
    if not _is_same(value, claim.value):
        raise _refusal(
            f"says that the {claim.objective} of its schedule is {claim.value:.12g}; simulated it is {value:.12g}"
        )
    if claim.bound > claim.value * (1 + ROUNDING):
        raise _refusal(f"says that no schedule is below {claim.bound:.12g}; its own is, with {claim.value:.12g}")
    formulas = lower_bounds(workload, claim.objective)
    if claim.bound_by in list(Formula):
        proved = [min(bound.value, value) for bound in formulas if bound.name == claim.bound_by]
        if not any(_is_same(bound, claim.bound) for bound in proved):
            is_given = f"which is {proved[0]:.12g}" if proved else "which says nothing about this workload"
            raise _refusal(f"names {claim.bound:.12g} as the bound {quoted(str(claim.bound_by))}, {is_given}")
    return Finding(value, formulas[0], claim.bound <= formulas[0].value * (1 + ROUNDING))


def _is_same(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(abs(a), abs(b))


def _refusal(what: str) -> ScheduleError:
    return ScheduleError.of(ScheduleCode.CERTIFICATE, f"The certificate {what}.")
