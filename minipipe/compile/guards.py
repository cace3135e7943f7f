"""The guards of programs: attributes of layers, and the arrays of parameters.

A program (`program.py`) is valid as long as these have not changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from hashlib import blake2b
from itertools import chain
from operator import attrgetter, eq, is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.core.autograd import backend
from minipipe.core.schedules.action_table import ActionTable
from minipipe.nn import Module, Parameter, Sequential
from minipipe.nn.auxiliary_loss import AuxiliaryLoss
from minipipe.nn.fully_sharded import Workspace

_data_of = attrgetter("data")
_is_trained = attrgetter("needs_gradient")
_DEEPEST = 9  # levels of nested attributes that are compared
_FILLED = "_is_filled"  # set by the first call of a module
_VALUES = (bool, int, float, complex, str, bytes, type(None))
_BUILTIN = (*_VALUES, dict, list, tuple, set, frozenset, deque)
_THEMSELVES = (
    *(type, FunctionType, BuiltinFunctionType, np.ufunc, ModuleType),
    *(ActionTable, ProcessGroup, Workspace),  # constant, or only their values change
)


class Undescribed(Exception):
    """Raised for an attribute that cannot be compared with its earlier value."""


class Same:
    """An object that is compared by identity. It is kept, so no other gets its `id`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Attributes:
    """The current attributes of modules and of the objects that they hold.

    Attributes
    ----------
    key : tuple
        Equal for equal attributes: values and arrays by value; functions, classes,
        modules, parameters and schedules by identity; others by class and attributes.
    is_foreign : bool
        Whether one of their classes is not minipipe's.
    reason : str
        Why they cannot be compared, if they cannot.

    Examples
    --------
    >>> from minipipe import nn
    >>> layer = nn.Dropout(0.5)
    >>> attributes = Attributes([layer])
    >>> layer.probability = 0.25
    >>> attributes.still_hold(), attributes.key == Attributes([layer]).key
    (False, False)
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self._modules = list(modules)
        self.reason = ""
        self.key: tuple[Any, ...] = ()
        self._types = list(map(type, self._modules))
        self.is_foreign = any(map(is_foreign, self._modules))
        self._listed = {
            id(part)
            for module in self._modules
            if isinstance(module, Module)
            for part in (module, *(p for _, p in module._parts()))
        }
        # Live views of the names and values of every container.
        self._containers: list[Collection[Any]] = []
        self._is_quick = True
        try:
            self.key = tuple(
                (Same(type(module)), self._described_module(module))
                for module in self._modules
            )
        except Undescribed as error:
            self.reason = str(error)
        self._lengths = list(map(len, self._containers))
        self._items = list(chain.from_iterable(self._containers))

    def still_hold(self) -> bool:
        """Return whether all values are the same objects as before.

        Also False if only a comparison of values can tell.
        """
        return (
            self._is_quick
            and list(map(len, self._containers)) == self._lengths
            and all(map(is_, chain.from_iterable(self._containers), self._items))
            and all(map(is_, map(type, self._modules), self._types))
        )

    def hold_again(self) -> bool:
        """Return whether all values are equal to those before; compare identity first."""
        if self.still_hold():
            return True
        now = Attributes(self._modules)
        if now.reason or now.key != self.key:
            return False
        vars(self).update(vars(now))
        return True

    def _described_module(self, module: Any) -> Any:
        """Return its attributes; of temporary ones, only whether they are None."""
        temporary = getattr(module, "_passing", ())
        attributes = getattr(module, "__dict__", {})
        self._containers += [attributes, attributes.values()]
        items = (item for item in attributes.items() if item[0] not in temporary)
        lasting = [self._described(item, 0) for item in items if item[0] != _FILLED]
        return *lasting, *((name, attributes[name] is None) for name in temporary)

    def _described(self, value: Any, depth: int) -> Any:
        if type(value) in _VALUES or isinstance(value, np.generic | np.dtype):
            return type(value), repr(value)
        if id(value) in self._listed or isinstance(value, _THEMSELVES):
            return Same(value)
        if isinstance(value, Parameter):
            raise Undescribed("holds a parameter that is not one of its own")
        if isinstance(value, MethodType):
            return Same(value.__func__), self._described(value.__self__, depth + 1)
        if isinstance(value, _BUILTIN):
            return self._described_builtin(value, depth)
        if isinstance(value, partial):
            parts = value.func, value.args, value.keywords
            return type(value), self._described(parts, depth + 1)
        return self._described_object(value, depth)

    def _described_builtin(self, value: Any, depth: int) -> Any:
        attributes = getattr(value, "__dict__", {})
        cls = type(value)
        if isinstance(value, _VALUES):  # of a subclass
            return Same(cls), repr(value), self._described(attributes, depth + 1)
        if cls is dict:
            self._containers += [value, value.values()]
        elif cls is list:
            self._containers.append(value)
        self._is_quick = self._is_quick and cls in (dict, list, tuple, frozenset)
        parts = [*value]
        if isinstance(value, dict):
            parts = [*value.items()]
        if attributes:
            parts.append(attributes)
        return Same(cls), *(self._described(part, depth + 1) for part in parts)

    def _described_object(self, value: Any, depth: int) -> Any:
        slots: list[str] = []
        for each in type(value).__mro__:
            names = getattr(each, "__slots__", ())
            slots += [name for name in names if hasattr(value, name)]
        is_array = backend.is_array(value)
        if slots or is_array:  # without a live view of names and values
            self._is_quick = False
        if is_array:
            digest = blake2b(backend.to_numpy(value).tobytes()).digest()
            return (*form_of_array(value), digest)
        if depth == _DEEPEST or not (slots or hasattr(value, "__dict__")):
            name = type(value).__name__
            raise Undescribed(f"holds a {name}, which may change unnoticed")
        of_slots = [(name, getattr(value, name)) for name in slots if name[:2] != "__"]
        parts = getattr(value, "__dict__", {}), *of_slots
        return Same(type(value)), self._described(parts, depth + 1)


class JoinedAttributes(Attributes):
    """Several attributes, compared in one call.

    Separate comparisons would spend most of their time on calls.

    Parameters
    ----------
    parts : iterable of Attributes
    """

    def __init__(self, parts: Iterable[Attributes]) -> None:
        self._parts = list(parts)
        self._join()

    def _join(self) -> None:
        self._is_quick = all(part._is_quick for part in self._parts)
        joined = {
            name: list(chain.from_iterable(vars(part)[name] for part in self._parts))
            for name in ("_containers", "_lengths", "_items", "_modules", "_types")
        }
        vars(self).update(joined)

    def hold_again(self) -> bool:
        """Return whether all values are equal to those before; compare identity first."""
        if not all(part.hold_again() for part in self._parts):
            return False
        if self._is_quick:
            self._join()
        return True


class StageGuard:
    """Detects a change of parameters or layers on which programs of a stage depend.

    Parameters
    ----------
    module : Sequential
        The layers.
    owners, uses : list of Parameter
        Its parameters; and each use of one, with its own gradient.
    """

    def __init__(
        self, module: Sequential, owners: list[Parameter], uses: list[Parameter]
    ) -> None:
        self._owners = owners
        self._nodes = [use.node for use in uses]
        self.note_arrays()
        self._trained = list(map(_is_trained, self._nodes))
        self.attributes = Attributes(module.modules())
        self._module = module

    # The property of a parameter that must not change, and its comparison.
    _property: Callable[[Parameter], Any] = staticmethod(_data_of)
    _is_same: Callable[[Any, Any], bool] = staticmethod(is_)

    def note_arrays(self) -> None:
        """Expect the arrays that the parameters have now."""
        self._arrays = list(map(self._property, self._owners))

    def forget_arrays(self) -> None:
        """Drop the references to arrays: an arena moves those without references."""
        self._arrays = []

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        return self.parameters_hold() and (
            self.attributes.still_hold() or self.attributes.hold_again()
        )

    def parameters_hold(self) -> bool:
        """Return whether nothing but the attributes may have changed."""
        return (
            all(map(self._is_same, map(self._property, self._owners), self._arrays))
            and list(map(_is_trained, self._nodes)) == self._trained
            and self._module.layer_hook is None
        )


class MovingGuard(StageGuard):
    """A guard of programs that read their parameters, whose arrays may be replaced."""

    _property = staticmethod(lambda owner: form_of_array(owner.data))
    _is_same = staticmethod(eq)


def form_of_array(array: Any) -> tuple[Any, ...]:
    """Return the properties of an array, besides its values, on which lines depend."""
    strides = getattr(array, "strides", None)  # not all modules have strides
    return type(array), array.shape, strides, array.dtype


def is_foreign(part: Any) -> bool:
    """Return whether the class of a layer or a loss is custom, not minipipe's."""
    if isinstance(part, AuxiliaryLoss) and not isinstance(part.function, Module):
        return True
    return type(part).__module__.partition(".")[0] != "minipipe"
