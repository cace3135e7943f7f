"""Evaluations and predictions are compiled, between steps that train."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.compile import guards, recording

WIDTH, ROWS = 4, 8
CALLS = ["step", "evaluate", "predict", "evaluate in training", "predict in training"]


def model():
    """Return a model with masks that differ by step, and attributes by mode."""
    return nn.Sequential(
        nn.Linear(WIDTH, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, WIDTH), nn.Tanh()
    )


def results(calls, num_ranks, how, make=model, rows=ROWS):
    """Return the results of calls, by turns on three batches, and all reports."""
    x, y = np.random.default_rng(0).normal(size=(2, 3, rows, WIDTH)).astype(np.float32)

    def run(group):
        pipeline = Pipeline(
            make(), group, loss=nn.MSELoss(), num_microbatches=4, compile=how
        )
        optimiser, found = optim.SGD(pipeline.parameters(), learning_rate=0.1), []
        for i, call in enumerate(calls):
            verb, given = (
                call.split()[0],
                {"is_training": True} if "training" in call else {},
            )
            if verb == "predict":
                outputs = pipeline.predict(x[i % 3], **given)
                found.append(
                    [
                        array.tobytes()
                        for array in (
                            outputs if isinstance(outputs, tuple) else [outputs]
                        )
                    ]
                )
            else:
                found.append(
                    float(getattr(pipeline, verb)(x[i % 3], y[i % 3], **given))
                )
            if verb == "step":
                optimiser.step()
        return found, pipeline.compile_report()

    found, reports = zip(*spawn(run, num_ranks))
    assert found == (found[0],) * num_ranks
    return found[0], reports


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_evaluations_and_predictions_between_steps_have_the_bits_of_eager_ones(
    num_ranks,
):
    calls = [call for call in CALLS for _ in range(4)] + CALLS * 3
    compiled, reports = results(calls, num_ranks, True)
    assert compiled == results(calls, num_ranks, False)[0]
    for stage, report in enumerate(reports):
        words = f"stage {stage} is compiled"
        expected = f"step: {words}\nforward only, 4 microbatches: {words}"
        assert report == expected, report


def test_a_batch_with_fewer_samples_than_microbatches_has_a_program_of_its_own():
    calls = ["predict", "evaluate"] * 4
    compiled, reports = results(calls, 2, True, rows=3)
    assert compiled == results(calls, 2, False, rows=3)[0]
    assert reports[0] == "forward only, 3 microbatches: stage 0 is compiled".join(
        ["step: has not run yet\n", ""]
    )


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_outputs_that_a_user_keeps_are_not_overwritten_by_later_predictions(
    num_microbatches,
):
    """The arrays of a program are used again in each step, unlike outputs."""

    def run(group):
        pipeline = Pipeline(
            model(), group, num_microbatches=num_microbatches, compile=True
        )
        batches = np.random.default_rng(0).normal(size=(6, 9, WIDTH)).astype(np.float32)
        kept = [pipeline.predict(x) for x in batches]
        again = [pipeline.predict(x) for x in batches]
        kept[0][:] = 7
        return [one.tobytes() == other.tobytes() for one, other in zip(kept, again)]

    assert spawn(run, 2) == [[False] + [True] * 5] * 2


def test_steps_and_evaluations_by_turns_describe_the_layers_once(monkeypatch):
    """Both modes are kept: describing layers anew costs as much as a step."""
    described = []
    attributes = guards.Attributes
    for module in (guards, recording):
        monkeypatch.setattr(
            module,
            "Attributes",
            lambda modules: described.append(0) or attributes(modules),
        )
    results(["step", "evaluate"] * 6, 1, True)
    several = len(described)
    described.clear()
    results(["step", "evaluate"] * 12, 1, True)
    assert len(described) == several


class Pair(nn.Module):
    """Returns a pytree."""

    is_compilable = True

    def forward(self, x):
        return x, x * 2


def test_a_pytree_of_outputs_is_predicted():
    def make():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Pair())

    compiled, reports = results(["predict"] * 5, 1, True, make)
    assert compiled == results(["predict"] * 5, 1, False, make)[0]
    assert reports[0].endswith("stage 0 is compiled")


def test_a_metric_that_predicts_while_an_evaluation_runs_has_the_bits_of_eager_calls():
    def run(group, how):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), num_microbatches=2, compile=how
        )
        batches = np.random.default_rng(0).normal(size=(5, 4, WIDTH)).astype(np.float32)
        inner = []

        def metric(outputs, targets):
            inner.append(pipeline.predict(batches[0]).tobytes())
            return 0.0

        found = []
        for x in batches:
            found += [
                float(pipeline.evaluate(x, x, metrics={"inner": metric})),
                pipeline.predict(x).tobytes(),
            ]
        return found, inner

    assert spawn(lambda group: run(group, True), 1) == spawn(
        lambda group: run(group, False), 1
    )


def test_a_stage_without_parameters_is_guarded():
    """The story: without a parameter to compare, no change was noticed."""

    def run(group, how):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        options = {
            "loss": nn.MSELoss(),
            "num_microbatches": 2,
            "partition": [range(1), range(1, 2)],
        }
        pipeline, found = Pipeline(model, group, compile=how, **options), []
        for i, x in enumerate(
            np.random.default_rng(0).normal(size=(10, ROWS, WIDTH)).astype(np.float32)
        ):
            if i == 6:
                for stage in pipeline._stages.values():
                    for layer in stage.module.layers:
                        layer.probability = 0.25
            found.append(float(pipeline.step(x, x)))
        return found, pipeline.compile_report()

    compiled, reports = zip(*spawn(lambda group: run(group, True), 2))
    assert compiled == tuple(
        found for found, _ in spawn(lambda group: run(group, False), 2)
    )
    assert reports == ("step: stage 0 is compiled", "step: stage 1 is compiled")
