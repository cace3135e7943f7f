"""The forms of a NumPy call in a program: as an expression, and into an array.

A form that writes into an array must have the bits of the one that allocates it.
NumPy computes an exact function (a sum, a product, a maximum) alike wherever its result
lies. Other functions may take another path for other strides, so they are only written
into an array with the strides of the one that was allocated, and never into an operand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minipipe.autograd.backend import is_half
from minipipe.autograd.memory import buffer_of
from minipipe.compile.lines import Form

Trace = Any
"""The trace of an array (``trace.py``, which imports this file)."""

# Each element of the result has one right value, which follows from the elements at
# its place: whatever path NumPy takes, the bits are the same.
_EXACT = """
    add subtract multiply divide negative positive absolute fabs maximum minimum sqrt
    square sign floor ceil rint trunc equal not_equal less less_equal greater
    greater_equal logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
    bitwise_xor invert isnan isinf isfinite copysign
"""
_IS_EXACT = {getattr(np, name) for name in _EXACT.split()}
_BY_NAME = {np.maximum, np.minimum}  # NumPy 2.4 warns of a third argument by position
# Functions whose result's shape depends on the shapes of their arguments alone.
_STATIC = """
    concat stack where max min amax amin sum mean clip take take_along_axis broadcast_to
    permute_dims transpose matrix_transpose swapaxes expand_dims squeeze tril triu dot
    astype cumsum reshape zeros_like ones_like pad split
"""
STATIC = {getattr(np, name) for name in _STATIC.split()}
# Those with an argument ``out``, which NumPy computes there in the same order.
_WITH_OUT = {np.concat, np.stack, np.clip}
_REDUCTIONS = {np.max, np.min, np.amax, np.amin, np.sum, np.mean, np.cumsum}


class Traced(np.ndarray):
    """An array whose calls a trace notes; without one, NumPy made it unnoticed."""

    __array_priority__ = 1e6
    trace: Any = None
    name: str = ""
    plain: Any = None
    is_number: bool = False  # NumPy made it as a scalar, which nothing changes in place


def traced_in(values: Any) -> Iterator[Traced]:
    """Yield the traced arrays among values, also inside tuples and lists."""
    for value in values:
        if isinstance(value, Traced):
            if value.trace is not None:
                yield value
        elif isinstance(value, tuple | list):
            yield from traced_in(value)


def plain_of(value: Any) -> Any:
    """Return the plain array behind a traced one, also inside tuples and lists."""
    if isinstance(value, Traced):
        if value.trace is not None:
            return value.plain
        return np.ndarray.view(value, np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(plain_of, value))
    return value


def kept(form: Form, made: Any, given: tuple[Any, ...]) -> Form:
    """Return a form without the one into an array, if no such array can be made."""
    if form.into is None:
        return form
    is_owner = type(made) is np.ndarray and not any(
        buffer_of(made) is buffer_of(each.plain) for each in traced_in(given)
    )
    if is_owner and made.strides == _strides_of(made.shape, made.itemsize):
        return form
    is_dense = is_owner and form.is_exact and _is_dense(made)
    return form if is_dense else Form(form.text)


def _strides_of(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the strides of a new array in C order."""
    return np.empty(shape, f"V{size}").strides


def _is_dense(array: np.ndarray) -> bool:
    """Return whether another order of its axes makes it a new array in C order."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    turned = array.transpose(order)
    return turned.strides == _strides_of(turned.shape, array.itemsize)


def with_out(trace: Trace, ufunc: Any, given: str, text: str) -> Form:
    """Return the form of a ufunc of one result."""
    into = f"{trace.callable(ufunc)}({given}, {'out=' * (ufunc in _BY_NAME)}{{out}})"
    return Form(text, into, ufunc in _IS_EXACT)


def written_ufunc(
    trace: Trace,
    ufunc: Any,
    method: str,
    given: tuple[Any, ...],
    out: tuple[Any, ...],
    options: dict[str, Any],
) -> Form:
    """Return the form of a call of a ufunc, or of one of its methods."""
    call = trace.callable(ufunc) + ("" if method == "__call__" else f".{method}")
    if out:
        shown = {**options, "out": out[0] if len(out) == 1 else out}
        text = f"{call}({arguments(trace, given, shown)})"
        return Form(text, text)
    written = arguments(trace, given, options)
    text = f"{call}({written})"
    if method == "__call__" and ufunc.nout == 1 and not options:
        return with_out(trace, ufunc, written, text)
    if method == "reduce" and options.keys() <= {"axis", "keepdims", "dtype"}:
        return reduced(text, given[0])
    return Form(text)


def reduced(text: str, array: Any) -> Form:
    """Return the form of a sum and the like, whose order depends on the strides."""
    plain = plain_of(array)
    is_plain = plain.strides == _strides_of(plain.shape, plain.itemsize)
    is_plain = is_plain and not is_half(plain.dtype)  # whose sums are rounded once
    return Form(text, f"{text[:-1]}, out={{out}})" if is_plain else None)


def written_function(
    trace: Trace, function: Any, given: tuple[Any, ...], options: dict[str, Any]
) -> Form:
    """Return the form of a call of one of the functions that are listed here."""
    if function is np.dot and len(given) == 2 and isinstance(given[0], np.ndarray):
        return product(trace, *given)  # a call less, the same product
    text = f"{trace.callable(function)}({arguments(trace, given, options)})"
    if function in _REDUCTIONS and given:
        return reduced(text, given[0])
    is_simple = len(given) == 2 and not options
    if function is np.reshape and is_simple:
        return reshaped(trace, given[0], text)
    if function is np.astype and is_simple:
        return Form(text, copied(trace, given[0]))
    if function is np.where and getattr(given[0], "dtype", None) == np.dtype(bool):
        mask, chosen, other = map(trace.written, given)
        trace.callable(np.copyto)
        into = f"copyto({{out}}, {other})\ncopyto({{out}}, {chosen}, where={mask})"
        return Form(text, into)
    is_whole = all(each is not None for each in given) and "dtype" not in options
    if function in _WITH_OUT and is_whole:
        return Form(text, f"{text[:-1]}, out={{out}})")
    return Form(text)


def copied(trace: Trace, array: Any) -> str:
    """Return the line that copies an array into another one, perhaps of a dtype."""
    return f"{{out}}[...] = {trace.written(array)}"


def reshaped(trace: Trace, array: Any, text: str) -> Form:
    """Return the form of other axes: a view, or else a copy with the old axes."""
    shape = trace.written(plain_of(array).shape)
    return Form(
        text, copied(trace, array).replace("{out}", f"{{out}}.reshape({shape})")
    )


def product(trace: Trace, left: Any, right: Any) -> Form:
    """Return the form of a product of matrices."""
    call = f"{trace.written(left)}.dot({trace.written(right)}"
    return Form(f"{call})", f"{call}, {{out}})")


def arguments(trace: Trace, given: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return the arguments of a call, as a program writes them."""
    named = [f"{name}={trace.written(value)}" for name, value in options.items()]
    return ", ".join([*map(trace.written, given), *named])


def in_brackets(text: str) -> str:
    """Return an operand on the left of an operator."""
    return f"({text})" if text.startswith("-") else text  # -2.0 ** v0 is -(2.0 ** v0)
