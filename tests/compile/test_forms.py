"""A call that writes into an array has the bits of one that allocates its result."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.compile.trace import Trace, key_of
from tests.strategies import examples

UNARY = """
    negative positive absolute sqrt square sign floor ceil rint trunc exp exp2 expm1 log
    log2 log1p sin cos tanh arctan isnan isinf isfinite logical_not reciprocal cbrt
"""
BINARY = """
    add subtract multiply divide maximum minimum power equal not_equal less less_equal
    greater greater_equal logical_and logical_or arctan2 copysign hypot logaddexp fmax
"""
OTHERS = {
    "dot": lambda x, y: x.dot(y.T),
    "product": lambda x, y: x @ y.T,
    "product with itself": lambda x, y: x @ x.T,
    "transposed product": lambda x, y: x.T @ y,
    "concat": lambda x, y: np.concat([x, y], axis=0),
    "stack": lambda x, y: np.stack([x, y], axis=1),
    "where": lambda x, y: np.where(x > y, x, y),
    "where with a number": lambda x, y: np.where(x > y, x, 0.5),
    "clip": lambda x, y: np.clip(x, -0.5, 0.5),
    "sum": lambda x, y: x.sum(axis=0),
    "sum that keeps its axis": lambda x, y: np.add.reduce(x, axis=-1, keepdims=True),
    "sum of columns": lambda x, y: np.add.reduce(x.T, axis=0),
    "largest": lambda x, y: x.max(axis=1),
    "mean": lambda x, y: x.mean(axis=-1, keepdims=True),
    "cumulative": lambda x, y: np.cumsum(x, axis=1),
    "smaller dtype": lambda x, y: x.astype(np.float32),
    "larger dtype": lambda x, y: np.astype(x, np.float64),
    "whole numbers": lambda x, y: (x * 10).astype(np.int32),
    "copy": lambda x, y: x.T.copy(),
    "copied axes": lambda x, y: x.T.reshape(-1),
    "row": lambda x, y: x + y[0],
    "column": lambda x, y: x * y[:, :1],
    "transposed": lambda x, y: x.T * y.T,
    "of other strides": lambda x, y: x.T * np.ascontiguousarray(2.0),
    "number": lambda x, y: 2.0 - x,
    "mean of all": lambda x, y: np.mean(x, axis=(0, 1), keepdims=True),
    "where of numbers": lambda x, y: np.where(x, y, 0.0),
    "by name": lambda x, y: x.astype(dtype=np.int8),
    "in another order": lambda x, y: x.reshape(-1, order="F") + x.ravel("F"),
    "negative number": lambda x, y: -2.0 * x,
}
CALLS = {
    name: (lambda f: lambda x, y: f(x))(getattr(np, name)) for name in UNARY.split()
}
CALLS |= {name: getattr(np, name) for name in BINARY.split()}
CALLS |= OTHERS


def traced(call, arrays):
    """Return the last line of a call, and the values of all variables."""
    trace = Trace(key_of(0, 0, 0))
    trace.begin("forward")
    result = call(*(trace.input(f"x{i}", array) for i, array in enumerate(arrays)))
    assert trace.reason is None, trace.reason
    line = trace.sections["forward"][-1]
    names = {**trace.functions, **dict(trace.constants.values())}
    names |= {f"x{i}": array for i, array in enumerate(arrays)}
    plain = str.maketrans("", "", "{}")
    for earlier in trace.sections["forward"][:-1]:
        exec((earlier.left + earlier.form.text).translate(plain), names)
    return line.form, names, result.plain, trace.variables[result.name]


def placed(like, offset):
    """Return an array of a layout that begins anywhere in memory, filled with NaN."""
    memory = np.full(like.size * like.itemsize + 64 + 64, 255, np.uint8)
    start = -memory.ctypes.data % 64 + offset * like.itemsize % 64
    return np.ndarray(like.shape, like.dtype, memory, start, like.strides)


@examples(400)
@given(
    st.sampled_from(sorted(CALLS)),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 15),
    st.sampled_from([np.float32, np.float64, np.float16]),
)
@pytest.mark.filterwarnings("ignore")
def test_where_a_result_lies_changes_no_bit(name, rows, columns, offset, dtype):
    random = np.random.default_rng((rows, columns, offset))
    made = random.normal(size=(2, rows, columns)).astype(dtype)
    arrays = [placed(made[0], offset), placed(made[1], 3)]
    for array, values in zip(arrays, made):
        array[...] = values
    form, names, expected, _ = traced(CALLS[name], arrays)
    if form.into is None:
        return
    found = placed(expected, offset)
    exec(form.into.translate(str.maketrans("", "", "{}")), names | {"out": found})
    assert found.tobytes() == expected.tobytes()
    for operand in arrays if form.is_exact else ():
        layouts = [(each.shape, each.dtype, each.strides) for each in (operand, found)]
        if layouts[0] == layouts[1]:
            before = operand.copy()
            into = form.into.translate(str.maketrans("", "", "{}"))
            exec(into, names | {"out": operand})
            assert operand.tobytes() == expected.tobytes(), "in place of an operand"
            operand[...] = before


@pytest.mark.parametrize("name", OTHERS)
def test_most_calls_can_write_into_an_array(name):
    arrays = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    form, *_ = traced(CALLS[name], [array.copy() for array in arrays])
    without = {"sum of columns", "where of numbers", "by name"}
    assert (form.into is None) == (name in without)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x.dot(x.T, y),
        lambda x, y: x.sum(0, None, y[0]),
        lambda x, y: x.max(axis=0, out=y[0]),
        lambda x, y: x.cumsum(axis=0, out=y),
        lambda x, y: x.clip(0, 1, y),
        lambda x, y: np.sum(x, axis=0, out=y[0]),
    ],
)
def test_a_call_that_writes_into_an_array_of_its_caller_is_not_compiled(call):
    trace = Trace(key_of(0, 0, 0))
    trace.begin("forward")
    values = np.random.default_rng(0).normal(size=(2, 5, 5))
    arrays = [trace.input(f"x{i}", array.copy()) for i, array in enumerate(values)]
    expected = [array.copy() for array in values]
    call(*arrays)
    call(*expected)
    assert trace.reason is not None
    for array, other in zip(arrays, expected):
        assert np.array_equal(array.plain, other)
