"""How far a timeline is above the best that its memory allows, as it is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.schedules.simulation.comparison import gaps
from tests.strategies import examples, named_schedules


def gaps_of(schedule, costs=None, **options):
    costs = costs or Costs()
    return gaps(schedule, costs, simulate(schedule, costs, **options))


@examples(60)
@given(
    named=named_schedules(max_ranks=4, max_microbatches=8, max_chunks=3), data=st.data()
)
def test_no_schedule_is_below_the_bound_of_its_memory(named, data):
    """Whatever makes it longer: sends that block, updates. Overhead and the memory of W
    count in split halves only.
    """
    number = st.sampled_from([0, 0.25, 1, 3])
    names = (
        "latency",
        "overhead",
        "update",
        "weight_activation",
        "transient_activation",
    )
    costs = Costs(
        *(data.draw(number) for _ in range(3)), sends_block=data.draw(st.booleans())
    )
    costs = Costs(**{**vars(costs), **{name: data.draw(number) for name in names}})
    for objective, workload, value, bound in gaps_of(named[1], costs):
        assert bound.value <= value + 1e-9, (objective, bound)
        assert set(workload.memory_limit) == {
            max(simulate(named[1], costs).peak_memory)
        }


def test_a_whole_backward_has_no_overhead_between_its_halves_and_holds_no_more_for_w():
    """Against split halves with their overhead, and their memory, a schedule of one
    rank would be below the bound.
    """
    schedule = schedules.one_f_one_b(1, 3)
    makespan, span = gaps_of(schedule, Costs(overhead=1, weight_activation=2))
    assert makespan.bound.value == span.bound.value == 9 and makespan.value == 14
    split = schedules.zb_h1(1, 3)
    assert gaps_of(split, Costs(overhead=1, weight_activation=0.5))[0].relative == 0


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (schedules.build("forward-only", 4, 8), {}),
        (schedules.freeze_stages(schedules.one_f_one_b(4, 8), [0]), {}),
        (schedules.zb_h1(4, 8), {"num_steps": 2}),
    ],
)
def test_what_is_no_step_of_training_all_stages_has_no_bound(schedule, options):
    assert gaps_of(schedule, **options) == ()


def test_a_rank_without_a_stage_and_costs_of_nothing_have_a_gap():
    first = schedules.zb_h1(1, 1).actions[0]
    last = tuple(action._replace(stage=1) for action in first)
    lame = schedules.Schedule("lame", (0, 2), 1, (first, (), last))
    assert [(gap.value, gap.bound.value) for gap in gaps_of(lame)] == [(5, 5), (5, 5)]
    assert [gap.relative for gap in gaps_of(lame, Costs(0, 0, 0, activation=0))] == [
        0,
        0,
    ]
