"""What follows from declared values is what verifier, walk and simulator find."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st
from minipipe import Action, ActionKind, schedules
from minipipe.core.flow import Flow
from minipipe.core.legality import faults, fits
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


def fault(schedule):
    """Return the first reason that declared values give; "" for a legal table."""
    flow = Flow(schedule)
    found = next(faults(flow), None)
    if found is not None:
        return found.reason
    return "blocked" if order(flow).blocked else ""


def lowered(draw, schedule):
    if draw(st.booleans()):
        return schedule
    try:
        return lower(schedule)
    except ScheduleError:
        return schedule


@examples(300)
@given(st.data())
def test_a_table_is_legal_by_its_values_if_the_verifier_accepts_it(data):
    drawn = lowered(
        data.draw, data.draw(legal_tables() | overlapped(runnable_schedules()))
    )
    event("lowered" if any("SEND" in kind for kind in drawn.kinds) else "schedule")
    assert bool(fault(drawn)) == bool(problem(drawn))


def mutants(rows):
    """Return what can be changed: (name, rows) with one instruction changed."""
    places = [(r, i) for r, row in enumerate(rows) for i in range(len(row))]
    for rank, i in places:
        row = rows[rank]
        yield "removed", rank, row[:i] + row[i + 1 :]
        yield "duplicated", rank, row[: i + 1] + row[i:]
        if i + 1 < len(row):
            yield "exchanged", rank, [*row[:i], row[i + 1], row[i], *row[i + 2 :]]


@examples(300)
@given(st.data())
def test_a_changed_table_is_legal_by_its_values_if_the_verifier_accepts_it(data):
    drawn = lowered(data.draw, data.draw(legal_tables()))
    rows = [list(row) for row in drawn.actions]
    all_mutants = list(mutants(rows))
    change, rank, row = data.draw(st.sampled_from(all_mutants))
    rows[rank] = row
    try:
        mutant = replace(drawn, actions=tuple(map(tuple, rows)), overlaps=())
    except ScheduleError:
        return
    expected = problem(mutant)
    if expected is ScheduleCode.OUT_OF_RANGE:
        return
    event(f"{change}: {expected}")
    assert bool(fault(mutant)) == bool(expected), (str(mutant), fault(mutant), expected)


@examples(200)
@given(legal_tables())
def test_the_quick_check_accepts_legal_tables(drawn):
    if problem(drawn) is None:
        assert fits(Flow(drawn))


@examples(200)
@given(legal_tables() | legally_overlapped(runnable_schedules()))
def test_messages_are_those_of_lowering(drawn):
    if problem(drawn) is None:
        rows = with_messages(Flow(drawn), walk(drawn).rounds, action_of)
        assert tuple(map(tuple, rows)) == lower(drawn).actions


def action_of(parts):
    stage, kind, k = parts
    return Action(stage, ActionKind(kind), k)
