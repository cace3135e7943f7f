"""A walk through a schedule, action by action: a snapshot of all ranks and messages for
each action.

The events of a legal schedule have the times that :func:`minipipe.simulate` predicts.
An illegal schedule runs until it gets stuck. Each of its actions takes one round, as in
:func:`minipipe.core.schedules.analysis.walk.walk`, and a SEND and its RECV are a rendezvous.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from minipipe.core.flow import flow_of
from minipipe.core.memory import Changes
from minipipe.core.order import awaited, order
from minipipe.core.schedules.action import SEND_B, SEND_F, ActionKind, L, O
from minipipe.core.schedules.action_table import ActionTable, check_table
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.core.schedules.analysis.walk import Walk, walk
from minipipe.core.values import NOUNS
from minipipe.errors import Problem, ScheduleError
from minipipe.schedules import (
    Action,
    Costs,
    IdleCause,
    Message,
    Span,
    Timeline,
    lower,
    simulate,
    verify,
)
from minipipe.schedules.analysis.activations import Footprint, sizes_of, without_copies
from minipipe.schedules.analysis.held import Held, held_pairs
from minipipe.schedules.simulation.simulator import check_costs
from minipipe.schedules.simulation.span import with_copies


class Event(NamedTuple):
    """The execution of one action: its rank, its position in the rank's list, its start
    and its end.
    """

    rank: int
    position: int
    action: Action
    start: float
    end: float


class Activity(StrEnum):
    """The activity of a rank."""

    RUNS = "runs"
    BEGINS = "begins"  # at the same time, but in a later snapshot
    WAITS = "waits"
    STUCK = "stuck"  # it waits for ever
    DONE = "done"


class RankState(NamedTuple):
    """The state of one rank in a snapshot.

    Attributes
    ----------
    activity : Activity
    action : Action or None
        The action that runs, or the next one; None after the last.
    position : int
        The position of that action in the rank's list.
    until : float or None
        The end of the action or of the wait; None if it never ends.
    cause : IdleCause or None
        The cause of idle time, if the rank waits, sends or is done.
    source : int or None
        The rank that is waited for.
    awaited : Action or None
        The action of that rank that is waited for. For a SEND that runs, the RECV that
        the receiver has not reached.
    held : tuple of (int, int)
        The (stage, microbatch) pairs whose activations are held, each from the start of
        its F until the end of its B, or of its W if the backward is split.
    memory : float
        The memory of these activations, in the memory unit of the costs.
    """

    activity: Activity
    action: Action | None
    position: int
    until: float | None
    cause: IdleCause | None
    source: int | None
    awaited: Action | None
    held: tuple[tuple[int, int], ...]
    memory: float


class Snapshot(NamedTuple):
    """The state of all ranks and messages before the first action, at the start of an
    action, or after the last.

    Attributes
    ----------
    number : int
        0 before the first action, ``i`` at the start of the ``i``-th action.
    time : float
    event : Event or None
        The action that has just begun.
    ranks : tuple of RankState
    messages : tuple of Message
        The messages that are in flight, or delivered but not yet consumed.
    """

    number: int
    time: float
    event: Event | None
    ranks: tuple[RankState, ...]
    messages: tuple[Message, ...]


def timeline_in_rounds(walked: Walk) -> Timeline:
    """Return the timeline of a walk until it gets stuck, with actions of one round. Its
    peaks are not computed.
    """
    table = walked.table
    actions: list[Iterator[Action]] = [iter(row) for row in table.actions]
    rows: list[list[Span]] = [[] for _ in actions]
    for now, ranks in enumerate(walked.rounds):
        for rank in ranks:
            rows[rank].append(Span(next(actions[rank]), float(now), now + 1.0))
    peaks = (0,) * table.num_ranks
    spans = tuple(map(tuple, rows))
    slices = table.num_slices
    return Timeline(table.name, spans, peaks, unit="rounds", num_slices=slices)


def events_of(walked: Walk, timeline: Timeline) -> tuple[Event, ...]:
    """Return the events of a walk. SEND and RECV take no time if the timeline has no
    spans of them.
    """
    takes_time = {span.action.kind for row in timeline.spans for span in row}
    spans = [iter(row) for row in timeline.spans]
    free = [0.0] * timeline.num_ranks
    position = [0] * timeline.num_ranks
    events = []
    for rank, action in walked.order():
        start = end = free[rank]
        if action.kind in takes_time:
            _, start, end = next(spans[rank])
        events.append(Event(rank, position[rank], action, start, end))
        free[rank] = end
        position[rank] += 1
    # The walk is in topological order, and a stable sort keeps this order among equal
    # times.
    return tuple(sorted(events, key=attrgetter("start")))


_SENDS = (SEND_F, SEND_B)


def _meets(action: Action) -> bool:
    """Whether an action waits for others of its kind on other ranks."""
    kind = action.kind.declaration
    return kind.meets is not None and not kind.message


def _value_of(action: Action) -> Transfer | None:
    """Return the value that a computation produces or a SEND carries; None for W and
    RECV.
    """
    if action.kind in _SENDS:
        return Transfer.carried_by(action)
    return Transfer.produced_by(action)


class Walkthrough:
    """A sequence of snapshots of a schedule in chronological order, one at the start of
    each action.

    Parameters
    ----------
    schedule : Schedule
        Legal or not.
    costs : Costs, optional
        By default F, I and W take one unit each, and messages take no time.
    memory_limit : int or float, or a sequence of them, optional
    memory : Footprint, optional
        As for :func:`minipipe.verify`.

    Attributes
    ----------
    program : Schedule or Program
        The table of the walk: the schedule itself or, if sends block, its lowered form.
    timeline : Timeline
        The times of the events: predicted or, for an illegal schedule, in rounds.
    events : tuple of Event
        The actions that run, in order of their starts.
    problems : tuple of Problem
        The problems that the verifier found, the cause first.
    partners : dict of Action to Action
        Maps each of two overlapped actions to the other. They begin together, in two
        snapshots.

    Raises
    ------
    ScheduleError
        If the walk cannot begin, because an action names a stage or a microbatch that
        does not exist, or because nearly all actions are missing. Code ``value``, if
        the costs do not match the schedule.

    Examples
    --------
    >>> from minipipe import Schedule, schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> snapshot = walkthrough[1]
    >>> (
    ...     [state.activity.value for state in snapshot.ranks],
    ...     str(snapshot.ranks[1].awaited),
    ... )
    (['runs', 'waits'], '0F0')
    >>> [
    ...     str(state.action)
    ...     for state in Walkthrough(schedules.Schedule.from_text("0B0 0F0"))[-1].ranks
    ... ]
    ['0B0']
    """

    def __init__(
        self,
        schedule: ActionTable,
        costs: Costs | None = None,
        memory_limit: float | Sequence[float] | None = None,
        memory: Footprint | None = None,
    ) -> None:
        check_table(schedule)
        check_costs(costs)
        self.schedule = schedule
        self.costs = costs or Costs()
        self.problems = self._problems(memory_limit, memory)
        self.is_timed = all(problem.code == "memory" for problem in self.problems)
        self.program = schedule
        if self.is_timed and self.costs.sends_block:
            self.program = lower(schedule)
        walked = walk(self.program)
        if self.is_timed:
            self.timeline = simulate(schedule, self.costs)
        else:
            self.timeline = timeline_in_rounds(walked)
            # The costs of an illegal schedule must also match its stages.
            self.costs.durations(schedule.num_stages)
            self.costs.message_times(schedule)
        self.events = events_of(walked, self.timeline)
        self.flow = flow_of(self.program)
        overlapped = self.program.joined
        self.partners = {**overlapped, **dict(zip(overlapped.values(), overlapped))}
        copies = chain(*self.timeline.copies)
        self._copy_ends = {copy.action: copy.end for copy in copies}
        self._held_pairs = self._held()
        # The indices of the events, by rank.
        self._indices: list[list[int]] = [[] for _ in self.program.actions]
        self._first: dict[Action, int] = {}
        for at, event in enumerate(self.events):
            self._indices[event.rank].append(at)
            self._first.setdefault(event.action, at)
        self._times = [*(event.start for event in self.events), self.timeline.end]

    def _problems(
        self, memory_limit: float | Sequence[float] | None, memory: Footprint | None
    ) -> tuple[Problem, ...]:
        """Return the problems that the verifier finds; raise its error if the walk
        cannot even begin.
        """
        schedule = self.schedule
        of_stages: dict[str, Any] = {}
        if memory is not None:  # otherwise the limit counts pairs
            n = schedule.num_stages
            of_slices = self.costs.sliced(schedule.num_slices)
            of_stages["weights"] = of_slices.weight_memory(n)
            of_stages["keys_values"] = of_slices.by_stage("keys_values", n)
        try:
            verify(schedule, memory_limit, memory, **of_stages)
        except ScheduleError as error:
            if error.code == "value":
                raise
            try:
                walk(schedule)
            except ScheduleError:
                raise error from None
            return error.problems
        return ()

    def _held(self) -> list[list[tuple[Held, Held]]]:
        """Return, by rank and position, the pairs held while an action runs and after
        it: copies take their time.
        """
        timeline = self.timeline
        table = program = self.program
        rows = list(map(with_copies, timeline.spans, timeline.copies))
        if rows:
            table = program.with_rows(type(program), rows)
        of_slices = self.costs.sliced(program.num_slices)
        footprint = of_slices.memory(program.num_stages)
        changes = Changes(flow_of(table), sizes_of(footprint))
        ranks = range(program.num_ranks)
        levels = [list(held_pairs(changes, rank)) for rank in ranks]
        if not rows:
            return levels
        result: list[list[tuple[Held, Held]]] = []
        for row, ordered, of_row in zip(program.actions, rows, levels):
            computations = (a for a in ordered if a.kind is not O and a.kind is not L)
            held = dict(zip(computations, without_copies(ordered, of_row)))
            result.append([])
            now = Held((), 0)
            # A RECV, which may come first, a copy and a REDUCE_GRAD change nothing.
            for action in row:
                result[-1].append(held.get(action, (now, now)))
                now = result[-1][-1][1]
        return result

    @property
    def is_legal(self) -> bool:
        """Whether the verifier found no problem."""
        return not self.problems

    @cached_property
    def stuck(self) -> dict[int, RankState]:
        """The final states of the ranks that never finish, by rank."""
        states = enumerate(self[-1].ranks)
        return {rank: it for rank, it in states if it.activity is Activity.STUCK}

    @cached_property
    def cycle(self) -> tuple[int, ...]:
        """The ranks that wait for each other in a cycle, starting with the lowest;
        empty if there is no cycle.
        """
        for rank in self.stuck:
            path: list[int] = []
            following: int | None = rank
            while following in self.stuck and following not in path:
                path.append(following)
                waits = self.stuck[following]
                following = waits.source
                if waits.awaited not in self.program.first_rank_with:
                    following = None
            if following in path:
                cycle = path[path.index(following) :]
                lowest = cycle.index(min(cycle))
                return (*cycle[lowest:], *cycle[:lowest])
        return ()

    def __len__(self) -> int:
        return len(self.events) + 2

    def __getitem__(self, index: int) -> Snapshot:
        number = range(len(self))[index]
        event: Event | None = None
        if 0 < number <= len(self.events):
            event = self.events[number - 1]
        time = self._times[max(0, number - 1)]
        ranks = range(self.program.num_ranks)
        states = tuple(self._state(rank, number, time) for rank in ranks)
        messages = (it for first, last, it in self._messages if first <= number < last)
        return Snapshot(number, time, event, states, tuple(messages))

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self.__getitem__, range(len(self)))

    def at_time(self, time: float) -> int:
        """Return the number of the last snapshot at or before a time."""
        return min(bisect_right(self._times, time), len(self) - 1)

    # -- one rank ----------------------------------------------------------------------

    def _state(self, rank: int, number: int, time: float) -> RankState:
        indices = self._indices[rank]
        begun = bisect_left(indices, number)
        held = Held((), 0.0)
        if begun:
            index = indices[begun - 1]
            last = self.events[index]
            during, held = self._held_pairs[rank][begun - 1]
            if last.end > time or index == number - 1:
                return self._running(rank, last, time, during)
        row = self.program.actions[rank]
        if begun == len(row):
            drain = IdleCause.DRAIN
            return RankState(Activity.DONE, None, begun, None, drain, None, None, *held)
        action = row[begun]
        coming: float | None = None
        if begun < len(indices):
            coming = self.events[indices[begun]].start
        if coming is not None and coming <= time:
            return RankState(
                Activity.BEGINS, action, begun, coming, None, None, None, *held
            )
        source, awaited = self._awaited(rank, action, time)
        cause = IdleCause.OVERHEAD
        if awaited:
            computed = (not action.kind.is_communication for action in row[:begun])
            cause = IdleCause.WAITING if any(computed) else IdleCause.WARM_UP
        activity = Activity.WAITS
        if coming is None and number == len(self) - 1:
            activity = Activity.STUCK
        return RankState(activity, action, begun, coming, cause, source, awaited, *held)

    def _running(self, rank: int, event: Event, time: float, held: Held) -> RankState:
        """Return the state of a rank that runs an action; a SEND may block it."""
        action = event.action
        cause = None
        source = None
        awaited = None
        if action.kind in _SENDS and event.end > event.start:
            cause = IdleCause.SENDING
            if self.is_timed:
                source, awaited = self._awaited(rank, action, time)
        until = self._copy_ends.get(action, event.end)
        return RankState(
            Activity.RUNS, action, event.position, until, cause, source, awaited, *held
        )

    @cached_property
    def _predicted(self) -> dict[Action, Message]:
        """The messages of a legal schedule, by consumer."""
        if self.is_timed:
            return {message.used_by: message for message in self.timeline.messages}
        return {}

    def _awaited(
        self, rank: int, action: Action, time: float
    ) -> tuple[int | None, Action | None]:
        """Return the rank and the action that an action waits for; None for both once
        it has arrived.
        """
        if not self.is_timed:
            return self._missing(rank, time)
        slots = self.timeline.idle[rank]
        idle = slots[bisect_right(slots, time, key=attrgetter("end"))]
        if idle.cause is IdleCause.SENDING:
            has_come = idle.awaited is None or self._has_begun(idle.awaited, time)
        elif idle.awaited and (idle.awaited.kind is L or _meets(idle.awaited)):
            has_come = False  # the slot lasts until then
        else:
            pair = (action, self.partners.get(action, action))
            messages = (self._predicted[a] for a in pair if a in self._predicted)
            has_come = all(message.arrived <= time for message in messages)
        if has_come:
            return None, None
        return idle.source, idle.awaited

    def _missing(self, rank: int, time: float) -> tuple[int | None, Action]:
        """Return the action that the next one of a rank waits for in an illegal
        schedule, and its rank.
        """
        positions = [
            bisect_right(indices, time, key=lambda at: self.events[at].end)
            for indices in self._indices
        ]
        needed = awaited(self.flow, order(self.flow).given, positions, rank, time)
        action = self.program.actions[rank][positions[rank]]
        if needed is not None:
            stage, kind, number = needed
            k = self.program.microbatches[number]
            action = self.program.as_written(Action(stage, ActionKind(kind), k))
        elif action.kind.is_communication:  # the stages exchange no such message
            message = Transfer.carried_by(action)
            action = message.receive if action == message.send else message.send
        return self.program.home_of(action), action

    def _has_begun(self, action: Action, time: float) -> bool:
        return action in self._first and self.events[self._first[action]].start <= time

    # -- messages ----------------------------------------------------------------------

    def _gives_message(self, event: Event) -> bool:
        """Whether a value of an action travels to another stage, and no SEND of its own
        carries it.
        """
        uses = self.flow.uses(event.rank, event.position)
        return uses is not None and any(
            NOUNS[value.name].travels for value in uses.gives
        )

    @cached_property
    def _messages(self) -> list[tuple[int, float, Message]]:
        """The messages between ranks, each with the numbers of its first snapshot and
        of its consumption.
        """
        messages = []
        for at, event in enumerate(self.events):
            value = _value_of(event.action)
            if value is None or not self._gives_message(event):
                continue
            producer = self.program.as_written(value.producer)
            consumer = self.program.as_written(value.consumer)
            destination = self.program.home_of(consumer)
            assert destination is not None
            if destination == event.rank:
                continue
            sent = event.start
            first = at + 1
            if event.action.kind not in _SENDS:
                sent = event.end
                first = max(at + 2, bisect_left(self._times, sent) + 1)
            message = self._predicted.get(consumer)
            message = message or Message(
                producer, consumer, event.rank, destination, sent, event.end
            )
            last = self._first.get(consumer, inf) + 1
            messages.append((first, last, message))
        return sorted(messages, key=lambda entry: (entry[2].sent, entry[2].arrived))
