"""Costs: how long actions and messages take, and what they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import ActionKind
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.timeline import Timeline

__all__ = ["Costs"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_SHORT = {"F": "forward", "I": "backward_input", "W": "backward_weight"}
_OTHERS = ("latency", "bandwidth", "message_size", "activation", "weight_activation")
_NUMBERS = (*_SHORT.values(), *_OTHERS)
ByStage = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """How long things take in any one unit of time, and what they hold in any one unit of memory.

    What is given by stage is one number for every stage alike, or a sequence of one for each. A rank with several
    chunks pays each of its stages in full.

    Attributes
    ----------
    forward, backward_input, backward_weight : float or sequence of float
        By stage, times of F, I and W. A whole backward B takes backward_input + backward_weight.
    latency : float
        From the end of an action on one rank until its result can be used on another. Neighbouring stages on one
        rank pay nothing.
    bandwidth : float
        Units of size that a message carries in one unit of time, on top of the latency. Messages do not slow each
        other down.
    message_size : float or sequence of float
        By stage, the size of its result. The gradient that comes back for it has the same.
    activation : float or sequence of float
        By stage, the memory that one microbatch holds from F until B or I.
    weight_activation : float or sequence of float, optional
        By stage, what it holds from I until W; the same as ``activation`` by default.
    sends_block : bool
        Whether a SEND holds its rank until the other rank has come to the RECV and the message has passed. Otherwise
        it costs its rank nothing.
    unit, memory_unit : str
        For captions: ``"s"`` or ``"units"``, ``"bytes"`` or ``"units"``.
    """

    forward: ByStage = 1.0
    backward_input: ByStage = 1.0
    backward_weight: ByStage = 1.0
    latency: float = 0.0
    bandwidth: float = inf
    message_size: ByStage = 0.0
    activation: ByStage = 1.0
    weight_activation: ByStage | None = None
    sends_block: bool = False
    unit: str = "units"
    memory_unit: str = "units"

    @classmethod
    def measured(cls, timeline: Timeline) -> Costs:
        """Return the mean times of each stage's actions in a timeline; messages cost nothing.

        On a stage that has only whole backwards, B counts as ``backward_input``; on one that has both kinds, I and W
        are measured where they stand alone.
        """
        times: defaultdict[tuple[ActionKind, int], list[float]] = defaultdict(list)
        for action, start, end in (span for row in timeline.spans for span in row):
            times[action.kind, action.stage].append(end - start)
        stages = range(1 + max((stage for _, stage in times), default=0))

        def mean(kind: ActionKind, stage: int) -> float:
            return sum(times[kind, stage]) / max(1, len(times[kind, stage]))

        return cls(
            [mean(F, s) for s in stages],
            [mean(I if times[I, s] else B, s) for s in stages],
            [mean(W, s) for s in stages],
            unit=timeline.unit,
        )

    @classmethod
    def parse(cls, text: str) -> Costs:
        """Read what a command line gives, such as ``"F=1,I=1,W=0.5:1:1:2,latency=0.1"``.

        ``F``, ``I`` and ``W`` are the times of one stage; the other names are those of the attributes. What is given
        by stage may be several numbers with colons between them.

        Raises
        ------
        ScheduleError
            Code ``costs``, naming what was not understood.

        Examples
        --------
        >>> Costs.parse("F=2,W=1:3").backward_weight
        (1.0, 3.0)
        """
        found: dict[str, Any] = {}
        for item in filter(None, map(str.strip, text.split(","))):
            key, _, value = item.partition("=")
            name = _SHORT.get(key, key)
            if name not in _NUMBERS:
                hint = " A whole backward B takes I + W." if key == "B" else ""
                raise _refused(f"{item!r} is no cost; expected one of {', '.join([*_SHORT, *_OTHERS])}.{hint}")
            try:
                numbers = tuple(map(float, value.split(":")))
            except ValueError:
                raise _refused(f"{item!r} gives no number; expected such as {key}=1 or {key}=1:2:3.") from None
            if len(numbers) > 1 and name in ("latency", "bandwidth"):
                raise _refused(f"{item!r} gives {len(numbers)} numbers; {name} is one number.")
            if name in found:
                raise _refused(f"{text!r} gives {name} twice.")
            found[name] = numbers if len(numbers) > 1 else numbers[0]
        return cls(**found)

    def durations(self, num_stages: int) -> dict[ActionKind, list[float]]:
        """Return the time of F, B, I and W on each stage.

        Raises
        ------
        ScheduleError
            Code ``costs``, when a list is not as long as there are stages, or a cost is negative or not finite.
        """
        forward, inputs, weights = (
            self._by_stage(name, num_stages) for name in ("forward", "backward_input", "backward_weight")
        )
        return {F: forward, I: inputs, W: weights, B: [i + w for i, w in zip(inputs, weights)]}

    def message_times(self, schedule: Schedule) -> tuple[float, ...]:
        """Return, by stage, how long its result takes to the next stage, and the gradient for it takes back.

        Raises
        ------
        ScheduleError
            Code ``costs``, for a negative or infinite latency or size, and a bandwidth that is not more than 0.
        """
        if not isinstance(self.latency, Real) or not 0 <= float(self.latency) < inf:
            raise _refused(f"latency is {self.latency!r}; expected a finite time, at least 0.")
        if not isinstance(self.bandwidth, Real) or not float(self.bandwidth) > 0:
            raise _refused(f"bandwidth is {self.bandwidth!r}; expected a number, more than 0.")
        sizes = self._by_stage("message_size", schedule.num_stages)
        return tuple(
            self.latency + size / self.bandwidth if schedule.crosses_ranks(stage) else 0.0
            for stage, size in enumerate(sizes)
        )

    def memory(self, num_stages: int) -> tuple[list[float], list[float]]:
        """Return, by stage, what a microbatch holds from F until B or I, and what from I until W.

        Raises
        ------
        ScheduleError
            Code ``costs``.
        """
        until_input = self._by_stage("activation", num_stages)
        if self.weight_activation is None:
            return until_input, until_input
        return until_input, self._by_stage("weight_activation", num_stages)

    def _by_stage(self, name: str, num_stages: int) -> list[float]:
        given = getattr(self, name)
        try:
            values = [float(given)] * num_stages if isinstance(given, Real) else [float(v) for v in list(given)]
        except (TypeError, ValueError):
            raise _refused(f"{name} is {given!r}; expected a number, or one for each stage.") from None
        if isinstance(given, str):
            raise _refused(f"{name} is {given!r}; expected a number. Costs.parse reads text.")
        if len(values) != num_stages:
            raise _refused(
                f"{name} has {len(values)} values for {num_stages} stages; expected one number, or one each."
            )
        if not all(0 <= value < inf for value in values):
            raise _refused(f"{name} is {given!r}; expected finite numbers, at least 0.")
        return values


def _refused(message: str) -> ScheduleError:
    return ScheduleError([Problem("costs", message)])
