"""The explanation of a timeline: why ranks were idle, which messages passed, and the critical path."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.simulation.span import GradientSum, Idle, IdleCause, Message, Span, StepChange

if TYPE_CHECKING:
    from minipipe.schedules.simulation.timeline import Timeline

_SENDS = frozenset({ActionKind.SEND_F, ActionKind.SEND_B})
_RECEIVES = frozenset({ActionKind.RECV_F, ActionKind.RECV_B})
_NEED_LOADS = frozenset({ActionKind.RECOMPUTE, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT})
Position = tuple[int, int]  # a rank, and the index of one of its spans


def explain(timeline: Timeline) -> Explanation:
    """Explain a timeline: the source of its properties ``idle``, ``messages`` and ``critical_path``.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> explanation = explain(simulate(schedules.gpipe(2, 1)))
    >>> [str(span.action) for _, span in explanation.critical_path]
    ['0F0', '1F0', '1B0', '0B0']
    """
    return Explanation(timeline)


class Explanation:
    """The waits in a timeline: which rank waited for which, for which value, and why.

    Each property is computed at its first use.

    Parameters
    ----------
    timeline : Timeline
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._spans = timeline.spans

    @cached_property
    def idle(self) -> tuple[tuple[Idle, ...], ...]:
        """By rank, every time in which it computes nothing, with its cause, in order of time."""
        return tuple(tuple(self._idle_of(rank)) for rank in range(self._timeline.num_ranks))

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Every value that went from one rank to another, in the order in which they were sent."""
        if self._timeline.measured_messages:
            return self._timeline.measured_messages
        found = (self._message_to(rank, i) for rank, row in enumerate(self._spans) for i in range(len(row)))
        return tuple(sorted(filter(None, found), key=attrgetter("sent", "arrived")))

    @cached_property
    def critical_path(self) -> tuple[tuple[int, Span], ...]:
        """The chain of (rank, span) up to the latest end, each dependent on the one before it."""
        if not any(self._spans):
            return ()
        rank = max((r for r, row in enumerate(self._spans) if row), key=lambda r: self._spans[r][-1].end)
        position: Position | None = (rank, len(self._spans[rank]) - 1)
        last = max(self._timeline.sums, key=attrgetter("end"), default=None)
        if last and last.end > self._spans[rank][-1].end:
            position = self._before_sum(last)
        path, seen = [], set()
        while position is not None and position not in seen:
            seen.add(position)
            rank, index = position
            span = self._spans[rank][index]
            if span.action.kind not in _RECEIVES:
                path.append((rank, span))
            position = self._before(rank, index)
        return tuple(reversed(path))

    # -- idle times -------------------------------------------------------------------------------------------

    def _idle_of(self, rank: int) -> Iterator[Idle]:
        free, has_begun = self._timeline.start, False
        for index, (action, start, end) in enumerate(self._spans[rank]):
            if change := self._changes[rank].get(index):
                has_begun = False
                yield from self._drain(rank, free, change.left)
                if change.begun > change.left:
                    yield Idle(change.left, change.begun, IdleCause.UPDATE)
                free = max(free, change.begun)
            if start > free:
                yield self._gap(rank, index, free, has_begun)
            has_begun = has_begun or not action.kind.is_communication
            if action.kind in _SENDS and end > start:
                receive = Value.carried_by(action).receive
                receiver = self._positions.get(receive)
                yield Idle(start, end, IdleCause.SENDING, receiver[0] if receiver else None, receive)
            free = end
        yield from self._drain(rank, free, self._timeline.end)

    def _drain(self, rank: int, free: float, until: float) -> Iterator[Idle]:
        """Explain why a rank was idle after its last span of a step: until its last all-reduce ended, then drained."""
        pending = [found for found in self._sums[rank].values() if found.came(rank) <= free < found.end]
        if pending:
            last = max(pending, key=attrgetter("end"))
            yield self._wait_for_sum(last, free, min(last.end, until))
            free = last.end
        if until > free:
            yield Idle(free, until, IdleCause.DRAIN)

    def _wait_for_sum(self, found: GradientSum, free: float, until: float) -> Idle:
        source = found.last_rank
        action = found.actions[found.ranks.index(source)]
        at = next((span.action for span in self._spans[source] if span.end > free), None)
        return Idle(free, until, IdleCause.WAITING, source, action, at if found.begin > free else None)

    @cached_property
    def _sums(self) -> list[dict[Action, GradientSum]]:
        """The gradient all-reduces of each rank, each by the U that would apply it."""
        sums: list[dict[Action, GradientSum]] = [{} for _ in self._spans]
        for found in self._timeline.sums:
            for rank, action in zip(found.ranks, found.actions):
                sums[rank][action._replace(kind=ActionKind.UPDATE)] = found
        return sums

    def _load(self, rank: int, index: int) -> Span | None:
        """Return the L for a span, or for the span overlapped with it, if any."""
        actions = (self._spans[rank][i].action for i in self._joined(rank, index) if self._loads)
        pairs = (action[::2] for action in actions if action.kind in _NEED_LOADS)  # an F comes before its L
        return next(filter(None, map(self._loads.get, pairs)), None)

    @cached_property
    def _loads(self) -> dict[tuple[int, int], Span]:
        """The L of each stage and microbatch."""
        copies = (copy for row in self._timeline.copies for copy in row)
        return {copy.action[::2]: copy for copy in copies if copy.action.kind is ActionKind.LOAD}

    @cached_property
    def _changes(self) -> list[dict[int, StepChange]]:
        """By rank, the changes of step, by the index of the first span after each."""
        timeline = self._timeline
        lengths = (len(row) // timeline.num_steps for row in self._spans)
        changes = timeline.step_changes or [()] * timeline.num_ranks
        return [{(i + 1) * n: change for i, change in enumerate(row)} for n, row in zip(lengths, changes)]

    def _gap(self, rank: int, index: int, free: float, has_begun: bool) -> Idle:
        """Explain why a rank was idle from ``free`` until its span ``index``."""
        action, start, _ = self._spans[rank][index]
        found = self._sums[rank].get(action)
        if found and found.end > free:
            return self._wait_for_sum(found, free, start)
        load = self._load(rank, index)
        if load and free < load.end == start:
            return Idle(free, start, IdleCause.WAITING, rank, load.action)
        arrival, source, at, action = self._last_source(rank, index) or (self._timeline.start, None, 0, action)
        awaited = None if source is None else self._awaited(action, source, at)
        if not has_begun:
            return Idle(free, start, IdleCause.WARM_UP, source, awaited)
        if arrival > free:
            return Idle(free, start, IdleCause.WAITING, source, awaited)
        return Idle(free, start, IdleCause.OVERHEAD)

    def _awaited(self, action: Action, source: int, at: int) -> Action:
        """Return the producer of the value that an action waits for, or the SEND that holds it back."""
        value = Value.consumed_by(action)
        return value.send if value is not None and self._timeline.sent else self._spans[source][at].action

    # -- where values come from, and when ------------------------------------------------------------------------

    def _source(self, rank: int, action: Action) -> tuple[float, int, int] | None:
        """Return when, from which rank and from which of its spans an action gets a value of another rank."""
        value = Value.consumed_by(action)
        source = None if value is None else self._arrivals.get(value)
        return source if source and source[1] != rank else None

    def _joined(self, rank: int, index: int) -> range:
        """Return the indices of a span and of the span overlapped with it, if any."""
        row = self._spans[rank]
        is_second = index > 0 and row[index].start < row[index - 1].end
        is_first = index + 1 < len(row) and row[index + 1].start < row[index].end
        return range(index - is_second, index + 1 + is_first)

    def _last_source(self, rank: int, index: int) -> tuple[float, int, int, Action] | None:
        """Return the source of the last value for a span or the span overlapped with it, and the consumer."""
        actions = [self._spans[rank][i].action for i in self._joined(rank, index)]
        found = [(*source, action) for action in actions if (source := self._source(rank, action))]
        return max(found, default=None, key=itemgetter(0))

    @cached_property
    def _arrivals(self) -> dict[Value, tuple[float, int, int]]:
        """By value: when its consumer can use it on another rank; the rank and the index of the span it comes from."""
        arrivals = {}
        for rank, row in enumerate(self._spans):
            for index, (action, _, end) in enumerate(row):
                if action.kind in _SENDS:
                    arrivals[Value.carried_by(action)] = end, rank, index
                elif (value := Value.produced_by(action)) is not None:
                    arrived = self._timeline.arrived.get(value, end + self._time_in_flight(value))
                    arrivals[value] = arrived, rank, index
        for message in self._timeline.measured_messages:
            produced = Value.produced_by(message.value)
            assert produced is not None
            arrivals[produced] = self._earliest_arrival(message), *arrivals[produced][1:]
        return {**arrivals, **self._timeline.sent}

    def _time_in_flight(self, value: Value) -> float:
        times = self._timeline.message_times
        return times[value.cut] if times and value.cut >= 0 else 0.0

    def _earliest_arrival(self, message: Message) -> float:
        """Return when a measured message arrived, or its earliest possible arrival if the receiver came later."""
        if message.was_awaited:
            return message.arrived
        return min(message.arrived, message.sent + self._fastest.get((message.source, message.destination), 0.0))

    @cached_property
    def _fastest(self) -> dict[tuple[int, int], float]:
        """By pair of ranks, the shortest time in flight of an awaited message, by clocks that may differ."""
        fastest: dict[tuple[int, int], float] = {}
        for message in self._timeline.measured_messages:
            if message.was_awaited:
                ranks, time = (message.source, message.destination), message.arrived - message.sent
                fastest[ranks] = min(time, fastest.get(ranks, time))
        return fastest

    def _message_to(self, rank: int, index: int) -> Message | None:
        """Return the message that brings the value an action consumes, if another rank produces it."""
        action = self._spans[rank][index].action
        first = self._joined(rank, index)[0]
        free = self._spans[rank][first - 1].end if first else self._timeline.start
        found, value = self._source(rank, action), Value.consumed_by(action)
        if found is None or value is None:
            return None
        arrived, source, at = found
        last = self._spans[source][at]
        sent = last.start if last.action.kind.is_communication else last.end
        whole = value.producer
        producer = whole if whole in self._positions else whole._replace(kind=ActionKind.BACKWARD_INPUT)
        return Message(producer, action, source, rank, sent, arrived, was_awaited=free <= sent)

    @cached_property
    def _positions(self) -> dict[Action, Position]:
        return {span.action: (r, index) for r, row in enumerate(self._spans) for index, span in enumerate(row)}

    def _before_sum(self, found: GradientSum) -> Position | None:
        """Return the position of the span after which the last replica reached an all-reduce."""
        return self._last_ended(found.last_rank, found.begin)

    def _last_ended(self, rank: int, time: float) -> Position | None:
        """Return the position of the last span of a rank that has ended at a time."""
        index = bisect_right(self._spans[rank], time, key=attrgetter("end"))
        return (rank, index - 1) if index else None

    def _before(self, rank: int, index: int) -> Position | None:
        """Return the position of the span that ended last among all that a span had to wait for."""
        index = self._joined(rank, index)[0]
        span = self._spans[rank][index]
        change = self._changes[rank].get(index)
        free = change.begun if change else self._spans[rank][index - 1].end if index else self._timeline.start
        previous = (rank, index - 1) if index else None
        if change and change.after != rank:
            num_before = len(self._spans[change.after]) // self._timeline.num_steps
            step = index // (len(self._spans[rank]) // self._timeline.num_steps)
            previous = change.after, step * num_before - 1
        if span.action.kind in _SENDS:
            receiver = self._positions.get(Value.carried_by(span.action).receive)
            return receiver if receiver and self._spans[receiver[0]][receiver[1]].start > span.start else previous
        found = self._sums[rank].get(span.action)
        if found and found.end > free:
            return self._before_sum(found)
        load = self._load(rank, index)
        if load and free < load.end == span.start:
            return self._last_ended(rank, load.start)
        source = self._last_source(rank, index)
        if source and (previous is None or source[0] > free):
            return source[1], source[2]
        return previous
