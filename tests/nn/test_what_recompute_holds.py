"""Recompute holds the input alone until backward, and after an error everything is as
it was.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from minipipe import Tensor, autograd, nn
from minipipe.autograd import StageInput
from minipipe.autograd.memory import held_bytes
from minipipe.core.autograd import modes
from minipipe.errors import TensorError
from minipipe.nn import recompute
from tests.numerics.recomputed import (
    deep,
    unchanged,
)
from tests.numerics.stages import (
    ROWS,
    WIDTH,
    bits,
    numbers,
)


def test_between_forward_and_backward_only_the_input_is_held():
    model = deep()
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    parameters = [parameter.data for parameter in model.parameters()]
    assert held_bytes([nn.Recompute(model)(x).node], parameters) == x.data.nbytes
    assert held_bytes([model(x).node], parameters) >= 6 * x.data.nbytes


def test_each_of_several_recomputed_layers_holds_its_input():
    layers = [nn.Recompute(deep(2)) for _ in range(3)]
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    node = nn.Sequential(*layers)(x).node
    parameters = [p.data for layer in layers for p in layer.parameters()]
    assert held_bytes([node], parameters) == 3 * x.data.nbytes


def test_what_is_inside_dies_at_once_and_what_was_computed_again_after_backward():
    alive: list[weakref.ref] = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.tanh()
            alive.append(weakref.ref(y.data))
            return y * y

    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    root = nn.Recompute(Watched())(x).node
    array_of_x = weakref.ref(x.data)
    del x
    assert [array() is None for array in alive] == [True]
    assert array_of_x() is not None
    autograd.backward({root: numbers(ROWS, WIDTH, seed=1)})
    gc.collect()
    assert [array() is None for array in alive] == [True, True]
    assert array_of_x() is None


def test_after_i_what_w_needs_is_held_and_after_w_nothing():
    model = deep()
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    parameters, found = [parameter.data for parameter in model.parameters()], []
    for wrap in (unchanged, nn.Recompute):
        work = autograd.backward_input(
            {wrap(model)(x).node: numbers(ROWS, WIDTH, seed=1)}
        )
        found.append(held_bytes([work], parameters))
        work.run()
        assert held_bytes([work], []) == 0
    assert found[0] == found[1] >= 6 * x.data.nbytes


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["backward", "backward_input"])
def test_backward_twice_raises_backward_twice_and_changes_nothing(again):
    model = deep(1)
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    result, upstream = nn.Recompute(model)(x), numbers(ROWS, WIDTH, seed=1)
    result.backward(upstream)
    before = bits([parameter.grad for parameter in model.parameters()])
    with pytest.raises(TensorError) as caught:
        getattr(autograd, again)({result.node: upstream})
    assert caught.value.code == "no-graph"
    assert bits([parameter.grad for parameter in model.parameters()]) == before


def test_a_module_that_fails_when_it_is_computed_again_leaves_parameters_and_place_as_they_were():
    class FailsLater(nn.Module):
        def __init__(self) -> None:
            self.linear, self.num_calls = nn.Linear(WIDTH, WIDTH), 0

        def forward(self, x: Tensor) -> Tensor:
            self.num_calls += 1
            if self.num_calls > 1:
                raise ZeroDivisionError
            return self.linear(x)

    module = FailsLater()
    model = nn.Sequential(
        nn.Recompute(module), nn.Recompute(nn.Sequential(module.linear))
    ).initialise(0)
    result = model(Tensor(numbers(ROWS, WIDTH, seed=0)))
    with pytest.raises(ZeroDivisionError):
        result.sum().backward()
    assert modes.is_grad_enabled() and recompute.current_place().seed is None


def test_what_is_no_bundle_is_refused_going_in_and_coming_out():
    class ReturnsNumber(nn.Module):
        def forward(self, x: Tensor) -> float:
            return 1.0

    # as any other layer takes it
    assert nn.Recompute(nn.Tanh())(np.ones(2)).shape == (2,)
    for module, x in ((nn.Tanh(), (1.0,)), (ReturnsNumber(), Tensor([1.0]))):
        with pytest.raises(TensorError) as caught:
            nn.Recompute(module)(x)
        assert caught.value.code == "type"


def test_a_frozen_recomputation_holds_nothing():
    x = Tensor(numbers(100, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=False)
    result = nn.Recompute(nn.Linear(WIDTH, WIDTH).freeze()).initialise(0)(x)
    assert result.node.is_activation and held_bytes([result.node], []) == 0
