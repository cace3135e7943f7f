"""No operation changes a dtype or leaves the array module unseen: float32, float64,
constants, array-api-strict.
"""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest

from minipipe import Tensor
from minipipe import functional as F
from minipipe.errors import ArgumentError, TensorError
from tests.launch import for_each
from tests.numerics.test_operations import (
    ROWS,
    STRICT_ROWS,
    evaluate,
    named,
    tensors_of,
)


@named(ROWS)
def test_float32_stays_float32_in_values_and_gradients(row):
    # The constants of the rows are float64 and int64 arrays, numpy scalars and Python
    # numbers.
    result, gradients = evaluate(row, "float32", np)
    exact, exact_gradients = evaluate(row, "float64", np)
    assert result.dtype == np.float32
    assert {gradient.dtype for gradient in gradients} == {np.dtype(np.float32)}
    np.testing.assert_allclose(result.numpy(), exact.numpy(), rtol=1e-5, atol=1e-5)
    for gradient, exact_gradient in zip(gradients, exact_gradients):
        np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@named(STRICT_ROWS)
def test_arrays_of_the_array_api_standard_give_the_values_and_gradients_of_numpy(
    row, dtype
):
    on_numpy, numpy_gradients = evaluate(row, dtype, np)
    on_strict, strict_gradients = evaluate(row, dtype, array_api_strict)
    for strict, expected in zip(
        [on_strict.data, *strict_gradients], [on_numpy.data, *numpy_gradients]
    ):
        # nothing went through NumPy by the way
        assert strict.__array_namespace__() is array_api_strict
        assert strict.dtype == getattr(array_api_strict, dtype)
        np.testing.assert_array_equal(np.asarray(strict), expected)


@named([row for row in ROWS if row.not_strict])
def test_what_the_table_excuses_the_standard_really_refuses(row):
    with pytest.raises((IndexError, TypeError)):
        evaluate(row, "float64", array_api_strict)


@named(ROWS)
def test_a_gradient_has_the_shape_of_its_input_and_shares_no_memory_with_it(row):
    tensors = tensors_of(row, np.float64, np)
    result = row.call(np.asarray, *tensors)
    upstream = np.ones(result.shape)
    result.backward(upstream)
    for tensor in tensors:
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.flags.c_contiguous and tensor.grad.flags.writeable
        assert not np.shares_memory(tensor.grad, tensor.data) and not np.shares_memory(
            tensor.grad, upstream
        )


# -- constants beside tensors ----------------------------------------------------------

CONSTANTS = {
    "Python int": 3,
    "Python float": 0.5,
    "Python bool": True,
    "numpy.float64": np.float64(1.5),
    "numpy.int64, a product of lengths": np.prod((2, 3)),
    "numpy.float32": np.float32(2.5),
    "list": [1.0, 2.0, 3.0],
    "list of whole numbers": [1, 2, 3],
    "array of float64": np.array([1.0, 2.0, 3.0]),
    "array of int64": np.array([1, 2, 3]),
    "array of bool": np.array([True, True, False]),
    "array of float64 without axes": np.array(2.0),
    "tensor of int64": Tensor(np.array([1, 2, 3])),
}


BINARY_OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
}


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # 1 / False, and the logarithm of False
@for_each(constant=CONSTANTS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("symbol", BINARY_OPERATORS)
def test_no_constant_turns_float32_into_float64(symbol, side, constant):
    tensor = Tensor([[1.5, 2.0, 0.5], [0.25, 1.0, 2.0]], requires_grad=True)
    pair = (constant, tensor) if side == "left" else (tensor, constant)
    result = BINARY_OPERATORS[symbol](*pair)
    result.sum().backward()
    assert type(result) is Tensor and result.shape == (2, 3)
    assert result.dtype == np.float32 and tensor.grad.dtype == np.float32
    expected = BINARY_OPERATORS[symbol](
        *(np.asarray(operand, dtype=np.float64) for operand in pair)
    )
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("module", [np, array_api_strict], ids=["numpy", "strict"])
def test_division_by_the_number_of_elements_leaves_float32_alone(module):
    x = Tensor(module.ones((2, 3), dtype=module.float32), requires_grad=True)
    y = x.sum() / np.prod(x.shape)
    y.backward()
    assert (
        y.dtype == module.float32 and x.grad.dtype == module.float32 and y.item() == 1.0
    )


TWO_TENSORS = {
    **BINARY_OPERATORS,
    "@": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b),
    "linear, bias": lambda a, b: F.linear(a, a, b.sum(0)),
    "einsum": lambda a, b: F.einsum("ij,jk", a, b),
    "concatenate": lambda a, b: F.concatenate([a, b]),
    "mean_squared_error": lambda a, b: F.mean_squared_error(a, b),
    "stack": lambda a, b: F.stack([a, b]),
    "where": lambda a, b: F.where(np.array([True, False]), a, b),
    "layer_norm, weight": lambda a, b: F.layer_norm(a, b.sum(0), a.sum(0)),
    "layer_norm, bias": lambda a, b: F.layer_norm(a, a.sum(0), b.sum(0)),
    "group_norm, weight": lambda a, b: F.group_norm(a, 1, b.sum(0), a.sum(0)),
    "group_norm, bias": lambda a, b: F.group_norm(a, 1, a.sum(0), b.sum(0)),
    "rms_norm": lambda a, b: F.rms_norm(a, b.sum(0)),
    "lstm, input weight": lambda a, b: F.lstm(
        a.reshape(2, 2, 1), b.reshape(1, 4), a.reshape(1, 4)
    ),
    "lstm, hidden weight": lambda a, b: F.lstm(
        a.reshape(2, 2, 1), a.reshape(1, 4), b.reshape(1, 4)
    ),
    "lstm, bias": lambda a, b: F.lstm(
        a.reshape(2, 2, 1), a.reshape(1, 4), a.reshape(1, 4), b.reshape(4)
    ),
    "attention, keys": lambda a, b: F.attention(a, b, a),
    "attention, values": lambda a, b: F.attention(a, a, b),
}


@pytest.mark.parametrize("operation", TWO_TENSORS.values(), ids=TWO_TENSORS)
def test_a_float32_tensor_that_meets_a_float64_tensor_raises_the_code_dtype(operation):
    single, double = Tensor(np.ones((2, 2), np.float32)), Tensor(np.ones((2, 2)))
    assert operation(single, single).dtype == np.float32
    assert operation(double, double).dtype == np.float64
    for pair in ((single, double), (double, single)):
        with pytest.raises(TensorError, match="float64") as caught:
            operation(*pair)
        assert caught.value.code == "dtype"


def test_numpy_functions_do_not_swallow_a_tensor_unseen():
    x = Tensor([1.0, 2.0], requires_grad=True)
    hints = {
        np.exp: r"x\.exp\(…\), or np\.exp\(x\.numpy\(\)\)",
        np.mean: r"x\.mean",
        np.sort: "np.sort",
    }
    for function, hint in hints.items():
        with pytest.raises(TypeError, match=hint):  # of ArgumentError, which is one
            function(x)
    for wrong in (
        lambda: np.add(x, x),
        lambda: np.add.reduce(x),
        lambda: np.add(np.ones(2), x, out=np.ones(2)),
    ):
        with pytest.raises(
            ArgumentError, match="np.add of a tensor would compute without a graph"
        ):
            wrong()
    array = np.ones(2, np.float32)
    with pytest.raises(ArgumentError):
        array += x
    assert (array * x).requires_grad and np.add(array, x).requires_grad
    assert np.asarray(x).tolist() == [1.0, 2.0]  # asked for by name
