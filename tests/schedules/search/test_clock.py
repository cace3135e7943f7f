"""The clock of all searches says what `core/times.py` says, and what a rank holds."""

import copy
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs
from minipipe.core.flow import Flow
from minipipe.core.schedules.action import ActionKind
from minipipe.core.times import Rates, times
from minipipe.schedules.analysis.activations import memory_levels
from minipipe.search.clock import (
    Clock,
    ProblemData,
    one_after_another,
    orders_of,
    schedule_of,
)
from minipipe.search.list_scheduling import ListScheduler, Policy, _Greedy
from minipipe.search.sweeps import Sweeps
from tests.schedules.search.workloads import any_workloads
from tests.strategies import examples


def check_times(clock):
    """Compare the end of every action with that in the core, bit for bit."""
    workload, problem = clock.problem.workload, clock.problem
    schedule = schedule_of(clock.orders, workload, "drawn")
    tasks = times(
        Flow(schedule), Rates(workload.durations, workload.message, workload.overhead)
    ).tasks
    ends = [[clock.ended[event] for event in row] for row in clock.rows]
    assert ends == [[task.end for task in row] for row in tasks]
    assert clock.begins == [row[0].start for row in tasks]
    assert clock.ends == [row[-1].end for row in tasks]
    assert all(
        problem.op_of(event)[1] in own
        for row, own in zip(clock.rows, problem.stages_of)
        for event in row
    )


@examples(300)
@given(workload=any_workloads(), decisions=st.tuples(*[st.booleans()] * 3))
def test_sweeps_start_each_action_as_early_as_its_order_allows(workload, decisions):
    sweeps = Sweeps(ProblemData(workload), *decisions)
    if sweeps.is_complete:
        check_times(sweeps)


@examples(300)
@given(
    workload=any_workloads(),
    priority=st.sampled_from(["BF", "FB", "IFW", "FIW", "WIF", "IWF"]),
)
def test_greedy_scheduling_starts_each_action_as_early_as_its_order_allows(
    workload, priority
):
    kinds = [ActionKind(kind) for kind in ("B" if "B" in priority else "IW")]
    footprint = workload.footprint._replace(activation=(1,) * workload.num_stages)
    unlimited = workload._replace(
        footprint=footprint, memory_limit=(1e9,) * workload.num_ranks
    )
    check_times(_Greedy(ProblemData(unlimited, kinds), priority))


@examples(300)
@given(data=st.data(), workload=any_workloads())
def test_a_rank_holds_what_its_activations_take_and_all_is_as_before_when_taken_back(
    data, workload
):
    problem = ProblemData(workload)
    orders = ListScheduler(
        problem, [Policy(data.draw(st.integers(1, 6)))] * workload.num_ranks
    ).orders
    levels = memory_levels(schedule_of(orders, workload, "drawn"), workload.footprint)
    clock, left = (
        Clock(problem),
        [list(zip(order, row)) for order, row in zip(orders, levels)],
    )
    while any(left):
        rank = data.draw(
            st.sampled_from([rank for rank, order in enumerate(left) if order])
        )
        op, (during, after) = left[rank][0]
        before, held = copy.deepcopy({**vars(clock), "problem": None}), clock.held[rank]
        clock.run(rank, [op])
        if clock.rows[rank] == before["rows"][rank]:  # its value does not exist yet
            assert {**vars(clock), "problem": None} == before
            others = [
                r
                for r, order in enumerate(left)
                if order and clock.next_at(order[0][0]) < float("inf")
            ]
            rank = others[0]
            op, (during, after) = left[rank][0]
            before, held = (
                copy.deepcopy({**vars(clock), "problem": None}),
                clock.held[rank],
            )
            clock.run(rank, [op])
        assert held + problem.steps[op].during == pytest.approx(during)
        assert clock.held[rank] == pytest.approx(after)
        clock.undo(rank, held)
        assert {**vars(clock), "problem": None} == before
        clock.run(rank, [op])
        del left[rank][0]


def test_a_clock_without_overhead_is_wrong():
    """A mutant: it must not agree with the core."""
    workload = Costs(overhead=0.5).workload((0, 1), 3)
    clock = Sweeps(ProblemData(workload), True, True, True)
    check_times(clock)
    problem = ProblemData(workload)
    problem.overhead = 0.0
    with pytest.raises(AssertionError):
        check_times(Sweeps(problem, True, True, True))


@pytest.mark.parametrize(("limit", "number"), [(2, 2), (3, 3), (3.5, 3)])
def test_a_word_ends_before_the_first_action_that_does_not_fit(limit, number):
    workload = Costs().workload((0,), 4, limit)
    clock = Clock(ProblemData(workload))
    clock.run(0, [(ActionKind.FORWARD, 0)] * 4)
    assert len(clock.rows[0]) == number


def test_an_action_waits_for_the_value_of_another_rank_that_is_the_last_to_arrive():
    workload = Costs(latency=2).workload((0, 1), 2)
    clock, orders = Clock(ProblemData(workload)), orders_of(one_after_another(workload))
    assert clock.run(1, orders[1]) == set() and clock.rows[1] == []
    assert clock.run(0, orders[0]) == {1} and clock.orders[0] == orders[0][:1]
    assert clock.run(1, orders[1]) == {0} and clock.orders[1] == orders[1][:3]
    first = clock.problem.steps[ActionKind.FORWARD, 0].event
    assert [clock.awaited[event] for event in clock.rows[1]] == [first, None, None]
    assert clock.next_at((ActionKind.BACKWARD_INPUT, 0)) == 1 + 2 + 1 + 1 + 2


def test_what_a_cell_needs_and_who_takes_it_follows_from_the_declarations():
    problem = ProblemData(Costs(latency=2).workload((0, 1, 0), 1))
    needs = {
        op: {problem.op_of(event): delay for event, delay in step.needs}
        for op, step in problem.steps.items()
    }
    forward, inputs, weights = (ActionKind(letter) for letter in "FIW")
    assert needs == {
        (forward, 0): {},
        (forward, 1): {(forward, 0): 2},
        (forward, 2): {(forward, 1): 2},
        (inputs, 2): {(forward, 2): 0},
        (inputs, 1): {(forward, 1): 0, (inputs, 2): 2},
        (inputs, 0): {(forward, 0): 0, (inputs, 1): 2},
        **{(weights, stage): {(inputs, stage): 0} for stage in range(3)},
    }
    sends = {op: step.sends for op, step in problem.steps.items() if step.sends}
    assert sends == {
        (kind, s): [(1 - s % 2, 2)]
        for kind, s in product((forward, inputs), range(3))
        if (kind, s) not in [(forward, 2), (inputs, 0)]
    }
