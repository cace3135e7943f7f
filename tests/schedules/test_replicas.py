"""Stages on several ranks: replicas, each with microbatches of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.schedules import Program, Schedule, lower
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.simulation.comparison import gaps
from minipipe.schedules.transforms import repeat, split_backward
from tests.strategies import examples, replicated_schedules

TWO = """
    rank 0: 0F0         0B0
    rank 1:     1F0 1B0
    rank 2: 0F1         0B1
    rank 3:     1F1 1B1
"""
UP_AND_DOWN = """
    rank 0: 0F0     1F1 1B1     0B0
    rank 1: 0F1     1F0 1B0     0B1
"""


def test_a_table_says_which_rank_runs_which_microbatch():
    two = Schedule.from_text(TWO)
    assert (
        two.placement == ((0, 2), (1, 3)) and two.has_replicas and two.num_stages == 2
    )
    assert [two.ranks_of(stage) for stage in (0, 1)] == [(0, 2), (1, 3)]
    assert [[two.rank_of(stage, k) for k in (0, 1)] for stage in (0, 1)] == [
        [0, 2],
        [1, 3],
    ]
    assert [two.stages_of(rank) for rank in range(4)] == [(0,), (1,), (0,), (1,)]
    assert [two.crosses_ranks(stage) for stage in (0, 1)] == [True, False]
    straight = schedules.gpipe(2, 1)
    assert (
        not straight.has_replicas
        and straight.rank_of(1, 0) == 1
        and straight.ranks_of(1) == (1,)
    )


def test_replicas_are_in_the_order_of_their_lowest_microbatch_whatever_was_given():
    rows = [["0F1", "0F2", "0B1", "0B2"], ["0F3", "0B3"], ["0F0", "0B0"]]
    for given_order in ((0, 1, 2), (2, 1, 0), [1, 2, 0]):
        assert Schedule("mine", (given_order,), 4, rows).placement == ((2, 0, 1),)
    assert Schedule("mine", ((0,),), 1, [["0F0"]]).placement == (0,)


@examples(100)
@given(replicated_schedules())
def test_replicas_are_legal_and_survive_text_csv_and_lowering(drawn):
    schedule, one, copies = drawn
    verify(schedule)
    program = lower(schedule)
    verify(program)
    assert program.schedule == schedule and type(program) is Program
    assert schedule.has_replicas or schedule.num_ranks == one.num_ranks
    for table in (schedule, program):
        for read, text in (
            (type(table).from_text, table.to_text()),
            (type(table).from_csv, table.to_csv()),
        ):
            again = read(text, name=table.name)
            assert (again.placement, again.actions) == (table.placement, table.actions)
            assert again.num_microbatches == copies * one.num_microbatches


@examples(50)
@given(
    replicated_schedules(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_copies_on_ranks_of_their_own_take_the_time_and_the_memory_of_one(
    drawn, latency, num_steps, wait
):
    schedule, one, copies = drawn
    costs = Costs(forward=1, backward_input=2, latency=latency, update=0.5)
    together = simulate(schedule, costs, num_steps, wait)
    if schedule.num_ranks > one.num_ranks:
        alone = simulate(one, costs, num_steps, wait)
        assert together.makespan == alone.makespan
        assert together.peak_activations == alone.peak_activations * copies
        assert [len(row) for row in together.idle] == [
            len(row) for row in alone.idle
        ] * copies
        assert len(together.messages) == copies * len(alone.messages)
    shared = simulate(
        schedule,
        Costs(forward=1, backward_input=2, latency=latency, update=0.5, cores=1),
        num_steps,
        wait,
    )
    assert shared.makespan >= together.makespan - 1e-9
    assert {a for row in shared.spans for a, _, _ in row} == {
        a for row in together.spans for a, _, _ in row
    }


@pytest.mark.parametrize("cores", [None, 3])
def test_a_rank_that_waits_for_the_loss_waits_for_all_replicas_of_the_last_stage(cores):
    uneven = Schedule.from_text(
        "0F0 0B0 \n 1F0 1B0 \n 0F1 0F2 0B1 0B2 \n 1F1 1B1 1F2 1B2"
    )
    timeline = simulate(uneven, Costs(cores=cores), num_steps=2, wait=True)
    ends = [row[len(row) // 2 - 1].end for row in timeline.spans]
    assert ends[0] < ends[3] < ends[2]
    assert [change.left for (change,) in timeline.step_changes] == [
        ends[3],
        ends[3],
        ends[2],
        ends[3],
    ]
    assert [change.after for (change,) in timeline.step_changes] == [3, 3, 2, 3]


def test_the_pipelines_meet_on_shared_ranks():
    """Two pipelines, down and up, of two ranks: each rank holds both stages, and no
    tick is idle for long.
    """
    schedule = Schedule.from_text(UP_AND_DOWN)
    assert schedule.placement == ((0, 1), (1, 0))
    timeline = simulate(schedule, Costs(backward_input=0.5, backward_weight=0.5))
    assert timeline.makespan == 4 and timeline.bubble_fraction == 0
    assert peak_activations(schedule) == (2, 2)


# -- mistakes --------------------------------------------------------------------------


def refusal(schedule):
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    return caught.value


def test_a_backward_on_another_replica_than_its_forward_is_marked():
    schedule = Schedule(
        "mine", ((0, 1),), 3, [["0F0", "0B0", "0F1"], ["0F2", "0B2", "0B1"]]
    )
    error = refusal(schedule)
    assert error.code == "placement"
    assert str(error) == (
        "[placement] Rank 1, position 2: 0B1 is on another replica than its "
        "forward; 0F1 is on rank 0.\n\n"
        "rank 0:  0F0   0B0   0F1\nrank 1:  0F2   0B2  >0B1<"
    )
    (problem,) = refusal(split_backward(schedule)).problems[1:]
    assert problem.message.startswith("Rank 1, position 4: 0W1 is on another replica")
    assert refusal(Schedule.from_text(schedule.to_text())).code == "placement"


def test_a_cut_at_which_some_microbatches_change_ranks_and_others_do_not_is_refused():
    rows = [["0F0", "1F0", "1B0", "0B0"], ["0F1", "0B1"], ["1F1", "1B1"]]
    error = refusal(Schedule("mine", ((0, 1), (0, 2)), 2, rows))
    assert (error.code, error.problems[0].rank, error.problems[0].step) == (
        "placement",
        0,
        1,
    )
    assert (
        "1F0 stays on the rank of stage 0; other microbatches change ranks there"
        in str(error)
    )
    assert ">1F0<" in str(error)


def test_a_microbatch_on_two_replicas_is_a_duplicate():
    error = refusal(Schedule.from_text("0F0 0B0 \n 0F0 0B0"))
    assert [(p.code, p.rank, p.step) for p in error.problems] == [
        ("duplicate", 1, 0),
        ("duplicate", 1, 1),
    ]
    assert (
        "0F0 is a duplicate of position 0 of rank 0: a microbatch runs on one replica."
        in str(error)
    )


@pytest.mark.parametrize(
    "text",
    ["0F0 0B0 \n 1F0 1B0 0F1", "0F0 0B0 0F1 \n 1F0 1B0 0B1", "0F0 0F1 \n 1F0 1F1 0F2"],
)
def test_a_stray_forward_or_backward_makes_no_replica(text):
    schedule = Schedule.from_text(text)
    assert schedule.placement == (0, 1)
    assert refusal(schedule).code == "placement"


def test_a_rank_that_is_no_replica_is_told_which_are():
    schedule = Schedule(
        "mine", ((0, 1),), 3, [["0F0", "0B0"], ["0F1", "0B1"], ["0F2", "0B2"]]
    )
    assert "0F2 is on the wrong rank; stage 0 is on ranks 0, 1." in str(
        refusal(schedule)
    )


def test_a_missing_backward_is_missed_on_the_replica_that_has_the_forward():
    two = Schedule.from_text(TWO)
    without = Schedule(
        "mine",
        two.placement,
        2,
        [row if rank != 2 else row[:1] for rank, row in enumerate(two.actions)],
    )
    (problem,) = refusal(without).problems
    assert (problem.code, problem.rank) == ("missing", 2)


def test_two_pipelines_that_each_begin_with_their_end_wait_for_each_other():
    error = refusal(Schedule.from_text("1F1 1B1 0F0 0B0 \n 1F0 1B0 0F1 0B1"))
    assert error.code == "deadlock" and error.problems[0].message == (
        "These ranks wait for each other in a cycle: "
        "rank 0 cannot run 1F1 (position 0) before 0F1, which rank 1 runs later; "
        "rank 1 cannot run 1F0 (position 0) before 0F0, which rank 0 runs later."
    )


# -- who knows replicas, and who does not ----------------------------------------------


@pytest.mark.parametrize(
    ("reader", "use"),
    [
        (
            "a search",
            lambda schedule: Costs().workload(
                schedule.placement, schedule.num_microbatches
            ),
        ),
    ],
)
def test_who_runs_or_searches_schedules_refuses_replicas_with_one_sentence(reader, use):
    with pytest.raises(
        ScheduleError,
        match=(
            rf"has replicas of stages \(such as stage 0\), which {reader} does not "
            r"support"
        ),
    ) as caught:
        use(Schedule.from_text(UP_AND_DOWN))
    assert caught.value.code == "unsupported"
    assert str(caught.value).endswith("; it can be drawn, checked and simulated.")


def test_gaps_are_left_out_where_no_bound_is_proved():
    two = Schedule.from_text(TWO)
    assert gaps(two, Costs(), simulate(two)) == ()


def test_steps_repeat_on_the_replica_of_each_microbatch():
    two = repeat(Schedule.from_text(TWO), 2)
    assert two.placement == ((0, 2), (1, 3)) and [
        two.rank_of(0, k) for k in range(4)
    ] == [0, 2, 0, 2]
    verify(two)


def test_pictures_show_replicas_where_they_stand():
    timeline = simulate(Schedule.from_text(UP_AND_DOWN))
    assert draw_text(timeline).count("rank ") >= 2
    for drawing in (draw_svg(timeline), draw_html(timeline), perfetto_trace(timeline)):
        assert all(
            str(action) in drawing for row in timeline.spans for action, _, _ in row
        )
