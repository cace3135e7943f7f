"""Every operation, from one table of example calls.

A row is one call: what it computes (written with NumPy), where, and whether the array API standard allows it. The same
rows are checked against NumPy, against central differences, in float32, and on array-api-strict.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from minipipe import Tensor, functional
from minipipe import functional as F
from minipipe.errors import TensorError
from minipipe.testing import check_gradients


class Row(NamedTuple):
    """One example call.

    ``call(c, *tensors)`` computes with minipipe; ``c`` turns a constant array into one of the module at hand.
    ``formula(*arrays)`` computes the same with NumPy. ``not_strict`` says why array-api-strict refuses the call.
    """

    covers: str
    call: Callable[..., Tensor]
    formula: Callable[..., np.ndarray]
    arrays: tuple[np.ndarray, ...]
    not_strict: str = ""


def somewhere(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers of both signs, their distance from 0 and from each other far more than a central difference."""
    size = int(np.prod(shape))
    ladder = (0.3 + np.arange(size) / max(1, size)) * np.where(np.arange(size) % 2, -1.0, 1.0)
    return np.random.default_rng(seed).permutation(ladder).reshape(shape)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(abs(somewhere(*shape, seed=seed)))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


MATRIX, OTHER, ROW, COLUMN = somewhere(3, 4), somewhere(3, 4, seed=1), somewhere(4, seed=2), somewhere(3, 1, seed=3)
POSITIVE, POSITIVE_ROW = positive(3, 4), positive(4, seed=1)
SCALAR, CUBE, VECTOR = np.array(0.7), somewhere(2, 3, 4, seed=4), somewhere(3, seed=5)
REVERSED = somewhere(4, 3, 2, seed=8)
WEIGHT, BIAS = somewhere(4, 2, seed=6), somewhere(2, seed=7)
MASK = np.array([[True, False, True, False], [False, False, True, True], [False, False, False, False]])

FEWER_AXES = "the standard wants one index for each axis, or an ellipsis"
LISTS = "the standard indexes with arrays, not with lists"
MIXED = "the standard does not mix integer arrays with slices"
NONE_WRITTEN = "the standard reads through None, but writes through none, and the gradient is written"
LEFT = "array-api-strict's arrays do not leave an operator to the operand on the right"

ROWS = [
    # -- elementwise, two operands; more shapes below, drawn by hypothesis
    Row("add", lambda c, a, b: F.add(a, b), lambda a, b: a + b, (MATRIX, ROW)),
    Row("add", lambda c, a: F.add(a, a), lambda a: 2 * a, (MATRIX,)),
    Row("subtract", lambda c, a, b: F.subtract(a, b), lambda a, b: a - b, (COLUMN, ROW)),
    Row("multiply", lambda c, a, b: F.multiply(a, b), lambda a, b: a * b, (SCALAR, MATRIX)),
    Row("multiply", lambda c, a: F.multiply(a, a), lambda a: a * a, (MATRIX,)),
    Row("divide", lambda c, a, b: F.divide(a, b), lambda a, b: a / b, (ROW, MATRIX)),
    Row("power", lambda c, a, b: F.power(a, b), lambda a, b: a**b, (POSITIVE, ROW)),
    Row("power", lambda c, a: F.power(a, 2), lambda a: a * a, (MATRIX,)),
    Row("power", lambda c, a: F.power(a, 2.0), lambda a: a * a, (SCALAR,)),
    Row("power", lambda c, a: F.power(a, 3), lambda a: a * a * a, (MATRIX,)),
    Row("power", lambda c, a: F.power(a, -0.5), lambda a: 1 / np.sqrt(a), (POSITIVE,)),
    Row("Tensor.__add__", lambda c, a, b: a + b, lambda a, b: a + b, (MATRIX, COLUMN)),
    Row("Tensor.__radd__", lambda c, a: 2 + a, lambda a: 2 + a, (MATRIX,)),
    Row("Tensor.__radd__", lambda c, a: c(OTHER) + a, lambda a: OTHER + a, (ROW,), LEFT),
    Row("Tensor.__sub__", lambda c, a, b: a - b, lambda a, b: a - b, (MATRIX, MATRIX)),
    Row("Tensor.__rsub__", lambda c, a: 1 - a, lambda a: 1 - a, (MATRIX,)),
    Row("Tensor.__rsub__", lambda c, a: c(OTHER) - a, lambda a: OTHER - a, (COLUMN,), LEFT),
    Row("Tensor.__mul__", lambda c, a, b: a * b, lambda a, b: a * b, (COLUMN, ROW)),
    Row("Tensor.__rmul__", lambda c, a: 0.5 * a, lambda a: 0.5 * a, (MATRIX,)),
    Row("Tensor.__rmul__", lambda c, a: c(OTHER) * a, lambda a: OTHER * a, (SCALAR,), LEFT),
    Row("Tensor.__truediv__", lambda c, a, b: a / b, lambda a, b: a / b, (MATRIX, ROW)),
    Row("Tensor.__rtruediv__", lambda c, a: 1 / a, lambda a: 1 / a, (MATRIX,)),
    Row("Tensor.__rtruediv__", lambda c, a: c(OTHER) / a, lambda a: OTHER / a, (ROW,), LEFT),
    Row("Tensor.__pow__", lambda c, a, b: a**b, lambda a, b: a**b, (POSITIVE_ROW, COLUMN)),
    Row("Tensor.__rpow__", lambda c, a: 2**a, lambda a: 2**a, (MATRIX,)),
    Row("Tensor.__rpow__", lambda c, a: c(POSITIVE) ** a, lambda a: POSITIVE**a, (ROW,), LEFT),
    # -- elementwise, one operand
    Row("negative", lambda c, a: F.negative(a), lambda a: -a, (MATRIX,)),
    Row("exp", lambda c, a: F.exp(a), np.exp, (MATRIX,)),
    Row("log", lambda c, a: F.log(a), np.log, (POSITIVE,)),
    Row("sqrt", lambda c, a: F.sqrt(a), np.sqrt, (POSITIVE,)),
    Row("tanh", lambda c, a: F.tanh(a), np.tanh, (MATRIX,)),
    Row("sigmoid", lambda c, a: F.sigmoid(a), lambda a: 1 / (1 + np.exp(-a)), (MATRIX,)),
    Row("relu", lambda c, a: F.relu(a), lambda a: np.where(a > 0, a, 0), (MATRIX,)),
    Row("relu", lambda c, a: F.relu(a), lambda a: a, (SCALAR,)),
    Row("Tensor.__neg__", lambda c, a: -a, lambda a: -a, (CUBE,)),
    Row("Tensor.exp", lambda c, a: a.exp(), np.exp, (SCALAR,)),
    Row("Tensor.log", lambda c, a: a.log(), np.log, (POSITIVE_ROW,)),
    Row("Tensor.sqrt", lambda c, a: a.sqrt(), np.sqrt, (POSITIVE_ROW,)),
    Row("Tensor.tanh", lambda c, a: a.tanh(), np.tanh, (SCALAR,)),
    Row("Tensor.sigmoid", lambda c, a: a.sigmoid(), lambda a: 1 / (1 + np.exp(-a)), (SCALAR,)),
    Row("Tensor.relu", lambda c, a: a.relu(), lambda a: np.where(a > 0, a, 0), (CUBE,)),
    # -- reductions
    Row("total", lambda c, a: F.total(a), lambda a: a.sum(), (CUBE,)),
    Row("total", lambda c, a: F.total(a, 1), lambda a: a.sum(1), (CUBE,)),
    Row("total", lambda c, a: F.total(a, (0, -1), keepdims=True), lambda a: a.sum((0, 2), keepdims=True), (CUBE,)),
    Row("total", lambda c, a: F.total(a), lambda a: a, (SCALAR,)),
    Row("mean", lambda c, a: F.mean(a), lambda a: a.mean(), (CUBE,)),
    Row("mean", lambda c, a: F.mean(a, (0, 2)), lambda a: a.mean((0, 2)), (CUBE,)),
    Row("mean", lambda c, a: F.mean(a, -1, keepdims=True), lambda a: a.mean(-1, keepdims=True), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a), lambda a: a.max(), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a, (-1, 0)), lambda a: a.max((0, 2)), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a, 1, keepdims=True), lambda a: a.max(1, keepdims=True), (CUBE,)),
    Row("Tensor.sum", lambda c, a: a.sum(axis=0), lambda a: a.sum(0), (MATRIX,)),
    Row("Tensor.sum", lambda c, a: a.sum(np.int64(1)), lambda a: a.sum(1), (MATRIX,)),
    Row("Tensor.mean", lambda c, a: a.mean(axis=1), lambda a: a.mean(1), (MATRIX,)),
    Row("Tensor.max", lambda c, a: a.max(axis=0), lambda a: a.max(0), (MATRIX,)),
    # -- matrix products; more shapes below
    Row("linear", lambda c, x, w, b: F.linear(x, w, b), lambda x, w, b: x @ w + b, (MATRIX, WEIGHT, BIAS)),
    Row("linear", lambda c, x, w: F.linear(x, w), lambda x, w: x @ w, (MATRIX, WEIGHT)),
    Row("linear", lambda c, x, w, b: F.linear(x, w, b), lambda x, w, b: x @ w + b, (ROW, WEIGHT, BIAS)),
    Row("linear", lambda c, x, w, b: F.linear(x, w, b), lambda x, w, b: x @ w + b, (CUBE, WEIGHT, BIAS)),
    Row("linear", lambda c, x, w: F.linear(F.transpose(x), w), lambda x, w: x.T @ w, (REVERSED, WEIGHT)),
    Row("linear", lambda c, x: F.linear(x, c(WEIGHT), c(BIAS)), lambda x: x @ WEIGHT + BIAS, (MATRIX,)),
    Row("linear", lambda c, w, b: F.linear(c(MATRIX), w, b), lambda w, b: MATRIX @ w + b, (WEIGHT, BIAS)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (MATRIX, WEIGHT)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (ROW, WEIGHT)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (CUBE, ROW)),
    Row("matmul", lambda c, a: F.matmul(a, a), lambda a: a @ a, (ROW,)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (CUBE[:, None], CUBE.transpose(0, 2, 1))),
    Row("Tensor.__matmul__", lambda c, a, b: a @ b, lambda a, b: a @ b, (CUBE, WEIGHT)),
    Row("Tensor.__matmul__", lambda c, a: a @ c(WEIGHT), lambda a: a @ WEIGHT, (MATRIX,)),
    Row("Tensor.__rmatmul__", lambda c, b: c(MATRIX) @ b, lambda b: MATRIX @ b, (WEIGHT,), LEFT),
    # -- moving elements
    Row("reshape", lambda c, a: F.reshape(a, (4, 3)), lambda a: a.reshape(4, 3), (MATRIX,)),
    Row("reshape", lambda c, a: F.reshape(a, (2, -1)), lambda a: a.reshape(2, -1), (MATRIX,)),
    Row("Tensor.reshape", lambda c, a: a.reshape(-1), lambda a: a.reshape(-1), (CUBE,)),
    Row("Tensor.reshape", lambda c, a: a.reshape(np.prod((2, 3)), 4), lambda a: a.reshape(6, 4), (CUBE,)),
    Row("Tensor.reshape", lambda c, a: a.reshape(np.prod((3, 4))), lambda a: a.reshape(12), (MATRIX,)),
    Row("Tensor.reshape", lambda c, a: a.reshape((3, 8)), lambda a: a.reshape(3, 8), (CUBE,)),
    Row("transpose", lambda c, a: F.transpose(a), lambda a: a.T, (CUBE,)),
    Row("transpose", lambda c, a: F.transpose(a, (1, 2, 0)), lambda a: a.transpose(1, 2, 0), (CUBE,)),
    Row("Tensor.transpose", lambda c, a: a.transpose(0, -1, 1), lambda a: a.transpose(0, 2, 1), (CUBE,)),
    Row("Tensor.transpose", lambda c, a: a.transpose((2, 0, 1)), lambda a: a.transpose(2, 0, 1), (CUBE,)),
    Row("Tensor.transpose", lambda c, a: a.transpose(), lambda a: a.T, (MATRIX,)),
    Row("Tensor.T", lambda c, a: a.T, lambda a: a.T, (MATRIX,)),
    Row("contiguous", lambda c, a: F.contiguous(F.transpose(a)), lambda a: a.T, (MATRIX,)),
    Row("contiguous", lambda c, a: F.contiguous(a), lambda a: a, (MATRIX,)),
    Row("concatenate", lambda c, a, b: F.concatenate([a, b]), lambda a, b: np.concatenate([a, b]), (MATRIX, OTHER)),
    Row(
        "concatenate",
        lambda c, a, b: F.concatenate([a, b, a], axis=-1),
        lambda a, b: np.concatenate([a, b, a], -1),
        (MATRIX, COLUMN),
    ),
    Row("index", lambda c, a: F.index(a, (0, -1)), lambda a: a[0, -1], (MATRIX,)),
    Row("index", lambda c, a: F.index(a, (slice(1, None), slice(None, None, 2))), lambda a: a[1:, ::2], (MATRIX,)),
    Row("index", lambda c, a: F.index(a, c(MASK)), lambda a: a[MASK], (MATRIX,)),
    Row("Tensor.__getitem__", lambda c, a: a[..., 1], lambda a: a[..., 1], (CUBE,)),
    Row("Tensor.__getitem__", lambda c, a: a[::-1, None, 1:3], lambda a: a[::-1, None, 1:3], (MATRIX,), NONE_WRITTEN),
    Row("Tensor.__getitem__", lambda c, a: a[c([2, 0, 2, 2])], lambda a: a[[2, 0, 2, 2]], (VECTOR,)),
    Row("Tensor.__getitem__", lambda c, a: a[Tensor(c([1, 0, 1]))], lambda a: a[[1, 0, 1]], (VECTOR,)),
    Row("Tensor.__getitem__", lambda c, a: a[c([2, 0, 2]), c([1, 3, 1])], lambda a: a[[2, 0, 2], [1, 3, 1]], (MATRIX,)),
    Row("Tensor.__getitem__", lambda c, a: a[1], lambda a: a[1], (MATRIX,), FEWER_AXES),
    Row("Tensor.__getitem__", lambda c, a: a[np.int64(1)], lambda a: a[1], (MATRIX,), FEWER_AXES),
    Row("Tensor.__getitem__", lambda c, a: a[c([2, 0, 2, 2])], lambda a: a[[2, 0, 2, 2]], (MATRIX,), FEWER_AXES),
    Row("Tensor.__getitem__", lambda c, a: a[[2, 0, 2, 2]], lambda a: a[[2, 0, 2, 2]], (VECTOR,), LISTS),
    Row("Tensor.__getitem__", lambda c, a: a[:, c([0, 0, 3])], lambda a: a[:, [0, 0, 3]], (MATRIX,), MIXED),
    # -- softmax and losses
    Row("softmax", lambda c, a: F.softmax(a), softmax, (MATRIX,)),
    Row("softmax", lambda c, a: F.softmax(a, axis=1), lambda a: softmax(a, 1), (CUBE,)),
    Row("log_softmax", lambda c, a: F.log_softmax(a), lambda a: np.log(softmax(a)), (MATRIX,)),
    Row("log_softmax", lambda c, a: F.log_softmax(a, axis=0), lambda a: np.log(softmax(a, 0)), (CUBE,)),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, c([3, 0, 3])),
        lambda a: -np.log(softmax(a))[[0, 1, 2], [3, 0, 3]].mean(),
        (MATRIX,),
    ),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, [[3, 0, 1], [1, 2, 0]]),
        lambda a: -np.log(softmax(a)).reshape(6, 4)[range(6), [3, 0, 1, 1, 2, 0]].mean(),
        (CUBE,),
    ),
    Row("cross_entropy", lambda c, a: F.cross_entropy(a, 2), lambda a: -np.log(softmax(a))[2], (ROW,)),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, Tensor(c(np.array([1, 1, 2], dtype=np.uint8)))),
        lambda a: -np.log(softmax(a))[[0, 1, 2], [1, 1, 2]].mean(),
        (MATRIX,),
    ),
    Row(
        "mean_squared_error",
        lambda c, a, b: F.mean_squared_error(a, b),
        lambda a, b: ((a - b) ** 2).mean(),
        (MATRIX, OTHER),
    ),
    Row(
        "mean_squared_error",
        lambda c, a: F.mean_squared_error(a, c(OTHER)),
        lambda a: ((a - OTHER) ** 2).mean(),
        (MATRIX,),
    ),
]

STRICT_ROWS = [row for row in ROWS if not row.not_strict]


def named(rows: list[Row]) -> Any:
    """Parametrise by row, with a readable name for each."""
    shapes = [" ".join("x".join(map(str, array.shape)) or "scalar" for array in row.arrays) for row in rows]
    names = [f"{i}-{row.covers}-{shape}" for i, (row, shape) in enumerate(zip(rows, shapes))]
    return pytest.mark.parametrize("row", rows, ids=names)


def tensors_of(row: Row, dtype: Any, module: types.ModuleType) -> list[Tensor]:
    return [Tensor(module.asarray(np.array(array), dtype=dtype), requires_grad=True) for array in row.arrays]


def evaluate(row: Row, dtype: str, module: types.ModuleType) -> tuple[Tensor, list[Any]]:
    """Return the result of a row on arrays of a module, and the gradients of its inputs."""
    tensors = tensors_of(row, getattr(module, dtype), module)
    result = row.call(module.asarray, *tensors)
    upstream = np.random.default_rng(9).standard_normal(result.shape)
    result.backward(module.asarray(upstream, dtype=getattr(module, dtype)))
    return result, [tensor.grad for tensor in tensors]


# -- the table is complete -----------------------------------------------------------------------------------


def attached_to_tensor() -> set[str]:
    """Return the operators, methods and properties that functional/ has given to Tensor, whatever they are."""
    found = set()
    for name, member in vars(Tensor).items():
        function = member.fget if isinstance(member, property) else member
        if getattr(function, "__module__", "").startswith("minipipe.functional"):
            found.add(f"Tensor.{name}")
    return found


def without_a_row(rows: Iterable[Row]) -> set[str]:
    return (set(functional.__all__) | attached_to_tensor()) - {row.covers for row in rows}


def test_every_operation_and_every_operator_has_a_row_in_the_table():
    assert without_a_row(ROWS) == set()


@pytest.mark.parametrize("name", ["relu", "Tensor.__rsub__", "Tensor.T"])
def test_an_operation_without_a_row_would_be_noticed(name):
    assert without_a_row(row for row in ROWS if row.covers != name) == {name}


def test_every_row_names_something_that_exists():
    assert {row.covers for row in ROWS} <= set(functional.__all__) | attached_to_tensor()


# -- each row, four times ------------------------------------------------------------------------------------


@named(ROWS)
def test_the_values_are_those_of_the_formula(row):
    expected = np.asarray(row.formula(*row.arrays))
    given_, _ = evaluate(row, "float64", np)
    assert given_.shape == expected.shape
    assert type(given_.data) is np.ndarray  # also where NumPy would rather return a scalar
    np.testing.assert_allclose(given_.numpy(), expected, rtol=1e-13, atol=1e-14)


@named(ROWS)
def test_the_gradients_are_those_of_central_differences(row):
    check_gradients(lambda *tensors: row.call(np.asarray, *tensors), *row.arrays, tolerance=1e-8)


@named(ROWS)
def test_float32_stays_float32_in_values_and_gradients(row):
    # The constants of the rows are float64 and int64 arrays, numpy scalars and Python numbers.
    result, gradients = evaluate(row, "float32", np)
    exact, exact_gradients = evaluate(row, "float64", np)
    assert result.dtype == np.float32
    assert {gradient.dtype for gradient in gradients} == {np.dtype(np.float32)}
    np.testing.assert_allclose(result.numpy(), exact.numpy(), rtol=1e-5, atol=1e-5)
    for gradient, exact_gradient in zip(gradients, exact_gradients):
        np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@named(STRICT_ROWS)
def test_arrays_of_the_array_api_standard_give_the_values_and_gradients_of_numpy(row, dtype):
    on_numpy, numpy_gradients = evaluate(row, dtype, np)
    on_strict, strict_gradients = evaluate(row, dtype, array_api_strict)
    for strict, expected in zip([on_strict.data, *strict_gradients], [on_numpy.data, *numpy_gradients]):
        assert strict.__array_namespace__() is array_api_strict  # nothing went through NumPy by the way
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
        assert not np.shares_memory(tensor.grad, tensor.data) and not np.shares_memory(tensor.grad, upstream)


# -- broadcasting --------------------------------------------------------------------------------------------

BINARY = {
    "add": (F.add, np.add, somewhere),
    "subtract": (F.subtract, np.subtract, somewhere),
    "multiply": (F.multiply, np.multiply, somewhere),
    "divide": (F.divide, np.divide, somewhere),
    "power": (F.power, np.power, positive),
}


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=20, deadline=None)
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
def test_operands_of_any_shapes_that_fit_are_broadcast_and_gradients_summed_back(name, shapes):
    operation, formula, draw = BINARY[name]
    a, b = (draw(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    np.testing.assert_array_equal(operation(Tensor(a), Tensor(b)).numpy(), formula(a, b))
    check_gradients(operation, a, b)


@settings(max_examples=40, deadline=None)
@given(mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=2, max_side=3))
def test_matmul_broadcasts_its_leading_axes_and_takes_vectors_as_numpy_does(shapes):
    a, b = (somewhere(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    np.testing.assert_allclose(F.matmul(Tensor(a), Tensor(b)).numpy(), a @ b, rtol=1e-13, atol=1e-14)
    check_gradients(F.matmul, a, b)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=3), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_linear_takes_any_number_of_leading_axes(leading, k, n, with_bias):
    arrays = [somewhere(*leading, k), somewhere(k, n, seed=1)] + [somewhere(n, seed=2)] * with_bias
    check_gradients(F.linear, *arrays)


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=3), st.lists(st.integers(1, 3), max_size=3))
@example([2, 3], [2])
@example([2, 3], [3, 3])
def test_operands_whose_shapes_do_not_fit_are_refused_by_the_name_of_the_operation(name, left, right):
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
    "transpose, too few": lambda x: x.transpose(0),
    "transpose, twice": lambda x: x.transpose(1, 1),
    "transpose, no such axis": lambda x: x.transpose(0, 3),
    "sum": lambda x: x.sum(2),
    "mean": lambda x: x.mean(-3),
    "max": lambda x: x.max((0, 2)),
    "sum of a scalar": lambda x: x.sum().sum(0),
    "concatenate, none": lambda x: F.concatenate([]),
    "concatenate, lengths": lambda x: F.concatenate([x, x.T]),
    "concatenate, axes": lambda x: F.concatenate([x, x.sum(0)]),
    "concatenate, no such axis": lambda x: F.concatenate([x, x], axis=2),
    "mean_squared_error": lambda x: F.mean_squared_error(x, x.sum(0)),  # broadcasting there is a mistake
}


@pytest.mark.parametrize("call", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_shapes_that_do_not_fit_raise_the_code_shape(call):
    with pytest.raises(TensorError) as caught:
        call(Tensor(np.ones((2, 3))))
    assert caught.value.code == "shape"
    assert isinstance(caught.value, ValueError)


# -- constants beside tensors --------------------------------------------------------------------------------

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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # 1 / False, and the logarithm of False
@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("symbol", BINARY_OPERATORS)
def test_no_constant_turns_float32_into_float64(symbol, side, constant):
    tensor = Tensor([[1.5, 2.0, 0.5], [0.25, 1.0, 2.0]], requires_grad=True)
    pair = (constant, tensor) if side == "left" else (tensor, constant)
    result = BINARY_OPERATORS[symbol](*pair)
    result.sum().backward()
    assert type(result) is Tensor and result.shape == (2, 3)
    assert result.dtype == np.float32 and tensor.grad.dtype == np.float32
    expected = BINARY_OPERATORS[symbol](*(np.asarray(operand, dtype=np.float64) for operand in pair))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("module", [np, array_api_strict], ids=["numpy", "strict"])
def test_division_by_the_number_of_elements_leaves_float32_alone(module):
    x = Tensor(module.ones((2, 3), dtype=module.float32), requires_grad=True)
    y = x.sum() / np.prod(x.shape)
    y.backward()
    assert y.dtype == module.float32 and x.grad.dtype == module.float32 and y.item() == 1.0


TWO_TENSORS = {
    **BINARY_OPERATORS,
    "@": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b),
    "linear, bias": lambda a, b: F.linear(a, a, b.sum(0)),
    "concatenate": lambda a, b: F.concatenate([a, b]),
    "mean_squared_error": lambda a, b: F.mean_squared_error(a, b),
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
    with pytest.raises(TypeError):
        np.exp(x)
    with pytest.raises(TypeError):
        np.add(np.ones(2), x)
    assert np.asarray(x).tolist() == [1.0, 2.0]  # asked for by name


def test_every_operation_of_a_file_is_offered_by_the_package():
    """An operation that only its own file names would escape the table above."""
    offered = set()
    for module in pkgutil.iter_modules(F.__path__, "minipipe.functional."):
        offered |= set(importlib.import_module(module.name).__all__)
    assert offered == set(F.__all__)
