"""The simulator: when would each action run, if actions and messages took so long?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.order import walk
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.timeline import Span, Timeline

__all__ = ["Costs", "peak_activations", "simulate"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


@dataclass(frozen=True)
class Costs:
    """How long things take, in any one unit of time.

    Attributes
    ----------
    forward, backward_input, backward_weight : float or sequence of float
        For every stage alike, or by stage. A whole backward B takes backward_input + backward_weight.
    latency : float
        From the end of an action on one rank until its result can be used on another. Neighbouring stages on one
        rank pay nothing. The sender is not held up.
    unit : str
        Of all these times, for captions: ``"s"`` or ``"units"``.
    """

    forward: float | Sequence[float] = 1.0
    backward_input: float | Sequence[float] = 1.0
    backward_weight: float | Sequence[float] = 1.0
    latency: float = 0.0
    unit: str = "units"

    @classmethod
    def measured(cls, timeline: Timeline) -> Costs:
        """Return the mean times of each stage's actions in a timeline; messages cost nothing.

        A whole backward counts as ``backward_input``.
        """
        times: defaultdict[tuple[ActionKind, int], list[float]] = defaultdict(list)
        for action, start, end in (span for row in timeline.spans for span in row):
            times[I if action.kind is B else action.kind, action.stage].append(end - start)
        num_stages = 1 + max((stage for _, stage in times), default=0)

        def mean(kind: ActionKind) -> list[float]:
            return [sum(times[kind, s]) / max(1, len(times[kind, s])) for s in range(num_stages)]

        return cls(mean(F), mean(I), mean(W), unit=timeline.unit)

    def by_stage(self, num_stages: int) -> dict[ActionKind, list[float]]:
        """Return the time of each kind of action on each stage.

        Raises
        ------
        ScheduleError
            Code ``costs``, when a list is not as long as there are stages, or a cost is negative or not finite.
        """
        forward, inputs, weights = (
            self._spread(name, num_stages) for name in ("forward", "backward_input", "backward_weight")
        )
        if not 0 <= self.latency < float("inf"):
            raise _refused(f"latency is {self.latency}; expected a finite time, at least 0.")
        return {F: forward, I: inputs, W: weights, B: [i + w for i, w in zip(inputs, weights)]}

    def _spread(self, name: str, num_stages: int) -> list[float]:
        given = getattr(self, name)
        values = [float(given)] * num_stages if isinstance(given, Real) else [float(v) for v in given]
        if len(values) != num_stages:
            raise _refused(
                f"{name} has {len(values)} values for {num_stages} stages; expected one number, or one each."
            )
        if not all(0 <= value < float("inf") for value in values):
            raise _refused(f"{name} is {given}; expected finite times, at least 0.")
        return values


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Predict the timeline of a schedule: each action starts once its rank is free and what it needs is there.

    Local; no messages. It does not model: bandwidth, senders that block, ranks that share a core.

    Parameters
    ----------
    schedule : Schedule
        A legal one. SEND and RECV in it take no time of their own.
    costs : Costs, optional
        By default F, I and W take one unit each, and messages nothing.

    Returns
    -------
    Timeline

    Raises
    ------
    ScheduleError
        When the schedule cannot run to its end (code ``deadlock``) or the costs do not fit (``costs``).

    Examples
    --------
    >>> from minipipe import schedules
    >>> timeline = simulate(schedules.one_f_one_b(4, 8))
    >>> timeline.makespan, round(timeline.bubble_fraction, 4), timeline.peak_activations
    (33.0, 0.2727, (4, 3, 2, 1))
    """
    costs = costs or Costs()
    schedule = schedule.without_communication()
    steps = walk(schedule)
    if steps.blocked:
        stuck = steps.blocked[0]
        message = f"{stuck.action} on rank {stuck.rank} waits for ever for {stuck.awaited}; verify(schedule) says why."
        raise ScheduleError([Problem("deadlock", message, stuck.rank, stuck.position)])
    duration = costs.by_stage(schedule.num_stages)
    ended: dict[tuple[int, bool, int], float] = {}  # (stage, is a forward, microbatch): end
    free = [0.0] * schedule.num_ranks
    spans: list[list[Span]] = [[] for _ in range(schedule.num_ranks)]
    for rank, action in steps.order:
        stage, kind, k = action
        start = max(free[rank], _input_ready(schedule, action, ended, costs.latency))
        end = start + duration[kind][stage]
        free[rank] = end
        spans[rank].append(Span(action, start, end))
        if kind is not W:
            ended[stage, kind is F, k] = end
    return Timeline(schedule.name, tuple(map(tuple, spans)), peak_activations(schedule), unit=costs.unit)


def _input_ready(
    schedule: Schedule, action: Action, ended: dict[tuple[int, bool, int], float], latency: float
) -> float:
    """Return when what an action needs from the neighbouring stage is there."""
    stage, kind, k = action
    if kind is F and stage > 0:
        return ended[stage - 1, True, k] + latency * schedule.crosses_ranks(stage - 1)
    if kind in (B, I) and stage + 1 < schedule.num_stages:
        return ended[stage + 1, False, k] + latency * schedule.crosses_ranks(stage)
    return 0.0


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """Return, by rank, the most (stage, microbatch) pairs held at once: from F until B, or until W where split.

    In a forward-only schedule F gives its memory back when it ends.

    Examples
    --------
    >>> from minipipe import schedules
    >>> peak_activations(schedules.gpipe(4, 8))
    (8, 8, 8, 8)
    """
    if schedule.is_forward_only:
        return tuple(int(any(a.kind is F for a in row)) for row in schedule.actions)
    return tuple(_peak(row) for row in schedule.actions)


def _peak(row: Iterable[Action]) -> int:
    held = peak = 0
    for action in row:
        if action.kind is F:
            held += 1
            peak = max(peak, held)
        elif action.kind in (B, W):
            held -= 1
    return peak


def _refused(message: str) -> ScheduleError:
    return ScheduleError([Problem("costs", message)])
