"""Operations of traced arrays: they compute as plain arrays do, and record the line.

Every attribute of ``numpy.ndarray`` is recorded, is metadata, or is a graph break: no
method reads a value unnoticed. ``elsewhere.py`` gives the same operations to arrays of
other modules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minipipe.compile.dialect import VIEWS
from minipipe.compile.forms import (
    Trace,
    Traced,
    TracedInNumPy,
    arguments,
    copied,
    in_brackets,
    kept,
    plain_of,
    product,
    reduced,
    reshaped,
    traced_in,
    with_out,
    written_function,
    written_ufunc,
)
from minipipe.compile.lines import Form, Untraceable
from minipipe.core.autograd.backend import is_array

Write = Callable[[Trace], Form]


def noted(
    write: Write,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    changed: tuple[Any, ...] = (),
    depends: bool = True,
    **how: bool,
) -> Any:
    """Call a function of plain arrays, and record the line of ``write`` unless the
    graph is broken; the result depends on the values of the arguments or not.
    """
    named = kwargs or {}
    read = (*args, *named.values())

    def compute() -> Any:
        plain = {name: plain_of(value) for name, value in named.items()}
        return function(*plain_of(args), **plain)

    trace = next((each.trace for each in traced_in(read)), None)
    if not depends:
        read = ()
    if trace is None:
        return compute()
    if trace.reason is not None:
        return trace.unnoted(compute())
    try:
        form = write(trace)  # before computing: a constant may be changed later
    except Untraceable as error:
        trace.graph_break(str(error))
        return trace.unnoted(compute())
    made = compute()
    if trace.reason is not None:  # a conversion that was noticed meanwhile
        return trace.unnoted(made)
    try:
        if any(not isinstance(each, Traced) or each.is_number for each in changed):
            raise Untraceable("changes an array in place that was made outside of it")
        if not changed:
            form = kept(trace, form, made, read)
        return trace.note(form, made, read, changed, **how)
    except Untraceable as error:
        trace.graph_break(str(error))
        return trace.unnoted(made)


_METHODS = """
    dot reshape astype transpose copy sum max min mean ravel swapaxes squeeze take clip
    cumsum repeat view
"""
# Attributes that do not depend on the values.
_METADATA = """
    shape strides dtype ndim size itemsize nbytes flags base device __len__ __class__
    __dir__ __doc__ __hash__ __new__ __init__ __getattribute__ __init_subclass__
    __subclasshook__ __class_getitem__ __array_priority__ __sizeof__ __array_namespace__
    __array_finalize__ __array_wrap__ __delattr__
"""
_SYMBOLS: dict[str, tuple[str, Any]] = {
    "add": ("+", np.add),
    "sub": ("-", np.subtract),
    "mul": ("*", np.multiply),
    "truediv": ("/", np.divide),
    "floordiv": ("//", np.floor_divide),
    "mod": ("%", np.remainder),
    "pow": ("**", None),  # np.power computes squares and roots in another way
    "matmul": ("@", np.matmul),
    "and": ("&", np.bitwise_and),
    "or": ("|", np.bitwise_or),
    "xor": ("^", np.bitwise_xor),
}
_COMPARISONS: dict[str, tuple[str, Any]] = {
    "lt": ("<", np.less),
    "le": ("<=", np.less_equal),
    "gt": (">", np.greater),
    "ge": (">=", np.greater_equal),
    "eq": ("==", np.equal),
    "ne": ("!=", np.not_equal),
}
_SIGNS: dict[str, tuple[str, Any]] = {
    "neg": ("-", np.negative),
    "pos": ("+", np.positive),
    "invert": ("~", np.invert),
}


class _Noting:
    """Methods of :class:`Traced` arrays that replace NumPy's."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        is_layout = name in ("shape", "strides", "dtype", "flat", "real", "imag")
        if self.trace is not None and is_layout:
            self.trace.graph_break(f"sets {name}")
            setattr(self.plain, name, value)
        object.__setattr__(self, name, value)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *args: Any, out: Any = (), **kwargs: Any
    ) -> Any:
        def write(trace: Trace) -> Form:
            return written_ufunc(trace, ufunc, method, args, out, kwargs)

        named = {"out": out, **kwargs} if out else kwargs
        return noted(write, getattr(ufunc, method), args, named, tuple(out))

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        def write(trace: Trace) -> Form:
            is_listed = function in trace.dialect.static and "out" not in kwargs
            if not is_listed or (function is np.where and len(args) != 3):
                raise Untraceable(f"calls numpy.{function.__name__}")
            return written_function(trace, function, args, kwargs)

        if function in (np.zeros_like, np.ones_like):
            return _noted_filling(function, args, kwargs)
        return noted(write, function, args, kwargs)

    @staticmethod
    def note_call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call of a function of :func:`backend.one_line` as one line."""

        def write(trace: Trace) -> Form:
            return Form(f"{trace.callable(function)}({arguments(trace, args, {})})")

        is_collective = getattr(function, "is_collective", False)
        return noted(write, function, args, has_effect=is_collective)

    def __getitem__(self: Any, key: Any) -> Any:
        def write(trace: Trace) -> Form:
            return Form(f"{trace.written(self)}[{trace.item(key)}]")

        return noted(write, operator.getitem, (self, key), may_view=True)

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        def write(trace: Trace) -> Form:
            left = f"{trace.written(self)}[{trace.item(key)}]"
            text = f"{left} = {trace.written(value)}"
            return Form(text, text)

        noted(write, operator.setitem, (self, key, value), changed=(self,))

    def __iter__(self: Any) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def _noted_filling(function: Any, args: Any, kwargs: Any) -> Any:
    """Record an array of zeros or ones, which depends on no value."""
    value = int(function is np.ones_like)
    plain = {name: plain_of(each) for name, each in kwargs.items()}
    made = function(*plain_of(args), **plain)

    def write(trace: Trace) -> Form:
        if type(made) is not np.ndarray:
            raise Untraceable(f"calls numpy.{function.__name__}")
        dtype = trace.written(made.dtype)
        name = trace.callable(np.full)
        text = f"{name}({trace.written(made.shape)}, {value}, {dtype})"
        trace.callable(np.copyto)
        return Form(text, f"copyto({{out}}, {value})")

    return noted(write, lambda *_, **__: made, args, kwargs, depends=False)


def _operator(
    name: str, symbol: str, ufunc: Any, is_reflected: bool = False
) -> Callable[..., Any]:
    function = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))

    def method(self: Any, other: Any) -> Any:
        operands = [other, self] if is_reflected else [self, other]
        left, right = operands

        def write(trace: Trace) -> Form:
            a = trace.written(left)
            b = trace.written(right)
            text = f"{in_brackets(a)} {symbol} {b}"
            if ufunc is None:
                return Form(text)
            return with_out(trace, trace.dialect.ufunc(ufunc), f"{a}, {b}", text)

        return noted(write, function, (left, right))

    return method


def _in_place(name: str, symbol: str, ufunc: Any) -> Callable[..., Any]:
    function = getattr(operator, f"i{name}")

    def method(self: Any, other: Any) -> Any:
        def write(trace: Trace) -> Form:
            a = trace.written(self)
            b = trace.written(other)
            text = f"{a} {symbol}= {b}"
            function = ufunc and trace.dialect.ufunc(ufunc)
            if function is None:
                return Form(text)
            return Form(text, f"{trace.callable(function)}({a}, {b}, {a})")

        return noted(write, function, (self, other), changed=(self,))

    return method


def _sign(name: str, symbol: str, ufunc: Any) -> Callable[[Traced], Any]:
    function = getattr(operator, name)

    def method(self: Any) -> Any:
        def write(trace: Trace) -> Form:
            array = trace.written(self)
            text = f"{symbol}{array}"
            return with_out(trace, trace.dialect.ufunc(ufunc), array, text)

        return noted(write, function, (self,))

    return method


def _method(name: str) -> Callable[..., Any]:
    def call(array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, name)(*args, **kwargs)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        def write(trace: Trace) -> Form:
            num_values = {"clip": 2}.get(name, 1)
            more = args[num_values:]
            if "out" in kwargs or any(map(is_array, more)):
                raise Untraceable(f"lets {name} write into an array")
            call = f"{trace.written(self)}.{name}"
            text = f"{call}({arguments(trace, args, kwargs)})"
            if name == "dot" and len(args) == 1 and not kwargs:
                return product(trace, self, args[0])
            if name in ("sum", "max", "min", "mean", "cumsum"):
                if args or kwargs:
                    return reduced(text, self)
                return Form(text)
            if kwargs:
                return Form(text)
            if name == "reshape" or (name == "ravel" and not args):
                return reshaped(trace, self, text)
            if name == "astype" and len(args) == 1:
                return Form(text, copied(trace, self))
            if name == "copy" and not args:
                return Form(text, copied(trace, self))
            return Form(text)

        return noted(write, call, (self, *args), kwargs, may_view=name in VIEWS)

    return method


def _view(name: str) -> property:
    function = operator.attrgetter(name)

    def view(self: Any) -> Any:
        def write(trace: Trace) -> Form:
            return Form(f"{trace.written(self)}.{name}")

        return noted(write, function, (self,), may_view=True)

    return property(view)


def _breaking(name: str) -> Any:
    def read(self: Any) -> Any:
        if self.trace is not None:
            self.trace.graph_break(f"reads a value, by {name.strip('_')}")
        return getattr(plain_of(self), name)

    if callable(getattr(np.ndarray, name)):
        return lambda self, *args, **kwargs: read(self)(*plain_of(args), **kwargs)
    return property(read)


def operations() -> dict[str, Any]:
    """Return the operations of all traced arrays, by the name of the method."""
    made: dict[str, Any] = {"T": _view("T"), "mT": _view("mT")}
    made |= {name: _method(name) for name in _METHODS.split()}
    for name, (symbol, ufunc) in _SYMBOLS.items():
        made[f"__{name}__"] = _operator(name, symbol, ufunc)
        made[f"__r{name}__"] = _operator(name, symbol, ufunc, is_reflected=True)
        made[f"__i{name}__"] = _in_place(name, symbol, ufunc)
    for name, (symbol, ufunc) in _COMPARISONS.items():
        made[f"__{name}__"] = _operator(name, symbol, ufunc)
    for name, (symbol, ufunc) in _SIGNS.items():
        made[f"__{name}__"] = _sign(name, symbol, ufunc)
    for name in ("__getitem__", "__setitem__", "__iter__"):
        made[name] = getattr(_Noting, name)
    return made


METADATA = frozenset(_METADATA.split())
"""Attributes of arrays that do not depend on the values."""


def attach() -> None:
    """Give NumPy's traced arrays every attribute of an array.

    Each is recorded, is metadata, or is a graph break.
    """
    made = operations()
    for name, value in vars(_Noting).items():
        if callable(value) or isinstance(value, staticmethod):
            made[name] = value
    harmless = {*METADATA, *vars(Traced), *vars(TracedInNumPy)}
    for name in {*dir(np.ndarray), "note_call"} - harmless:
        setattr(TracedInNumPy, name, made.get(name) or _breaking(name))
