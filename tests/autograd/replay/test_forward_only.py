"""What is evaluated and predicted is replayed as well, with the same bits, between steps that train."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn

WIDTH, ROWS = 4, 8
WORDS = ["step", "evaluate", "predict", "evaluate in training", "predict in training"]


def model():
    """Return a model in which masks differ by step, and attributes between training and evaluation."""
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, WIDTH), nn.Tanh())


def results(calls, num_ranks, replay, make=model):
    """Return what these calls give, by turns on two batches, and the reports of all ranks at the end."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, ROWS, WIDTH)).astype(np.float32)

    def run(group):
        pipeline = Pipeline(make(), group, loss=nn.MSELoss(), num_microbatches=4, replay=replay)
        optimiser, found = optim.SGD(pipeline.parameters(), learning_rate=0.1), []
        for i, call in enumerate(calls):
            verb, given = call.split()[0], {"is_training": True} if "training" in call else {}
            if verb == "predict":
                outputs = pipeline.predict(x[i % 3], **given)
                found.append([array.tobytes() for array in (outputs if isinstance(outputs, tuple) else [outputs])])
            else:
                found.append(float(getattr(pipeline, verb)(x[i % 3], y[i % 3], **given)))
            if verb == "step":
                optimiser.step()
        return found, pipeline.replay_report()

    found, reports = zip(*spawn(run, num_ranks))
    assert found == (found[0],) * num_ranks
    return found[0], reports


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_evaluate_and_predict_are_replayed_between_steps(num_ranks):
    calls = [call for call in WORDS for _ in range(4)] + WORDS * 3
    replayed, reports = results(calls, num_ranks, True)
    assert replayed == results(calls, num_ranks, False)[0]
    # The last stage: step, and the four others. Any other: step, and forward only with and without masks.
    last, others = "replays 5 kinds of microbatch", "replays 3 kinds of microbatch"
    for stage, report in enumerate(reports):
        assert report.startswith(f"stage {stage}: {last if stage == num_ranks - 1 else others}"), reports


def test_steps_and_evaluations_by_turns_describe_the_layers_once(monkeypatch):
    """Both modes of the layers are kept; describing them anew costs as much as a step."""
    from minipipe.execution import replaying

    described = []
    attributes = replaying.Attributes
    monkeypatch.setattr(replaying, "Attributes", lambda modules: described.append(0) or attributes(modules))
    results(["step", "evaluate"] * 6, 1, True)
    several = len(described)
    described.clear()
    results(["step", "evaluate"] * 12, 1, True)
    assert len(described) == several


class Pair(nn.Module):
    """Returns a bundle, which no script hands on."""

    def forward(self, x):
        return x, x * 2


def test_a_bundle_of_outputs_is_predicted_without_a_script():
    def make():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Pair())

    replayed, reports = results(["predict"] * 5, 1, True, make)
    assert replayed == results(["predict"] * 5, 1, False, make)[0]
    assert "Pair" in reports[0]


def test_a_stage_without_parameters_is_looked_at():
    """With no parameter to compare it seemed to be as before, so that a new probability was not noticed."""

    def run(group, replay):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "partition": [range(1), range(1, 2)], "replay": replay}
        pipeline, rng, found = Pipeline(model, group, **options), np.random.default_rng(0), []
        for i, x in enumerate(rng.normal(size=(10, ROWS, WIDTH)).astype(np.float32)):
            if i == 6:
                for stage in pipeline._stages.values():
                    for layer in stage.module.layers:
                        layer.probability = 0.25
            found.append(float(pipeline.step(x, x)))
        return found, pipeline.replay_report()

    replayed, reports = zip(*spawn(lambda group: run(group, True), 2))
    assert replayed == tuple(found for found, _ in spawn(lambda group: run(group, False), 2))
    assert all("replays" in report for report in reports)


def test_the_first_call_of_a_module_is_no_change_of_it(monkeypatch):
    """It notes in the module that all is filled, with which every kind of microbatch seemed to be another."""
    from minipipe.execution import replaying

    monkeypatch.setattr(replaying, "_PATIENCE", 3)
    assert results(["step"] * 5, 1, True)[1] == ("stage 0: replays 1 kind of microbatch",)
