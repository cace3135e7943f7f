"""Several training steps, one after another: simulated, explained and drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, init_process_group, nn, optim, schedules, simulate, spawn
from minipipe.cli.main import main
from minipipe.core.schedules.action import number_of
from minipipe.errors import ArgumentError, MinipipeError, ScheduleError
from minipipe.pipeline import Pipeline
from minipipe.render import draw_svg
from minipipe.schedules import IdleCause, repeat
from minipipe.schedules.simulation.span import StepChange
from tests.strategies import examples, named_schedules

TIMES = st.integers(0, 5).map(float)


@examples(100)
@given(
    named_schedules(max_ranks=5, max_microbatches=7, max_chunks=2),
    st.integers(1, 4),
    st.data(),
)
def test_steps_that_overlap_are_the_repeated_schedule(named, num_steps, data):
    schedule = named[-1]
    costs = Costs(
        forward=data.draw(TIMES),
        backward_weight=data.draw(TIMES),
        latency=data.draw(TIMES),
    )
    steps, repeated = (
        simulate(schedule, costs, num_steps),
        simulate(repeat(schedule, num_steps), costs),
    )
    assert steps.spans == repeated.spans
    assert (steps.name, steps.memory, steps.peak_activations) == (
        repeated.name,
        repeated.memory,
        repeated.peak_activations,
    )
    assert steps.num_steps == num_steps


@examples(100)
@given(
    named_schedules(max_ranks=5, max_microbatches=7, max_chunks=2),
    st.integers(1, 4),
    st.data(),
)
def test_a_rank_that_waits_leaves_a_step_when_the_last_stage_has_ended_it(
    named, num_steps, data
):
    schedule = named[-1]
    update = data.draw(
        st.lists(TIMES, min_size=schedule.num_stages, max_size=schedule.num_stages)
    )
    costs = Costs(
        data.draw(TIMES),
        update=update,
        latency=data.draw(TIMES),
        sends_block=data.draw(st.booleans()),
    )
    timeline, last = (
        simulate(schedule, costs, num_steps, wait=True),
        schedule.ranks_of(schedule.num_stages - 1),
    )
    for rank, row in enumerate(timeline.spans):
        for i, change in enumerate(
            timeline.step_changes[rank] if num_steps > 1 else ()
        ):
            size = len(row) // num_steps
            own_end = row[(i + 1) * size - 1].end if row else change.left
            ends = {other: timeline.spans[other] for other in last}
            ends = {
                other: spans[(i + 1) * len(spans) // num_steps - 1].end
                for other, spans in ends.items()
            }
            end_of_last = max(ends.values())
            assert change.left == max(own_end, end_of_last) or not row
            own_update = sum(
                update[stage]
                for stage in schedule.stages_of(rank)
                if "U" not in schedule.kinds
            )
            # where the schedule has U, no other update
            assert change.begun == change.left + own_update
            latest = {other for other, end in ends.items() if end == end_of_last}
            assert (
                change.after in (latest if end_of_last > own_end else {rank}) or not row
            )
            assert not row or row[(i + 1) * size].start >= change.begun
    assert simulate(schedule, costs, num_steps).makespan <= timeline.makespan


@examples(100)
@given(
    named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_all_time_is_explained_and_the_critical_path_reaches_from_begin_to_end(
    named, wait, sends_block, data
):
    costs = Costs(
        update=data.draw(TIMES), latency=data.draw(TIMES), sends_block=sends_block
    )
    timeline = simulate(named[-1], costs, 3, wait)
    for rank in range(timeline.num_ranks):
        idle = timeline.idle[rank]
        assert sum(slot.end - slot.start for slot in idle) + timeline.busy(
            rank
        ) == pytest.approx(timeline.makespan)
        assert all(a.end <= b.start for a, b in zip(idle, idle[1:]))
        changes = timeline.step_changes[rank]
        updates = [
            (slot.start, slot.end) for slot in idle if slot.cause is IdleCause.UPDATE
        ]
        assert updates == [(c.left, c.begun) for c in changes if c.begun > c.left]
    path = timeline.critical_path

    def microbatch_of(span):
        return number_of(span.action.microbatch, named[-1].num_slices)

    assert path[0][1].start == timeline.start and path[-1][1].end == timeline.end
    assert (
        len({microbatch_of(span) // named[-1].num_microbatches for _, span in path})
        == 3
    )


def test_who_waits_for_the_loss_is_told_for_whom():
    timeline = simulate(
        schedules.zb_h2(4, 8), Costs(update=0.5), num_steps=2, wait=True
    )
    assert timeline.step_changes[0] == (StepChange(27.0, 27.5, 3),)
    assert [slot.cause for slot in timeline.idle[0]][:2] == ["drain", "update"]
    path = timeline.critical_path
    gaps = [after.start - before.end for (_, before), (_, after) in zip(path, path[1:])]
    assert sorted(set(gaps)) == [0, 0.5] and gaps.count(0.5) == 1
    at = gaps.index(0.5)
    assert [(rank, str(span.action)) for rank, span in path[at : at + 2]] == [
        (3, "3W7"),
        (0, "0F8"),
    ]


def test_only_schedules_without_a_drain_on_every_rank_gain():
    def further(name, **options):
        return simulate(
            schedules.build(name, 4, 8), num_steps=4, **options
        ).time_of_further_step

    assert [further(name) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")] == [
        33,
        33,
        27,
        24,
    ]
    assert [
        further(name, wait=True) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")
    ] == [33, 33, 27, 27]
    # rank 0 has the last stage, and waits for nobody
    assert further("zb-v", wait=True) == further("zb-v") == 48


@pytest.mark.parametrize("num_steps", [0, -1, 1.5, "2", True, None])
def test_a_number_of_steps_that_is_none_is_refused(num_steps):
    with pytest.raises(
        ScheduleError, match="num_steps is .*expected a whole number, at least 1"
    ):
        simulate(schedules.gpipe(2, 2), num_steps=num_steps)


@pytest.mark.parametrize("update", [-1, float("inf"), "1", [1, 2, 3]])
def test_an_update_that_takes_no_time_there_is_is_refused(update):
    with pytest.raises(ScheduleError, match="update"):
        simulate(schedules.gpipe(2, 2), Costs(update=update))


def test_costs_tell_the_overhead_of_several_steps():
    """The story: the change from one step to the next counted as a pair of actions, and
    the overhead came out small.
    """
    for num_steps in (1, 2, 8):
        timeline = simulate(schedules.gpipe(2, 4), Costs(overhead=1), num_steps)
        assert Costs.measured(timeline).overhead == pytest.approx(1)


def test_costs_tell_the_time_between_steps():
    costs = Costs(update=[0.5, 2, 1, 1])
    timeline = simulate(
        schedules.interleaved_1f1b(2, 4, chunks_per_rank=2), costs, num_steps=3
    )
    # rank 0 has stages 0 and 2
    assert Costs.measured(timeline).update == [0.75, 1.5, 0.75, 1.5]
    assert (
        Costs.measured(simulate(schedules.gpipe(2, 2), costs=Costs(update=1))).update
        == 0
    )
    assert Costs(update=2).cut(2).update == 1


def test_drawings_show_where_a_rank_begins_another_step(capsys):
    assert "begins the next step" not in draw_svg(simulate(schedules.gpipe(2, 2)))
    svg = draw_svg(simulate(schedules.gpipe(2, 2), Costs(update=1), num_steps=3))
    assert svg.count('class="step"') == 3  # two ranks, and the legend
    assert "the rank begins the next step" in svg and "idle, update" in svg
    assert "between two steps (the optimiser" in svg
    assert (
        main(["simulate", "zb-h2", "--steps", "3", "--costs", "update=1", "--wait"])
        == 0
    )
    out = capsys.readouterr().out
    assert "each step after the first takes 28 units" in out and "update" in out
    assert main(["simulate", "zb-h2"]) == 0
    assert "update" not in capsys.readouterr().out
    assert main(["show", "zb-h2", "--steps", "2", "--format", "csv"]) == 0
    assert "0F15" in capsys.readouterr().out
    for options, problem in (
        (["show", "zb-h2", "--steps", "0"], "--steps is 0"),
        (["simulate", "zb-h2", "--wait"], "add --steps 2 or more"),
        (["step", "zb-h2", "--steps", "2", "--costs", "update=1"], "leave update out"),
    ):
        assert main(options) == 2
        assert problem in capsys.readouterr().err


def test_a_timeline_of_steps_that_waited_says_for_whom():
    def train(group):
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        # A frozen stage has no backward: whatever the machine does, it ends each step
        # before the last stage.
        model[0].freeze()
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            num_microbatches=4,
            partition=[range(1), range(1, 3)],
        )
        for _ in range(3):
            pipeline.step(np.ones((8, 2)), np.ones((8, 1)))
        return pipeline.timeline(3).step_changes

    changes = spawn(train, 2)[0]
    assert [[change.after for change in row] for row in changes] == [[1, 1], [1, 1]]


def test_after_an_error_no_older_step_is_shown_for_the_one_that_failed():
    with init_process_group() as group:
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss(), num_microbatches=2
        )
        for _ in range(2):
            pipeline.step(np.ones((4, 2)), np.ones((4, 1)))
        with pytest.raises(MinipipeError):
            pipeline.step(np.ones((4, 3)), np.ones((4, 1)))
        with pytest.raises(
            ArgumentError, match="0 steps are known since the last error"
        ):
            pipeline.timeline()
        for _ in range(20):
            pipeline.step(np.ones((4, 2)), np.ones((4, 1)))
        assert pipeline.timeline(8).num_steps == 8
        with pytest.raises(
            ArgumentError, match="8 steps are known since the last error"
        ):
            pipeline.timeline(9)


def test_a_call_that_is_refused_before_it_begins_leaves_the_steps_before_it():
    with init_process_group() as group:
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss(), num_microbatches=2
        )
        for _ in range(2):
            pipeline.step(np.ones((4, 2)), np.ones((4, 1)))
        with pytest.raises(MinipipeError, match="1 sample"):
            pipeline.step(np.ones((1, 2)), np.ones((1, 1)))
        assert pipeline.timeline(2).num_steps == 2


def test_several_measured_steps():
    def train(group):
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), schedule="zb-h1", num_microbatches=4
        )
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        with pytest.raises(ArgumentError, match="0 steps are known"):
            pipeline.timeline()
        for _ in range(10):
            pipeline.step([[1.0, 2.0]] * 8, [[3.0]] * 8, wait=False)
            optimiser.step()
        for wrong in (0, 1.0, "2", -1, True):
            with pytest.raises(
                ArgumentError, match="expected a whole number, at least 1"
            ):
                pipeline.timeline(wrong)
        with pytest.raises(
            ArgumentError, match="num_steps is 9; 8 steps .* at most 8 are kept"
        ):
            pipeline.timeline(9)
        return pipeline.timeline(), pipeline.timeline(num_steps=3), pipeline.schedule

    one, three, schedule = spawn(train, 2)[0]
    assert one.num_steps == 1 and three.num_steps == 3
    predicted = simulate(schedule, num_steps=3)
    assert [[s.action for s in row] for row in three.spans] == [
        [s.action for s in row] for row in predicted.spans
    ]
    assert three.peak_activations == predicted.peak_activations == one.peak_activations
    assert [(m.value, m.used_by) for m in sorted(three.messages)] == [
        (m.value, m.used_by) for m in sorted(predicted.messages)
    ]
    for rank, row in enumerate(three.spans):
        assert all(a.end <= b.start for a, b in zip(row, row[1:]))
        for change, index in zip(three.step_changes[rank], (12, 24)):
            assert row[index - 1].end <= change.left <= change.begun <= row[index].start
        idle = sum(slot.end - slot.start for slot in three.idle[rank])
        assert idle + three.busy(rank) == pytest.approx(three.makespan)
    assert three.spans[0][0].start == 0 and all(
        update > 0 for update in Costs.measured(three).update
    )
    assert (
        draw_svg(three, simulate(schedule, Costs.measured(three), num_steps=3)).count(
            'class="step"'
        )
        == 5
    )
