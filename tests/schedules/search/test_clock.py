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
from minipipe.search.clock import Clock, Facts, one_after_another, schedule_of, words_of
from minipipe.search.list_scheduling import ListScheduler, Policy, _Greedy
from minipipe.search.sweeps import Sweeps
from tests.schedules.search.workloads import any_workloads
from tests.strategies import examples


def check_times(clock):
    """Compare the end of every action with that in the core, bit for bit."""
    workload, facts = clock.facts.workload, clock.facts
    schedule = schedule_of(clock.words, workload, "drawn")
    tasks = times(
        Flow(schedule), Rates(workload.durations, workload.message, workload.overhead)
    ).tasks
    ends = [[clock.ended[event] for event in row] for row in clock.rows]
    assert ends == [[task.end for task in row] for row in tasks]
    assert clock.begins == [row[0].start for row in tasks]
    assert clock.ends == [row[-1].end for row in tasks]
    assert all(
        facts.cell_of(event)[1] in own
        for row, own in zip(clock.rows, facts.own)
        for event in row
    )


@examples(300)
@given(workload=any_workloads(), decisions=st.tuples(*[st.booleans()] * 3))
def test_sweeps_start_each_action_as_early_as_its_order_allows(workload, decisions):
    sweeps = Sweeps(Facts(workload), *decisions)
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
    check_times(_Greedy(Facts(unlimited, kinds), priority))


@examples(300)
@given(data=st.data(), workload=any_workloads())
def test_a_rank_holds_what_its_activations_take_and_all_is_as_before_when_taken_back(
    data, workload
):
    facts = Facts(workload)
    words = ListScheduler(
        facts, [Policy(data.draw(st.integers(1, 6)))] * workload.num_ranks
    ).words
    levels = memory_levels(schedule_of(words, workload, "drawn"), workload.footprint)
    clock, left = (
        Clock(facts),
        [list(zip(word, row)) for word, row in zip(words, levels)],
    )
    while any(left):
        rank = data.draw(
            st.sampled_from([rank for rank, word in enumerate(left) if word])
        )
        cell, (during, after) = left[rank][0]
        before, held = copy.deepcopy({**vars(clock), "facts": None}), clock.held[rank]
        clock.run(rank, [cell])
        if clock.rows[rank] == before["rows"][rank]:  # its value does not exist yet
            assert {**vars(clock), "facts": None} == before
            others = [
                r
                for r, word in enumerate(left)
                if word and clock.next_at(word[0][0]) < float("inf")
            ]
            rank = others[0]
            cell, (during, after) = left[rank][0]
            before, held = (
                copy.deepcopy({**vars(clock), "facts": None}),
                clock.held[rank],
            )
            clock.run(rank, [cell])
        assert held + facts.steps[cell].during == pytest.approx(during)
        assert clock.held[rank] == pytest.approx(after)
        clock.undo(rank, held)
        assert {**vars(clock), "facts": None} == before
        clock.run(rank, [cell])
        del left[rank][0]


def test_a_clock_without_overhead_is_wrong():
    """A mutant: it must not agree with the core."""
    workload = Costs(overhead=0.5).workload((0, 1), 3)
    clock = Sweeps(Facts(workload), True, True, True)
    check_times(clock)
    facts = Facts(workload)
    facts.overhead = 0.0
    with pytest.raises(AssertionError):
        check_times(Sweeps(facts, True, True, True))


@pytest.mark.parametrize(("limit", "number"), [(2, 2), (3, 3), (3.5, 3)])
def test_a_word_ends_before_the_first_action_that_does_not_fit(limit, number):
    workload = Costs().workload((0,), 4, limit)
    clock = Clock(Facts(workload))
    clock.run(0, [(ActionKind.FORWARD, 0)] * 4)
    assert len(clock.rows[0]) == number


def test_an_action_waits_for_the_value_of_another_rank_that_is_the_last_to_arrive():
    workload = Costs(latency=2).workload((0, 1), 2)
    clock, words = Clock(Facts(workload)), words_of(one_after_another(workload))
    assert clock.run(1, words[1]) == set() and clock.rows[1] == []
    assert clock.run(0, words[0]) == {1} and clock.words[0] == words[0][:1]
    assert clock.run(1, words[1]) == {0} and clock.words[1] == words[1][:3]
    first = clock.facts.steps[ActionKind.FORWARD, 0].event
    assert [clock.awaited[event] for event in clock.rows[1]] == [first, None, None]
    assert clock.next_at((ActionKind.BACKWARD_INPUT, 0)) == 1 + 2 + 1 + 1 + 2


def test_what_a_cell_needs_and_who_takes_it_follows_from_the_declarations():
    facts = Facts(Costs(latency=2).workload((0, 1, 0), 1))
    needs = {
        cell: {facts.cell_of(event): delay for event, delay in step.needs}
        for cell, step in facts.steps.items()
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
    sends = {cell: step.sends for cell, step in facts.steps.items() if step.sends}
    assert sends == {
        (kind, s): [(1 - s % 2, 2)]
        for kind, s in product((forward, inputs), range(3))
        if (kind, s) not in [(forward, 2), (inputs, 0)]
    }
