"""Any function of tensors as a layer, and the text by which ranks notice that their
functions differ.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from minipipe import functional
from minipipe.core.autograd import backend
from minipipe.core.autograd.operation import Operation
from minipipe.core.nn.module import Module
from minipipe.core.nn.parameter import Parameter
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor
from minipipe.errors import ArgumentError


class Function(Module):
    """A function as a layer: its argument is the one value of the layer before, a
    tensor or a pytree of them.

    Parameters
    ----------
    function : function
        Takes a tensor, or a tuple, list or dict of tensors, and returns the same kinds.
        It has no parameters; for layers with parameters write a :class:`Module`. Random
        numbers come from Dropout and the like, so that every rank draws the same.

    Raises
    ------
    ArgumentError
        Code ``type``, also for a function that refers to a module or a parameter, which
        would not be trained.

    Notes
    -----
    The ranks of a pipeline compare their models by the repr. A function that can be
    imported is known by its name. Any other, such as a lambda, has a digest of its
    code, its defaults, and the numbers, strings, arrays and functions that it refers
    to; objects of other kinds count by their type.

    Examples
    --------
    >>> from minipipe import Tensor, functional, nn
    >>> nn.Function(functional.relu)
    Function(minipipe.functional.relu)
    >>> model = nn.Sequential(
    ...     nn.Linear(4, 3), nn.Function(lambda x: (x, x.mean(axis=1, keepdims=True)))
    ... )
    >>> model = nn.Sequential(*model, nn.Function(lambda pair: pair[0] - pair[1]))
    >>> model(Tensor([[1.0, 2.0, 3.0, 4.0]])).shape
    (1, 3)
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        spec = Spec(Callable, expected="a function, such as functional.relu")
        spec.of_class("Function", function)
        if isinstance(function, Module):
            message = f"{type(function).__name__} is a layer already: use it as it is."
            raise ArgumentError("type", message)
        self._described = text_of(function)
        self.function = function

    def forward(self, x: Any) -> Any:
        """Return the result of the function."""
        return self.function(x)


def text_of(value: Any, *outer: Any) -> str:
    """Return a text that is the same on every rank, and differs for other values;
    ``outer`` is the enclosing value.

    Raises
    ------
    ArgumentError
        Code ``type``, for a function that refers to a module or a parameter, which
        would not be trained.

    Examples
    --------
    >>> text_of(backend.is_floating)
    'minipipe.core.autograd.backend.is_floating'
    """
    if any(value is each for each in outer):
        return "itself"
    outer = (*outer, value)
    _check_trains_nothing(value)
    if isinstance(value, partial):
        given = [text_of(part, *outer) for part in (value.func, *value.args)]
        return f"partial({', '.join([*given, *_named(value.keywords, outer)])})"
    if isinstance(value, MethodType):
        return f"{text_of(value.__self__, *outer)}.{value.__name__}"
    if isinstance(value, FunctionType):
        return _text_of_function(value, outer)
    if isinstance(value, CodeType):
        # Neither the lines nor the path of the file.
        names = value.co_names, value.co_varnames, value.co_argcount
        return text_of((value.co_code, names, value.co_consts), *outer)
    if isinstance(value, tuple | list | set | frozenset | dict):
        items = value.items() if isinstance(value, dict) else value
        texts = [text_of(item, *outer) for item in items]
        return f"({', '.join(sorted(texts) if isinstance(value, set | frozenset) else texts)})"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    data = value.data if isinstance(value, Tensor) else value
    if backend.is_array(data):
        return f"{data.dtype}{data.shape} {_digest(backend.to_numpy(data).tobytes())}"
    if hasattr(value, "__name__"):
        return name_of(value)
    return _text_of_object(value, outer)


def _check_trains_nothing(value: Any) -> None:
    is_trained = isinstance(value, Tensor) and value.requires_grad
    if is_trained or isinstance(value, Module | Parameter):
        raise ArgumentError(
            "type",
            f"The function refers to a {type(value).__name__}, which neither a "
            "pipeline nor an optimiser would find there. Make it an attribute of a "
            "custom module, or a separate layer.",
        )


def _text_of_function(function: FunctionType, outer: tuple[Any, ...]) -> str:
    parts = parts_of(function)
    code = parts["forward"].__code__ if parts else function.__code__
    referred = parts or dict((*closure_of(function), *globals_of(function)))
    # it can be imported, so its name is sufficient
    if "<" not in function.__qualname__:
        for value in referred.values():
            text_of(value, *outer) if parts else _check_trains_nothing(value)
        return name_of(function)
    given = function.__defaults__, function.__kwdefaults__
    text = text_of((code, *given, referred), *outer)
    return f"{name_of(function)}, line {code.co_firstlineno}, {_digest(text.encode())}"


def parts_of(function: FunctionType) -> dict[str, Any]:
    """Return the functions and options of an operation (:func:`minipipe.op`), by name;
    none of another function.

    Its plans are left out: they depend on the calls so far, which differ between ranks.
    """
    operation = getattr(function, "operation", None)
    if isinstance(operation, Operation):
        return {**vars(operation), "plans": None}
    return {}


def _text_of_object(value: Any, outer: tuple[Any, ...]) -> str:
    """Include the attributes of callables; other objects may hold values that differ
    between ranks.
    """
    attributes = vars(value) if callable(value) and hasattr(value, "__dict__") else {}
    return f"{name_of(type(value))}({', '.join(_named(attributes, outer))})"


def _named(values: dict[str, Any], outer: tuple[Any, ...]) -> list[str]:
    return [f"{name}={text_of(value, *outer)}" for name, value in values.items()]


def name_of(value: Any) -> str:
    """Return the name of a function, a class or a module, from which users import
    it.
    """
    name: Any = getattr(value, "__qualname__", None)
    name = name or getattr(value, "__name__", type(value).__name__)
    module = getattr(value, "__module__", None)
    if name in dir(functional) and getattr(functional, name) is value:
        module = functional.__name__  # where users find it, whatever the file
    return f"{module}.{name}" if module else str(name)


def closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names that a function has from the functions around it, with their
    values.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it gets its value later
            continue


def globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names that a function has from its module, with their values."""
    for name in sorted(_globals_in(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _globals_in(code: CodeType) -> set[str]:
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names |= _globals_in(part)
    return names


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()
