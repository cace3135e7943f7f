"""The LSTM: against PyTorch, its walk back through time, made once, in whole and in two
halves, and what it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.autograd import StageInput, backward_input
from minipipe.autograd.memory import held_bytes
from minipipe.errors import ArgumentError, TensorError
from minipipe.functional import recurrent
from minipipe.testing import check_gradients, same_bits
from tests.numerics.checks import check_two_halves, numbers
from tests.strategies import examples

SIZES = {
    "n": st.integers(1, 3),
    "t": st.integers(1, 6),
    "k": st.integers(1, 4),
    "h": st.integers(1, 4),
}


def arrays(n: int, t: int, k: int, h: int, with_bias: bool = True) -> list[np.ndarray]:
    shapes = [(n, t, k), (k, 4 * h), (h, 4 * h), (4 * h,)]
    return [numbers(*shape, seed=i) for i, shape in enumerate(shapes[: 3 + with_bias])]


# -- what it computes ------------------------------------------------------------------


@examples(60)
@given(st.fixed_dictionaries(SIZES), st.booleans())
def test_values_and_gradients_are_those_of_pytorch(sizes, with_bias):
    torch = pytest.importorskip(
        "torch", reason="needs PyTorch: pip install '.[oracle]'"
    )
    x, w, u, *b = arrays(**sizes, with_bias=with_bias)
    theirs = torch.nn.LSTM(
        sizes["k"], sizes["h"], bias=with_bias, batch_first=True, dtype=torch.float64
    )
    for parameter, values in zip(
        theirs.parameters(),
        [w.T, u.T, *(half * part for part in b for half in (0.25, 0.75))],
    ):
        parameter.detach().numpy()[...] = values  # the bias of theirs is the sum of two
    ours = nn.LSTM(sizes["k"], sizes["h"], bias=with_bias, dtype=np.float64)
    for parameter, values in zip(ours.parameters(), [w, u, *b], strict=True):
        parameter.load(values, "a parameter")
    our_x, their_x = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    result, (expected, _) = ours(our_x), theirs(their_x)
    np.testing.assert_allclose(
        result.numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-12
    )
    upstream = numbers(*result.shape, seed=9)
    result.backward(upstream)
    expected.backward(torch.tensor(upstream))
    gradients = [their_x.grad, theirs.weight_ih_l0.grad.T, theirs.weight_hh_l0.grad.T]
    gradients += [theirs.bias_ih_l0.grad] if with_bias else []
    for given_, wanted in zip(
        [our_x.grad, *(p.grad for p in ours.parameters())], gradients, strict=True
    ):
        np.testing.assert_allclose(given_, wanted.numpy(), rtol=1e-10, atol=1e-12)


@examples(25)
@given(st.fixed_dictionaries(SIZES), st.booleans())
def test_gradients_are_those_of_central_differences(sizes, with_bias):
    check_gradients(F.lstm, *arrays(**sizes, with_bias=with_bias))


def test_a_state_depends_on_what_came_before_and_on_nothing_behind():
    layer, x = nn.LSTM(3, 4, dtype=np.float64).initialise(1), numbers(2, 6, 3)
    whole = layer(Tensor(x)).numpy()
    np.testing.assert_allclose(
        layer(Tensor(x[:, :4])).numpy(), whole[:, :4], rtol=1e-12
    )
    changed = x.copy()
    changed[:, 2] += 1
    differs = np.abs(layer(Tensor(changed)).numpy() - whole).max((0, 2)) > 1e-9
    assert differs.tolist() == [False, False, True, True, True, True]


def test_an_open_forget_gate_remembers_and_a_closed_one_forgets():
    """One unit whose cell is 1 after the first input: the input gate is open there
    alone.
    """
    x = np.zeros((1, 30, 1))
    x[0, 0] = 1

    def last(forget: float) -> float:
        w, b = np.array([[40.0, 0.0, 40.0, 0.0]]), np.array([-20.0, forget, 0.0, 40.0])
        return F.lstm(x, w, np.zeros((1, 4)), b).numpy()[0, -1, 0]

    assert last(40.0) == pytest.approx(np.tanh(1.0), rel=1e-6)
    assert abs(last(-40.0)) < 1e-6


@pytest.mark.parametrize(("n", "t"), [(0, 3), (2, 0), (0, 0)])
def test_no_sample_or_no_time_gives_an_empty_result_and_zero_gradients(n, t):
    tensors = [Tensor(array, requires_grad=True) for array in arrays(n, t, 2, 3)]
    result = F.lstm(*tensors)
    result.backward(np.ones(result.shape))
    assert result.shape == (n, t, 3)
    assert [tensor.grad.shape for tensor in tensors] == [
        (n, t, 2),
        (2, 12),
        (3, 12),
        (12,),
    ]
    assert not any(tensor.grad.any() for tensor in tensors)


def test_large_gates_are_open_or_closed_and_nothing_overflows():
    with np.errstate(all="raise", under="ignore"):
        x, ones = np.full((1, 2, 1), 1e4, np.float32), np.ones((1, 4), np.float32)
        tensors = [Tensor(array, requires_grad=True) for array in (x, ones, ones)]
        result = F.lstm(*tensors)
        result.backward(np.ones(result.shape, np.float32))
    np.testing.assert_allclose(result.numpy().ravel(), np.tanh([1.0, 2.0]), rtol=1e-6)
    assert all(np.isfinite(tensor.grad).all() for tensor in tensors)


# -- the shared walk through time ------------------------------------------------------


@pytest.fixture
def walks(monkeypatch):
    """Count the walks back through time."""
    made, walk = [], recurrent._back_through_time
    monkeypatch.setattr(
        recurrent, "_back_through_time", lambda *given: made.append(1) or walk(*given)
    )
    return made


def test_its_four_gradients_need_one_walk_through_time(walks):
    tensors = [Tensor(array, requires_grad=True) for array in arrays(2, 5, 3, 4)]
    F.lstm(*tensors).sum().backward()
    assert len(walks) == 1 and all(tensor.grad is not None for tensor in tensors)


@pytest.mark.parametrize(
    "needed", [subset for r in (1, 2, 3) for subset in combinations(range(4), r)]
)
def test_any_of_its_gradients_take_one_walk_and_have_the_bits_of_all_four(
    walks, needed
):
    def gradients(needed: Sequence[int]) -> list[np.ndarray | None]:
        tensors = [
            Tensor(array, requires_grad=i in needed)
            for i, array in enumerate(arrays(2, 5, 3, 4))
        ]
        F.lstm(*tensors).backward(numbers(2, 5, 4, seed=9))
        return [tensor.grad for tensor in tensors]

    found, expected = gradients(needed), gradients(range(4))
    assert len(walks) == 2 and [i for i in range(4) if found[i] is not None] == [
        *needed
    ]
    assert all(same_bits(found[i], expected[i]) for i in needed)


def stage(x: np.ndarray) -> tuple[nn.LSTM, Tensor, Tensor]:
    """Return a layer, the input of its stage, and its result."""
    layer, given_ = nn.LSTM(3, 4, dtype=np.float64).initialise(1), Tensor(x)
    given_.node = StageInput(needs_gradient=True)
    return layer, given_, layer(given_)


def test_i_walks_through_time_and_w_only_takes_products(walks):
    layer, x, y = stage(numbers(2, 5, 3))
    work = backward_input({y.node: numbers(2, 5, 4, seed=9)})
    assert (
        len(walks) == 1
        and x.grad.any()
        and all(parameter.grad is None for parameter in layer.parameters())
    )
    work.run()
    assert len(walks) == 1 and all(
        parameter.grad.any() for parameter in layer.parameters()
    )


def test_a_backward_in_two_halves_leaves_the_bits_of_a_whole_one():
    check_two_halves(
        lambda: nn.Sequential(nn.LSTM(3, 4), nn.LSTM(4, 2, bias=False)).initialise(1),
        2,
        5,
        3,
    )


def test_after_i_the_gradient_of_the_gates_has_taken_the_place_of_gates_and_cells():
    n, t, h = 2, 5, 4
    layer, x, y = stage(numbers(n, t, 3))
    not_counted, upstream = (
        [p.data for p in layer.parameters()],
        numbers(n, t, h, seed=9),
    )
    one = n * t * h * 8  # a number for each unit and time
    # gates, cells, states
    assert held_bytes([y.node], not_counted) == (4 + 1 + 1) * one + x.data.nbytes
    work = backward_input({y.node: upstream})
    # dz, states, upstream
    assert held_bytes([work], not_counted) == (4 + 1 + 1) * one + x.data.nbytes
    work.run()
    assert held_bytes([work], not_counted) == 0


def test_where_its_weights_are_frozen_nothing_is_left_after_i():
    layer, x, y = stage(numbers(2, 5, 3))
    layer.freeze()
    y = layer(x)
    work = backward_input({y.node: numbers(2, 5, 4, seed=9)})
    assert held_bytes([work], []) == 0 and x.grad.any()


def test_where_the_input_of_the_stage_needs_no_gradient_w_walks_through_time(walks):
    layer, x = nn.LSTM(3, 4, dtype=np.float64).initialise(1), Tensor(numbers(2, 5, 3))
    x.node = StageInput(needs_gradient=False)
    work = backward_input({layer(x).node: numbers(2, 5, 4, seed=9)})
    assert not walks
    work.run()
    assert len(walks) == 1 and all(
        parameter.grad.any() for parameter in layer.parameters()
    )


def test_a_second_backward_through_it_is_refused():
    y = F.lstm(*[Tensor(array, requires_grad=True) for array in arrays(2, 5, 3, 4)])
    y.backward(np.ones((2, 5, 4)))
    with pytest.raises(TensorError, match="Compute the result again") as caught:
        y.backward(np.ones((2, 5, 4)))
    assert caught.value.code == "no-graph"


# -- the layer -------------------------------------------------------------------------


def test_the_layer_has_pytorchs_gates_and_remembers_at_first():
    layer = nn.LSTM(3, 16).initialise(0)
    shapes = {"input_weight": (3, 64), "hidden_weight": (16, 64), "bias": (64,)}
    assert {
        name: parameter.shape for name, parameter in layer.named_parameters()
    } == shapes
    assert layer.bias.numpy().tolist() == [0.0] * 16 + [1.0] * 16 + [0.0] * 32
    assert (
        0.24 < abs(layer.hidden_weight.numpy()).max() <= 0.25
        and abs(layer.input_weight.numpy()).max() <= 0.25
    )
    assert (
        repr(layer) == "LSTM(3, 16)"
        and repr(nn.LSTM(3, 4, bias=False)) == "LSTM(3, 4, bias=False)"
    )
    constant = nn.LSTM(2, 1, initialiser=nn.initialisers.constant(0.5)).initialise(0)
    assert constant.input_weight.numpy().tolist() == [[0.5] * 4] * 2


def test_lengths_that_are_no_whole_numbers_and_inputs_of_another_shape_are_refused():
    with pytest.raises(
        ArgumentError, match=r"LSTM: hidden is 4\.0; expected a whole number"
    ):
        nn.LSTM(3, 8 / 2)
    for shape in ((2, 3), (2, 5, 4), (1, 2, 5, 3)):
        with pytest.raises(
            TensorError, match=r"lstm: input has shape .* expected \(n, t, k\), \(k, 4"
        ) as caught:
            nn.LSTM(3, 4)(Tensor(np.ones(shape, np.float32)))
        assert caught.value.code == "shape"


@pytest.mark.parametrize("name", ["GRU", "RNN", "LSTMCell"])
def test_who_asks_for_another_recurrent_layer_is_told_of_lstm(name):
    with pytest.raises(
        AttributeError, match=f"no attribute '{name}'; instead: nn.LSTM"
    ):
        getattr(nn, name)
    with pytest.raises(ArgumentError, match="here it is in_features="):
        nn.LSTM(input_size=3, hidden_size=4)
