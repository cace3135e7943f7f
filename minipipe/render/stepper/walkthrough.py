"""A walk through a schedule, action by action: a snapshot of all ranks and messages for each action.

The events of a legal schedule have the times that :func:`minipipe.simulate` predicts. An illegal schedule runs until it
gets stuck. Each of its actions takes one round, as in :func:`minipipe.schedules.analysis.dependencies.walk`, and a SEND
and its RECV are a rendezvous.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import NamedTuple

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import ActionTable, check_table
from minipipe.schedules.analysis.activations import Footprint, Held, held_pairs
from minipipe.schedules.analysis.dependencies import Dependencies, Value
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.walk import complete_walk, walk
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.explanation import Explanation, explain
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.span import IdleCause, Message, Span
from minipipe.schedules.simulation.timeline import Timeline


class Event(NamedTuple):
    """The execution of one action: its rank, its position in the rank's list, its start and its end."""

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
        The action of that rank that is waited for. For a SEND that runs, the RECV that the receiver has not reached.
    held : tuple of (int, int)
        The (stage, microbatch) pairs whose activations are held, each from the start of its F until the end of its B,
        or of its W if the backward is split.
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
    """The state of all ranks and messages before the first action, at the start of an action, or after the last.

    Attributes
    ----------
    number : int
        0 before the first action, ``i`` at the start of the ``i``-th action.
    time : float
    event : Event or None
        The action that has just begun.
    ranks : tuple of RankState
    messages : tuple of Message
        The messages in flight, and those that are delivered but not yet consumed.
    """

    number: int
    time: float
    event: Event | None
    ranks: tuple[RankState, ...]
    messages: tuple[Message, ...]


def problems_of(
    schedule: ActionTable, memory_limit: float | Sequence[float] | None, memory: Footprint | None
) -> tuple[tuple[Problem, ...], str]:
    """Return the problems and the grid of the verifier; raise its error if the walk cannot even begin."""
    try:
        verify(schedule, memory_limit, memory)
    except ScheduleError as error:
        if error.code == "parameters":
            raise
        try:
            walk(schedule)
        except ScheduleError:
            raise error from None
        return error.problems, error.grid
    return (), ""


def timed_events(program: ActionTable, timeline: Timeline, sends_block: bool) -> tuple[Event, ...]:
    """Return the events of a legal program. SEND and RECV take no time, and have no span, unless sends block."""
    spans = [iter(row) for row in timeline.spans]
    free, position = [0.0] * program.num_ranks, [0] * program.num_ranks
    events = []
    for rank, action in complete_walk(program).order():
        takes_time = sends_block or not action.kind.is_communication
        _, start, end = next(spans[rank]) if takes_time else (action, free[rank], free[rank])
        events.append(Event(rank, position[rank], action, start, end))
        free[rank] = end
        position[rank] += 1
    # The walk is in topological order, and a stable sort keeps this order among equal times.
    return tuple(sorted(events, key=lambda event: event.start))


def events_in_rounds(schedule: ActionTable) -> tuple[Event, ...]:
    """Return the events of an illegal schedule up to where it gets stuck, each one round long."""
    events, position = [], [0] * schedule.num_ranks
    for now, ranks in enumerate(walk(schedule).rounds):
        for rank in ranks:
            action = schedule.actions[rank][position[rank]]
            events.append(Event(rank, position[rank], action, float(now), now + 1.0))
            position[rank] += 1
    return tuple(events)


def timeline_in_rounds(schedule: ActionTable, events: Sequence[Event]) -> Timeline:
    """Return the timeline of events in rounds. Its peaks are not counted."""
    rows: list[list[Span]] = [[] for _ in schedule.actions]
    for event in events:
        rows[event.rank].append(Span(event.action, event.start, event.end))
    return Timeline(schedule.name, tuple(map(tuple, rows)), (0,) * schedule.num_ranks, unit="rounds")


def by_rank(events: Sequence[Event], num_ranks: int) -> list[list[int]]:
    """Return, by rank, the indices of its events."""
    own: list[list[int]] = [[] for _ in range(num_ranks)]
    for at, event in enumerate(events):
        own[event.rank].append(at)
    return own


_SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
_RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


class Walkthrough:
    """A sequence of snapshots of a schedule in chronological order, one at the start of each action.

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
    grid : str
        The verifier's grid of the first problem.

    Raises
    ------
    ScheduleError
        If the walk cannot begin, because an action names a stage or a microbatch that does not exist, or because nearly
        all actions are missing. Code ``costs``, if the costs do not match the schedule.

    Examples
    --------
    >>> from minipipe import Schedule, schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> snapshot = walkthrough[1]
    >>> [state.activity.value for state in snapshot.ranks], str(snapshot.ranks[1].awaited)
    (['runs', 'waits'], '0F0')
    >>> [str(state.action) for state in Walkthrough(schedules.Schedule.from_text("0B0 0F0"))[-1].ranks]
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
        self.schedule, self.costs = schedule, costs or Costs()
        self.problems, self.grid = problems_of(schedule, memory_limit, memory)
        self.is_timed = all(problem.code == "memory" for problem in self.problems)
        self._check_costs()
        if self.is_timed:
            self.program = lower(schedule) if self.costs.sends_block else schedule
            self.timeline = simulate(schedule, self.costs)
            self.events = timed_events(self.program, self.timeline, self.costs.sends_block)
        else:
            self.program = schedule
            self.events = events_in_rounds(schedule)
            self.timeline = timeline_in_rounds(schedule, self.events)
        self.dependencies = Dependencies(self.program)
        self._own = by_rank(self.events, self.program.num_ranks)
        self._first = {event.action: at for at, event in reversed(list(enumerate(self.events)))}
        self._times = [*(event.start for event in self.events), max((event.end for event in self.events), default=0.0)]

    @property
    def is_legal(self) -> bool:
        """Whether the verifier found no problem."""
        return not self.problems

    @cached_property
    def stuck(self) -> dict[int, RankState]:
        """By rank, the final states of the ranks that never finish."""
        return {rank: state for rank, state in enumerate(self[-1].ranks) if state.activity is Activity.STUCK}

    @cached_property
    def cycle(self) -> tuple[int, ...]:
        """The ranks that wait for each other in a cycle, starting with the lowest; empty if there is no cycle."""
        for rank in self.stuck:
            path: list[int] = []
            following: int | None = rank
            while following in self.stuck and following not in path:
                path.append(following)
                waits = self.stuck[following]
                following = waits.source if waits.awaited in self.dependencies.rank_of else None  # None: it is missing
            if following in path:
                cycle = path[path.index(following) :]
                lowest = cycle.index(min(cycle))
                return (*cycle[lowest:], *cycle[:lowest])
        return ()

    def __len__(self) -> int:
        return len(self.events) + 2

    def __getitem__(self, index: int) -> Snapshot:
        number = range(len(self))[index]
        event = self.events[number - 1] if 0 < number <= len(self.events) else None
        time = self._times[max(0, number - 1)]
        states = tuple(self._state(rank, number, time) for rank in range(self.program.num_ranks))
        return Snapshot(number, time, event, states, self._messages_at(number))

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self.__getitem__, range(len(self)))

    def at_time(self, time: float) -> int:
        """Return the number of the last snapshot at or before a time."""
        return min(bisect_right(self._times, time), len(self) - 1)

    # -- one rank ------------------------------------------------------------------------------------------

    def _state(self, rank: int, number: int, time: float) -> RankState:
        own, row = self._own[rank], self.program.actions[rank]
        begun = bisect_left(own, number)
        last = self.events[own[begun - 1]] if begun else None
        if last and (last.end > time or own[begun - 1] == number - 1):
            source, awaited = self._receiver(last, time)
            cause = IdleCause.SENDING if last.action.kind in _SENDS and last.end > last.start else None
            held, _ = self._held_pairs[rank][begun - 1]
            return RankState(Activity.RUNS, last.action, last.position, last.end, cause, source, awaited, *held)
        held = self._held_pairs[rank][begun - 1][1] if begun else Held((), 0.0)
        if begun == len(row):
            return RankState(Activity.DONE, None, begun, None, IdleCause.DRAIN, None, None, *held)
        coming = self.events[own[begun]].start if begun < len(own) else None
        if coming is not None and coming <= time:
            return RankState(Activity.BEGINS, row[begun], begun, coming, None, None, None, *held)
        has_begun = any(not action.kind.is_communication for action in row[:begun])
        cause = IdleCause.WAITING if has_begun else IdleCause.WARM_UP
        activity = Activity.STUCK if coming is None and number == len(self) - 1 else Activity.WAITS
        source, awaited = self._reason(rank, row[begun], time)
        if awaited is None:
            cause = IdleCause.OVERHEAD
        return RankState(activity, row[begun], begun, coming, cause, source, awaited, *held)

    @cached_property
    def _held_pairs(self) -> list[list[tuple[Held, Held]]]:
        return held_pairs(self.program, self.costs.memory(self.program.num_stages))

    def _reason(self, rank: int, action: Action, time: float) -> tuple[int | None, Action | None]:
        """Return the rank and the action that a waiting action depends on; None for both if nothing is missing."""
        need = None
        for need in self.dependencies.of(action):
            if need.kind in _RECEIVES and not action.kind.is_communication and self._start(need) <= time:
                need = self.dependencies.partner_of(need)  # the RECV is posted; the SEND is not
            if not self._is_available(need, rank, time):
                return self.dependencies.home_of(need), need
        if need is None or self.is_timed:  # the overhead between two actions
            return None, None
        return self.dependencies.home_of(need), need  # it occurs twice, and the walk waits for the second one

    def _is_available(self, need: Action, rank: int, time: float) -> bool:
        if need not in self._first:
            return False
        event = self.events[self._first[need]]
        return (event.end if event.rank == rank else self._arrival(event)) <= time

    def _start(self, action: Action) -> float:
        return self.events[self._first[action]].start if action in self._first else inf

    def _receiver(self, event: Event, time: float) -> tuple[int | None, Action | None]:
        """Return the rank and the RECV that a SEND waits for; None for both once the RECV is posted."""
        blocks = self.is_timed and event.action.kind in _SENDS and event.end > event.start
        if not blocks or self._start(receive := self.dependencies.partner_of(event.action)) <= time:
            return None, None
        return self.dependencies.home_of(receive), receive

    # -- messages ------------------------------------------------------------------------------------------

    def _messages_at(self, number: int) -> tuple[Message, ...]:
        return tuple(message for first, last, message in self._messages if first <= number < last)

    @cached_property
    def _messages(self) -> list[tuple[int, float, Message]]:
        """The messages between ranks, each with the numbers of its first snapshot and of its consumption."""
        found = []
        for at, event in enumerate(self.events):
            value = self._value_sent(event)
            consumer = None if value is None else self.dependencies.as_written(value.consumer)
            if value is None or consumer is None or self.dependencies.home_of(consumer) == event.rank:
                continue
            is_sent = event.action.kind in _SENDS
            sent = event.start if is_sent else event.end
            first = at + 1 if is_sent else max(at + 2, bisect_left(self._times, sent) + 1)
            last = self._first[consumer] + 1 if consumer in self._first else inf
            destination = self.dependencies.home_of(consumer)
            assert destination is not None
            producer = self.dependencies.as_written(value.producer)
            message = Message(producer, consumer, event.rank, destination, sent, self._arrival(event))
            found.append((first, last, message))
        return sorted(found, key=lambda entry: (entry[2].sent, entry[2].arrived))

    def _value_sent(self, event: Event) -> Value | None:
        """Return the value that an event passes on: by a SEND if the program has one, otherwise by the computation."""
        is_sent = event.action.kind in _SENDS
        value = Value.carried_by(event.action) if is_sent else Value.produced_by(event.action)
        if value is None or not self.dependencies.exists(value):
            return None
        return value if is_sent == self.program.message_cuts[value.cut] else None

    def _arrival(self, event: Event) -> float:
        """Return the time from which on the value of an event is available on another rank."""
        value = self._value_sent(event) if self.is_timed else None
        arrival = None if value is None else self._explanation.arrival_of(value)
        return event.end if arrival is None else arrival

    @cached_property
    def _explanation(self) -> Explanation:
        return explain(self.timeline)

    def _check_costs(self) -> None:
        self.costs.durations(self.schedule.num_stages)
        self.costs.message_times(self.schedule)
        self.costs.memory(self.schedule.num_stages)
