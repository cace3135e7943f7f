"""Traced arrays of other modules than NumPy, and the module that operations see.

NumPy calls a subclass of its arrays wherever one is an argument. The array API has
another way in: ``array_module(x)`` (``core/autograd/backend.py``) asks an array for its
module. A traced array answers with a :class:`Namespace`, whose functions note their
calls as operators and methods do (``noting.py``). So a recording needs nothing of a
module but the names that operations use anyway.

Work on the host, such as drawing random numbers, is no part of a section: a device may
run the section alone. Functions of :func:`backend.on_host` are noted as lines that run
before it, and everything else that reads a value breaks the trace.
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
from minipipe.compile.noting import LOOKS, noted, operations
from minipipe.core.autograd.backend import Shape

_OPERATIONS = operations()
_READS = "__float__ __int__ __bool__ __index__ __complex__ __array__ __contains__"


class TracedElsewhere(Traced):
    """A traced array of another module: it wraps a plain one."""

    __array_ufunc__ = None  # NumPy's arrays leave operators to this class

    def __getattr__(self, name: str) -> Any:
        # Reached for what this class lacks: it offers what the plain array has.
        if name == "__cuda_array_interface__":  # an address, past the trace
            raise AttributeError(name)
        value = getattr(self.plain, name)
        if name in LOOKS:
            return value
        operation = _OPERATIONS.get(name)
        if isinstance(operation, property):
            return operation.__get__(self)
        if operation is not None:
            return partial(operation, self)
        self.trace.spoil(f"reads a value, by {name.strip('_')}")
        return value

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return self.trace.namespace

    def __len__(self) -> int:
        return self.plain.shape[0]

    @staticmethod
    def note_call(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Note a call of a function of :func:`backend.one_line`: its inside, or one
        line before the section if it works on the host.
        """
        trace = next(traced_in(given)).trace
        if trace.reason is not None:
            return trace.unnoted(function(*plain_of(given)))
        if not getattr(function, "is_on_host", False):
            return function(*given)
        shown = given
        if not function.reads_values:  # type: ignore[attr-defined]
            shown = tuple(map(_shape_alone, given))
        try:
            form = _on_host(trace, function, shown)
        except Untraceable as error:
            trace.spoil(str(error))
            return trace.unnoted(function(*plain_of(given)))
        made = function(*plain_of(given))
        return trace.note(form, made, shown, is_on_host=True)


@dataclass(frozen=True)
class Like:
    """Stands for an array of which a function reads the shape and the module."""

    shape: Shape
    xp: ModuleType

    def __array_namespace__(self) -> ModuleType:
        return self.xp


def _shape_alone(value: Any) -> Any:
    if not isinstance(value, Traced):
        return value
    return Like(value.plain.shape, value.trace.dialect.xp)


def _on_host(trace: Trace, function: Any, given: tuple[Any, ...]) -> Form:
    inputs = trace.inputs_now
    if any(each.name not in inputs for each in traced_in(given)):
        name = function.__name__.strip("_")
        raise Untraceable(f"calls {name}, which reads computed values on the host,")
    return Form(f"{trace.callable(function)}({arguments(trace, given, {})})")


def _reading(name: str) -> Callable[..., Any]:
    def read(self: Any, *given: Any, **options: Any) -> Any:
        self.trace.spoil(f"reads a value, by {name.strip('_')}")
        return getattr(self.plain, name)(*given, **options)

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
    >>> from minipipe.compile.lines import AS_NOTED
    >>> from minipipe.compile.trace import Trace, key_of
    >>> trace = Trace(key_of(0, 0, 0), xp=array_api_strict)
    >>> trace.begin("forward")
    >>> x = trace.given("x0", array_api_strict.ones((2, 2)))
    >>> xp = x.__array_namespace__()
    >>> y = xp.permute_dims(xp.exp(x) + 1, (1, 0))
    >>> [line.written(AS_NOTED) for line in trace.sections["forward"]]
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

    def _call(self, name: str, function: Any, *given: Any, **options: Any) -> Any:
        trace = self._trace
        if trace.reason is None:
            filled = self._filled(name, function, given, options)
            if filled is not None:
                return filled
        read = (*given, *options.values())
        if next(traced_in(read), None) is None:
            return trace.constant(function(*given, **options))
        changed = tuple(traced_in((options.get("out"),)))

        def write(trace: Trace) -> Form:
            if is_ufunc(function):
                own = {key: each for key, each in options.items() if key != "out"}
                return written_ufunc(trace, function, "__call__", given, changed, own)
            if function not in trace.dialect.static or changed:
                raise Untraceable(f"calls {self.__name__}.{name}")
            return written_function(trace, function, given, options)

        def compute() -> Any:
            plain = {key: plain_of(each) for key, each in options.items()}
            return function(*plain_of(given), **plain)

        return noted(write, compute, read, changed, may_view=name in VIEWS)

    def _filled(
        self, name: str, function: Any, given: tuple[Any, ...], options: Any
    ) -> Any:
        """Return an array of one value, noted; None for another function."""
        trace = self._trace
        value = self._trace.dialect.fill_value(function)
        if name == "full":
            value = given[1]
        if type(value) not in (int, float) or not isfinite(value):
            return None
        plain = {key: plain_of(each) for key, each in options.items()}
        made = function(*plain_of(given), **plain)
        full = trace.callable(trace.dialect.xp.full)
        shape = trace.written(made.shape)
        text = f"{full}({shape}, {value!r}, dtype={trace.written(made.dtype)})"
        form = kept(trace, Form(text, f"{{out}}[...] = {value!r}"), made, ())
        return trace.note(form, made, ())
