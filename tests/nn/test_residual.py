"""The residual connection: what it computes, and that it refuses to broadcast."""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor, nn
from minipipe.errors import TensorError


def test_residual_adds_what_its_layers_compute_to_their_input():
    layer = nn.Residual(nn.Linear(3, 3), nn.Tanh()).initialise(2)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    inner = np.tanh(x @ layer.layers[0].weight.data)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), x + inner, rtol=1e-6)
    assert [name for name, _ in layer.named_parameters()] == [
        "layers.0.weight",
        "layers.0.bias",
    ]


def test_residual_without_layers_doubles_value_and_gradient():
    x = Tensor([1.0, -2.0], requires_grad=True)
    nn.Residual()(x).sum().backward()
    assert nn.Residual()(x).numpy().tolist() == [2.0, -4.0]
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("width", [1, 4])
def test_residual_refuses_layers_that_change_the_shape_even_where_it_could_be_broadcast(
    width,
):
    model = nn.Sequential(nn.Residual(nn.Linear(3, width)))
    with pytest.raises(
        TensorError,
        match=rf"^Residual: input has shape \(2, 3\), result \(2, {width}\)",
    ) as caught:
        model(np.ones((2, 3), np.float32))
    assert caught.value.code == "shape"
    assert caught.value.__notes__[-1].startswith("in layer 0, Residual(")
