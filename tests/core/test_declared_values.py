"""What follows from declared values is what walk and lowering find."""

from hypothesis import assume, given
from hypothesis import strategies as st
from minipipe import Action, ActionKind, schedules
from minipipe.core.flow import Flow
from minipipe.core.lowering import with_messages
from minipipe.core.order import order
from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.walk import walk
from tests.schedules.sliced_tables import sliced_schedules
from tests.strategies import (
    examples,
    legally_overlapped,
    named_schedules,
    overlapped,
    replicated_schedules,
    runnable_schedules,
    summed_schedules,
    updated_schedules,
    with_offloads,
)

DEADLOCKS = (
    ScheduleCode.DEADLOCK,
    ScheduleCode.OVERLAP_DEADLOCK,
    ScheduleCode.RENDEZVOUS_DEADLOCK,
)


@st.composite
def offloaded(draw, originals):
    return with_offloads(draw, draw(originals))


def legal_tables():
    """Draw legal tables of every kind that the package knows."""
    named = named_schedules(max_ranks=4, max_microbatches=8, max_chunks=3).map(
        lambda drawn: drawn[1]
    )
    plain = named | runnable_schedules()
    replicated = replicated_schedules().map(lambda drawn: drawn[0])
    return (
        plain
        | replicated
        | sliced_schedules()
        | updated_schedules()
        | summed_schedules()
        | offloaded(runnable_schedules())
        | offloaded(sliced_schedules())
        | frozen(plain)
    )


@st.composite
def frozen(draw, originals):
    original = draw(originals)
    stages = draw(st.sets(st.integers(0, original.num_stages - 1)))
    try:
        return schedules.freeze_stages(original, stages)
    except ScheduleError:
        return original


def problem(schedule):
    """Return the code of the first problem, as the verifier finds it."""
    try:
        verify(schedule)
    except ScheduleError as error:
        return error.problems[0].code
    return None


def lowered(draw, schedule):
    if draw(st.booleans()):
        return schedule
    try:
        return lower(schedule)
    except ScheduleError:
        return schedule


def awaited_by(flow, rank, wait):
    """Return the action that a blocked rank waits for."""
    rows = flow.table.actions
    if wait.value is not None:
        return action_of(next(flow.givers(wait.value)))
    others = [place for place in flow.members(wait.meeting) if place[0] != rank]
    missing = [place for place in others if place[0] not in wait.came]
    return min(rows[other][at] for other, at in missing or others)


@examples(300)
@given(st.data())
def test_rounds_are_those_of_the_walk(data):
    drawn = data.draw(legal_tables() | overlapped(runnable_schedules()))
    drawn = lowered(data.draw, drawn)
    assume(problem(drawn) in (None, *DEADLOCKS))
    for sends_block in (True, False):
        flow = Flow(drawn)
        found = order(flow, sends_block)
        expected = walk(drawn, sends_are_buffered=not sends_block)
        assert sorted(found.blocked) == [stuck.rank for stuck in expected.blocked]
        for stuck in expected.blocked:
            awaited = awaited_by(flow, stuck.rank, found.blocked[stuck.rank])
            assert awaited == stuck.awaited
        if not found.blocked:
            assert found.rounds == expected.rounds


@examples(200)
@given(legal_tables() | legally_overlapped(runnable_schedules()))
def test_messages_are_those_of_lowering(drawn):
    if problem(drawn) is None:
        rows = with_messages(Flow(drawn), drawn.rank_of, action_of)
        assert tuple(map(tuple, rows)) == lower(drawn).actions


def action_of(parts):
    stage, kind, k = parts
    return Action(stage, ActionKind(kind), k)
