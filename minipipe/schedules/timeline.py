"""A timeline: who did what, and when. What is predicted and what is measured are of this one type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from minipipe.schedules.action import Action, ActionKind

__all__ = ["Idle", "IdleCause", "Span", "Timeline"]

F = ActionKind.FORWARD
_COMPUTE = frozenset(kind for kind in ActionKind if not kind.is_communication)


class Span(NamedTuple):
    """One action with its start and end, in the unit of its timeline."""

    action: Action
    start: float
    end: float


class IdleCause(StrEnum):
    """Why a rank is idle."""

    WARM_UP = "warm-up"  # it has not begun: the pipeline fills
    WAITING = "waiting"  # for what another rank computes, or for its message
    SENDING = "sending"  # its send blocks
    DRAIN = "drain"  # it has ended: the pipeline drains
    OTHER = "other"  # only in what was measured: bookkeeping, or somebody else had the core


class Idle(NamedTuple):
    """A time in which a rank computes nothing, and why.

    Attributes
    ----------
    start, end : float
    cause : IdleCause
    source : int or None
        The rank that it waits for.
    awaited : Action or None
        What it waits for there.
    """

    start: float
    end: float
    cause: IdleCause
    source: int | None = None
    awaited: Action | None = None


@dataclass(frozen=True, repr=False)
class Timeline:
    """What every rank did, and when.

    Attributes
    ----------
    name : str
        The schedule's name.
    spans : tuple of tuple of Span
        ``spans[rank]``, in the order in which they ran. SEND and RECV are among them only where sends block.
    peak_activations : tuple of int
        By rank: the most (stage, microbatch) pairs whose activations were held at once.
    peak_memory : tuple of float or None
        By rank: the most memory that they took, where that is known.
    unit, memory_unit : str
        ``"s"`` for seconds, ``"bytes"`` for bytes, ``"units"`` for those of the costs.
    note : str
        What to keep in mind when reading the times.
    message_times : tuple of float
        By stage: the time between its end and the use of its result by the next one. Empty where it is not known.
    sent : dict
        Where SEND stood in the program: by (stage, is a forward, microbatch), when the value arrived, the rank that
        sent it, and how many of its spans, less one, came before.
    """

    name: str
    spans: tuple[tuple[Span, ...], ...]
    peak_activations: tuple[int, ...]
    peak_memory: tuple[float, ...] | None = None
    unit: str = "units"
    memory_unit: str = "bytes"
    note: str = ""
    message_times: tuple[float, ...] = ()
    sent: dict[tuple[int, bool, int], tuple[float, int, int]] = field(default_factory=dict, compare=False)

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.spans)

    @cached_property
    def start(self) -> float:
        """The first start of all ranks."""
        return min((span.start for row in self.spans for span in row), default=0.0)

    @cached_property
    def end(self) -> float:
        """The last end of all ranks."""
        return max((span.end for row in self.spans for span in row), default=0.0)

    @property
    def makespan(self) -> float:
        """From the first start to the last end of all ranks."""
        return self.end - self.start

    def busy(self, rank: int) -> float:
        """Return the time that a rank spent computing."""
        return sum(end - start for action, start, end in self.spans[rank] if action.kind in _COMPUTE)

    def own_span(self, rank: int) -> float:
        """Return the time between the first start and the last end of a rank's own computations."""
        row = [span for span in self.spans[rank] if span.action.kind in _COMPUTE]
        return row[-1].end - row[0].start if row else 0.0

    def idle_within_span(self, rank: int) -> float:
        """Return the idle time between the first start and the last end of a rank's own computations."""
        return self.own_span(rank) - self.busy(rank)

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time: idle / (num_ranks * makespan). GPipe and 1F1B give (p-1)/(m+p-1)."""
        available = self.num_ranks * self.makespan
        return 1 - sum(map(self.busy, range(self.num_ranks))) / available if available else 0.0

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over work, Megatron's convention: GPipe and 1F1B give (p-1)/m, interleaved (p-1)/(m v)."""
        work = sum(map(self.busy, range(self.num_ranks)))
        return self.num_ranks * self.makespan / work - 1 if work else 0.0

    @property
    def cost(self) -> float:
        """The longest own span of a rank: what the zero-bubble papers call the cost."""
        return max(map(self.own_span, range(self.num_ranks)), default=0.0)

    @property
    def span_bubble_rate(self) -> float:
        """(span - work) / span of the rank whose own span is longest: the bubble rate of the zero-bubble papers."""
        spans = list(map(self.own_span, range(self.num_ranks)))
        longest = max(spans, default=0.0)
        return self.idle_within_span(spans.index(longest)) / longest if longest else 0.0

    @cached_property
    def idle(self) -> tuple[tuple[Idle, ...], ...]:
        """By rank, every time in which it computes nothing, with its cause, in order of time."""
        return tuple(tuple(self._idle_of(rank)) for rank in range(self.num_ranks))

    @cached_property
    def critical_path(self) -> tuple[tuple[int, Span], ...]:
        """The chain of (rank, span) that ends last, each of which could only start after the one before it.

        Shorten any of them, or a message between two, and only then may the makespan shrink.
        """
        if not any(self.spans):
            return ()
        rank = max((r for r, row in enumerate(self.spans) if row), key=lambda r: self.spans[r][-1].end)
        place: tuple[int, int] | None = (rank, len(self.spans[rank]) - 1)
        path, seen = [], set()
        while place is not None and place not in seen:
            seen.add(place)
            rank, index = place
            span = self.spans[rank][index]
            if span.action.kind not in (ActionKind.RECV_F, ActionKind.RECV_B):
                path.append((rank, span))
            place = self._before(rank, index)
        return tuple(reversed(path))

    # -- who waited for whom --------------------------------------------------------------------------------

    @cached_property
    def _arrivals(self) -> dict[tuple[int, bool, int], tuple[float, int, int]]:
        """By (stage, is a forward, microbatch) that makes a value: when it can be used elsewhere; rank and index."""
        arrivals = {}
        for rank, row in enumerate(self.spans):
            for index, ((stage, kind, k), _, end) in enumerate(row):
                if kind in _COMPUTE:
                    if kind is not ActionKind.BACKWARD_WEIGHT:
                        arrivals[stage, kind is F, k] = end + self._message_time(stage, kind is F), rank, index
                elif kind in (ActionKind.SEND_F, ActionKind.SEND_B):
                    arrivals[stage, kind is ActionKind.SEND_F, k] = end, rank, index
        return {**arrivals, **self.sent}

    def _message_time(self, stage: int, is_forward: bool) -> float:
        boundary = stage if is_forward else stage - 1
        return self.message_times[boundary] if self.message_times and boundary >= 0 else 0.0

    def _source(self, rank: int, action: Action) -> tuple[float, int, int] | None:
        """Return when, from which rank and from which of its spans an action gets a value of another rank."""
        stage, kind, k = action
        if kind not in _COMPUTE or kind is ActionKind.BACKWARD_WEIGHT:
            return None
        source = self._arrivals.get((stage - 1, True, k) if kind is F else (stage + 1, False, k))
        return source if source and source[1] != rank else None

    def _idle_of(self, rank: int) -> Iterator[Idle]:
        free, has_begun = self.start, False
        for index, (action, start, end) in enumerate(self.spans[rank]):
            if start > free:
                yield self._gap(rank, index, free, has_begun)
            has_begun = has_begun or action.kind in _COMPUTE
            if action.kind in (ActionKind.SEND_F, ActionKind.SEND_B) and end > start:
                receiver = self._partner(action)
                yield Idle(start, end, IdleCause.SENDING, receiver[0] if receiver else None, action.partner)
            free = end
        if self.end > free:
            yield Idle(free, self.end, IdleCause.DRAIN)

    def _gap(self, rank: int, index: int, free: float, has_begun: bool) -> Idle:
        """Explain why a rank was idle from ``free`` until its span ``index``."""
        action, start, _ = self.spans[rank][index]
        arrival, source, at = self._source(rank, action) or (self.start, None, 0)
        awaited = None if source is None else self._made_by(action, source, at)
        if not has_begun:
            return Idle(free, start, IdleCause.WARM_UP, source, awaited)
        if arrival > free:
            return Idle(free, start, IdleCause.WAITING, source, awaited)
        return Idle(free, start, IdleCause.OTHER)

    def _made_by(self, action: Action, source: int, at: int) -> Action:
        """Return the action that makes what another one waits for, or the SEND that holds it back."""
        made = self.spans[source][at].action
        if self.sent:
            kind, stage = (ActionKind.SEND_F, -1) if action.kind is F else (ActionKind.SEND_B, 1)
            return Action(action.stage + stage, kind, action.microbatch)
        return made

    @cached_property
    def _receives(self) -> dict[Action, tuple[int, int]]:
        kinds = (ActionKind.RECV_F, ActionKind.RECV_B)
        return {
            span.action: (rank, index)
            for rank, row in enumerate(self.spans)
            for index, span in enumerate(row)
            if span.action.kind in kinds
        }

    def _partner(self, send: Action) -> tuple[int, int] | None:
        """Return rank and index of the RECV of a SEND."""
        return self._receives.get(send.partner)

    def _before(self, rank: int, index: int) -> tuple[int, int] | None:
        """Return rank and index of what ended last among all that a span had to wait for."""
        span = self.spans[rank][index]
        previous = (rank, index - 1) if index else None
        if span.action.kind in (ActionKind.SEND_F, ActionKind.SEND_B):
            receiver = self._partner(span.action)
            return receiver if receiver and self.spans[receiver[0]][receiver[1]].start > span.start else previous
        source = self._source(rank, span.action)
        if source and (previous is None or source[0] > self.spans[rank][index - 1].end):
            return source[1], source[2]
        return previous

    def __repr__(self) -> str:
        return f"<Timeline {self}>"

    def __str__(self) -> str:
        peak = ", ".join(map(str, self.peak_activations))
        makespan = f"{1000 * self.makespan:.4g} ms" if self.unit == "s" else f"{self.makespan:.6g} {self.unit}"
        return (
            f"{self.name}: makespan {makespan}, bubble {100 * self.bubble_fraction:.1f} %, "
            f"peak activations by rank {peak}"
        )
