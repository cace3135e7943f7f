"""The events of a walk through a schedule: at predicted times if it is legal, otherwise in rounds."""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.errors import Problem, ScheduleError
from minipipe.render.stepper.snapshot import Event
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.walk import complete_walk, walk
from minipipe.schedules.simulation.timeline import Span, Timeline


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
