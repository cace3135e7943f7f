"""Conditions under which a captured program of a stage is valid: the layers' state, and a cache entry's guards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain
from operator import call, is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.autograd.backend import Array
from minipipe.autograd.modes import mode
from minipipe.autograd.replay import NotingLeaf, Script, Trace
from minipipe.errors import ArgumentError, counted
from minipipe.execution.payload import Payload
from minipipe.execution.stage import Stage
from minipipe.nn import Function, Module, Parameter, Sequential
from minipipe.nn.module import is_exactly
from minipipe.nn.sequential import parameters_of
from minipipe.schedules.action_table import ActionTable

MOST_SCRIPTS = 16
"""Programs kept for one stage; the least recently used one is dropped."""
_HOPE = 5  # steps with a kind of microbatch, after which other inputs are no longer expected
_LARGE = 1 << 20  # bytes of inputs: comparing larger ones in each step costs more than replaying saves
_DEEPEST = 9  # nesting of attributes that is searched
_VALUES = (bool, int, float, complex, str, bytes, type(None))
_BUILTIN = (*_VALUES, dict, list, tuple, set, frozenset, deque)
_THEMSELVES = type | FunctionType | BuiltinFunctionType | np.ufunc | ModuleType | ActionTable  # a table never changes


@dataclass
class Kind:
    """The state of one kind of microbatch: seen, captured once (``first``), confirmed (``script``) or refused."""

    reason: str = ""  # why it is refused
    first: Script | None = None
    first_step: int = -1
    inputs: bytes | None = None  # of the first capture; for a program, the only inputs that it serves, None if any
    is_captured_now: bool = False
    script: Script | None = None
    num_inputs: int = 0  # of the stage
    is_wanted: bool = True  # whether a gradient of its result is of use
    used: int = 0  # the last step in which it came
    num_steps: int = 0  # in which it came
    share: float | None = None  # of the loss, with which its backward began the last time
    seed: Array | None = None  # the same as an array

    def keep(self, script: Script, step: int, inputs: bytes) -> None:
        """Compare a capture with the first one, or keep it for that."""
        if self.first is None:
            self.first, self.first_step, self.inputs = script, step, inputs
        elif self.first.is_like(script):
            self.script, self.first = script, None
            self.inputs = inputs if inputs == self.inputs else None
        else:
            self.reason, self.first = "two microbatches left different lines or constants", None

    def news_in(self, arrays: Iterable[Array], step: int) -> bytes | None:
        """Return the contents of inputs whose capture adds information; of the same inputs, after some steps."""
        if self.first is not None and self.first_step == step:
            return None
        inputs = bytes_of(arrays)
        if self.first is None or inputs != self.inputs:
            return inputs
        if len(inputs) > _LARGE:
            self.reason, self.first = "gets the same large inputs in every step", None
            return None
        return None if self.num_steps < _HOPE else inputs

    def seed_of(self, share: float, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the gradient with which the backward of a loss begins; the last one again, if it is the same."""
        if self.seed is None or self.share != share or self.seed.shape != shape or self.seed.dtype != dtype:
            self.share, self.seed = share, np.full(shape, share, dtype)
        return self.seed

    def serves(self, arrays: Iterable[Array]) -> bool:
        """Return whether a program serves these inputs. If it has seen no others, they are captured and compared."""
        if self.script is None or self.inputs is None or self.inputs == bytes_of(arrays):
            return self.script is not None
        self.first, self.script = self.script, None
        return False


def bytes_of(arrays: Iterable[Array]) -> bytes:
    """Return the contents of arrays, for a comparison with other arrays of the same shapes."""
    return b"".join(array.tobytes() for array in arrays)


class _Last(NamedTuple):
    """The properties of the last microbatch. One with the same properties needs no key."""

    how: tuple[Any, ...]
    treedef: Any
    requires_grad: list[bool]
    arrays: list[tuple[Any, ...]]
    kind: Kind

    def is_like(self, how: tuple[Any, ...], received: Payload, arrays: Iterable[Array]) -> bool:
        if how != self.how or received.requires_grad != self.requires_grad or received.treedef != self.treedef:
            return False
        for array, (shape, strides, dtype) in zip(arrays, self.arrays):
            if type(array) is not np.ndarray or array.shape != shape or array.strides != strides:
                return False
            if array.dtype != dtype:
                return False
        return True


class Kinds:
    """The kinds of microbatch of a stage."""

    def __init__(self) -> None:
        self._kinds: dict[Any, Kind] = {}
        self._last: dict[int, _Last] = {}  # by microbatch

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def of(self, microbatch: int, how: tuple[Any, ...], received: Payload, arrays: Sequence[Array], step: int) -> Kind:
        """Return the kind of a microbatch, and note that it came in this step.

        Parameters
        ----------
        microbatch : int
        how : tuple
            Everything except the arrays on which its lines depend.
        received : Payload
            The input of the stage.
        arrays : sequence of array
            All arrays that its lines read: the input of the stage, and the targets.
        step : int
        """
        last = self._last.get(microbatch)
        if last is not None and last.is_like(how, received, arrays):
            kind = last.kind
        else:
            forms = [(a.shape, a.strides, a.dtype) for a in arrays]
            key = how, received.treedef and repr(received.treedef), *received.requires_grad, *map(type, arrays), *forms
            if key not in self._kinds and len(self._kinds) >= MOST_SCRIPTS:
                del self._kinds[min(self._kinds, key=lambda each: self._kinds[each].used)]
                self._last.clear()
            kind = self._kinds.get(key) or Kind(num_inputs=len(received.arrays))
            self._kinds[key] = kind
            if all(type(array) is np.ndarray and array.itemsize != 2 for array in arrays):
                self._last[microbatch] = _Last(how, received.treedef, received.requires_grad, forms, kind)
            else:
                kind.reason = "gets arrays that are not NumPy's own, or in half precision"
        if kind.used != step:
            kind.used, kind.num_steps = step, kind.num_steps + 1
        return kind


@dataclass
class Capture:
    """A microbatch that is captured now."""

    trace: Trace
    kind: Kind
    inputs: bytes
    leaves: dict[int, NotingLeaf] = field(default_factory=dict)  # by the identity of the parameter


@dataclass(slots=True)
class Replayed:
    """A microbatch between its actions, with all that its backward needs.

    The cache entry may get another program, or none, while this microbatch is in flight.
    """

    script: Script
    kept: list[Any] | None  # by the program; None once no gradient has come back, so that W has nothing to do
    order: int
    num_inputs: int
    shape: tuple[int, ...]  # of the result
    dtype: Any
    seed: Array | None = None  # the gradient with which its backward begins

    @property
    def graph(self) -> list[Any]:
        """No graph: what a program keeps is not counted."""
        return []


# -- fingerprints of layers -------------------------------------------------------------------------------------------


class Undescribed(Exception):
    """An attribute that cannot be compared with its earlier value."""


class Same:
    """An object that is compared by identity, and kept: no other gets its ``id`` while it keys a program."""

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
        Equal for equal attributes: values and arrays by value, functions, classes, modules, parameters and schedules by
        identity, any other object by its class and its attributes.
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
        self._modules, self.reason = list(modules), ""
        self.key: tuple[Any, ...] = ()
        self._types = list(map(type, self._modules))
        self.is_foreign = any(map(is_foreign, self._modules))
        self._listed = {id(part) for module in self._modules for part in (module, *(p for _, p in module._parts()))}
        self._looks: list[Collection[Any]] = []  # names and values of every container, live
        self._is_quick = True
        try:
            self.key = tuple((Same(type(module)), self._described(vars(module), 0)) for module in self._modules)
        except Undescribed as error:
            self.reason = str(error)
        self._lengths, self._items = list(map(len, self._looks)), list(chain.from_iterable(self._looks))

    def still_hold(self) -> bool:
        """Return whether everything is the same object as before. Also False if only a longer comparison can tell."""
        return (
            self._is_quick
            and list(map(len, self._looks)) == self._lengths
            and all(map(is_, chain.from_iterable(self._looks), self._items))
            and all(map(is_, map(type, self._modules), self._types))
        )

    def _described(self, value: Any, depth: int) -> Any:
        if type(value) in _VALUES or isinstance(value, np.generic | np.dtype):
            return type(value), repr(value)
        if id(value) in self._listed or isinstance(value, _THEMSELVES):
            return Same(value)
        if isinstance(value, Parameter):
            raise Undescribed("holds a parameter that is not one of its own")
        if isinstance(value, MethodType):
            return Same(value.__func__), self._described(value.__self__, depth + 1)
        own = getattr(value, "__dict__", {}) if isinstance(value, _BUILTIN) else {}
        if isinstance(value, _VALUES):  # of a subclass
            return Same(type(value)), repr(value), self._described(own, depth + 1)
        if isinstance(value, _BUILTIN):
            self._looks += [value, value.values()] if type(value) is dict else [value] if type(value) is list else []
            self._is_quick = self._is_quick and type(value) in (dict, list, tuple, frozenset)
            items: Any = value
            if isinstance(value, dict):  # a module's first call leaves a note in it
                items = [item for item in value.items() if item[0] != "_is_filled"]
            parts = [*items, *([own] if own else [])]
            return Same(type(value)), *(self._described(part, depth + 1) for part in parts)
        if isinstance(value, partial):
            return type(value), self._described((value.func, value.args, value.keywords), depth + 1)
        named = (name for each in type(value).__mro__ for name in getattr(each, "__slots__", ()))
        slots = [name for name in named if hasattr(value, name)]
        if slots or isinstance(value, np.ndarray):
            self._is_quick = False  # their items are not a live view of names and values
        if isinstance(value, np.ndarray):
            return value.dtype, value.shape, value.strides, blake2b(value.tobytes()).digest()
        if depth == _DEEPEST or not (slots or hasattr(value, "__dict__")):
            raise Undescribed(f"holds a {type(value).__name__}, which may change unnoticed")
        of_slots = [(name, getattr(value, name)) for name in slots if name[:2] != "__"]
        return Same(type(value)), self._described((getattr(value, "__dict__", {}), *of_slots), depth + 1)


@dataclass
class Look:
    """The state of the layers and parameters of a stage in a step, and its number."""

    arrays: list[Callable[[], Array | None]] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    attributes: Attributes = field(default_factory=lambda: Attributes(()))
    number: int = 0

    def still_holds(self, arrays: list[Array], trained: list[bool]) -> bool:
        """Return whether nothing has changed."""
        is_same = trained == self.trained and all(map(is_, map(call, self.arrays), arrays))
        return is_same and self.attributes.still_hold()

    @property
    def key(self) -> tuple[Any, ...]:
        """The guards of programs: shapes and dtypes of parameters, not their values."""
        arrays = [look() for look in self.arrays]
        looks = tuple((array.shape, array.strides, array.dtype) for array in arrays if array is not None)
        return looks, tuple(self.trained), self.attributes.key


def is_foreign(part: Any) -> bool:
    """Return whether the class of a layer or a loss is custom, not minipipe's."""
    return type(part).__module__.partition(".")[0] != "minipipe"


def reason_against(module: Sequential) -> str:
    """Return why no microbatch of these layers is replayed; empty if some may be."""
    first = module.first_layer
    for i, layer in enumerate(module.layers):
        for part in layer.modules():
            own = not is_foreign(part) and not isinstance(part, Function)
            is_listed = getattr(type(part), "is_replayable", own)
            if not is_listed or not is_exactly(part, type(part)):
                name = type(part).__name__
                return f"layer {first + i}, {name}, runs code of its own, and its class lacks is_replayable = True"
    parameters = [p for layer in module.layers for p in parameters_of(layer)]
    if any(not p.is_filled or type(p.data) is not np.ndarray or p.data.itemsize == 2 for p in parameters):
        return "its parameters are not NumPy arrays of full precision"
    return ""


def words_about(kinds: list[Kind], why_not: str, why_not_the_loss: str, has_run: bool) -> str:
    """Return a message: whether a stage replays its kinds of microbatch, or why it does not."""
    count = sum(kind.script is not None for kind in kinds)
    reasons = dict.fromkeys(kind.reason for kind in kinds if kind.reason)
    words = [f"replays {counted(count, 'kind')} of microbatch"] if count else []
    words += [why_not] if why_not else [*reasons, *([why_not_the_loss] if why_not_the_loss else [])]
    if words:
        return "; ".join(words)
    if not has_run:
        return "has not run yet"
    if mode().watch is not None:
        return "is watched, and watched steps are not replayed"
    waits = any(kind.first is not None for kind in kinds)
    return "waits for a microbatch with other inputs" if waits else "captures in the third step of its kind"


@contextmanager
def observed(stages: Mapping[int, Any], is_observed: bool = True, is_halved: bool = False) -> Iterator[None]:
    """Measure inside this block: graphs, which are not replayed; or runs with every backward in halves."""
    replaying = [stage for stage in stages.values() if hasattr(stage, "is_observed")]
    for stage in replaying:
        stage.is_observed, stage.is_halved = is_observed, is_halved
    try:
        yield
    finally:
        for stage in replaying:
            stage.is_observed = stage.is_halved = False


def report_of(stages: Mapping[int, Stage]) -> str:
    """Return a message: which stages of a rank replay, and why others do not."""
    off = "replaying is off for this stage"
    lines = [f"stage {i}: {getattr(s, 'report', lambda: off)()}" for i, s in stages.items()]
    return "\n".join(lines)


def replayed_source(stages: Mapping[int, Stage], index: int) -> str:
    """Return the straight-line NumPy that a stage of a rank replays."""
    stage = stages.get(index)
    if stage is None:
        raise ArgumentError("value", f"source({index}): stage {index} is not on this rank; its stages: {[*stages]}.")
    if not hasattr(stage, "source"):
        message = f"source({index}): replaying is off for this stage; make it with Pipeline(…, replay=True)."
        raise ArgumentError("value", message)
    return stage.source()
