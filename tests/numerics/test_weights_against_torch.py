"""Weights go to PyTorch and back through one safetensors file, and the same model computes the same."""

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, checkpoint, nn, spawn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
from safetensors.torch import load_file, save_file  # noqa: E402 - it needs PyTorch

TOKENS = np.random.default_rng(0).integers(0, 7, (5, 6))
IMAGES = np.random.default_rng(1).standard_normal((5, 2, 8, 8)).astype(np.float32)


def language(nn):
    return [nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3), nn.Flatten()]


def images(nn):
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Tanh(), nn.Flatten()]
    return [*layers, nn.RMSNorm(75, 1e-5), nn.Linear(75, 6), nn.Sigmoid(), nn.Linear(6, 2)]


CASES = [(language, TOKENS), (images, IMAGES)]


def ours(layers):
    return nn.Sequential(*layers(nn))


def theirs(layers):
    return torch.nn.Sequential(*layers(torch.nn))


def turned(model, state):
    """Return a state with the weight of each Linear transposed: (inputs, outputs) here, (outputs, inputs) there."""
    linear = {f"{i}.weight" for i, layer in enumerate(model) if isinstance(layer, nn.Linear | torch.nn.Linear)}
    return {name: value.T.contiguous() if name in linear else value for name, value in state.items()}


def check_same(outputs, model, inputs):
    with torch.no_grad():
        expected = model(torch.from_numpy(inputs)).numpy()
    assert outputs.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(outputs, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("layers", "inputs"), CASES)
def test_pytorch_computes_the_same_with_our_weights(tmp_path, layers, inputs):
    path = tmp_path / "model.safetensors"

    def predicted(group):
        pipeline = Pipeline(ours(layers), group, seed=3)
        checkpoint.export(path, pipeline)
        return pipeline.predict(inputs)

    outputs = spawn(predicted, 2)[0]
    model = theirs(layers)
    model.load_state_dict(turned(model, load_file(path)))  # strict: the names are the same
    check_same(outputs, model, inputs)


@pytest.mark.parametrize(("layers", "inputs"), CASES)
def test_we_compute_the_same_with_weights_of_pytorch(tmp_path, layers, inputs):
    path, model, its = tmp_path / "model.safetensors", ours(layers), theirs(layers)
    save_file(turned(its, its.state_dict()), path)
    checkpoint.load_weights(path, model)
    check_same(model(Tensor(inputs)).numpy(), its, inputs)


def test_a_linear_that_is_not_turned_computes_something_else(tmp_path):
    """A mutant, with a square weight: the shapes fit."""
    path, model, its = tmp_path / "model.safetensors", nn.Sequential(nn.Linear(4, 4)), torch.nn.Linear(4, 4)
    its = torch.nn.Sequential(its)
    save_file(its.state_dict(), path)
    checkpoint.load_weights(path, model)
    with pytest.raises(AssertionError, match="Not equal"):
        check_same(model(Tensor(IMAGES[0, 0, :, :4])).numpy(), its, IMAGES[0, 0, :, :4].copy())
