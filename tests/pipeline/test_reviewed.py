"""What a review of batches, losses and outputs found: each was a wrong number, or kept what nobody needed."""

import gc
import weakref

import numpy as np
import pytest

from minipipe import Microbatches, Pipeline, functional, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, MessageError, MicrobatchError, TensorError
from minipipe.testing import check_independent_of_microbatches, check_same_as_one_process
from tests.strategies import NAMES, build


def identity(num_microbatches=2, group=None, **options):
    layers = nn.Sequential(nn.Identity(), nn.Identity())
    return Pipeline(layers, group or OneRankGroup(), num_microbatches=num_microbatches, **options)


def test_a_rank_whose_batch_was_refused_does_not_pair_the_next_one_with_that_of_another():
    """It had not counted the call, so its second batch met the targets of the first."""

    def train(group):
        pipeline = identity(group=group, loss=nn.MSELoss())
        first, second = np.ones((4, 1)), np.full((4, 1), 2.0)
        if group.rank == 1:
            return pipeline.step(first, first)
        with pytest.raises(ArgumentError, match="needs the inputs, but got None"):
            pipeline.step(None, first)
        return pipeline.step(second, second)

    with pytest.raises(MessageError, match=r"Rank 1 is in step\(\), call 1 .*, but rank 0 in step\(\), call 2"):
        spawn(train, 2)


@pytest.mark.parametrize("seed", range(20))
def test_the_losses_add_up_from_left_to_right_in_every_version_of_python(seed):
    """Since 3.12 the built-in sum compensates for rounding, and had other bits than a loop."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((16, 3)) * 10.0 ** generator.integers(-6, 7, (16, 1))
    layers = nn.Sequential(nn.Linear(3, 2, dtype=np.float64))
    check_same_as_one_process(layers, nn.MSELoss(), x, np.zeros((16, 2)), build("gpipe", 1, 8))


class Two(nn.Module):
    def forward(self, x):
        return {"a": 10 * x, "b": x}


@pytest.mark.parametrize("is_function", [False, True])
def test_a_gradient_from_outside_finds_its_output_by_name(is_function):
    pipeline = Pipeline(nn.Sequential(Two()), OneRankGroup(), num_microbatches=2, inputs_require_grad=True)
    ones, zeros = np.ones((4, 1)), np.zeros((4, 1))
    for gradient in ({"a": ones, "b": zeros}, {"b": zeros, "a": ones}):
        cut = {name: array[:2] for name, array in gradient.items()}
        pipeline.forward_backward(ones, (lambda outputs, cut=cut: cut) if is_function else gradient)
        assert pipeline.input_gradients.tolist() == [[10.0]] * 4
    for wrong in ({"x": ones, "b": zeros}, {"a": ones}, (ones, zeros), ones):
        with pytest.raises(TensorError, match=r"The model returns a dict of \['a', 'b'\]; the matching argument is"):
            pipeline.forward_backward(ones, wrong)


def test_weights_do_not_fit_by_chance_when_there_are_as_many_samples_as_columns():
    x, y, w = np.ones((8, 2)), np.zeros((8, 2)), np.arange(8.0)
    for m in (1, 4, 8):
        with pytest.raises(TensorError, match=r"Weights of shape \(\d,\) do not fit a target of shape \(\d, 2\)"):
            identity(m, loss=nn.MSELoss()).step(x, (y, w))


def test_a_metric_keeps_its_name_whatever_becomes_of_the_dictionary():
    metrics = {"a": lambda *_: 1.0}
    loss = identity(loss=nn.MSELoss()).step(np.ones((4, 1)), np.ones((4, 1)), wait=False, metrics=metrics)
    metrics.clear()
    metrics["b"] = None
    assert loss.wait().metrics == {"a": 1.0}


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_step_that_fails_leaves_neither_half_a_gradient_nor_a_graph(accumulate):
    calls = []

    def fails_later(outputs, targets):
        calls.append(1)
        if len(calls) == 6:
            raise ValueError("enough")
        return functional.mean_squared_error(outputs, targets)

    layers = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    pipeline = Pipeline(layers, OneRankGroup(), loss=fails_later, num_microbatches=4)
    x = np.ones((8, 1))
    pipeline.step(x, x)
    with pytest.raises(ValueError, match="enough"):
        pipeline.step(x, x, accumulate=accumulate)
    assert all(parameter.grad is None for parameter in pipeline.parameters())
    assert pipeline._trainer.graphs == {0: {}}


def test_an_evaluation_that_fails_leaves_the_gradients_of_the_step_before():
    pipeline = Pipeline(nn.Sequential(nn.Linear(2, 1)), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2)
    pipeline.step(np.ones((4, 2)), np.ones((4, 1)))
    before = [parameter.grad.copy() for parameter in pipeline.parameters()]
    with pytest.raises(TensorError):
        pipeline.evaluate(np.ones((4, 2)), np.ones((4, 3)))
    assert all(np.array_equal(p.grad, grad) for p, grad in zip(pipeline.parameters(), before, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_an_auxiliary_loss_beside_a_gradient_from_outside_counts_the_same_in_any_number_of_microbatches(name):
    found = []
    for m in (1, 2, 4):
        layers = nn.Sequential(nn.Linear(2, 2), nn.AuxiliaryLoss(lambda x: (x * x).mean()), *[nn.Identity()] * 6)

        def run(group, m=m, layers=layers):
            pipeline = Pipeline(layers, group, schedule=build(name, 2, m))
            pipeline.forward_backward(np.ones((8, 2)), np.zeros((8, 2)))
            return {key: parameter.grad for key, parameter in pipeline.named_parameters()}

        found.append(next(grads["0.weight"] for grads in spawn(run, 2) if "0.weight" in grads))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5)


def test_a_gradient_that_is_no_number_is_no_agreement():
    layers = nn.Sequential(nn.Linear(1, 1), nn.Function(lambda x: (x - x) / (x - x)))
    pipeline = Pipeline(layers, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2)
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match="depends on the number of microbatches"):
        check_independent_of_microbatches(pipeline, np.ones((4, 1)), np.ones((4, 1)))


def test_outputs_whose_first_axis_is_not_that_of_the_samples_make_no_batch():
    layers = nn.Sequential(nn.Function(lambda x: x.reshape(1, -1)))
    with pytest.raises(TensorError, match="which do not form one array"):
        Pipeline(layers, OneRankGroup(), num_microbatches=2).predict(np.ones((8, 1)))


def test_an_input_that_is_not_used_has_the_gradient_zero_whatever_it_holds():
    layers = nn.Sequential(nn.Take("x"))
    pipeline = Pipeline(layers, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2, inputs_require_grad=True)
    pipeline.step({"x": np.ones((4, 1)), "y": np.full((4, 1), np.nan)}, np.zeros((4, 1)))
    assert pipeline.input_gradients["y"].tolist() == [[0.0]] * 4


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.CrossEntropyLoss()])
@pytest.mark.parametrize("place", [0, 2])
def test_an_auxiliary_loss_of_halves_meets_a_loss_in_float32(loss, place):
    layers = [nn.Linear(2, 2, dtype=np.float16) for _ in range(3)]
    layers.insert(place, nn.AuxiliaryLoss(lambda x: (x * x).mean()))
    y = np.ones(4, int) if isinstance(loss, nn.CrossEntropyLoss) else np.ones((4, 2), np.float16)
    check_same_as_one_process(nn.Sequential(*layers), loss, np.ones((4, 2), np.float16), y, build("1f1b", 3, 2))


def test_nothing_of_a_step_is_kept_once_it_is_over():
    pipeline = identity(loss=nn.MSELoss(), inputs_require_grad=True)
    x = np.ones((4, 1))
    for _ in range(3):
        loss = pipeline.step(x, x, outputs=True)
    outputs = weakref.ref(loss.outputs)
    del loss
    gc.collect()
    assert outputs() is None
    assert all(not record.input_gradients for record in pipeline._records)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"metrics": len}, "metrics is .*; expected a dict of functions"),
        ({"metrics": {"a": "accuracy"}}, "metrics is .*; expected a dict of functions"),
        ({"scale": optim.LossScale()}, r"scale is .*; expected a number. Give its value: scale=scale.value"),
    ],
)
def test_what_is_asked_of_a_step_is_looked_at_before_it_begins(asked, words):
    with pytest.raises(ArgumentError, match=words):
        identity(loss=nn.MSELoss()).step(np.ones((4, 1)), np.ones((4, 1)), **asked)


def test_a_weight_that_is_no_number_is_named():
    pipeline = identity(loss=nn.MSELoss(), loss_weight=lambda targets: targets)
    with pytest.raises(TensorError, match=r"The weight of a loss must be a number; .* an array of shape \(2, 1\)"):
        pipeline.step(np.ones((4, 1)), np.ones((4, 1)))


def test_microbatches_are_a_list_and_not_one_array():
    with pytest.raises(MicrobatchError, match="Microbatches takes a list of microbatches; this is one ndarray"):
        Microbatches(np.ones((4, 3)))
    parts = Microbatches([np.ones(2), np.zeros(3)])
    assert len(parts) == 2 and [len(part) for part in parts] == [2, 3] and parts[1].tolist() == [0, 0, 0]


def test_targets_beside_halves_keep_their_precision():
    pipeline = Pipeline(nn.Sequential(nn.Linear(1, 1, dtype=np.float16)), OneRankGroup(), loss=nn.MSELoss())
    pipeline.load_state_dict({"0.weight": np.ones((1, 1)), "0.bias": np.zeros(1)})
    assert pipeline.evaluate(np.zeros((1, 1)), np.full((1, 1), 70000.0)) == pytest.approx(70000.0**2)


def test_outputs_are_arrays_of_their_own():
    part = np.ones((2, 1), np.float32)
    pipeline = identity(loss=nn.MSELoss())
    loss = pipeline.step(Microbatches([part, part]), Microbatches([part, part]), outputs=True)
    loss.outputs.parts[0][...] = 5
    assert part.tolist() == [[1.0], [1.0]]

    def predict(group):
        pipeline = Pipeline(nn.Sequential(Two()), group, num_microbatches=2)
        found = pipeline.predict(np.ones((4, 1)))
        found["a"][...] = 0
        return True

    assert spawn(predict, 1) == [True]
