"""Who waited for whom in a timeline, for what and why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.message import Message
from minipipe.schedules.span import Idle, IdleCause, Span

if TYPE_CHECKING:
    from minipipe.schedules.timeline import Timeline

__all__ = ["Waits"]

F = ActionKind.FORWARD
_COMPUTE = frozenset(kind for kind in ActionKind if not kind.is_communication)


class Waits:
    """Explains a timeline: its idle times, its messages, its critical path.

    Parameters
    ----------
    timeline : Timeline
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._spans = timeline.spans

    def idle_of(self, rank: int) -> Iterator[Idle]:
        """Yield every time in which a rank computes nothing, in order of time."""
        free, has_begun = self._timeline.start, False
        for index, (action, start, end) in enumerate(self._spans[rank]):
            if start > free:
                yield self._gap(rank, index, free, has_begun)
            has_begun = has_begun or action.kind in _COMPUTE
            if action.kind in (ActionKind.SEND_F, ActionKind.SEND_B) and end > start:
                receiver = self._partner(action)
                yield Idle(start, end, IdleCause.SENDING, receiver[0] if receiver else None, action.partner)
            free = end
        if self._timeline.end > free:
            yield Idle(free, self._timeline.end, IdleCause.DRAIN)

    def critical_path(self) -> tuple[tuple[int, Span], ...]:
        """Return the chain of (rank, span) that ends last, each of which could only start after the one before it."""
        if not any(self._spans):
            return ()
        rank = max((r for r, row in enumerate(self._spans) if row), key=lambda r: self._spans[r][-1].end)
        place: tuple[int, int] | None = (rank, len(self._spans[rank]) - 1)
        path, seen = [], set()
        while place is not None and place not in seen:
            seen.add(place)
            rank, index = place
            span = self._spans[rank][index]
            if span.action.kind not in (ActionKind.RECV_F, ActionKind.RECV_B):
                path.append((rank, span))
            place = self._before(rank, index)
        return tuple(reversed(path))

    def messages(self) -> list[Message]:
        """Return every value that went from one rank to another, in the order in which they were sent."""
        found = (self._message_to(rank, i) for rank, row in enumerate(self._spans) for i in range(len(row)))
        return sorted(filter(None, found), key=attrgetter("sent", "arrived"))

    # -- where values come from, and when ----------------------------------------------------------------------

    @cached_property
    def _arrivals(self) -> dict[tuple[int, bool, int], tuple[float, int, int]]:
        """By (stage, is a forward, microbatch) that makes a value: when it can be used elsewhere; rank and index."""
        arrivals = {}
        for rank, row in enumerate(self._spans):
            for index, ((stage, kind, k), _, end) in enumerate(row):
                if kind in _COMPUTE:
                    if kind is not ActionKind.BACKWARD_WEIGHT:
                        arrivals[stage, kind is F, k] = end + self._message_time(stage, kind is F), rank, index
                elif kind in (ActionKind.SEND_F, ActionKind.SEND_B):
                    arrivals[stage, kind is ActionKind.SEND_F, k] = end, rank, index
        for message in self._timeline.measured_messages:
            value = message.value.stage, message.value.kind is F, message.value.microbatch
            arrivals[value] = self._earliest_arrival(message), *arrivals[value][1:]
        return {**arrivals, **self._timeline.sent}

    def _earliest_arrival(self, message: Message) -> float:
        """Return when a measured message was there, or, if its receiver looked later, when it may have been at best."""
        if message.was_awaited:
            return message.arrived
        return min(message.arrived, message.sent + self._fastest.get((message.source, message.destination), 0.0))

    @cached_property
    def _fastest(self) -> dict[tuple[int, int], float]:
        """By the two ranks, the shortest way of an awaited message, as their clocks tell it, which may be apart."""
        fastest: dict[tuple[int, int], float] = {}
        for message in self._timeline.measured_messages:
            if message.was_awaited:
                ranks, time = (message.source, message.destination), message.arrived - message.sent
                fastest[ranks] = min(time, fastest.get(ranks, time))
        return fastest

    @cached_property
    def _values(self) -> dict[tuple[int, bool, int], Action]:
        """By (stage, is a forward, microbatch), the action that makes a value."""
        actions = (span.action for row in self._spans for span in row)
        kinds = _COMPUTE - {ActionKind.BACKWARD_WEIGHT}
        return {(a.stage, a.kind is F, a.microbatch): a for a in actions if a.kind in kinds}

    def _message_time(self, stage: int, is_forward: bool) -> float:
        boundary = stage if is_forward else stage - 1
        return self._timeline.message_times[boundary] if self._timeline.message_times and boundary >= 0 else 0.0

    def _source(self, rank: int, action: Action) -> tuple[float, int, int] | None:
        """Return when, from which rank and from which of its spans an action gets a value of another rank."""
        stage, kind, k = action
        if kind not in _COMPUTE or kind is ActionKind.BACKWARD_WEIGHT:
            return None
        source = self._arrivals.get((stage - 1, True, k) if kind is F else (stage + 1, False, k))
        return source if source and source[1] != rank else None

    def _message_to(self, rank: int, position: int) -> Message | None:
        """Return the message that brings what an action needs, if another rank makes it."""
        span, free = (
            self._spans[rank][position],
            self._spans[rank][position - 1].end if position else self._timeline.start,
        )
        found = self._source(rank, span.action)
        if found is None:
            return None
        arrived, source, index = found
        last = self._spans[source][index]
        stage, is_forward = span.action.stage, span.action.kind is F
        sent = last.start if last.action.kind.is_communication else last.end
        value = self._values[stage - 1 if is_forward else stage + 1, is_forward, span.action.microbatch]
        return Message(value, span.action, source, rank, sent, arrived, was_awaited=free <= sent)

    def _gap(self, rank: int, index: int, free: float, has_begun: bool) -> Idle:
        """Explain why a rank was idle from ``free`` until its span ``index``."""
        action, start, _ = self._spans[rank][index]
        arrival, source, at = self._source(rank, action) or (self._timeline.start, None, 0)
        awaited = None if source is None else self._made_by(action, source, at)
        if not has_begun:
            return Idle(free, start, IdleCause.WARM_UP, source, awaited)
        if arrival > free:
            return Idle(free, start, IdleCause.WAITING, source, awaited)
        return Idle(free, start, IdleCause.OVERHEAD)

    def _made_by(self, action: Action, source: int, at: int) -> Action:
        """Return the action that makes what another one waits for, or the SEND that holds it back."""
        made = self._spans[source][at].action
        if self._timeline.sent:
            kind, stage = (ActionKind.SEND_F, -1) if action.kind is F else (ActionKind.SEND_B, 1)
            return Action(action.stage + stage, kind, action.microbatch)
        return made

    @cached_property
    def _receives(self) -> dict[Action, tuple[int, int]]:
        kinds = (ActionKind.RECV_F, ActionKind.RECV_B)
        return {
            span.action: (rank, index)
            for rank, row in enumerate(self._spans)
            for index, span in enumerate(row)
            if span.action.kind in kinds
        }

    def _partner(self, send: Action) -> tuple[int, int] | None:
        """Return rank and index of the RECV of a SEND."""
        return self._receives.get(send.partner)

    def _before(self, rank: int, index: int) -> tuple[int, int] | None:
        """Return rank and index of what ended last among all that a span had to wait for."""
        span = self._spans[rank][index]
        previous = (rank, index - 1) if index else None
        if span.action.kind in (ActionKind.SEND_F, ActionKind.SEND_B):
            receiver = self._partner(span.action)
            return receiver if receiver and self._spans[receiver[0]][receiver[1]].start > span.start else previous
        source = self._source(rank, span.action)
        if source and (previous is None or source[0] > self._spans[rank][index - 1].end):
            return source[1], source[2]
        return previous
