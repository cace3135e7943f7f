"""The forms of a NumPy call in a program: as an expression, and with ``out``.

A form that writes into an array must have the bits of the one that allocates it.
NumPy computes an exact function (a sum, a product, a maximum) with the same bits for any
layout of its result. Other functions may take another path for other strides, so they are only written
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
    """An array whose calls a trace records; NumPy also makes some without a trace."""

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
    """Return the plain array of a traced one, also inside tuples and lists."""
    if isinstance(value, Traced):
        if value.trace is not None:
            return value.plain
        assert isinstance(value, np.ndarray)  # others always have a trace
        return np.ndarray.view(value, np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(plain_of, value))
    return value


def kept(trace: Trace, form: Form, made: Any, args: tuple[Any, ...]) -> Form:
    """Return a form, without its call into an array if no such array can be made."""
    if form.into is None or not trace.dialect.has_out:
        return Form(form.text)
    is_owner = trace.is_plain(made) and not any(
        buffer_of(made) is buffer_of(each.plain) for each in traced_in(args)
    )
    if is_owner and made.strides == new_strides(made.shape, made.itemsize):
        return form
    if is_owner and form.is_exact and _is_dense(made):
        return form
    return Form(form.text)


def _is_dense(array: Any) -> bool:
    """Return whether a permutation of its axes gives it the strides of C order."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    permuted = array.transpose(order)
    return permuted.strides == new_strides(permuted.shape, array.itemsize)


def with_out(trace: Trace, ufunc: Any, args: str, text: str) -> Form:
    """Return the form of a ufunc with one result; None is a module without ufuncs."""
    if ufunc is None:
        return Form(text)
    # Products of other modules take no third argument by position, either.
    is_by_name = ufunc in _BY_NAME or not trace.dialect.is_numpy
    into = f"{trace.callable(ufunc)}({args}, {'out=' * is_by_name}{{out}})"
    return Form(text, into, ufunc in trace.dialect.exact)


def written_ufunc(
    trace: Trace,
    ufunc: Any,
    method: str,
    args: tuple[Any, ...],
    out: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Form:
    """Return the form of a call of a ufunc, or of one of its methods."""
    call = trace.callable(ufunc)
    if method != "__call__":
        call += f".{method}"
    if out:
        # NumPy passes a tuple, in which a single array stands for the tuple of it.
        (first, *others) = out
        target = out if others else first
        text = f"{call}({arguments(trace, args, {**kwargs, 'out': target})})"
        return Form(text, text)
    written = arguments(trace, args, kwargs)
    text = f"{call}({written})"
    if method == "__call__" and ufunc.nout == 1 and not kwargs:
        return with_out(trace, ufunc, written, text)
    if method == "reduce" and kwargs.keys() <= {"axis", "keepdims", "dtype"}:
        return reduced(text, args[0])
    return Form(text)


def reduced(text: str, array: Any) -> Form:
    """Return the form of a reduction, whose order depends on the strides."""
    plain = plain_of(array)
    size = numpy_dtype(plain.dtype).itemsize
    is_in_c_order = strides_of(plain) == new_strides(plain.shape, size)
    # Sums of halves are rounded once, at their end.
    if not is_in_c_order or is_half(plain.dtype):
        return Form(text)
    return Form(text, f"{text[:-1]}, out={{out}})")


def written_function(
    trace: Trace, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Form:
    """Return the form of a call of a function of the dialect."""
    dialect = trace.dialect
    xp = trace.dialect.xp
    is_dot = function is getattr(xp, "dot", None)
    if is_dot and len(args) == 2 and is_array(args[0]):
        return product(trace, *args)  # the same product without a dispatch
    text = f"{trace.callable(function)}({arguments(trace, args, kwargs)})"
    if function in dialect.reductions and args:
        return reduced(text, args[0])
    is_plain_call = len(args) == 2 and not kwargs
    if function is xp.reshape and is_plain_call:
        return reshaped(trace, args[0], text)
    if function is getattr(xp, "astype", None) and is_plain_call:
        return Form(text, copied(trace, args[0]))
    if function is xp.where and dialect.has_out and _is_mask(args[0]):
        mask, chosen, other = map(trace.written, args)
        trace.callable(xp.copyto)
        into = f"copyto({{out}}, {other})\ncopyto({{out}}, {chosen}, where={mask})"
        return Form(text, into)
    has_all = all(each is not None for each in args) and "dtype" not in kwargs
    if function in dialect.with_out and has_all:
        return Form(text, f"{text[:-1]}, out={{out}})")
    return Form(text)


def _is_mask(value: Any) -> bool:
    return is_array(value) and is_boolean(value.dtype)


def copied(trace: Trace, array: Any) -> str:
    """Return the line that copies an array into another one, and converts it."""
    return f"{{out}}[...] = {trace.written(array)}"


def reshaped(trace: Trace, array: Any, text: str) -> Form:
    """Return the form of a reshape: a view, or a copy through the old shape."""
    shape = trace.written(plain_of(array).shape)
    return Form(
        text, copied(trace, array).replace("{out}", f"{{out}}.reshape({shape})")
    )


def product(trace: Trace, left: Any, right: Any) -> Form:
    """Return the form of a product of matrices."""
    call = f"{trace.written(left)}.dot({trace.written(right)}"
    return Form(f"{call})", f"{call}, {{out}})")


def arguments(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call, as a program writes them."""
    named = [f"{name}={trace.written(value)}" for name, value in kwargs.items()]
    return ", ".join([*map(trace.written, args), *named])


def in_brackets(text: str) -> str:
    """Return an operand on the left of an operator: -2.0 ** v0 is -(2.0 ** v0)."""
    if text.startswith("-"):
        return f"({text})"
    return text
