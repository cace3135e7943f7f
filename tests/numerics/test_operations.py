"""Every operation, from one table of example calls.

A row is one call: what it computes (written with NumPy), where, and whether the array
API standard allows it. The same rows are checked here against NumPy and against central
differences, and in test_dtypes_of_operations.py in float32 and on array-api-strict.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from minipipe import Tensor, functional
from minipipe import functional as F
from minipipe.core import functional as core_functional
from minipipe.testing import check_gradients
from tests.launch import for_each
from tests.numerics.formulas import (
    BIAS,
    COLUMN,
    CUBE,
    MASK,
    MATRIX,
    OTHER,
    POSITIVE,
    POSITIVE_ROW,
    REVERSED,
    ROW,
    SCALAR,
    VECTOR,
    WEIGHT,
    Row,
    phi,
)
from tests.numerics.layer_rows import LAYER_ROWS

FEWER_AXES = "the standard wants one index for each axis, or an ellipsis"
LISTS = "the standard indexes with arrays, not with lists"
MIXED = "the standard does not mix integer arrays with slices"
NONE_WRITTEN = (
    "the standard reads through None, but writes through none, and the gradient is "
    "written"
)
LEFT = "array-api-strict's arrays do not leave an operator to the operand on the right"


ROWS = [
    # -- elementwise, two operands; more shapes in test_shapes_of_operations.py
    Row("add", lambda c, a, b: F.add(a, b), lambda a, b: a + b, (MATRIX, ROW)),
    Row("add", lambda c, a: F.add(a, a), lambda a: 2 * a, (MATRIX,)),
    Row(
        "subtract", lambda c, a, b: F.subtract(a, b), lambda a, b: a - b, (COLUMN, ROW)
    ),
    Row(
        "multiply",
        lambda c, a, b: F.multiply(a, b),
        lambda a, b: a * b,
        (SCALAR, MATRIX),
    ),
    Row("multiply", lambda c, a: F.multiply(a, a), lambda a: a * a, (MATRIX,)),
    Row("divide", lambda c, a, b: F.divide(a, b), lambda a, b: a / b, (ROW, MATRIX)),
    Row("power", lambda c, a, b: F.power(a, b), lambda a, b: a**b, (POSITIVE, ROW)),
    Row("power", lambda c, a: F.power(a, 2), lambda a: a * a, (MATRIX,)),
    Row("power", lambda c, a: F.power(a, 2.0), lambda a: a * a, (SCALAR,)),
    Row("power", lambda c, a: F.power(a, 3), lambda a: a * a * a, (MATRIX,)),
    Row("power", lambda c, a: F.power(a, -0.5), lambda a: 1 / np.sqrt(a), (POSITIVE,)),
    Row("Tensor.__add__", lambda c, a, b: a + b, lambda a, b: a + b, (MATRIX, COLUMN)),
    Row("Tensor.__radd__", lambda c, a: 2 + a, lambda a: 2 + a, (MATRIX,)),
    Row(
        "Tensor.__radd__", lambda c, a: c(OTHER) + a, lambda a: OTHER + a, (ROW,), LEFT
    ),
    Row("Tensor.__sub__", lambda c, a, b: a - b, lambda a, b: a - b, (MATRIX, MATRIX)),
    Row("Tensor.__rsub__", lambda c, a: 1 - a, lambda a: 1 - a, (MATRIX,)),
    Row(
        "Tensor.__rsub__",
        lambda c, a: c(OTHER) - a,
        lambda a: OTHER - a,
        (COLUMN,),
        LEFT,
    ),
    Row("Tensor.__mul__", lambda c, a, b: a * b, lambda a, b: a * b, (COLUMN, ROW)),
    Row("Tensor.__rmul__", lambda c, a: 0.5 * a, lambda a: 0.5 * a, (MATRIX,)),
    Row(
        "Tensor.__rmul__",
        lambda c, a: c(OTHER) * a,
        lambda a: OTHER * a,
        (SCALAR,),
        LEFT,
    ),
    Row("Tensor.__truediv__", lambda c, a, b: a / b, lambda a, b: a / b, (MATRIX, ROW)),
    Row("Tensor.__rtruediv__", lambda c, a: 1 / a, lambda a: 1 / a, (MATRIX,)),
    Row(
        "Tensor.__rtruediv__",
        lambda c, a: c(OTHER) / a,
        lambda a: OTHER / a,
        (ROW,),
        LEFT,
    ),
    Row(
        "Tensor.__pow__",
        lambda c, a, b: a**b,
        lambda a, b: a**b,
        (POSITIVE_ROW, COLUMN),
    ),
    Row("Tensor.__rpow__", lambda c, a: 2**a, lambda a: 2**a, (MATRIX,)),
    Row(
        "Tensor.__rpow__",
        lambda c, a: c(POSITIVE) ** a,
        lambda a: POSITIVE**a,
        (ROW,),
        LEFT,
    ),
    # -- precision; more in test_half_operations.py
    Row("astype", lambda c, a: F.astype(a, a.dtype), lambda a: a, (MATRIX,)),
    Row("Tensor.astype", lambda c, a: a.astype(a.dtype), lambda a: a, (MATRIX,)),
    Row("in_float32", lambda c, a: F.in_float32(F.exp, a), np.exp, (MATRIX,)),
    # -- elementwise, one operand
    Row("negative", lambda c, a: F.negative(a), lambda a: -a, (MATRIX,)),
    Row("exp", lambda c, a: F.exp(a), np.exp, (MATRIX,)),
    Row("log", lambda c, a: F.log(a), np.log, (POSITIVE,)),
    Row("sqrt", lambda c, a: F.sqrt(a), np.sqrt, (POSITIVE,)),
    Row("tanh", lambda c, a: F.tanh(a), np.tanh, (MATRIX,)),
    Row(
        "sigmoid", lambda c, a: F.sigmoid(a), lambda a: 1 / (1 + np.exp(-a)), (MATRIX,)
    ),
    Row("relu", lambda c, a: F.relu(a), lambda a: np.where(a > 0, a, 0), (MATRIX,)),
    Row("relu", lambda c, a: F.relu(a), lambda a: a, (SCALAR,)),
    Row("silu", lambda c, a: F.silu(a), lambda a: a / (1 + np.exp(-a)), (MATRIX,)),
    Row("silu", lambda c, a: F.silu(a), lambda a: a / (1 + np.exp(-a)), (SCALAR,)),
    Row("gelu", lambda c, a: F.gelu(a), lambda a: a * phi(a), (3 * MATRIX,)),
    Row("gelu", lambda c, a: F.gelu(a), lambda a: a * phi(a), (SCALAR,)),
    Row(
        "gelu",
        lambda c, a: F.gelu(a, approximate=True),
        lambda a: (
            a * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
        ),
        (3 * MATRIX,),
    ),
    Row(
        "gelu",
        lambda c, a: F.gelu(F.transpose(a), approximate=False),
        lambda a: a.T * phi(a.T),
        (CUBE,),
    ),
    Row(
        "erf",
        lambda c, a: F.erf(a),
        lambda a: 2 * phi(a * math.sqrt(2)) - 1,
        (3 * MATRIX,),
    ),
    Row("erf", lambda c, a: F.erf(a), lambda a: np.array(math.erf(a)), (SCALAR,)),
    Row(
        "where",
        lambda c, a, b: F.where(c(MASK), a, b),
        lambda a, b: np.where(MASK, a, b),
        (MATRIX, OTHER),
    ),
    Row(
        "where",
        lambda c, a, b: F.where(c(MASK), a, b),
        lambda a, b: np.where(MASK, a, b),
        (COLUMN, ROW),
    ),
    Row(
        "where",
        lambda c, a: F.where(c(MASK), a, 0.5),
        lambda a: np.where(MASK, a, 0.5),
        (SCALAR,),
    ),
    Row(
        "where",
        lambda c, a: F.where(c(MASK), 1, a),
        lambda a: np.where(MASK, 1.0, a),
        (CUBE[:, :, :1],),
    ),
    Row(
        "masked_fill",
        lambda c, a: F.masked_fill(a, c(MASK), -2),
        lambda a: np.where(MASK, -2.0, a),
        (MATRIX,),
    ),
    Row(
        "masked_fill",
        lambda c, a: F.masked_fill(a, c(MASK), 0.25),
        lambda a: np.where(MASK, 0.25, a),
        (CUBE,),
    ),
    Row(
        "masked_fill",
        lambda c, a: F.masked_fill(a, c(MASK), 3),
        lambda a: np.where(MASK, 3.0, a),
        (ROW,),
    ),
    Row(
        "clip",
        lambda c, a: F.clip(a, -0.7, 0.6),
        lambda a: np.minimum(np.maximum(a, -0.7), 0.6),
        (MATRIX,),
    ),
    Row("clip", lambda c, a: F.clip(a, low=0), lambda a: np.maximum(a, 0), (CUBE,)),
    Row(
        "clip",
        lambda c, a: F.clip(a, high=0.25),
        lambda a: np.minimum(a, 0.25),
        (SCALAR,),
    ),
    Row("Tensor.__neg__", lambda c, a: -a, lambda a: -a, (CUBE,)),
    Row("Tensor.exp", lambda c, a: a.exp(), np.exp, (SCALAR,)),
    Row("Tensor.log", lambda c, a: a.log(), np.log, (POSITIVE_ROW,)),
    Row("Tensor.sqrt", lambda c, a: a.sqrt(), np.sqrt, (POSITIVE_ROW,)),
    Row("Tensor.tanh", lambda c, a: a.tanh(), np.tanh, (SCALAR,)),
    Row(
        "Tensor.sigmoid",
        lambda c, a: a.sigmoid(),
        lambda a: 1 / (1 + np.exp(-a)),
        (SCALAR,),
    ),
    Row("Tensor.relu", lambda c, a: a.relu(), lambda a: np.where(a > 0, a, 0), (CUBE,)),
    # -- reductions
    Row("total", lambda c, a: F.total(a), lambda a: a.sum(), (CUBE,)),
    Row("total", lambda c, a: F.total(a, 1), lambda a: a.sum(1), (CUBE,)),
    Row(
        "total",
        lambda c, a: F.total(a, (0, -1), keepdims=True),
        lambda a: a.sum((0, 2), keepdims=True),
        (CUBE,),
    ),
    Row("total", lambda c, a: F.total(a), lambda a: a, (SCALAR,)),
    Row("mean", lambda c, a: F.mean(a), lambda a: a.mean(), (CUBE,)),
    Row("mean", lambda c, a: F.mean(a, (0, 2)), lambda a: a.mean((0, 2)), (CUBE,)),
    Row(
        "mean",
        lambda c, a: F.mean(a, -1, keepdims=True),
        lambda a: a.mean(-1, keepdims=True),
        (CUBE,),
    ),
    Row("amax", lambda c, a: F.amax(a), lambda a: a.max(), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a, (-1, 0)), lambda a: a.max((0, 2)), (CUBE,)),
    Row(
        "amax",
        lambda c, a: F.amax(a, 1, keepdims=True),
        lambda a: a.max(1, keepdims=True),
        (CUBE,),
    ),
    Row("amin", lambda c, a: F.amin(a), lambda a: a.min(), (CUBE,)),
    Row("amin", lambda c, a: F.amin(a, (-1, 0)), lambda a: a.min((0, 2)), (CUBE,)),
    Row(
        "amin",
        lambda c, a: F.amin(a, 1, keepdims=True),
        lambda a: a.min(1, keepdims=True),
        (CUBE,),
    ),
    Row("amin", lambda c, a: F.amin(a), lambda a: a, (SCALAR,)),
    Row("variance", lambda c, a: F.variance(a), lambda a: a.var(), (CUBE,)),
    Row(
        "variance",
        lambda c, a: F.variance(a, (0, -1), keepdims=True),
        lambda a: a.var((0, 2), keepdims=True),
        (CUBE,),
    ),
    Row(
        "variance",
        lambda c, a: F.variance(a, 1, correction=1),
        lambda a: a.var(1, ddof=1),
        (CUBE,),
    ),
    Row(
        "logsumexp",
        lambda c, a: F.logsumexp(a),
        lambda a: np.log(np.exp(a).sum()),
        (CUBE,),
    ),
    Row(
        "logsumexp",
        lambda c, a: F.logsumexp(a, -1),
        lambda a: np.log(np.exp(a).sum(-1)),
        (CUBE,),
    ),
    Row(
        "logsumexp",
        lambda c, a: F.logsumexp(a, (0, 2), keepdims=True),
        lambda a: np.log(np.exp(a).sum((0, 2), keepdims=True)),
        (CUBE,),
    ),
    Row("logsumexp", lambda c, a: F.logsumexp(a), lambda a: a, (SCALAR,)),
    Row("Tensor.min", lambda c, a: a.min(axis=-1), lambda a: a.min(-1), (MATRIX,)),
    Row("Tensor.var", lambda c, a: a.var(), lambda a: a.var(), (ROW,)),
    Row(
        "Tensor.var",
        lambda c, a: a.var(-1, True, correction=1),
        lambda a: a.var(-1, ddof=1, keepdims=True),
        (CUBE,),
    ),
    Row("Tensor.sum", lambda c, a: a.sum(axis=0), lambda a: a.sum(0), (MATRIX,)),
    Row("Tensor.sum", lambda c, a: a.sum(np.int64(1)), lambda a: a.sum(1), (MATRIX,)),
    Row("Tensor.mean", lambda c, a: a.mean(axis=1), lambda a: a.mean(1), (MATRIX,)),
    Row("Tensor.max", lambda c, a: a.max(axis=0), lambda a: a.max(0), (MATRIX,)),
    # -- matrix products; more shapes there, too
    Row(
        "linear",
        lambda c, x, w, b: F.linear(x, w, b),
        lambda x, w, b: x @ w + b,
        (MATRIX, WEIGHT, BIAS),
    ),
    Row("linear", lambda c, x, w: F.linear(x, w), lambda x, w: x @ w, (MATRIX, WEIGHT)),
    Row(
        "linear",
        lambda c, x, w, b: F.linear(x, w, b),
        lambda x, w, b: x @ w + b,
        (ROW, WEIGHT, BIAS),
    ),
    Row(
        "linear",
        lambda c, x, w, b: F.linear(x, w, b),
        lambda x, w, b: x @ w + b,
        (CUBE, WEIGHT, BIAS),
    ),
    Row(
        "linear",
        lambda c, x, w: F.linear(F.transpose(x), w),
        lambda x, w: x.T @ w,
        (REVERSED, WEIGHT),
    ),
    Row(
        "linear",
        lambda c, x: F.linear(x, c(WEIGHT), c(BIAS)),
        lambda x: x @ WEIGHT + BIAS,
        (MATRIX,),
    ),
    Row(
        "linear",
        lambda c, w, b: F.linear(c(MATRIX), w, b),
        lambda w, b: MATRIX @ w + b,
        (WEIGHT, BIAS),
    ),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (MATRIX, WEIGHT)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (ROW, WEIGHT)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (CUBE, ROW)),
    Row("matmul", lambda c, a: F.matmul(a, a), lambda a: a @ a, (ROW,)),
    Row(
        "matmul",
        lambda c, a, b: F.matmul(a, b),
        lambda a, b: a @ b,
        (CUBE[:, None], CUBE.transpose(0, 2, 1)),
    ),
    Row("Tensor.__matmul__", lambda c, a, b: a @ b, lambda a, b: a @ b, (CUBE, WEIGHT)),
    Row(
        "Tensor.__matmul__", lambda c, a: a @ c(WEIGHT), lambda a: a @ WEIGHT, (MATRIX,)
    ),
    Row(
        "Tensor.__rmatmul__",
        lambda c, b: c(MATRIX) @ b,
        lambda b: MATRIX @ b,
        (WEIGHT,),
        LEFT,
    ),
    # -- moving elements
    Row(
        "reshape",
        lambda c, a: F.reshape(a, (4, 3)),
        lambda a: a.reshape(4, 3),
        (MATRIX,),
    ),
    Row(
        "reshape",
        lambda c, a: F.reshape(a, (2, -1)),
        lambda a: a.reshape(2, -1),
        (MATRIX,),
    ),
    Row("Tensor.reshape", lambda c, a: a.reshape(-1), lambda a: a.reshape(-1), (CUBE,)),
    Row(
        "Tensor.reshape",
        lambda c, a: a.reshape(np.prod((2, 3)), 4),
        lambda a: a.reshape(6, 4),
        (CUBE,),
    ),
    Row(
        "Tensor.reshape",
        lambda c, a: a.reshape(np.prod((3, 4))),
        lambda a: a.reshape(12),
        (MATRIX,),
    ),
    Row(
        "Tensor.reshape",
        lambda c, a: a.reshape((3, 8)),
        lambda a: a.reshape(3, 8),
        (CUBE,),
    ),
    Row("transpose", lambda c, a: F.transpose(a), lambda a: a.T, (CUBE,)),
    Row(
        "transpose",
        lambda c, a: F.transpose(a, (1, 2, 0)),
        lambda a: a.transpose(1, 2, 0),
        (CUBE,),
    ),
    Row(
        "Tensor.transpose",
        lambda c, a: a.transpose(0, -1, 1),
        lambda a: a.transpose(0, 2, 1),
        (CUBE,),
    ),
    Row(
        "Tensor.transpose",
        lambda c, a: a.transpose((2, 0, 1)),
        lambda a: a.transpose(2, 0, 1),
        (CUBE,),
    ),
    Row("Tensor.transpose", lambda c, a: a.transpose(), lambda a: a.T, (MATRIX,)),
    Row("Tensor.T", lambda c, a: a.T, lambda a: a.T, (MATRIX,)),
    Row(
        "contiguous",
        lambda c, a: F.contiguous(F.transpose(a)),
        lambda a: a.T,
        (MATRIX,),
    ),
    Row("contiguous", lambda c, a: F.contiguous(a), lambda a: a, (MATRIX,)),
    Row(
        "concatenate",
        lambda c, a, b: F.concatenate([a, b]),
        lambda a, b: np.concatenate([a, b]),
        (MATRIX, OTHER),
    ),
    Row(
        "concatenate",
        lambda c, a, b: F.concatenate([a, b, a], axis=-1),
        lambda a, b: np.concatenate([a, b, a], -1),
        (MATRIX, COLUMN),
    ),
    Row(
        "stack",
        lambda c, a, b: F.stack([a, b]),
        lambda a, b: np.stack([a, b]),
        (MATRIX, OTHER),
    ),
    Row(
        "stack",
        lambda c, a, b: F.stack([a, b, a], axis=1),
        lambda a, b: np.stack([a, b, a], 1),
        (MATRIX, OTHER),
    ),
    Row(
        "stack",
        lambda c, a, b: F.stack((a, b), axis=-1),
        lambda a, b: np.stack([a, b], -1),
        (MATRIX, OTHER),
    ),
    Row("stack", lambda c, a: F.stack([a, a]), lambda a: np.stack([a, a]), (SCALAR,)),
    Row("split", lambda c, a: F.split(a, 3)[1], lambda a: a[1:2], (MATRIX,)),
    Row(
        "split",
        lambda c, a: F.split(a, np.int64(2), axis=-1)[1],
        lambda a: a[..., 2:],
        (CUBE,),
    ),
    Row(
        "split",
        lambda c, a: F.split(a, [1, 0, 2], axis=1)[2],
        lambda a: a[:, 1:],
        (CUBE,),
    ),
    Row(
        "split",
        lambda c, a: (
            F.concatenate(F.split(a, (3, 1), -1)[::-1], -1) * F.split(a, 1, -1)[0]
        ),
        lambda a: np.concatenate([a[:, 3:], a[:, :3]], 1) * a,
        (MATRIX,),
    ),
    Row("index", lambda c, a: F.index(a, (0, -1)), lambda a: a[0, -1], (MATRIX,)),
    Row(
        "index",
        lambda c, a: F.index(a, (slice(1, None), slice(None, None, 2))),
        lambda a: a[1:, ::2],
        (MATRIX,),
    ),
    Row("index", lambda c, a: F.index(a, c(MASK)), lambda a: a[MASK], (MATRIX,)),
    Row("Tensor.__getitem__", lambda c, a: a[..., 1], lambda a: a[..., 1], (CUBE,)),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[::-1, None, 1:3],
        lambda a: a[::-1, None, 1:3],
        (MATRIX,),
        NONE_WRITTEN,
    ),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[c([2, 0, 2, 2])],
        lambda a: a[[2, 0, 2, 2]],
        (VECTOR,),
    ),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[Tensor(c([1, 0, 1]))],
        lambda a: a[[1, 0, 1]],
        (VECTOR,),
    ),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[c([2, 0, 2]), c([1, 3, 1])],
        lambda a: a[[2, 0, 2], [1, 3, 1]],
        (MATRIX,),
    ),
    Row("Tensor.__getitem__", lambda c, a: a[1], lambda a: a[1], (MATRIX,), FEWER_AXES),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[np.int64(1)],
        lambda a: a[1],
        (MATRIX,),
        FEWER_AXES,
    ),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[c([2, 0, 2, 2])],
        lambda a: a[[2, 0, 2, 2]],
        (MATRIX,),
        FEWER_AXES,
    ),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[[2, 0, 2, 2]],
        lambda a: a[[2, 0, 2, 2]],
        (VECTOR,),
        LISTS,
    ),
    Row(
        "Tensor.__getitem__",
        lambda c, a: a[:, c([0, 0, 3])],
        lambda a: a[:, [0, 0, 3]],
        (MATRIX,),
        MIXED,
    ),
    Row("identity", lambda c, a: F.identity(a), lambda a: a, (MATRIX,)),
    *LAYER_ROWS,
]


STRICT_ROWS = [row for row in ROWS if not row.not_strict]


def named(rows: list[Row]) -> Any:
    """Test each row, in one item, with a readable name for each."""
    shapes = [
        " ".join("x".join(map(str, array.shape)) or "scalar" for array in row.arrays)
        for row in rows
    ]
    return for_each(
        row={
            f"{i}-{row.covers}-{shape}": row
            for i, (row, shape) in enumerate(zip(rows, shapes))
        }
    )


def tensors_of(row: Row, dtype: Any, module: types.ModuleType) -> list[Tensor]:
    return [
        Tensor(module.asarray(np.array(array), dtype=dtype), requires_grad=True)
        for array in row.arrays
    ]


def evaluate(
    row: Row, dtype: str, module: types.ModuleType
) -> tuple[Tensor, list[Any]]:
    """Return the result of a row on arrays of a module, and the gradients of its
    inputs.
    """
    tensors = tensors_of(row, getattr(module, dtype), module)
    result = row.call(module.asarray, *tensors)
    upstream = np.random.default_rng(9).standard_normal(result.shape)
    result.backward(module.asarray(upstream, dtype=getattr(module, dtype)))
    return result, [tensor.grad for tensor in tensors]


# -- the table is complete -------------------------------------------------------------


WITHOUT_GRADIENT = {
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__array_function__",
    "__array_ufunc__",
}
WITHOUT_GRADIENT |= {
    "__len__",
    "__iter__",
    "__float__",
    "__bool__",
    "__format__",
    "__repr__",
    "__array__",
}
# all but the first are refused
WITHOUT_GRADIENT |= {"__int__", "__setitem__", "__abs__", "__floordiv__", "__mod__"}
WITHOUT_GRADIENT |= {"__and__", "__or__", "__xor__", "__invert__"}
WITHOUT_GRADIENT |= {"__copy__", "__reduce__"}  # tests/nn/test_copies.py
WITHOUT_GRADIENT |= {"ndim", "size", "item", "numpy", "detach", "zero_grad"}


def attached_to_tensor() -> set[str]:
    """Return the operators, methods and properties that functional/ has given to
    Tensor, whatever they are.
    """
    found = set()
    for name, member in vars(Tensor).items():
        function = member.fget if isinstance(member, property) else member
        home = getattr(function, "__module__", "")
        is_ours = home.startswith(("minipipe.functional", "minipipe.core.functional"))
        if is_ours and name not in WITHOUT_GRADIENT:
            found.add(f"Tensor.{name}")
    return found


def without_a_row(rows: Iterable[Row]) -> set[str]:
    return (set(functional.__all__) | attached_to_tensor()) - {
        row.covers for row in rows
    }


def test_every_operation_and_every_operator_has_a_row_in_the_table():
    assert without_a_row(ROWS) == set()


@pytest.mark.parametrize("name", ["relu", "Tensor.__rsub__", "Tensor.T"])
def test_an_operation_without_a_row_would_be_noticed(name):
    assert without_a_row(row for row in ROWS if row.covers != name) == {name}


def test_every_row_names_something_that_exists():
    assert {row.covers for row in ROWS} <= set(
        functional.__all__
    ) | attached_to_tensor()


# -- each row, four times --------------------------------------------------------------


@named(ROWS)
def test_the_values_are_those_of_the_formula(row):
    expected = np.asarray(row.formula(*row.arrays))
    given_, _ = evaluate(row, "float64", np)
    assert given_.shape == expected.shape
    # also where NumPy would rather return a scalar
    assert type(given_.data) is np.ndarray
    np.testing.assert_allclose(given_.numpy(), expected, rtol=1e-13, atol=1e-14)


@named(ROWS)
def test_the_gradients_are_those_of_central_differences(row):
    check_gradients(
        lambda *tensors: row.call(np.asarray, *tensors), *row.arrays, tolerance=1e-8
    )


def test_every_operation_of_a_file_is_offered_by_the_package():
    """An operation that only its own file names would escape the table above."""
    offered = set()
    packages = {
        "minipipe.functional.": F.__path__,
        "minipipe.core.functional.": core_functional.__path__,
    }
    modules = [
        one.name
        for prefix, path in packages.items()
        for one in pkgutil.iter_modules(path, prefix)
    ]
    for module in (*modules, "minipipe.core.joints"):
        defined = vars(importlib.import_module(module)).items()
        own = {
            name: value
            for name, value in defined
            if getattr(value, "__module__", "") == module
        }
        own = {
            name: value for name, value in own.items() if not isinstance(value, type)
        }
        offered |= {
            name
            for name, value in own.items()
            if name[0] != "_" and "Tensor" in value.__annotations__["return"]
        }
    # these prepare operands
    offered -= {
        "as_constant",
        "as_real",
        "constant",
        "one_real",
        "operands",
        "real_operands",
    }
    # These are between ranks; tests/pipeline/test_tensor_parallel.py compares their
    # gradients with one process'.
    offered -= {
        "copy_to",
        "reduce_from",
        "gather_from",
        "parallel_cross_entropy",
        "marked",
    }
    assert offered == set(F.__all__)


def test_a_tuple_inside_an_index_repeats_as_a_list_does():
    """Repeats in t[(0, 0), :] were added once."""
    for key in (((0, 0), slice(None)), ((0, 0), (0, 0)), (range(2), [1, 1])):
        check_gradients(lambda t, key=key: t[key], np.arange(6.0).reshape(3, 2))
    t = Tensor(np.ones((3, 2)), requires_grad=True)
    t[(0, 0), :].sum().backward()
    assert t.grad.tolist() == [[2, 2], [0, 0], [0, 0]]
