"""The explanation of a timeline: why ranks were idle, which messages passed, and the
critical path.

An action starts once its rank is free and the values that it takes can be used. The
last of them is **binding**::

    rank 0    | 0F0 |- - - - message - - - ->.
    rank 1    | 1B2 |........ waiting .......| 1F0 |      1F0 takes what 0F0 gives; rank 1 was free before

The kinds of action declare their values (``core/values.py``). A span gives a value,
perhaps on another rank, or a copy beside the spans of a rank, or an all-reduce.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.core.flow import Flow, Rule, delay_of
from minipipe.core.schedules.action import Action, number_of
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.core.schedules.collector import collector_paused
from minipipe.core.values import KINDS, NOUNS
from minipipe.schedules.simulation.ran import Ran
from minipipe.schedules.simulation.span import (
    GradientSum,
    Idle,
    IdleCause,
    Message,
    Span,
    StepChange,
    with_copies,
)

if TYPE_CHECKING:
    from minipipe.schedules.simulation.timeline import Timeline

Position = tuple[int, int]  # a rank, and the index of one of its spans; -1 for none


def explain(timeline: Timeline) -> Explanation:
    """Explain a timeline: the source of its properties ``idle``, ``messages`` and
    ``critical_path``.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> explanation = explain(simulate(schedules.gpipe(2, 1)))
    >>> [str(span.action) for _, span in explanation.critical_path]
    ['0F0', '1F0', '1B0', '0B0']
    """
    return Explanation(timeline)


class _Origin(NamedTuple):
    """The origin of a value.

    Attributes
    ----------
    time : float
        When it can be used, on another rank if it travels.
    rank, at : int
        The rank that is waited for, and the span that gives or sends the value, or the
        last one before that.
    awaited : Action
        The action that is waited for: the giver of the value, its SEND, or the last
        REDUCE_GRAD.
    giver : Action
    begin : float
        When the message was sent, or the all-reduce began.
    """

    time: float
    rank: int
    at: int
    awaited: Action
    giver: Action
    begin: float

    @property
    def is_sum(self) -> bool:
        """Whether the value is a result of several ranks together."""
        return KINDS[self.giver.kind].meets is not None


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
        """By rank, every time in which it computes nothing, with its cause, in order of
        time.
        """
        with collector_paused():
            ranks = range(self._timeline.num_ranks)
            return tuple(tuple(self._idle_of(rank)) for rank in ranks)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Every value that went from one rank to another, in the order in which they
        were sent.
        """
        if self._timeline.measured_messages:
            return self._timeline.measured_messages
        with collector_paused():
            places = self._positions.values()
            by_span = (self._messages_to(*place) for place in places)
            messages = chain.from_iterable(by_span)
            return tuple(sorted(messages, key=attrgetter("sent", "arrived")))

    @cached_property
    def critical_path(self) -> tuple[tuple[int, Span], ...]:
        """The chain of (rank, span) up to the latest end, each dependent on the one
        before it.
        """
        if not any(self._spans):
            return ()
        ends = {rank: row[-1].end for rank, row in enumerate(self._spans) if row}
        rank = max(ends, key=ends.__getitem__)
        position = rank, len(self._spans[rank]) - 1
        last = max(self._timeline.sums, key=attrgetter("end"), default=None)
        if last and last.end > self._spans[rank][-1].end:
            position = self._last_ended(last.last_rank, last.begin)
        path = []
        seen = set()
        while position[1] >= 0 and position not in seen:
            seen.add(position)
            rank, index = position
            span = self._spans[rank][index]
            if KINDS[span.action.kind].message != "receive":
                path.append((rank, span))
            position = self._before(rank, index)
        return tuple(reversed(path))

    # -- idle times --------------------------------------------------------------------

    def _idle_of(self, rank: int) -> Iterator[Idle]:
        free = self._timeline.start
        has_begun = False
        for index, (action, start, end) in enumerate(self._spans[rank]):
            if change := self._changes.get((rank, index)):
                has_begun = False
                yield from self._drain(rank, free, change.left)
                if change.begun > change.left:
                    yield Idle(change.left, change.begun, IdleCause.UPDATE)
                free = max(free, change.begun)
            if start > free:
                yield self._gap(rank, index, free, has_begun)
            has_begun = has_begun or not action.kind.is_communication
            if end > start and KINDS[action.kind].message == "send":
                receive = Transfer.carried_by(action).receive
                receiver = self._positions.get(receive, (None,))[0]
                yield Idle(start, end, IdleCause.SENDING, receiver, receive)
            free = end
        yield from self._drain(rank, free, self._timeline.end)

    def _drain(self, rank: int, free: float, until: float) -> Iterator[Idle]:
        """Explain why a rank was idle after its last span of a step: until its last
        all-reduce ended, then drained.
        """
        of_rank = (each for each in self._timeline.sums if rank in each.ranks)
        pending = [each for each in of_rank if each.came(rank) <= free < each.end]
        if pending:
            last = max(pending, key=attrgetter("end"))
            awaited = self._awaited(self._summed(last), free)
            yield Idle(free, min(last.end, until), IdleCause.WAITING, *awaited)
            free = last.end
        if until > free:
            yield Idle(free, until, IdleCause.DRAIN)

    def _gap(self, rank: int, index: int, free: float, has_begun: bool) -> Idle:
        """Explain why a rank was idle from ``free`` until its span ``index``."""
        start = self._spans[rank][index].start
        binding = self._binding(rank, index)
        if has_begun and (binding is None or binding.time <= free):
            return Idle(free, start, IdleCause.OVERHEAD)
        cause = IdleCause.WAITING if has_begun else IdleCause.WARM_UP
        return Idle(free, start, cause, *self._awaited(binding, free))

    def _awaited(self, origin: _Origin | None, free: float) -> tuple[Any, ...]:
        """Return source and awaited action of a wait and, of an all-reduce, the action
        that its rank was running.
        """
        if origin is None:
            return ()
        running = None
        if origin.is_sum and origin.begin > free:
            spans = self._spans[origin.rank]
            running = next((span.action for span in spans if span.end > free), None)
        return origin.rank, origin.awaited, running

    @cached_property
    def _changes(self) -> dict[Position, StepChange]:
        """The changes of step, each by the span behind it."""
        changes: dict[Position, StepChange] = {}
        for rank, row in enumerate(self._timeline.step_changes):
            length = self._length_of_step(rank)
            changes.update(((rank, n * length), it) for n, it in enumerate(row, 1))
        return changes

    def _length_of_step(self, rank: int) -> int:
        return len(self._spans[rank]) // self._timeline.num_steps

    # -- where values come from, and when ----------------------------------------------

    def _binding(self, rank: int, index: int) -> _Origin | None:
        """Return the last value for a span or the span overlapped with it.

        A value of the same rank comes from a copy, and matters only if the span starts
        when that ends.
        """
        start = self._spans[rank][index].start
        origins: list[_Origin] = []
        for i in self._joined(rank, index):
            origins += self._origins_of(self._spans[rank][i].action)
            origins += self._last_to_meet(rank, i)
        late = [o for o in origins if o.rank != rank or o.is_sum or o.time == start]
        if KINDS[self._spans[rank][index].action.kind].of_rank:
            # Its values may be those of several steps.
            late = [origin for origin in late if origin.time <= start]
        return max(
            late, key=lambda origin: (origin.time, origin.rank == rank), default=None
        )

    def _last_to_meet(self, rank: int, index: int) -> Iterator[_Origin]:
        """Yield the origin of a span that starts together with others: the last rank
        that came to it.
        """
        action, start, end = self._spans[rank][index]
        kind = KINDS[action.kind]
        if kind.meets is None or kind.message:
            return
        came = {}
        for other, row in enumerate(self._spans):
            for at, span in enumerate(row):
                if span[1:] == (start, end) and span.action.kind == action.kind:
                    came[other, at] = self._came(other, at)
        last, at = max(came, key=came.__getitem__)
        if came[last, at] > came[rank, index]:
            awaited = self._spans[last][at].action
            yield _Origin(start, last, max(at - 1, 0), awaited, awaited, came[last, at])

    def _came(self, rank: int, index: int) -> float:
        """Return when a rank could have started a span without the others: it was free,
        and all-reduces before it had ended.
        """
        action, start, _ = self._spans[rank][index]
        free = self._free(rank, index)
        if not KINDS[action.kind].of_rank:
            return free
        sums = (origin.time for origin in self._origins_of(action) if origin.is_sum)
        return max([free, *(time for time in sums if time <= start)])

    def _free(self, rank: int, index: int) -> float:
        """Return the end of the span before a span, or the start of the timeline."""
        if index == 0:
            return self._timeline.start
        return self._spans[rank][index - 1].end

    def _joined(self, rank: int, index: int) -> range:
        """Return the indices of a span and of the span overlapped with it, if any."""
        row = self._spans[rank]
        is_second = index > 0 and row[index].start < row[index - 1].end
        is_first = index + 1 < len(row) and row[index + 1].start < row[index].end
        return range(index - is_second, index + 1 + is_first)

    def _origins_of(self, action: Action) -> Iterator[_Origin]:
        """Yield the origins of the values of an action that travel or arise beside the
        spans.
        """
        _, site, numbers = self.flow.rules[self._codes[action]]
        later = number_of(action.microbatch, self.flow.num_slices) - site.microbatch
        if KINDS[action.kind].of_rank:
            later = 0  # its values have no microbatch
            if numbers is None:  # a timeline does not know which stages are tied
                yield from self._sums_of(self._positions[action][0])
        if numbers is None:
            return
        for number in numbers.needs:
            giver = self._givers.get(number + later)
            if giver is not None:
                yield self._origin(giver, number + later)

    def _sums_of(self, rank: int) -> Iterator[_Origin]:
        """Yield all all-reduces of a rank."""
        for each in self._timeline.sums:
            if rank in each.ranks:
                yield self._summed(each)

    @cached_property
    def _givers(self) -> dict[int, Action]:
        """The actions that give these values, by their numbers."""
        flow = self.flow
        late = [list(self._late(rule)) for rule in flow.rules]
        givers: dict[int, Action] = {}
        for actions, row, codes in zip(flow.table.actions, flow.rows, flow.codes):
            for action, (_, _, k), code in zip(actions, row, codes):
                for number in late[code]:
                    givers[number + k] = action
        return givers

    def _late(self, rule: Rule) -> Iterator[int]:
        if rule.numbers is None:
            return
        is_beside = KINDS[rule.kind].lane != "compute"
        for number in rule.numbers.gives:
            if is_beside or NOUNS[self.flow.name_of(number)].travels:
                yield number - rule.site.microbatch

    def _origin(self, giver: Action, number: int) -> _Origin:
        """Return the origin of a value, by the action that gives it."""
        if giver in self._sums:
            return self._summed(self._sums[giver])
        if giver in self._copies:
            rank, start, end = self._copies[giver]
            time = end + self._time_in_flight(number)
            return _Origin(time, *self._last_ended(rank, start), giver, giver, end)
        return self._sent(giver, number, *self._positions[giver])

    @cached_property
    def _sums(self) -> dict[Action, GradientSum]:
        sums = self._timeline.sums
        return {action: each for each in sums for action in each.actions}

    @cached_property
    def _copies(self) -> dict[Action, tuple[int, float, float]]:
        """The rank, the start and the end of each copy."""
        rows = enumerate(self._timeline.copies)
        places: dict[Action, tuple[int, float, float]] = {}
        for rank, row in rows:
            places.update((action, (rank, start, end)) for action, start, end in row)
        return places

    def _time_in_flight(self, number: int) -> float:
        times = self._timeline.message_times
        if not times:
            return 0.0
        return delay_of(self.flow, number, times)

    def _sent(self, giver: Action, number: int, rank: int, index: int) -> _Origin:
        """Return the origin of a value that a span gives, and that its SEND sends if it
        has one.
        """
        timeline = self._timeline
        sent = self._spans[rank][index].end
        arrival = sent + self._time_in_flight(number)
        origin = _Origin(arrival, rank, index, giver, giver, sent)
        carried = Transfer.produced_by(giver)
        if carried is None:
            return origin
        if carried in timeline.sent:
            time, rank, index = timeline.sent[carried]
            begin = self._spans[rank][index].end
            return _Origin(time, rank, index, carried.send, giver, begin)
        if carried.send in self._positions:
            rank, index = self._positions[carried.send]
            _, sent, time = self._spans[rank][index]
            origin = _Origin(time, rank, index, carried.send, giver, sent)
        time = timeline.arrived.get(carried, origin.time)
        if giver in self._measured:
            time = self._earliest_arrival(self._measured[giver])
        return origin._replace(time=time)

    def _summed(self, reduction: GradientSum) -> _Origin:
        """Return the origin of the gradients of an all-reduce: its last replica."""
        rank = reduction.last_rank
        last = reduction.actions[reduction.ranks.index(rank)]
        place = self._last_ended(rank, reduction.begin)
        return _Origin(reduction.end, *place, last, last, reduction.begin)

    def _messages_to(self, rank: int, index: int) -> Iterator[Message]:
        """Yield the messages with values that a span takes from other ranks."""
        free = self._free(rank, self._joined(rank, index)[0])
        action = self._spans[rank][index].action
        for origin in self._origins_of(action):
            if origin.rank != rank and not origin.is_sum:
                was_awaited = free <= origin.begin
                source = origin.rank
                sent = origin.begin
                arrived = origin.time
                yield Message(
                    origin.giver, action, source, rank, sent, arrived, was_awaited
                )

    @cached_property
    def _measured(self) -> dict[Action, Message]:
        return {message.value: message for message in self._timeline.measured_messages}

    def _earliest_arrival(self, message: Message) -> float:
        """Return when a measured message arrived, or its earliest possible arrival if
        the receiver came later.
        """
        if message.was_awaited:
            return message.arrived
        ranks = message.source, message.destination
        earliest = message.sent + self._fastest.get(ranks, 0.0)
        return min(message.arrived, earliest)

    @cached_property
    def _fastest(self) -> dict[tuple[int, int], float]:
        """By pair of ranks, the shortest time in flight of an awaited message, by
        clocks that may differ.
        """
        fastest: dict[tuple[int, int], float] = {}
        for message in self._timeline.measured_messages:
            if message.was_awaited:
                ranks = message.source, message.destination
                time = message.arrived - message.sent
                fastest[ranks] = min(time, fastest.get(ranks, time))
        return fastest

    # -- the actions and their values --------------------------------------------------

    @cached_property
    def _positions(self) -> dict[Action, Position]:
        positions: dict[Action, Position] = {}
        for rank, row in enumerate(self._spans):
            positions.update((span.action, (rank, i)) for i, span in enumerate(row))
        return positions

    @cached_property
    def _codes(self) -> dict[Action, int]:
        """The codes of the rules of all actions."""
        rows = map(zip, self.flow.table.actions, self.flow.codes)
        return dict(chain.from_iterable(rows))

    @cached_property
    def flow(self) -> Flow:
        """The values of all actions: by rank in order, then its other copies and its
        all-reduces.
        """
        no_copies = [()] * len(self._spans)
        rows = list(map(with_copies, self._spans, self._timeline.copies or no_copies))
        for rank, copies in enumerate(self._timeline.copies):
            known = set(rows[rank])
            rows[rank] += (copy.action for copy in copies if copy.action not in known)
        for each in self._timeline.sums:
            for rank, action in zip(each.ranks, each.actions):
                rows[rank].append(action)
        return Flow(Ran(rows, self._timeline.num_slices))

    # -- the critical path -------------------------------------------------------------

    def _last_ended(self, rank: int, time: float) -> Position:
        """Return the position of the last span of a rank that has ended at a time."""
        return rank, bisect_right(self._spans[rank], time, key=attrgetter("end")) - 1

    def _before(self, rank: int, index: int) -> Position:
        """Return the position of the span that ended last among all that a span had to
        wait for.
        """
        index = self._joined(rank, index)[0]
        action, start, _ = self._spans[rank][index]
        free = self._free(rank, index)
        previous = rank, index - 1
        if change := self._changes.get((rank, index)):
            free = change.begun
            step = index // self._length_of_step(rank)
            previous = change.after, step * self._length_of_step(change.after) - 1
        if KINDS[action.kind].message == "send":
            receive = Transfer.carried_by(action).receive
            receiver, at = self._positions.get(receive, previous)
            if at >= 0 and self._spans[receiver][at].start > start:
                return receiver, at
            return previous
        binding = self._binding(rank, index)
        if binding and (previous[1] < 0 or binding.time > free):
            return binding.rank, binding.at
        return previous
