"""Sweeps: complete, legal, within memory, and the orders that the rules say."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs
from minipipe.schedules.simulation.evaluation import check_answer
from minipipe.search.clock import ProblemData, schedule_of
from minipipe.search.sweeps import Sweeps
from tests.schedules.search.workloads import any_workloads
from tests.strategies import examples

DECISIONS = list(product((True, False), repeat=3))


@examples(200)
@given(workload=any_workloads(), decisions=st.sampled_from(DECISIONS))
def test_a_complete_schedule_of_sweeps_is_legal_for_every_placement_and_limit(
    workload, decisions
):
    sweeps = Sweeps(ProblemData(workload), *decisions)
    if sweeps.is_complete:
        check_answer(schedule_of(sweeps.orders, workload, "drawn"), workload)


@examples(50)
@given(workload=any_workloads(), decisions=st.sampled_from(DECISIONS))
def test_memory_for_all_microbatches_suffices_for_every_placement(workload, decisions):
    assert Sweeps(
        ProblemData(workload._replace(memory_limit=(1e9,) * workload.num_ranks)),
        *decisions,
    ).is_complete


def drawn(costs, num_ranks, num_microbatches, limit, *decisions):
    """Return the rows of a schedule of sweeps, each action's letter and microbatch."""
    workload = costs.workload(range(num_ranks), num_microbatches, limit)
    rows = schedule_of(
        Sweeps(ProblemData(workload), *decisions).orders, workload, "drawn"
    ).actions
    return [" ".join(str(action)[1:] for action in row) for row in rows]


def test_the_first_sweep_fills_the_time_until_the_first_gradient_and_later_ones_alternate():
    """Unit times, memory for three. The first gradient is on ranks 2, 1 and 0 at 3, 4
    and 5.
    """
    assert drawn(Costs(), 3, 4, 3, True, True, True) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


@pytest.mark.parametrize(
    "may_wait, row", [(True, "F0 F1 F2 I0"), (False, "F0 F1 F2 F3 I0")]
)
def test_before_its_first_gradient_a_rank_waits_or_runs_an_f_that_delays_it(
    may_wait, row
):
    """On rank 1, F0 lasts from 2 to 4, and I0 until 7. On rank 0 three F end at 6, and
    four at 8.
    """
    costs = Costs(forward=2, backward_input=3)
    assert drawn(costs, 2, 6, None, may_wait, True, True)[0].startswith(row)


def test_an_f_that_needs_room_ends_after_the_w_that_makes_it():
    """Rank 1 is full at 7: F4 would end at 9, after W0. A gradient comes at 8, so I2 is
    first.
    """
    assert (
        drawn(Costs(), 3, 5, 4, True, True, True)[1]
        == "F0 F1 F2 I0 F3 I1 W0 I2 F4 I3 W1 W2 I4 W3 W4"
    )


@pytest.mark.parametrize(
    "fills, row",
    [(True, "F0 F1 F2 I0 W0 I1 I2 W1 W2"), (False, "F0 F1 F2 I0 I1 I2 W0 W1 W2")],
)
def test_a_rank_that_has_waited_less_than_another_fills_a_gap_shorter_than_a_w_only_if_told(
    fills, row
):
    """Rank 1 waits for 1 before I1, and a W takes 2; rank 0 has waited for more."""
    assert drawn(Costs(1, 2, 2), 3, 3, 4, True, True, fills)[1] == row


def test_no_two_combinations_of_decisions_are_alike():
    workload = Costs(11.347, 11.248, 8.132, 0.377).workload(range(16), 48, 32)
    orders = [
        Sweeps(ProblemData(workload), *decisions).orders for decisions in DECISIONS
    ]
    assert all(
        one != other for number, one in enumerate(orders) for other in orders[:number]
    )
