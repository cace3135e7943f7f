"""Operands broadcast as NumPy's do, gradients are summed back, and shapes that do not
fit are refused by name.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from minipipe import Tensor
from minipipe import functional as F
from minipipe.errors import TensorError
from minipipe.testing import check_gradients
from tests.launch import for_each
from tests.numerics.formulas import positive, somewhere
from tests.strategies import examples

# -- broadcasting ----------------------------------------------------------------------

BINARY = {
    "add": (F.add, np.add, somewhere),
    "subtract": (F.subtract, np.subtract, somewhere),
    "multiply": (F.multiply, np.multiply, somewhere),
    "divide": (F.divide, np.divide, somewhere),
    "power": (F.power, np.power, positive),
}


@pytest.mark.parametrize("name", BINARY)
@examples(20)
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
def test_operands_of_any_shapes_that_fit_are_broadcast_and_gradients_summed_back(
    name, shapes
):
    operation, formula, draw = BINARY[name]
    a, b = (draw(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    np.testing.assert_array_equal(
        operation(Tensor(a), Tensor(b)).numpy(), formula(a, b)
    )
    check_gradients(operation, a, b)


@examples(40)
@given(
    mutually_broadcastable_shapes(
        signature="(m?,n),(n,p?)->(m?,p?)", max_dims=2, max_side=3
    )
)
def test_matmul_broadcasts_its_leading_axes_and_takes_vectors_as_numpy_does(shapes):
    a, b = (somewhere(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    np.testing.assert_allclose(
        F.matmul(Tensor(a), Tensor(b)).numpy(), a @ b, rtol=1e-13, atol=1e-14
    )
    check_gradients(F.matmul, a, b)


@examples(25)
@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_linear_takes_any_number_of_leading_axes(leading, k, n, with_bias):
    arrays = [somewhere(*leading, k), somewhere(k, n, seed=1)] + [
        somewhere(n, seed=2)
    ] * with_bias
    check_gradients(F.linear, *arrays)


@pytest.mark.parametrize("name", BINARY)
@examples(20)
@given(st.lists(st.integers(1, 3), max_size=3), st.lists(st.integers(1, 3), max_size=3))
@example([2, 3], [2])
@example([2, 3], [3, 3])
def test_operands_whose_shapes_do_not_fit_are_refused_by_the_name_of_the_operation(
    name, left, right
):
    operation, formula, _ = BINARY[name]
    a, b = np.ones(left), np.ones(right)
    try:
        shape = formula(a, b).shape
    except ValueError:
        with pytest.raises(TensorError, match=f"^{name}: ") as caught:
            operation(Tensor(a), Tensor(b))
        assert caught.value.code == "shape"
    else:
        assert operation(Tensor(a), Tensor(b)).shape == shape


@pytest.mark.parametrize("leading", [(), (1,), (5,)])
def test_a_bias_of_any_other_shape_than_that_of_the_last_axis_is_refused(leading):
    x, weight = Tensor(np.ones((5, 3))), Tensor(np.ones((3, 2)))
    F.linear(x, weight, Tensor(np.ones(2)))
    with pytest.raises(TensorError, match="bias") as caught:
        F.linear(x, weight, Tensor(np.ones((*leading, 1))))
    assert caught.value.code == "shape"


@pytest.mark.parametrize(
    "key",
    [
        1,
        np.int64(1),
        True,
        np.bool_(False),
        (..., np.int32(-1)),
        (None, 0, slice(1, None)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_a_plain_index_of_any_type_passes_the_gradient_to_its_elements_and_no_other(
    key, dtype
):
    x = Tensor(somewhere(3, 4).astype(dtype), requires_grad=True)
    result = x[key]
    upstream = somewhere(*result.shape, seed=1).astype(dtype)
    result.backward(upstream)
    expected = np.zeros((3, 4), dtype)
    expected[key] = upstream
    np.testing.assert_array_equal(x.grad, expected, strict=True)


WRONG_SHAPES = {
    "linear, axes": lambda x: F.linear(x, Tensor(np.ones((4, 2)))),
    "linear, scalar": lambda x: F.linear(Tensor(np.array(1.0)), x),
    "linear, weight": lambda x: F.linear(x, Tensor(np.ones(3))),
    "matmul, axes": lambda x: x @ x,
    "matmul, scalar": lambda x: x @ np.ones(()),
    "matmul, leading": lambda x: F.reshape(x, (2, 1, 3)) @ Tensor(np.ones((3, 3, 1))),
    "reshape": lambda x: x.reshape(4, 2),
    "reshape, -1": lambda x: x.reshape(4, -1),
    "reshape, -1 twice": lambda x: x.reshape(-1, -1),
    "reshape, negative": lambda x: x.reshape(-6),
    "reshape, two negatives": lambda x: x.reshape(-2, -3),
    "transpose, too few": lambda x: x.transpose(0),
    "transpose, twice": lambda x: x.transpose(1, 1),
    "transpose, no such axis": lambda x: x.transpose(0, 3),
    "sum": lambda x: x.sum(2),
    "mean": lambda x: x.mean(-3),
    "max": lambda x: x.max((0, 2)),
    "sum of a scalar": lambda x: x.sum().sum(0),
    "min": lambda x: x.min(2),
    "var": lambda x: x.var((0, -3)),
    "logsumexp": lambda x: F.logsumexp(x, 2),
    "where, mask": lambda x: F.where(np.array([True, False]), x, x),
    "where, branches": lambda x: F.where(np.array(True), x, x.T),
    "masked_fill": lambda x: F.masked_fill(x, np.array([True, False]), 0),
    "stack, none": lambda x: F.stack([]),
    "stack, shapes": lambda x: F.stack([x, x.T]),
    "stack, no such axis": lambda x: F.stack([x, x], axis=3),
    "split, unequal": lambda x: F.split(x, 2, axis=1),
    "split, into none": lambda x: F.split(x, 0),
    "split, lengths": lambda x: F.split(x, [1, 1], axis=-1),
    "split, negative": lambda x: F.split(x, [4, -1], axis=1),
    "split, no such axis": lambda x: F.split(x, 1, axis=2),
    "embedding, weight": lambda x: F.embedding(x.sum(0), [0]),
    "layer_norm, weight": lambda x: F.layer_norm(
        x, Tensor(np.ones(2)), Tensor(np.ones(3))
    ),
    "layer_norm, bias": lambda x: F.layer_norm(
        x, Tensor(np.ones(3)), Tensor(np.ones((1, 3)))
    ),
    "layer_norm, scalar": lambda x: F.layer_norm(
        x.sum(), Tensor(np.ones(())), Tensor(np.ones(()))
    ),
    "group_norm, weight": lambda x: F.group_norm(
        x, 1, Tensor(np.ones(2)), Tensor(np.ones(3))
    ),
    "group_norm, bias": lambda x: F.group_norm(
        x, 1, Tensor(np.ones(3)), Tensor(np.ones(2))
    ),
    "group_norm, axes": lambda x: F.group_norm(
        x.sum(0), 1, Tensor(np.ones(3)), Tensor(np.ones(3))
    ),
    "group_norm, empty": lambda x: F.group_norm(
        F.split(x, [0, 3], 1)[0], 1, Tensor(np.ones(0)), Tensor(np.ones(0))
    ),
    "rms_norm, weight": lambda x: F.rms_norm(x, Tensor(np.ones(()))),
    "rms_norm, empty": lambda x: F.rms_norm(
        F.split(x, [0, 3], 1)[0], Tensor(np.ones(0))
    ),
    "attention, keys": lambda x: F.attention(x, x.T, x.T),
    "attention, values": lambda x: F.attention(x, x, x.T),
    "attention, leading axes": lambda x: F.attention(
        x, F.stack([x, x]), F.stack([x, x])
    ),
    "attention, vectors": lambda x: F.attention(x.sum(0), x, x),
    "attention, no keys": lambda x: F.attention(
        x, F.split(x, [0, 2])[0], F.split(x, [0, 2])[0]
    ),
    "self_attention, axes": lambda x: F.self_attention(x, 1),
    "self_attention, width": lambda x: F.self_attention(x.reshape(1, 3, 2), 1),
    "self_attention, heads": lambda x: F.self_attention(x.reshape(1, 2, 3), 2),
    "lstm, axes": lambda x: F.lstm(x, np.ones((3, 8)), np.ones((2, 8))),
    "lstm, input weight": lambda x: F.lstm(
        x.reshape(1, 2, 3), np.ones((2, 8)), np.ones((2, 8))
    ),
    "lstm, hidden weight": lambda x: F.lstm(
        x.reshape(1, 2, 3), np.ones((3, 8)), np.ones((2, 6))
    ),
    "lstm, numbers": lambda x: F.lstm(x.reshape(1, 2, 3), np.ones(3), np.ones(())),
    "lstm, bias": lambda x: F.lstm(
        x.reshape(1, 2, 3), np.ones((3, 8)), np.ones((2, 8)), np.ones(2)
    ),
    "concatenate, none": lambda x: F.concatenate([]),
    "concatenate, lengths": lambda x: F.concatenate([x, x.T]),
    "concatenate, axes": lambda x: F.concatenate([x, x.sum(0)]),
    "concatenate, no such axis": lambda x: F.concatenate([x, x], axis=2),
    # broadcasting there is a mistake
    "mean_squared_error": lambda x: F.mean_squared_error(x, x.sum(0)),
}


@for_each(call=WRONG_SHAPES)
def test_shapes_that_do_not_fit_raise_the_code_shape(call):
    with pytest.raises(TensorError) as caught:
        call(Tensor(np.ones((2, 3))))
    assert caught.value.code == "shape"
    assert isinstance(caught.value, ValueError)
