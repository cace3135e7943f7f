"""All around compiled steps is as around eager ones: errors, timelines, batches."""

from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.errors import MinipipeError
from tests.launch import mpirun, needs_mpi

WIDTH = 4


def model(width=WIDTH):
    parts = (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.2))
    layers = [nn.Linear(width, width), nn.Tanh(), *parts, nn.Linear(width, width)]
    return nn.Sequential(*layers)


def made(group, how, **options):
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, **options}
    return Pipeline(model(), group, compile=how, **options)


def batches(count, *shape, dtype=np.float32):
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(dtype)


def gradients(pipeline):
    return [None if p.grad is None else p.grad.tobytes() for p in pipeline.parameters()]


def check(run, num_ranks, report=None):
    """Compare what a run leaves on all ranks; it returns that, and the report."""
    compiled = spawn(partial(run, how=True), num_ranks)
    eager = spawn(partial(run, how=False), num_ranks)
    assert [found for found, _ in compiled] == [found for found, _ in eager]
    for stage, (_, said) in enumerate(compiled):
        words = report or "step: stage {} is compiled"
        assert said.splitlines()[0] == words.format(stage)


def as_columns(x):
    return np.asfortranarray(x)


def as_part(x):
    return np.repeat(x, 2, axis=1)[:, ::2]


@pytest.mark.parametrize(
    "turned",
    [as_columns, as_part, np.float64, np.float16, np.ndarray.tolist],
    ids=["fortran", "strided", "float64", "float16", "lists"],
)
def test_batches_in_any_memory_and_dtype(turned):
    def run(group, how):
        pipeline, found = made(group, how), []
        for x in batches(5, 8, WIDTH):
            found += [pipeline.step(turned(x), turned(x)), *gradients(pipeline)]
        return found, pipeline.compile_report()

    check(run, 2)


def test_batches_in_two_layouts_by_turns():
    def run(group, how):
        pipeline, found = made(group, how), []
        for i, x in enumerate(batches(12, 8, WIDTH)):
            x = (as_columns, as_part, np.array)[i % 3](x)
            found += [pipeline.step(x, x), *gradients(pipeline)]
        return found, pipeline.compile_report()

    check(run, 2)


def test_a_scale_that_changes_is_no_change_of_the_program():
    def run(group, how):
        pipeline, found = made(group, how), []
        for i, x in enumerate(batches(6, 8, WIDTH)):
            found += [pipeline.step(x, x, scale=1.0 + i), *gradients(pipeline)]
        return found, pipeline.compile_report()

    check(run, 2)


def test_calls_that_run_eagerly_between_compiled_steps():
    def metric(outputs, targets):
        return float(np.abs(outputs - targets).max())

    def run(group, how):
        pipeline, found = made(group, how, inputs_require_grad=True), []
        optimiser = optim.Adam(pipeline.parameters(), 0.01)
        asked = [{}, {"outputs": "everywhere"}, {"metrics": {"most": metric}}, {}]
        asked += [{"accumulate": True}, {"wait": False}, {}]
        for i, x in enumerate(batches(21, 8, WIDTH)):
            loss = pipeline.step(x, x, **asked[i % 7])
            loss = loss if isinstance(loss, float) else loss.wait()
            found += [float(loss), *gradients(pipeline)]
            found.append(None if loss.outputs is None else loss.outputs.tobytes())
            found.append(loss.metrics)
            own = pipeline.input_gradients
            found.append(None if own is None else own.tobytes())
            optimiser.step()
        return found, pipeline.compile_report()

    check(run, 2)


def test_a_step_that_fails_leaves_no_gradients_and_the_next_ones_are_compiled():
    def run(group, how):
        layers = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        loss, labels = nn.CrossEntropyLoss(), np.arange(8) % 5
        options = {"loss": loss, "num_microbatches": 2, "compile": how}
        pipeline, found = Pipeline(nn.Sequential(*layers), group, **options), []
        for step in range(8):
            ids = np.random.default_rng(step).integers(0, 5, 8)
            ids[-1] = 7 if step == 4 else ids[-1]
            try:
                found.append(pipeline.step(ids, labels))
            except MinipipeError as error:
                found += [str(error), *error.__notes__]
            found += gradients(pipeline)
        return found, pipeline.compile_report()

    check(run, 1)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("where", ["inputs", "weights"])
def test_values_that_are_not_finite_are_named_as_in_an_eager_step(where, wait):
    def run(group, how):
        pipeline, found = made(group, how), []
        for i, x in enumerate(batches(7, 8, WIDTH)):
            if i == 4 and where == "inputs":
                x[5, 1] = np.nan
            if i == 4 and where == "weights":
                next(iter(pipeline.parameters())).data[0] = np.inf
            try:
                found.append(float(pipeline.step(x, x, wait=wait)))
            except MinipipeError as error:
                return [*found, str(error), error.code], "step: is over"
        return found, "step: is over"

    check(run, 2, "step: is over")


def test_the_timeline_of_a_compiled_step_has_the_actions_of_an_eager_one():
    def run(group, how):
        pipeline = made(group, how, schedule="zb-h1")
        for x in batches(4, 8, WIDTH):
            pipeline.step(x, x)
        timeline = pipeline.timeline(2)
        actions = [[str(span.action) for span in row] for row in timeline.spans]
        times = [(span.start, span.end) for row in timeline.spans for span in row]
        assert all(start <= end for start, end in times)
        peaks = list(map(int, timeline.peak_activations))
        return [actions, peaks], pipeline.compile_report()

    check(run, 2)


@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD])
def test_a_sharded_optimiser_over_replicas(kind):
    def run(group, how):
        pipeline, found = made(group, how, replicas=2, num_microbatches=2), []
        optimiser = pipeline.sharded(kind, learning_rate=0.05)
        for x in batches(5, 8, WIDTH):
            found.append(pipeline.step(x, x))
            found.append(float(pipeline.clip_grad_norm(0.5)))
            optimiser.step()
        found += [a.tobytes() for a in pipeline.state_dict().values()]
        return found, pipeline.compile_report().replace("stage 1", "stage 0")

    check(run, 2, "step: stage 0 is compiled")


def two_by_turns(group, how):
    """Train two pipelines of one description by turns."""
    both = [made(group, how), made(group, how, schedule="gpipe")]
    optimisers = [optim.Adam(each.parameters(), 0.01) for each in both]
    found = []
    for i, x in enumerate(batches(10, 64, WIDTH)):
        for pipeline, optimiser in zip(both, optimisers):
            found += [pipeline.step(x, x, wait=i % 3 != 1), *gradients(pipeline)]
            optimiser.step()
    found = [each if isinstance(each, bytes) else float(each) for each in found]
    return found, both[0].compile_report()


def test_two_pipelines_by_turns():
    check(two_by_turns, 2)


def one_after_another(group, how):
    """Train pipelines that are dropped."""
    found = []
    for _ in range(4):
        pipeline = made(group, how)
        for x in batches(4, 8, WIDTH):
            found += [pipeline.step(x, x), *gradients(pipeline)]
    return found, pipeline.compile_report()


def test_pipelines_one_after_another():
    check(one_after_another, 2)


@needs_mpi
@pytest.mark.slow  # in short: test_rows_over_mpi.py
def test_several_pipelines_over_mpi():
    job = mpirun(2, "-m", "tests.compile.around_steps_over_mpi", limit=60)
    assert job.code == 0 and "the same bits" in job.out, job
