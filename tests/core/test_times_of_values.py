"""Starts, ends and memory that follow from values are those of the simulator."""

from hypothesis import assume, given
from hypothesis import strategies as st
from minipipe import Schedule
from minipipe.core.flow import Flow
from minipipe.core.times import Rates, memory_levels, times
from minipipe.schedules.analysis import activations
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.simulation.costs import Costs, relative_work
from minipipe.schedules.simulation.simulator import simulate
from tests.core.test_declared_values import legal_tables, problem
from tests.strategies import examples, legally_overlapped, runnable_schedules

TIMES = st.floats(0, 9, allow_subnormal=False)  # awkward: sums of them round


@st.composite
def costs_for(draw, table):
    """Draw costs with every feature but shared cores and links."""
    by_stage = st.lists(TIMES, min_size=table.num_stages, max_size=table.num_stages)
    slices = st.lists(
        st.floats(0.5, 2), min_size=table.num_slices, max_size=table.num_slices
    )
    return Costs(
        forward=draw(by_stage),
        backward_input=draw(by_stage),
        backward_weight=draw(by_stage),
        update=draw(TIMES),
        latency=draw(TIMES),
        overhead=draw(st.just(0) | TIMES),
        message_size=draw(TIMES),
        bandwidth=draw(st.floats(0.5, 9)),
        gradient_size=draw(TIMES),
        activation=draw(by_stage),
        copy_bandwidth=draw(st.floats(0.5, 9)),
        overlap=draw(st.floats(0, 1)),
        sends_block=draw(st.booleans()),
        slice_work=draw(slices) if table.num_slices > 1 else None,
    )


def rates_of(costs, table):
    parts = relative_work(costs.slice_work, table.num_slices)
    durations = {
        str(kind): times for kind, times in costs.durations(table.num_stages).items()
    }
    durations["copy"] = costs.copy_times(table.num_stages)
    durations["sum"] = [whole for _, whole in costs.sum_times(table)]
    return Rates(
        durations,
        costs.message_times(table),
        costs.overhead,
        costs.sends_block,
        costs.pair_times(table),
        parts if len(set(parts)) > 1 else (),
    )


@examples(300)
@given(st.data())
def test_starts_and_ends_are_those_of_the_simulator(data):
    drawn = data.draw(legal_tables() | legally_overlapped(runnable_schedules()))
    assume(problem(drawn) is None)
    assume(drawn.num_slices == 1 or "L" not in drawn.kinds)  # see the test below
    if data.draw(st.booleans()):
        drawn = lower(drawn)
    costs = data.draw(costs_for(drawn))
    timeline = simulate(drawn, costs)
    costs = costs.sliced(drawn.num_slices)
    table = lower(drawn) if costs.sends_block else drawn
    found = {
        task.action: (task.start, task.end)
        for tasks in times(Flow(table), rates_of(costs, table))
        for task in tasks
    }
    expected = [span for row in (*timeline.spans, *timeline.copies) for span in row]
    for action, start, end in expected:
        if not action.kind.is_communication:
            assert found[action] == (start, end), action
    for gradient_sum in timeline.sums:
        for action in gradient_sum.actions:
            assert found[action] == (
                gradient_sum.came(table.rank_of(*action[::2])),
                gradient_sum.end,
            )


def test_a_slice_waits_for_the_loaded_keys_and_values_of_an_earlier_one():
    """The simulator of `schedules/` does not wait for that copy."""
    table = Schedule.from_text("0F0.0 0O0.0 0L0.0 0F0.1 0B0.1 0B0.0")
    costs = Costs(forward=1, activation=4, copy_bandwidth=2)
    (tasks,) = times(Flow(table), rates_of(costs, table))
    ends = {str(task.action): task.end for task in tasks}
    assert [task.start for task in tasks if str(task.action) == "0F0.1"] == [5]
    assert ends["0L0.0"] == 5 and ends["0F0.0"] == 1


@examples(300)
@given(st.data())
def test_memory_is_what_the_analysis_of_activations_finds(data):
    drawn = data.draw(legal_tables() | legally_overlapped(runnable_schedules()))
    assume(problem(drawn) is None)
    sizes = st.lists(
        st.integers(0, 9), min_size=drawn.num_stages, max_size=drawn.num_stages
    )
    whole, rest, temporary = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    footprint = activations.Footprint(whole, rest, temporary)
    found = memory_levels(
        Flow(drawn),
        {
            "graph": whole,
            "back": whole,
            "rebuilt": [a + b for a, b in zip(whole, temporary)],
            "rest": rest,
            "temporary graph": whole,
            "rebuilt part": temporary,
        },
    )
    assert found == activations.memory_levels(drawn, footprint)
