"""Tables for the tests of the core: legal ones of every kind, and changed ones."""

from hypothesis import strategies as st
from minipipe import schedules
from minipipe.core.errors import ScheduleError
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from tests.schedules.sliced_tables import sliced_schedules
from tests.strategies import (
    named_schedules,
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


def lowered(draw, schedule):
    if draw(st.booleans()):
        return schedule
    try:
        return lower(schedule)
    except ScheduleError:
        return schedule


def mutants(rows):
    """Return what can be changed: (name, rows) with one instruction changed."""
    places = [(r, i) for r, row in enumerate(rows) for i in range(len(row))]
    for rank, i in places:
        row = rows[rank]
        yield "removed", rank, row[:i] + row[i + 1 :]
        yield "duplicated", rank, row[: i + 1] + row[i:]
        if i + 1 < len(row):
            yield "exchanged", rank, [*row[:i], row[i + 1], row[i], *row[i + 2 :]]
