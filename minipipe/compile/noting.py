"""Operations of traced arrays: they compute as NumPy's arrays do, and the trace notes the line.

Every attribute of ``numpy.ndarray`` is noted, harmless, or breaks the trace: no method reads a value unnoticed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minipipe.compile.trace import Trace, Traced, Untraceable, plain_of, traced_in


def _noted(
    write: Callable[[Trace], str],
    compute: Callable[[], Any],
    given: tuple[Any, ...],
    changed: tuple[Any, ...] = (),
    has_effect: bool = False,
) -> Any:
    """Compute, and note the line that ``write`` returns; only compute if the trace is broken."""
    trace = next((each.trace for each in traced_in(given)), None)
    if trace is None or trace.reason is not None:
        return compute()
    try:
        text = write(trace)  # before computing: a constant may be changed later
    except Untraceable as error:
        trace.spoil(str(error))
        return compute()
    made = compute()
    try:
        if any(not isinstance(each, Traced) or each.is_number for each in changed):
            raise Untraceable(
                "changes an array in place that was made outside of the trace"
            )
        return trace.note(text, made, given, changed, has_effect)
    except Untraceable as error:
        trace.spoil(str(error))
        return made


# Functions whose result's shape depends on the shapes of their arguments alone.
_STATIC = """
    concat stack where max min amax amin sum mean clip take take_along_axis broadcast_to permute_dims transpose
    matrix_transpose swapaxes expand_dims squeeze tril triu astype dot cumsum reshape zeros_like ones_like pad
"""
_FUNCTIONS = {getattr(np, name) for name in _STATIC.split()}
_METHODS = "dot reshape astype transpose copy sum max min mean ravel swapaxes squeeze take cumsum clip repeat"
# Attributes that do not depend on the values.
_LOOKS = """
    shape strides dtype ndim size itemsize nbytes flags base device __len__ __class__ __dir__ __doc__ __hash__ __new__
    __init__ __getattribute__ __init_subclass__ __subclasshook__ __class_getitem__ __array_priority__ __sizeof__
    __array_namespace__ __array_finalize__ __array_wrap__ __delattr__
"""
_SYMBOLS = {
    **{
        "add": "+",
        "sub": "-",
        "mul": "*",
        "truediv": "/",
        "floordiv": "//",
        "mod": "%",
        "pow": "**",
        "matmul": "@",
    },
    **{"and": "&", "or": "|", "xor": "^"},
}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_SIGNS = {"neg": "-", "pos": "+", "invert": "~"}


class _Noting:
    """Methods of :class:`Traced` arrays that replace NumPy's."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if self.trace is not None and name in (
            "shape",
            "strides",
            "dtype",
            "flat",
            "real",
            "imag",
        ):
            self.trace.spoil(f"sets {name}")
            setattr(self.plain, name, value)
        object.__setattr__(self, name, value)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *given: Any, out: Any = (), **options: Any
    ) -> Any:
        def write(trace: Trace) -> str:
            call = trace.callable(ufunc) + (
                "" if method == "__call__" else f".{method}"
            )
            shown = (
                {**options, "out": out[0]}
                if len(out) == 1
                else {**options, "out": out}
                if out
                else options
            )
            return f"{call}({_arguments(trace, given, shown)})"

        def compute() -> Any:
            plain = {name: plain_of(value) for name, value in options.items()}
            if out:
                plain["out"] = plain_of(out)
            return getattr(ufunc, method)(*plain_of(given), **plain)

        return _noted(write, compute, (*given, *out, *options.values()), tuple(out))

    def __array_function__(
        self, function: Any, types: Any, given: Any, options: Any
    ) -> Any:
        def write(trace: Trace) -> str:
            if (
                function not in _FUNCTIONS
                or "out" in options
                or (function is np.where and len(given) != 3)
            ):
                raise Untraceable(f"calls numpy.{function.__name__}")
            if (
                function is np.dot
                and len(given) == 2
                and isinstance(given[0], np.ndarray)
            ):
                return f"{trace.written(given[0])}.dot({trace.written(given[1])})"  # a call less, the same product
            return f"{trace.callable(function)}({_arguments(trace, given, options)})"

        def compute() -> Any:
            return function(
                *plain_of(given),
                **{name: plain_of(value) for name, value in options.items()},
            )

        return _noted(write, compute, (*given, *options.values()))

    @staticmethod
    def note_call(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Note a call of a function of :func:`minipipe.autograd.backend.one_line` as one line."""

        def write(trace: Trace) -> str:
            return f"{trace.callable(function)}({_arguments(trace, given, {})})"

        return _noted(write, lambda: function(*plain_of(given)), given)

    def __getitem__(self: Any, key: Any) -> Any:
        def write(trace: Trace) -> str:
            return f"{trace.written(self)}[{trace.item(key)}]"

        return _noted(write, lambda: plain_of(self)[plain_of(key)], (self, key))

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        def write(trace: Trace) -> str:
            return f"{trace.written(self)}[{trace.item(key)}] = {trace.written(value)}"

        def compute() -> None:
            plain_of(self)[plain_of(key)] = plain_of(value)

        _noted(write, compute, (self, key, value), (self,))

    def __iter__(self: Any) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def _arguments(trace: Trace, given: tuple[Any, ...], options: dict[str, Any]) -> str:
    named = [f"{name}={trace.written(value)}" for name, value in options.items()]
    return ", ".join([*map(trace.written, given), *named])


def _operator(name: str, symbol: str, is_reflected: bool = False) -> Callable[..., Any]:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: Any, other: Any) -> Any:
        left, right = (other, self) if is_reflected else (self, other)
        return _noted(
            lambda trace: (
                f"{_in_brackets(trace.written(left))} {symbol} {trace.written(right)}"
            ),
            lambda: function(plain_of(left), plain_of(right)),
            (left, right),
        )

    return method


def _in_brackets(text: str) -> str:
    return (
        f"({text})" if text.startswith("-") else text
    )  # -2.0 ** v0 would be -(2.0 ** v0)


def _in_place(name: str, symbol: str) -> Callable[..., Any]:
    function = getattr(operator, f"i{name}")

    def method(self: Any, other: Any) -> Any:
        return _noted(
            lambda trace: f"{trace.written(self)} {symbol}= {trace.written(other)}",
            lambda: function(plain_of(self), plain_of(other)),
            (self, other),
            (self,),
        )

    return method


def _sign(name: str, symbol: str) -> Callable[[Traced], Any]:
    function = getattr(operator, name)

    def method(self: Any) -> Any:
        return _noted(
            lambda trace: f"{symbol}{trace.written(self)}",
            lambda: function(plain_of(self)),
            (self,),
        )

    return method


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *given: Any, **options: Any) -> Any:
        plain = {key: plain_of(value) for key, value in options.items()}
        return _noted(
            lambda trace: (
                f"{trace.written(self)}.{name}({_arguments(trace, given, options)})"
            ),
            lambda: getattr(plain_of(self), name)(*plain_of(given), **plain),
            (self, *given, *options.values()),
        )

    return method


def _view(name: str) -> property:
    def view(self: Any) -> Any:
        return _noted(
            lambda trace: f"{trace.written(self)}.{name}",
            lambda: getattr(plain_of(self), name),
            (self,),
        )

    return property(view)


def _spoiling(name: str) -> Any:
    def read(self: Any) -> Any:
        if self.trace is not None:
            self.trace.spoil(f"reads a value, by {name.strip('_')}")
        return getattr(plain_of(self), name)

    if callable(getattr(np.ndarray, name)):
        return lambda self, *given, **options: read(self)(*plain_of(given), **options)
    return property(read)


def attach() -> None:
    """Give the class every attribute of an array: noted, harmless, or one that breaks the trace."""
    made: dict[str, Any] = {"T": _view("T"), "mT": _view("mT")}
    made |= {name: _method(name) for name in _METHODS.split()}
    for name, symbol in _SYMBOLS.items():
        made[f"__{name}__"], made[f"__r{name}__"] = (
            _operator(name, symbol),
            _operator(name, symbol, True),
        )
        made[f"__i{name}__"] = _in_place(name, symbol)
    made |= {
        f"__{name}__": _operator(name, symbol) for name, symbol in _COMPARISONS.items()
    }
    made |= {f"__{name}__": _sign(name, symbol) for name, symbol in _SIGNS.items()}
    made |= {
        name: value
        for name, value in vars(_Noting).items()
        if callable(value) or isinstance(value, staticmethod)
    }
    for name in (
        {*dir(np.ndarray), "note_call"} - set(_LOOKS.split()) - set(vars(Traced))
    ):
        setattr(Traced, name, made.get(name) or _spoiling(name))


attach()
