"""A sequence is a list of layers, names the layer of an error, and may be cut anywhere
without changing a bit.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, autograd, functional, nn
from minipipe.autograd import StageInput, backward
from minipipe.core.autograd import backend
from minipipe.core.tensor import record
from minipipe.errors import MinipipeError
from tests.numerics.small_models import mlp
from tests.strategies import examples

# -- sequences -------------------------------------------------------------------------


def test_a_sequence_is_indexed_sliced_and_walked_like_a_list_and_shares_its_layers():
    model = mlp()
    assert len(model) == 5
    assert model[0] is model.layers[0] and model[-1] is model.layers[4]
    part = model[1:4]
    assert type(part) is nn.Sequential and list(part) == model.layers[1:4]
    assert list(model[::2]) == [model[0], model[2], model[4]]
    assert [type(layer) for layer in model] == [
        nn.Linear,
        nn.ReLU,
        nn.Linear,
        nn.Tanh,
        nn.Linear,
    ]
    with pytest.raises(IndexError):
        model[5]


def test_the_parts_of_a_sequence_one_after_another_give_the_whole():
    model, x = mlp().initialise(), np.ones((2, 4), np.float32)
    assert model[2:](model[:2](x)).numpy().tobytes() == model(x).numpy().tobytes()


def test_an_empty_sequence_returns_its_input():
    x = Tensor([1.0])
    assert nn.Sequential()(x) is x


@pytest.mark.parametrize(
    "arguments", [([nn.ReLU()],), (nn.ReLU(), functional.relu), (nn.ReLU,)]
)
def test_a_sequence_takes_modules_only(arguments):
    with pytest.raises(TypeError, match="Sequential, as argument [01], takes a module"):
        nn.Sequential(*arguments)


def notes_of(call) -> tuple[MinipipeError, list[str]]:
    with pytest.raises(MinipipeError) as caught:
        call()
    return caught.value, getattr(caught.value, "__notes__", [])


def test_a_shape_error_names_the_layer_where_it_happened():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(5, 2))
    error, notes = notes_of(lambda: model(np.ones((2, 4), np.float32)))
    assert (
        error.code == "shape"
        and "(2, 3)" in error.message
        and "(5, 2)" in error.message
    )
    assert notes == ["in layer 2, Linear(5, 2)"]


def test_a_shape_error_inside_nested_sequences_names_the_way_from_the_inside_out():
    model = nn.Sequential(
        nn.ReLU(), nn.Residual(nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)))
    )
    _, notes = notes_of(lambda: model(np.ones((2, 4), np.float32)))
    assert notes[0] == "in layer 1, Linear(4, 3)"
    assert notes[1].startswith("in layer 0, Sequential(") and notes[2].startswith(
        "in layer 1, Residual("
    )
    assert len(notes) == 3
    # whose layers are layers
    nested = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)))
    assert notes_of(lambda: nested(np.ones((2, 4), np.float32)))[1] == [
        "in layer 2, Linear(4, 3)"
    ]


def test_a_dtype_error_names_the_layer_too():
    model = nn.Sequential(nn.Linear(4, 3, dtype=np.float64), nn.Linear(3, 3))
    error, notes = notes_of(lambda: model(np.ones((2, 4))))
    assert error.code == "dtype" and notes == ["in layer 1, Linear(3, 3)"]


# -- what passes from one layer to the next --------------------------------------------


class Transposed(nn.Module):
    """Returns a transposed view; its gradient is a transposed view, too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.T


class Scattered(nn.Module):
    """Adds to each number its column's sum, which NumPy computes in an order that
    depends on the strides.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x + x.sum(axis=0, keepdims=True)


class Spy(nn.Module):
    """Returns its input, and notes the strides of what passes forward and backward."""

    def __init__(self) -> None:
        self.forward_strides: list[tuple[int, ...]] = []
        self.backward_strides: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.forward_strides.append(x.data.strides)

        def vjp(gradient):
            self.backward_strides.append(gradient.strides)
            return gradient

        return record(x.data.copy(), (x, vjp))


def spied(shape: tuple[int, ...]) -> tuple[list, list]:
    """Return the strides after, and those of the gradient before, a layer that
    transposes.
    """
    before, after = Spy(), Spy()
    x = Tensor(np.ones(shape, np.float32), requires_grad=True)
    nn.Sequential(before, Transposed(), after)(x).backward(
        np.ones(shape[::-1], np.float32)
    )
    return after.forward_strides, before.backward_strides


SHAPES = [(3, 5), (1, 5), (5, 1), (2, 3, 4), (2, 1, 4), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_between_layers_values_and_gradients_have_the_strides_of_a_fresh_array(shape):
    # Also along axes of length one, where NumPy calls any stride contiguous.
    forwards, backwards = spied(shape)
    assert forwards == [np.ones(shape[::-1], np.float32).strides]
    assert backwards == [np.ones(shape, np.float32).strides]


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_a_sequence_that_passed_views_on_would_be_noticed(shape, monkeypatch):
    monkeypatch.setattr(backend, "contiguous", lambda array: array)
    forwards, backwards = spied(shape)
    assert forwards != [np.ones(shape[::-1], np.float32).strides]
    assert backwards != [np.ones(shape, np.float32).strides]


def test_a_broadcast_gradient_is_written_out_between_layers():
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(axis=0)  # the vjp returns a broadcast view

    spy = Spy()
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    nn.Sequential(spy, Mean())(x).backward(np.ones(4))
    assert spy.backward_strides == [(32, 8)]


def test_what_is_contiguous_is_not_copied_between_layers():
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    y = x * 2
    assert functional.contiguous(y) is y and functional.contiguous(x).data is x.data
    assert nn.Sequential(nn.Identity(), nn.Identity())(x).data is x.data


# measured: OpenBLAS multiplies a transposed view of 33 x 33 in another order, one of 32
# x 32 in the same
SIDE = 33


PIECES = {
    "linear": lambda: nn.Linear(SIDE, SIDE),
    "transposed": Transposed,
    "tanh": nn.Tanh,
    "scattered": Scattered,
    "identity": nn.Identity,
}


def stepwise_gradients(model: nn.Sequential, cut: int | None) -> list[bytes]:
    """Return the bits of the result and of every gradient, from one run or from two
    stages and a message between.
    """
    x, upstream = (
        np.random.default_rng(1).normal(size=(2, SIDE, SIDE)).astype(np.float32)
    )
    source = Tensor(x)
    source.node = StageInput(needs_gradient=True)
    if cut is None:
        result = model(source)
        backward({result.node: upstream})
    else:
        sent = model[:cut](source)
        received = Tensor(np.ascontiguousarray(sent.numpy()))
        received.node = StageInput(needs_gradient=True)
        result = model[cut:](received)
        backward({result.node: upstream})
        backward({sent.node: np.ascontiguousarray(received.grad)})
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return [array.tobytes() for array in [result.numpy(), source.grad, *gradients]]


@examples(60)
@given(st.lists(st.sampled_from(list(PIECES)), min_size=2, max_size=7), st.data())
def test_no_cut_between_layers_changes_a_bit(names, data):
    model = nn.Sequential(*(PIECES[name]() for name in names)).initialise(4)
    cut = data.draw(st.integers(1, len(names) - 1))
    assert stepwise_gradients(model, cut) == stepwise_gradients(model, None)


def test_a_sequence_whose_cuts_changed_bits_would_be_noticed(monkeypatch):
    model = nn.Sequential(
        *(PIECES[name]() for name in ("linear", "transposed", "scattered"))
    ).initialise(4)
    assert stepwise_gradients(model, 2) == stepwise_gradients(model, None)
    monkeypatch.setattr(backend, "contiguous", lambda array: array)
    assert stepwise_gradients(model, 2) != stepwise_gradients(model, None)


def test_a_boundary_is_marked_in_the_graph_and_nothing_else_is():
    x = Tensor(np.ones((2, 3)), requires_grad=True)
    inside = x.T
    assert not inside.node.is_boundary
    outside = functional.contiguous(inside)
    assert outside.node.is_boundary and not inside.node.is_boundary
    assert isinstance(outside.node, autograd.Node) and StageInput(True).is_boundary
