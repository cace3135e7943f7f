"""A certificate: a schedule, the workload that it solves, and a lower bound.

As a file it is JSON, with the workload and the schedule in full, so that anybody can
check it; see :func:`minipipe.schedules.simulation.evaluation.check_claim`. Infinite
limits of memory are written as null.
"""

from __future__ import annotations

import json
from hashlib import sha256
from math import inf, isfinite
from typing import Any, NamedTuple

from minipipe.core.schedules.action import Action
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.specs import Spec
from minipipe.errors import Code, ScheduleError
from minipipe.io import MOST_JSON, MOST_STAGES, json_object, reading
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.evaluation import costs_of

_HEAD = {"format": "minipipe certificate", "version": 1}  # of a file
_FIGURES = {"value": float, "bound": float, "bound_by": str, "found_by": str}
_FIGURES["seconds"] = float
# By member of the workload in a file, the attribute of Costs: a list by stage.
_TIMES = ("forward", "backward_input", "backward_weight")
_BY_STAGE = {name: name for name in _TIMES} | {"message": "message_size"}
_BY_STAGE |= {name: name for name in ("activation", "weight_activation")}
_BY_STAGE["transient"] = "transient_activation"


class Certificate(NamedTuple):
    """A schedule found for a workload, with a lower bound for all schedules.

    Attributes
    ----------
    schedule : Schedule
    workload : Workload
    objective : Objective
        The quantity that ``value`` and ``bound`` measure.
    value : float
        The value of the schedule, in the unit of the times.
    bound : float
        A lower bound on the value of every schedule of the workload.
    bound_by : str
        The claimed proof of the bound: a
        :class:`~minipipe.schedules.analysis.bounds.Formula`, or an exact search.
    found_by : str
        The method that found the schedule.
    seconds : float
        The time that the search took.

    Examples
    --------
    >>> from minipipe import schedules
    >>> workload = Costs().workload((0, 1), num_microbatches=4)
    >>> figures = 13.0, 12.0, "work", "zb-h1", 0.0
    >>> found = Certificate(schedules.zb_h1(2, 4), workload, Objective.SPAN, *figures)
    >>> f"{found.gap:.3f}"
    '0.083'
    """

    schedule: Schedule
    workload: Workload
    objective: Objective
    value: float
    bound: float
    bound_by: str
    found_by: str
    seconds: float

    @property
    def gap(self) -> float:
        """How far the value is above the bound, relative to the bound: 0 if optimal."""
        return gap(self.value, self.bound)

    def to_json(self) -> str:
        """Return the certificate as the text of a file.

        Examples
        --------
        >>> from minipipe import schedules
        >>> workload = Costs().workload((0, 1), num_microbatches=4)
        >>> schedule = schedules.zb_h1(2, 4)
        >>> figures = 13.0, 12.0, "work", "zb-h1", 0.0
        >>> found = Certificate(schedule, workload, Objective.SPAN, *figures)
        >>> Certificate.from_json(found.to_json()) == found
        True
        """
        workload = self.workload
        costs = costs_of(self.workload)
        problem: dict[str, Any] = {"placement": list(workload.placement)}
        problem["num_microbatches"] = workload.num_microbatches
        for name, attribute in _BY_STAGE.items():
            problem[name] = list(map(float, getattr(costs, attribute)))
        limits = [limit if isfinite(limit) else None for limit in workload.memory_limit]
        problem |= {"memory_limit": limits, "overhead": workload.overhead}
        rows = [" ".join(map(str, row)) for row in self.schedule.actions]
        content = {**_HEAD, "objective": self.objective.value}
        content |= {name: getattr(self, name) for name in _FIGURES}
        content["workload"] = problem
        content["schedule"] = {"name": self.schedule.name, "rows": rows}
        return json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Return the certificate of a file, without checking its claims.

        Raises
        ------
        ScheduleError
            Code ``syntax``, if the text is not a certificate; ``mismatch``, if it
            was changed after it was written; the codes of :class:`~minipipe.Schedule`
            and of :meth:`minipipe.Costs.workload`.
        """
        certificate, is_unchanged = read_certificate(text)
        if not is_unchanged:
            raise changed()
        return certificate


def gap(value: float, bound: float) -> float:
    """Return how far a value is above a lower bound, relative to it; 0 up to rounding.

    Examples
    --------
    >>> gap(9, 8), gap(0.1 + 0.2, 0.3), gap(1, 0)
    (0.125, 0.0, inf)
    """
    above = value - bound
    if above <= ROUNDING * bound:
        return 0.0
    if bound == 0:
        return inf
    return above / bound


def read_certificate(text: str) -> tuple[Certificate, bool]:
    """Return a certificate, and whether its digest matches its content.

    Errors are as in :meth:`Certificate.from_json`, without ``certificate``.

    Examples
    --------
    >>> read_certificate("{}")
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [syntax] This is not a certificate: its format is ...
    """
    if len(text) > MOST_JSON:
        message = f"The text has {len(text):,} characters; the limit is {MOST_JSON:,}."
        raise ScheduleError.of(Code.TOO_LARGE, message)
    with reading(lambda reason: _no_certificate("syntax", f"{reason}.")):
        content = json_object(text, _HEAD)
        digest = content.pop("sha256", None)
        return _certificate(content), digest == _digest(content)


def changed() -> ScheduleError:
    """Return the error for a certificate that was changed after it was written."""
    why = "the SHA-256 of its content differs"
    message = f"The certificate was changed after it was written: {why}."
    return ScheduleError.of(Code.MISMATCH, message)


def _certificate(content: dict[str, Any]) -> Certificate:
    workload = _workload(_of_kind(dict, content, "workload"))
    member = _of_kind(dict, content, "schedule")
    texts = _of_kind(list, member, "rows")[: workload.num_ranks + 1]
    name = _of_kind(str, member, "name")
    num_microbatches = workload.num_microbatches
    rows = tuple(map(_row, texts))
    schedule = Schedule(name, workload.placement, num_microbatches, rows)
    figures = {key: _of_kind(kind, content, key) for key, kind in _FIGURES.items()}
    objective = Objective(_of_kind(str, content, "objective"))
    return Certificate(schedule, workload, objective, **figures)


def _workload(member: dict[str, Any]) -> Workload:
    placement = _of_kind(list, member, "placement")
    is_short = 0 < len(placement) <= MOST_STAGES
    if not is_short or not all(map(_RANK.allows, placement)):
        raise _RANK.refusal("its placement", placement)
    lists: dict[str, Any] = {}
    for name, attribute in _BY_STAGE.items():
        lists[attribute] = [_amount(name, one) for one in _of_kind(list, member, name)]
    limits = []
    for limit in _of_kind(list, member, "memory_limit"):
        amount = inf
        if limit is not None:
            amount = _amount("memory_limit", limit)
        limits.append(amount)
    costs = Costs(**lists, bandwidth=1.0, overhead=_of_kind(float, member, "overhead"))
    return costs.workload(placement, _of_kind(int, member, "num_microbatches"), limits)


def _row(row: object) -> tuple[Action, ...]:
    return tuple(map(Action.parse, _ROW.check("a row of its schedule", row).split()))


def _of_kind(kind: type, members: dict[str, Any], name: str) -> Any:
    """Return a member of an object; a float is any finite number, at least 0."""
    if kind is float:
        return _amount(name, members[name])
    return Spec(kind, error=_no_certificate).check(f"its {name}", members[name])


def _amount(name: str, value: Any) -> float:
    return _AMOUNT.check(f"its {name}", value)


def _no_certificate(_: object, reason: str) -> ScheduleError:
    return ScheduleError.of(Code.SYNTAX, f"This is not a certificate: {reason}")


_AMOUNT = Spec(minimum=0, expected="a number, at least 0", error=_no_certificate)
_RANK = Spec(
    int,
    minimum=0,
    maximum=MOST_STAGES - 1,
    expected=f"a rank from 0 to {MOST_STAGES - 1} for each of 1 to {MOST_STAGES} "
    "stages",
    error=_no_certificate,
)
_ROW = Spec(str, expected="cells such as '0F0 0F1'", error=_no_certificate)


def _digest(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a content; spaces and the order of members do not count."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
