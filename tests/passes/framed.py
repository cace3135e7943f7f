"""Framed programs for the tests of passes."""

from hypothesis import strategies as st
from minipipe.passes.framing import frame
from minipipe.schedules import data_parallel, lower
from tests.core.tables import legal_tables, problem


@st.composite
def framed_programs(draw):
    """Draw a legal schedule, and its program with any of the default frames."""
    schedule = draw(legal_tables().filter(lambda drawn: problem(drawn) is None))
    summed = schedule if schedule.is_forward_only else data_parallel(schedule, 1)
    last = schedule.num_stages - 1
    program = frame(
        lower(summed),
        tied=draw(st.sampled_from([(), ((0, last),)])) if last else (),
        check_finite=draw(st.booleans()),
        clip=draw(st.booleans()),
        update=draw(st.booleans()),
        input_gradients=draw(st.booleans()),
    )
    return schedule, program
