"""Training and evaluation: what each call computes with, and what does not depend on
the number of ranks.
"""

import numpy as np
import pytest

from minipipe import Pipeline, nn, spawn
from minipipe.errors import TensorError


def model():
    return nn.Sequential(
        nn.Linear(4, 16),
        nn.Dropout(0.5),
        nn.Tanh(),
        nn.Linear(16, 2),
        nn.Dropout(0.1),
        nn.Identity(),
    )


INPUTS = np.random.default_rng(0).standard_normal((16, 4))
TARGETS = np.random.default_rng(1).standard_normal((16, 2))


def on_ranks(num_ranks, function, **options):
    def run(group):
        return function(Pipeline(model(), group, loss=nn.MSELoss(), **options))

    return spawn(run, num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_without_a_number_of_microbatches_the_loss_with_dropout_is_that_of_any_number_of_ranks(
    num_ranks,
):
    """The story: there were four for each stage, so each number of ranks drew other
    masks.
    """
    alone = on_ranks(
        1, lambda pipeline: [pipeline.step(INPUTS, TARGETS) for _ in range(3)]
    )[0]
    assert (
        on_ranks(num_ranks, lambda p: [p.step(INPUTS, TARGETS) for _ in range(3)])
        == [alone] * num_ranks
    )


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_evaluate_and_predict_leave_dropout_out_whatever_the_mode(num_ranks):
    """The story: they dropped activations until eval() was called, and gave another
    loss without a word.
    """

    def both(pipeline):
        results = pipeline.evaluate(INPUTS, TARGETS), pipeline.predict(INPUTS).tolist()
        assert pipeline.is_training
        pipeline.eval()
        assert (
            pipeline.evaluate(INPUTS, TARGETS),
            pipeline.predict(INPUTS).tolist(),
        ) == results
        assert not pipeline.is_training
        dropped = pipeline.evaluate(INPUTS, TARGETS, is_training=True)
        assert dropped != results[0] and dropped == pipeline.train().evaluate(
            INPUTS, TARGETS, is_training=True
        )
        assert pipeline.predict(INPUTS, is_training=True).tolist() != results[1]
        return results

    plain = model().initialise(0).eval()
    loss, outputs = on_ranks(num_ranks, both)[0]
    assert np.allclose(outputs, plain(INPUTS.astype(np.float32)).numpy())
    assert np.isclose(loss, np.mean((outputs - TARGETS) ** 2))


def test_every_layer_is_in_its_own_mode_again_afterwards():
    def modes(pipeline):
        layers = [
            layer for stage in pipeline._stages.values() for layer in stage.module
        ]
        layers[0].eval()
        before = [part.is_training for layer in layers for part in layer.modules()]
        pipeline.evaluate(INPUTS, TARGETS)
        with pytest.raises(TensorError):
            pipeline.predict(np.ones((4, 5)))
        assert [
            part.is_training for layer in layers for part in layer.modules()
        ] == before
        assert before.count(False) == 1

    on_ranks(1, modes)


def test_an_evaluation_between_two_steps_changes_nothing_in_the_second():
    """The story: a module that a block reaches in two ways was set twice, and stayed in
    eval mode for good.
    """
    block = nn.TransformerBlock(4, 2, dropout=0.5)
    assert len(list(block.modules())) > len({id(module) for module in block.modules()})

    def losses(pipeline, evaluates):
        found = []
        for _ in range(3):
            found.append(pipeline.step(INPUTS[:, None], TARGETS[:, None]))
            if evaluates:
                pipeline.evaluate(INPUTS[:, None], TARGETS[:, None])
                pipeline.predict(INPUTS[:, None])
        return found

    def train(group):
        pipelines = [
            Pipeline(
                nn.Sequential(block, nn.Linear(4, 2)),
                group,
                loss=nn.MSELoss(),
                recompute=recompute,
            )
            for recompute in (False, False, True)
        ]
        alone, between, recomputed = (
            losses(p, evaluates=i > 0) for i, p in enumerate(pipelines)
        )
        return alone == between == recomputed

    assert spawn(train, 2) == [True, True]


def test_a_step_after_eval_trains_without_dropout():
    def losses(pipeline):
        with_dropout = pipeline.step(INPUTS, TARGETS)
        without = pipeline.eval().step(INPUTS, TARGETS)
        assert (
            without == pytest.approx(pipeline.evaluate(INPUTS, TARGETS)) != with_dropout
        )
        assert all(parameter.grad is not None for parameter in pipeline.parameters())

    on_ranks(2, losses)
