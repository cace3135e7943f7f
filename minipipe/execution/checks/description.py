"""A textual description of everything in an object that affects its results, equal on
all ranks.

A false alarm stops sound work. Attributes that may legitimately differ between ranks
are therefore compared by type only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from numbers import Number
from operator import itemgetter
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np

from minipipe.comm.agreement import digest
from minipipe.core.autograd import backend
from minipipe.core.tensor import Tensor
from minipipe.nn import Module, Parameter
from minipipe.nn.function import closure_of, globals_of, name_of, parts_of, text_of
from minipipe.nn.untrained import names_of

_LONGEST = 100  # characters of a value that are shown; a longer one ends in a digest
# some are described separately
_LEFT_OUT = {"is_training", "not_compared", "_is_filled", "__weakref__", "__dict__"}
_OF_A_RANK = {"rank", "local_rank", "world_rank"}  # differ by their nature
_PLAIN = (
    bool
    | int
    | float
    | complex
    | str
    | bytes
    | range
    | slice
    | np.generic
    | np.dtype
    | None
)


def description(value: Any, name: str) -> str:
    """Return lines of text, one for each part of a value that affects its computations.

    Two values with the same text compute the same, as far as it looks; two that were
    made by the same program, on this rank and on another, have the same text. It
    includes

    - numbers, texts and dtypes, and the contents of tuples, lists, dicts and sets;
    - arrays and tensors, by a digest of their bytes; parameters by shape, dtype,
      whether they are trained, and initialiser (their values are compared by
      :func:`minipipe.execution.checks.comparison.check_first_values`);
    - functions: code, defaults, and the values of the functions around them; and the
      code of user functions that they call by name;
    - modules, dataclasses, and objects of custom classes: the attributes, and the code
      of such a class.

    All other objects count by their type, since they may differ from rank to rank:
    files, locks, generators of random numbers, groups of ranks. The following are not
    compared: global variables; lists, dicts and sets in a closure, which usually
    collect notes; attributes whose names begin with an underscore, as caches do, except
    for numbers, texts, functions and parts of a model; ``rank`` and ``local_rank``; and
    the attributes that a class names in ``not_compared``, a tuple.

    Parameters
    ----------
    value : Any
    name : str
        Of the value, with which every line begins.

    Examples
    --------
    >>> from minipipe import nn
    >>> print(description(nn.Dropout(0.1), "model"))
    model: minipipe.nn.layers.Dropout
    model.is_training: True
    model.probability: 0.1
    """
    return "\n".join(f"{path}: {text}" for path, text in _Walk().lines(name, value))


class _Walk:
    """One description: an object is described once, so circles end."""

    def __init__(self) -> None:
        # by identity; kept alive, so that no other object gets the same one
        self._met: dict[int, Any] = {}
        self._parameters: dict[int, str] = {}  # the first path of each

    def lines(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, Enum) or value is ...:
            yield path, str(value)
        elif isinstance(value, _PLAIN):
            yield path, _shown(value)
        elif isinstance(value, type | ModuleType | BuiltinFunctionType | np.ufunc):
            yield path, name_of(value)
            if isinstance(value, type):
                yield from self._class(path, value)
        elif isinstance(value, tuple | list | dict | set | frozenset):
            yield from self._container(path, value)
        elif isinstance(value, Parameter):
            yield from self._parameter(path, value)
        elif isinstance(value, Tensor) or backend.is_array(value):
            if isinstance(value, Tensor):
                value = value.data
            yield path, _of_array(value)
        elif id(value) in self._met:
            yield path, "as before"
        else:
            self._met[id(value)] = value
            yield from self._object(path, value)

    def _all(
        self, path: str, named: Iterable[tuple[str, Any]]
    ) -> Iterator[tuple[str, str]]:
        for name, value in named:
            yield from self.lines(f"{path}.{name}", value)

    def _container(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, list | dict | set):
            if id(value) in self._met:
                yield path, "as before"
                return
            self._met[id(value)] = value
        yield path, f"{name_of(type(value))} of {len(value)}"
        if isinstance(value, dict):
            named = (
                (key if isinstance(key, str) else _key(key), item)
                for key, item in value.items()
            )
            yield from self._all(path, sorted(named, key=itemgetter(0)))
        elif isinstance(value, tuple | list):
            yield from self._all(path, ((str(i), item) for i, item in enumerate(value)))
        else:
            yield path, ", ".join(sorted(map(_key, value)))

    def _parameter(self, path: str, value: Parameter) -> Iterator[tuple[str, str]]:
        first = self._parameters.setdefault(id(value.owner), path)
        if first != path:
            yield path, f"the same parameter as {first}"
            return
        trained = "trained" if value.requires_grad else "frozen"
        yield path, f"parameter of shape {value.whole_shape}, {value.dtype}, {trained}"
        yield from self.lines(f"{path}.initialiser", value.initialiser)

    def _object(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        kind = type(value)
        if isinstance(value, FunctionType):
            yield from self._function(path, value)
        elif isinstance(value, MethodType):
            yield from self._all(
                path, [("function", value.__func__), ("object", value.__self__)]
            )
        elif isinstance(value, partial):
            yield path, "partial"
            yield from self._all(
                path,
                [
                    ("function", value.func),
                    ("given", value.args),
                    ("named", value.keywords),
                ],
            )
        elif callable(value) and hasattr(value, "__name__"):
            yield path, name_of(value)
        else:
            yield path, name_of(kind)
            if (
                isinstance(value, Module | SimpleNamespace)
                or is_dataclass(value)
                or _is_ones_own(kind)
            ):
                yield from self._all(path, _attributes(value))
                yield from self._class(path, kind)

    def _function(self, path: str, function: FunctionType) -> Iterator[tuple[str, str]]:
        is_own = _is_ones_own(function)
        if is_own and (parts := parts_of(function)):
            yield path, name_of(function)
            yield from self._all(path, parts.items())
            return
        code = f", code {_digest_of_code(function.__code__):x}" if is_own else ""
        yield path, f"{name_of(function)}{code}"
        defaults = [
            (f"default {i}", value)
            for i, value in enumerate(function.__defaults__ or ())
        ]
        yield from self._all(
            path,
            [
                *defaults,
                *sorted((function.__kwdefaults__ or {}).items(), key=itemgetter(0)),
            ],
        )
        closure = [
            each
            for each in closure_of(function)
            if not isinstance(each[1], list | dict | set)
        ]
        yield from self._all(
            path, ((name, value) for name, value in closure if name not in _OF_A_RANK)
        )
        if is_own:
            yield from self._all(
                path,
                (
                    (name, v)
                    for name, v in globals_of(function)
                    if _is_called_by_name(v)
                ),
            )

    def _class(self, path: str, kind: type) -> Iterator[tuple[str, str]]:
        """Yield the code and the numbers of custom classes; minipipe's classes are
        compared as files.
        """
        for each in kind.__mro__:
            if _is_ones_own(each) and id(each) not in self._met:
                self._met[id(each)] = each
                for name, found in sorted(vars(each).items(), key=itemgetter(0)):
                    # of properties, static methods
                    value = getattr(found, "fget", getattr(found, "__func__", found))
                    is_number = isinstance(value, Number | str) and not name.startswith(
                        "__"
                    )
                    if isinstance(value, FunctionType) or (
                        is_number and name not in _LEFT_OUT
                    ):
                        yield from self.lines(f"{path}.{each.__name__}.{name}", value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if isinstance(value, Module):
        yield "is_training", value.is_training
    slots = [
        name
        for each in kind.__mro__
        for name in names_of(vars(each).get("__slots__", ()))
    ]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    found.update(getattr(value, "__dict__", {}))
    for name in sorted(
        found.keys()
        - _LEFT_OUT
        - _OF_A_RANK
        - set(names_of(getattr(kind, "not_compared", ())))
    ):
        is_cache = isinstance(getattr(kind, name, None), cached_property)
        if not is_cache and (
            not name.startswith("_") or _counts_though_private(found[name])
        ):
            yield name, found[name]


def _counts_though_private(item: Any) -> bool:
    rows = (
        item.values()
        if isinstance(item, dict)
        else item
        if isinstance(item, list | tuple)
        else [item]
    )
    return isinstance(item, Number | str | FunctionType) or any(
        isinstance(part, Module | Parameter) for part in rows
    )


def _key(value: Any) -> str:
    """Return a text for an element of a set or a key of a dict."""
    if isinstance(value, tuple | frozenset):
        texts = list(map(_key, value))
        if not isinstance(value, tuple):
            texts.sort()
        return f"({', '.join(texts)})"
    if isinstance(value, _PLAIN):
        return _shown(value)
    return name_of(type(value))


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, np.dtype) else repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} … {digest(text):x}"


def _of_array(array: Any) -> str:
    shape = f"array of shape {tuple(array.shape)}, {array.dtype}"
    if str(array.dtype) == "object":
        return shape
    return f"{shape}, {digest(array):x}"


def _is_called_by_name(value: Any) -> bool:
    """Return whether a global is the user's function as its file defines it, not one
    assigned later.
    """
    if not isinstance(value, FunctionType) or not _is_ones_own(value):
        return False
    return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value


def _is_ones_own(value: Any) -> bool:
    """Return whether a function or a class is the user's: neither minipipe's nor an
    installed package's.
    """
    return _is_module_ones_own(getattr(value, "__module__", None) or "")


@lru_cache(maxsize=1024)
def _is_module_ones_own(name: str) -> bool:
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    is_installed = (
        top in sys.stdlib_module_names or top == "minipipe" or "-packages" in file
    )
    return name == "__main__" or (bool(name) and not is_installed)


@lru_cache(maxsize=1024)
def _digest_of_code(code: CodeType) -> int:
    return digest(text_of(code))
