"""The executor does what the schedule says: its actions in their order, and what it
holds is what was predicted.
"""

import gc
import warnings
import weakref

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, simulate, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import (
    ScheduleError,
)
from minipipe.testing import one_process_step
from tests.launch import covering, mpirun, needs_mpi
from tests.pipeline.small_pipelines import mlp, on_ranks
from tests.strategies import NAMES, batch, build, split_backward, v_shaped


@pytest.mark.parametrize("ending", [".csv", ".txt"])
def test_a_schedule_from_a_file_trains_like_one_process(tmp_path, ending):
    path = tmp_path / f"mine{ending}"
    schedule = schedules.zb_h1(2, 4)
    path.write_text(schedule.to_csv() if ending == ".csv" else schedule.to_text())
    inputs, targets = batch(8, 4)
    expected = one_process_step(mlp(), nn.MSELoss(), inputs, targets, 4).loss
    for given in (path, str(path)):

        def run(group, given=given):
            pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), schedule=given)
            return pipeline.schedule.name, pipeline.step(inputs, targets)

        assert spawn(run, 2) == [("mine", expected)] * 2


def test_an_imported_schedule_in_another_order_runs_as_written_with_one_warning(
    tmp_path,
):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")  # last in, first out

    def run(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), schedule=path)
        pipeline.step(*batch(8, 4))
        pipeline.step(*batch(8, 4))
        return [[str(span.action) for span in row] for row in pipeline.timeline().spans]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ran = spawn(run, 2)
    assert ran == [[["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]]] * 2
    assert [
        str(warning.message).startswith("mine adds gradients") for warning in caught
    ] == [True]


def test_a_file_that_is_not_there_or_no_schedule_is_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("0F0,0B0,oops")
    for name, code, words in (
        ("nowhere.csv", "unreadable", "No such file"),
        ("mine.csv", "syntax", "Line 1, cell 3"),
    ):
        with pytest.raises(ScheduleError, match=words) as caught:
            Pipeline(
                mlp(), OneRankGroup(), loss=nn.MSELoss(), schedule=str(tmp_path / name)
            )
        assert caught.value.code == code


# -- the timeline ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    covering([*NAMES, "v-shaped", "split"], [1, 2, 4], strength=1),
)
def test_the_executor_does_what_the_simulator_says_in_order_and_in_memory(
    name, num_ranks
):
    if name == "v-shaped":
        schedule = v_shaped(num_ranks, 4)
    elif name == "split":
        schedule = split_backward(build("1f1b", num_ranks, 4), delay=2)
    else:
        schedule = build(name, num_ranks, 4)

    def run(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), schedule=schedule)
        pipeline.step(*batch(8, 4))
        return pipeline.timeline()

    predicted = simulate(schedule)
    for timeline in spawn(run, num_ranks):
        assert [[span.action for span in row] for row in timeline.spans] == [
            list(row) for row in schedule.actions
        ]
        assert timeline.peak_activations == predicted.peak_activations
        assert timeline.unit == "s" and "thread ranks" in timeline.note
        assert min(row[0].start for row in timeline.spans) == 0.0
        for row in timeline.spans:
            times = [time for span in row for time in (span.start, span.end)]
            assert times == sorted(times)
        assert (
            0 < timeline.bubble_fraction < 1
            if num_ranks > 1
            else timeline.bubble_fraction >= 0
        )


def test_the_timeline_obeys_the_dependencies():
    def run(pipeline):
        pipeline.step(*batch(8, 4))
        return pipeline.timeline()

    timeline = on_ranks(3, run)[0]
    end = {str(span.action): span.end for row in timeline.spans for span in row}
    start = {str(span.action): span.start for row in timeline.spans for span in row}
    for k in range(4):
        for stage in range(2):
            assert end[f"{stage}F{k}"] <= start[f"{stage + 1}F{k}"]
            assert end[f"{stage + 1}B{k}"] <= start[f"{stage}B{k}"]


def test_held_bytes_grow_with_what_is_in_flight_and_end_at_nothing():
    model = nn.Sequential(
        *[layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())],
        nn.Linear(32, 2),
    )
    inputs, targets = batch(32, 32)

    def peaks(pipeline):
        pipeline.measures_memory = True
        pipeline.step(inputs, targets)
        left = [[*held.values()] for held in pipeline._trainer.graphs.values()]
        return pipeline.timeline().peak_memory, left

    gpipe, _ = on_ranks(2, peaks, model, schedule="gpipe", num_microbatches=8)[0]
    one_f, left = on_ranks(2, peaks, model, schedule="1f1b", num_microbatches=8)[0]
    assert left == [[]]
    assert gpipe[0] == 4 * one_f[0]  # 8 in flight against 2, of equal microbatches
    assert on_ranks(
        2, lambda p: (p.step(inputs, targets), p.timeline().peak_memory)[1], model
    ) == [None, None]


def test_a_timeline_before_the_first_step_says_what_is_missing():
    with pytest.raises(ValueError, match="0 steps are known"):
        on_ranks(1, lambda pipeline: pipeline.timeline())


def test_nothing_of_a_batch_is_kept_after_its_step():
    """The story: the executor kept its last batch, and every array that it had sent,
    until the next step.
    """
    pipeline = Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2)
    inputs, targets = batch(8, 4)
    watched = [weakref.ref(inputs), weakref.ref(targets)]
    pipeline.step(inputs, targets)
    pipeline.predict(inputs)
    del inputs, targets
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


@pytest.mark.parametrize(
    ("schedule", "options"),
    covering(
        ["1f1b", "zb-h1", "zb-v", "interleaved-1f1b"],
        [{}, {"recompute": True}],
        strength=1,
    ),
)
def test_a_pipeline_that_nobody_keeps_gives_its_memory_back_at_once(schedule, options):
    """The story: an executor and its steps knew each other, and so did parameters and
    their last optimiser.

    In a notebook that makes one pipeline after another, all of them stayed until Python
    looked for circles.
    """

    def alive(group):
        pipeline = Pipeline(
            mlp(),
            group,
            loss=nn.MSELoss(),
            schedule=schedule,
            num_microbatches=4,
            **options,
        )
        optimiser = optim.Adam(pipeline.parameters(), 0.1)
        inputs, targets = batch(8, 4)
        for wait in (True, False):
            pipeline.step(inputs, targets, wait=wait)
            pipeline.clip_grad_norm(1.0)
            optimiser.step()
        pipeline.evaluate(inputs, targets)
        pipeline.predict(inputs)
        pipeline.load_state_dict(pipeline.state_dict())
        pipeline.timeline()
        pipeline.measure_costs(inputs, targets, 2)
        watched = [*map(weakref.ref, pipeline.parameters()), weakref.ref(pipeline)]
        del pipeline, optimiser
        return [ref() for ref in watched]

    gc.collect()
    gc.disable()
    try:
        found = spawn(alive, 2)
    finally:
        gc.enable()
    assert all(set(values) == {None} for values in found)


def test_an_array_that_neighbouring_stages_on_one_rank_hold_counts_for_both():
    """So that the bytes of each stage add up, whatever schedule runs; the simulator
    adds them up, too.
    """
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]

    def peak(partition_sizes):
        ends = np.cumsum([0, *partition_sizes])
        stages = len(partition_sizes)
        pipeline = Pipeline(
            nn.Sequential(*layers),
            OneRankGroup(),
            loss=nn.MSELoss(),
            schedule=schedules.sequential(1, 2, stages),
            partition=[range(int(a), int(b)) for a, b in zip(ends, ends[1:])],
        )
        pipeline.measures_memory = True
        pipeline.step(*batch(64, 4))
        return pipeline.timeline().peak_memory

    one_stage, tanh_result = peak([5])[0], 32 * 4 * 4
    assert peak([1, 2, 2]) == (one_stage,)  # Linear does not keep its result, Tanh does
    assert peak([2, 1, 1, 1]) == (one_stage + 2 * tanh_result,)


def test_a_stage_that_recomputes_holds_its_input_and_nothing_else():
    """The story: parameters have nbytes like arrays, and were counted as arrays beside
    their values.
    """
    model = nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())]
    )
    inputs, targets = batch(8, 6)[0], np.zeros((8, 6), np.float32)

    def measured(group):
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=4, recompute=True
        )
        return pipeline.measure_memory(inputs, targets).activation

    received = 2 * 6 * 4  # bytes of two samples
    of_the_loss = received  # the difference from the targets
    # the batch itself does not count
    assert spawn(measured, 2) == [(0, received + of_the_loss)] * 2


@needs_mpi
@pytest.mark.slow
def test_what_a_rank_holds_does_not_grow_with_the_number_of_microbatches():
    """The story: every array sent was kept until the end of the step, and 1F1B held as
    much as GPipe.
    """
    done = mpirun(2, "-m", "tests.pipeline.memory_over_mpi", 4, 32)
    assert done.code == 0, done.err
    few, many = (
        [float(number) for number in line.split()] for line in done.out.splitlines()
    )
    for rank in range(2):
        # MiB; it was 28 more, one for each microbatch more
        assert many[rank] < few[rank] + 10, (few, many)
