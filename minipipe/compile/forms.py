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

from minipipe.autograd.memory import buffer_of
from minipipe.compile.dialect import new_strides, strides_of
from minipipe.compile.lines import Form
from minipipe.core.autograd.backend import is_array, is_boolean, is_half, numpy_dtype

Trace = Any
"""The trace of an array (``trace.py``, which imports this file)."""

_BY_NAME = {np.maximum, np.minimum}  # NumPy 2.4 warns of a third argument by position


class Traced:
    """An array whose calls a trace notes; without one, NumPy made it unnoticed."""

    trace: Any = None
    name: str = ""
    plain: Any = None
    is_number: bool = False  # NumPy made it as a scalar, which nothing changes in place


class TracedInNumPy(Traced, np.ndarray):
    """A traced array of NumPy's: operations take for it the paths of NumPy's arrays."""

    __array_priority__ = 1e6


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
        assert isinstance(value, np.ndarray)  # others always have a trace
        return np.ndarray.view(value, np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(plain_of, value))
    return value


def kept(trace: Trace, form: Form, made: Any, given: tuple[Any, ...]) -> Form:
    """Return a form without the one into an array, if no such array can be made."""
    if form.into is None or not trace.dialect.has_out:
        return Form(form.text)
    is_owner = trace.is_plain(made) and not any(
        buffer_of(made) is buffer_of(each.plain) for each in traced_in(given)
    )
    if is_owner and made.strides == new_strides(made.shape, made.itemsize):
        return form
    is_dense = is_owner and form.is_exact and _is_dense(made)
    return form if is_dense else Form(form.text)


def _is_dense(array: Any) -> bool:
    """Return whether another order of its axes makes it a new array in C order."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    turned = array.transpose(order)
    return turned.strides == new_strides(turned.shape, array.itemsize)


def with_out(trace: Trace, ufunc: Any, given: str, text: str) -> Form:
    """Return the form of a ufunc of one result; None stands for a module without."""
    if ufunc is None:
        return Form(text)
    # Products of other modules take no third argument by position, either.
    is_by_name = ufunc in _BY_NAME or not trace.dialect.is_numpy
    into = f"{trace.callable(ufunc)}({given}, {'out=' * is_by_name}{{out}})"
    return Form(text, into, ufunc in trace.dialect.exact)


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
    size = numpy_dtype(plain.dtype).itemsize
    is_plain = strides_of(plain) == new_strides(plain.shape, size)
    is_plain = is_plain and not is_half(plain.dtype)  # whose sums are rounded once
    return Form(text, f"{text[:-1]}, out={{out}})" if is_plain else None)


def written_function(
    trace: Trace, function: Any, given: tuple[Any, ...], options: dict[str, Any]
) -> Form:
    """Return the form of a call of one of the functions that are listed here."""
    dialect = trace.dialect
    xp = trace.dialect.xp
    is_dot = function is getattr(xp, "dot", None)
    if is_dot and len(given) == 2 and is_array(given[0]):
        return product(trace, *given)  # a call less, the same product
    text = f"{trace.callable(function)}({arguments(trace, given, options)})"
    if function in dialect.reductions and given:
        return reduced(text, given[0])
    is_simple = len(given) == 2 and not options
    if function is xp.reshape and is_simple:
        return reshaped(trace, given[0], text)
    if function is getattr(xp, "astype", None) and is_simple:
        return Form(text, copied(trace, given[0]))
    if function is xp.where and dialect.has_out and _is_mask(given[0]):
        mask, chosen, other = map(trace.written, given)
        trace.callable(xp.copyto)
        into = f"copyto({{out}}, {other})\ncopyto({{out}}, {chosen}, where={mask})"
        return Form(text, into)
    is_whole = all(each is not None for each in given) and "dtype" not in options
    if function in dialect.with_out and is_whole:
        return Form(text, f"{text[:-1]}, out={{out}})")
    return Form(text)


def _is_mask(value: Any) -> bool:
    return is_array(value) and is_boolean(value.dtype)


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
