"""Traced arrays of other modules than NumPy, and the module that operations see.

NumPy dispatches to a subclass of its arrays if one is an argument. The array API
dispatches by module: ``array_module(x)`` (``core/autograd/backend.py``) asks an array for
its module. A traced array answers with a :class:`Namespace`, whose functions record their
calls as operators and methods do (``noting.py``). So a recording needs only the names of
a module that operations use anyway.

Work on the host, such as drawing random numbers, is no part of a section: a device may
run the section alone. Functions of :func:`backend.on_host` become lines that run before
it, and everything else that reads a value is a graph break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from types import ModuleType
from typing import Any

from minipipe.compile.dialect import VIEWS, is_ufunc
from minipipe.compile.forms import (
    Trace,
    Traced,
    arguments,
    kept,
    plain_of,
    traced_in,
    written_function,
    written_ufunc,
)
from minipipe.compile.lines import Form, Untraceable
from minipipe.compile.noting import METADATA, noted, operations
from minipipe.core.autograd.backend import Shape

_OPERATIONS = operations()
_READS = "__float__ __int__ __bool__ __index__ __complex__ __array__ __contains__"


class TracedElsewhere(Traced):
    """A traced array of another module: it wraps a plain one."""

    __array_ufunc__ = None  # NumPy's arrays leave operators to this class

    def __getattr__(self, name: str) -> Any:
        # Python calls this for attributes that only the plain array has.
        if name == "__cuda_array_interface__":  # an address, which bypasses the trace
            raise AttributeError(name)
        value = getattr(self.plain, name)
        if name in METADATA:
            return value
        operation = _OPERATIONS.get(name)
        if isinstance(operation, property):
            return operation.__get__(self)
        if operation is not None:
            return partial(operation, self)
        self.trace.graph_break(f"reads a value, by {name.strip('_')}")
        return value

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return self.trace.namespace

    def __len__(self) -> int:
        return self.plain.shape[0]

    @staticmethod
    def note_call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call of a function of :func:`backend.one_line`.

        Its body is recorded; or one line before the section, if it works on the host;
        or one line that writes into an array, if it is a kernel or can do so.
        """
        trace = next(traced_in(args)).trace
        if trace.reason is not None:
            return trace.unnoted(function(*plain_of(args)))
        if getattr(function, "has_out", False):
            return _noted_with_out(function, args)
        num_outputs = getattr(function, "num_outputs", 0)
        if num_outputs:
            return _noted_kernel(function, args, args[-num_outputs:])
        if not getattr(function, "is_on_host", False):
            return function(*args)
        visible = args
        if not function.reads_values:  # type: ignore[attr-defined]
            visible = tuple(map(_shape_alone, args))
        try:
            form = _on_host(trace, function, visible)
        except Untraceable as error:
            trace.graph_break(str(error))
            return trace.unnoted(function(*plain_of(args)))
        made = function(*plain_of(args))
        return trace.note(form, made, visible, is_on_host=True)


@dataclass(frozen=True)
class Like:
    """Stands for an array whose shape and module a function reads."""

    shape: Shape
    xp: ModuleType

    def __array_namespace__(self) -> ModuleType:
        return self.xp


def _shape_alone(value: Any) -> Any:
    if not isinstance(value, Traced):
        return value
    return Like(value.plain.shape, value.trace.dialect.xp)


def _on_host(trace: Trace, function: Any, args: tuple[Any, ...]) -> Form:
    inputs = trace.inputs_now
    if any(each.name not in inputs for each in traced_in(args)):
        name = function.__name__.strip("_")
        raise Untraceable(f"calls {name}, which reads computed values on the host,")
    return Form(f"{trace.callable(function)}({arguments(trace, args, {})})")


def _noted_with_out(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Record the call of a function that may also write into an array."""

    def write(trace: Trace) -> Form:
        call = f"{trace.callable(function)}({arguments(trace, args, {})}"
        return Form(f"{call})", f"{call}, {{out}})")

    return noted(write, function, args)


def _noted_kernel(
    function: Callable[..., Any], args: tuple[Any, ...], outputs: tuple[Any, ...]
) -> None:
    """Record the call of a function of :func:`backend.kernel`."""

    def write(trace: Trace) -> Form:
        text = f"{trace.callable(function)}({arguments(trace, args, {})})"
        return Form(text, text)

    noted(write, function, args, changed=outputs)


def _reading(name: str) -> Callable[..., Any]:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.trace.graph_break(f"reads a value, by {name.strip('_')}")
        return getattr(self.plain, name)(*args, **kwargs)

    return read


for _name, _operation in _OPERATIONS.items():
    if _name.startswith("__"):
        setattr(TracedElsewhere, _name, _operation)
for _name in _READS.split():
    setattr(TracedElsewhere, _name, _reading(_name))


class Namespace(ModuleType):
    """An array module, as operations on traced arrays see it.

    Parameters
    ----------
    trace : Trace

    Examples
    --------
    >>> import array_api_strict
    >>> from minipipe.compile.statements import written
    >>> from minipipe.compile.trace import Trace, key_of
    >>> trace = Trace(key_of(0, 0, 0), xp=array_api_strict)
    >>> trace.begin("forward")
    >>> x = trace.input("x0", array_api_strict.ones((2, 2)))
    >>> xp = x.__array_namespace__()
    >>> y = xp.permute_dims(xp.exp(x) + 1, (1, 0))
    >>> [written(line.text) for line in trace.sections["forward"]]
    ['v0 = exp(x0)', 'v1 = v0 + 1', 'v2 = permute_dims(v1, (1, 0))']
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.dialect.xp.__name__)
        self._trace = trace  # with a cycle, which a collector finds

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._trace.dialect.xp, name)
        if not callable(value) or isinstance(value, type):
            return value  # a constant or a dtype
        function = partial(self._call, name, value)
        setattr(self, name, function)
        return function

    def _call(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self._trace
        if trace.reason is None:
            filled = self._filled(name, function, args, kwargs)
            if filled is not None:
                return filled
        read = (*args, *kwargs.values())
        if next(traced_in(read), None) is None:
            return trace.constant(function(*args, **kwargs))
        changed = tuple(traced_in((kwargs.get("out"),)))

        def write(trace: Trace) -> Form:
            if is_ufunc(function):
                others = {key: each for key, each in kwargs.items() if key != "out"}
                return written_ufunc(trace, function, "__call__", args, changed, others)
            if function not in trace.dialect.static or changed:
                raise Untraceable(f"calls {self.__name__}.{name}")
            return written_function(trace, function, args, kwargs)

        how = {"may_view": name in VIEWS}
        return noted(write, function, args, kwargs, changed, **how)

    def _filled(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Record and return an array of one value; None for another function."""
        trace = self._trace
        value = self._trace.dialect.fill_value(function)
        if name == "full":
            value = args[1]
        if type(value) not in (int, float) or not isfinite(value):
            return None
        plain = {key: plain_of(each) for key, each in kwargs.items()}
        made = function(*plain_of(args), **plain)
        xp = trace.dialect.xp
        into = f"{{out}}[...] = {value!r}"
        if function in (xp.empty, xp.empty_like):
            into = ""  # whoever asks for it writes every element
        full = trace.callable(xp.full)
        shape = trace.written(made.shape)
        text = f"{full}({shape}, {value!r}, dtype={trace.written(made.dtype)})"
        form = kept(trace, Form(text, into), made, ())
        return trace.note(form, made, ())
