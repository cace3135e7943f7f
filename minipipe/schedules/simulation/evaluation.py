"""Evaluation: whether a schedule solves a workload, how good it is, and whether a claim
about it is true.

The check of a certificate's claim uses the verifier, the simulator and the formulas of
``schedules/analysis/bounds.py``, but no search. A bound that no formula proves remains
a claim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.action_table import Schedule, check_table
from minipipe.core.schedules.placement import Placement
from minipipe.errors import Code, ScheduleError, counted, quoted
from minipipe.schedules.analysis.bounds import Bound, Formula, lower_bounds
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.features import rank_of_each_stage, without_overlaps
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline


def costs_of(workload: Workload) -> Costs:
    """Return the costs of a workload, for the simulator: the inverse of
    :meth:`minipipe.Costs.workload`.

    Examples
    --------
    >>> workload = Costs(
    ...     forward=[1, 2], latency=0.5, message_size=3, bandwidth=2
    ... ).workload((0, 1), 4)
    >>> costs_of(workload).workload((0, 1), 4) == workload
    True
    """
    held: Any = workload.footprint  # sequences by stage
    return Costs(
        forward=workload.forward,
        backward_input=workload.backward_input,
        backward_weight=workload.backward_weight,
        message_size=workload.message,
        bandwidth=1.0,
        activation=held.activation,
        weight_activation=held.weight_activation,
        transient_activation=held.transient,
        overhead=workload.overhead,
    )


def value_of(timeline: Timeline, objective: Objective) -> float:
    """Return the value of an objective.

    Examples
    --------
    >>> from minipipe import schedules
    >>> timeline = simulate(schedules.zb_h2(4, 8))
    >>> value_of(timeline, Objective.MAKESPAN), value_of(timeline, Objective.SPAN)
    (27.0, 24.0)
    """
    if objective is Objective.MAKESPAN:
        return timeline.makespan
    return timeline.cost


def evaluate(schedule: Schedule, workload: Workload, objective: Objective) -> float:
    """Return the simulated time of a schedule for a workload, after checking that the
    schedule solves it.

    Raises
    ------
    ScheduleError
        The codes of :func:`minipipe.verify`; ``placement`` and ``missing`` for a
        schedule of other sizes, ``mixed-backward`` for a schedule with whole backwards,
        ``memory`` for one that takes too much memory.

    Examples
    --------
    >>> from minipipe import schedules
    >>> workload = Costs().workload((0, 1, 2, 3), num_microbatches=8, memory_limit=4)
    >>> evaluate(schedules.zb_h1(4, 8), workload, Objective.MAKESPAN)
    27.0
    """
    check_answer(schedule, workload)
    return value_of(simulate(schedule, costs_of(workload)), objective)


def check_answer(schedule: Schedule, workload: Workload) -> None:
    """Refuse a schedule that does not do the work of a workload, or exceeds its memory.

    The codes are ``placement``, ``missing``, ``overlap``, ``mixed-backward``,
    ``memory``, ``replicas`` and ``updates``, and the codes of :func:`minipipe.verify`.

    Examples
    --------
    >>> from minipipe import schedules
    >>> check_answer(
    ...     schedules.zb_h2(4, 6), Costs().workload((0, 1, 2, 3), num_microbatches=8)
    ... )
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [missing] zb-h2 has 6 microbatches; the workload has 8.
    """
    check_table(schedule, Schedule)
    rank_of_each_stage(schedule, "a search")
    expected = (workload.placement, workload.num_ranks)
    if (schedule.placement, schedule.num_ranks) != expected:
        places = f"{schedule.title} places its stages on ranks"
        message = f"{places} {_shown(schedule.placement)}; the workload has them on"
        message += f" {_shown(workload.placement)}."
        raise ScheduleError.of(Code.PLACEMENT, message)
    if schedule.num_microbatches != workload.num_microbatches:
        count = counted(schedule.num_microbatches, "microbatch")
        message = f"{schedule.title} has {count}; the workload has"
        message += f" {workload.num_microbatches}."
        raise ScheduleError.of(Code.MISSING, message)
    verify(without_overlaps(schedule, "a workload"))
    is_split = ActionKind.BACKWARD_WEIGHT in schedule.kinds
    if schedule.frozen or ActionKind.BACKWARD in schedule.kinds or not is_split:
        problem = f"{schedule.title} has backwards that are not split"
        message = f"{problem}; the workload has I and W of every stage."
        hint = "split_backward of minipipe.schedules splits them."
        raise ScheduleError.of(Code.UNEXPECTED, f"{message} {hint}")
    verify(schedule, workload.memory_limit, workload.footprint)


def _shown(placement: Placement) -> str:
    ranks = [*map(str, placement[:16])]
    if len(placement) > 16:
        ranks.append("…")
    return ", ".join(ranks)


class Claim(NamedTuple):
    """The claim about a schedule.

    Attributes
    ----------
    objective : Objective
    value : float
        The time of the schedule.
    bound : float
        The least time of any schedule.
    bound_by : str
        A :class:`~minipipe.schedules.analysis.bounds.Formula`, which must prove this
        value; any other name is an unproved claim.
    """

    objective: Objective
    value: float
    bound: float
    bound_by: str


class Finding(NamedTuple):
    """The result of a successful check, computed from the schedule and the workload.

    Attributes
    ----------
    value : float
        The time of the schedule, simulated.
    formula : Bound
        The largest bound that a formula proves.
    is_proved : bool
        Whether a formula proves the bound of the claim, or more.
    """

    value: float
    formula: Bound
    is_proved: bool


def check_claim(schedule: Schedule, workload: Workload, claim: Claim) -> Finding:
    """Check a claim about a schedule: legal, within memory, its value simulated, its
    bound computed.

    Raises
    ------
    ScheduleError
        Code ``mismatch``, if a number is wrong; the codes of
        :func:`~minipipe.schedules.simulation.evaluation.evaluate`, if the schedule does
        not solve the workload.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> workload = Costs().workload((0, 1, 2, 3), num_microbatches=8, memory_limit=4)
    >>> found = check_claim(
    ...     schedules.zb_h1(4, 8),
    ...     workload,
    ...     Claim(Objective.SPAN, 27.0, 27.0, "warm-up"),
    ... )
    >>> found.is_proved, found.formula.value
    (True, 27.0)
    """
    value = evaluate(schedule, workload, claim.objective)
    if not _is_same(value, claim.value):
        of = f"the {claim.objective} of its schedule is {claim.value:.12g}"
        message = f"The certificate says that {of}; the simulator"
        raise ScheduleError.of(Code.MISMATCH, f"{message} computes {value:.12g}.")
    if claim.bound > claim.value * (1 + ROUNDING):
        below = f"no schedule is below {claim.bound:.12g}"
        message = f"The certificate says that {below}, but its own schedule has"
        raise ScheduleError.of(Code.MISMATCH, f"{message} {claim.value:.12g}.")
    formulas = lower_bounds(workload, claim.objective)
    if claim.bound_by in list(Formula):
        named = [bound for bound in formulas if bound.name == claim.bound_by]
        proved = [min(bound.value, value) for bound in named]
        if not any(_is_same(bound, claim.bound) for bound in proved):
            is_given = "which gives no bound for this workload"
            if proved:
                is_given = f"which is {proved[0]:.12g}"
            name = quoted(str(claim.bound_by))
            names = f"{claim.bound:.12g} as the bound {name}, {is_given}"
            message = f"The certificate names {names}."
            raise ScheduleError.of(Code.MISMATCH, message)
    is_proved = claim.bound <= formulas[0].value * (1 + ROUNDING)
    return Finding(value, formulas[0], is_proved)


def _is_same(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(abs(a), abs(b))
