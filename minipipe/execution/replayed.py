"""What a replaying stage knows of its kinds of microbatch, and keeps of a microbatch between its actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from minipipe.autograd.backend import Array
from minipipe.autograd.graph import BackwardWalk, Leaf, Node, unchanged
from minipipe.autograd.replay import NotingLeaf, Tape, Trace
from minipipe.execution.payload import Payload
from minipipe.execution.stage import Stage
from minipipe.nn import Function, Module, Parameter, Sequential
from minipipe.nn.sequential import parameters_of

_DEEPEST = 6  # nesting of attributes that is looked into


@dataclass
class TapeEntry:
    """What is known of one kind of microbatch: seen, captured once, confirmed (``tape``) or refused (``reason``)."""

    first: Tape | None = None
    first_step: int = -1
    first_inputs: bytes = b""
    is_captured_now: bool = False
    tape: Tape | None = None
    reason: str = ""


@dataclass
class StageCapture:
    """A microbatch that is captured now."""

    trace: Trace
    entry: TapeEntry
    inputs: bytes
    leaves: dict[int, NotingLeaf] = field(default_factory=dict)  # by the identity of the parameter


@dataclass
class ReplayedMicrobatch:
    """A microbatch between its actions: its tape, what that keeps, and the parameters' arrays."""

    tape: Tape
    kept: list[Any]
    parameters: list[Array]
    shape: tuple[int, ...]
    dtype: Any
    num_inputs: int
    order: int
    seed: Array | None = None
    postponed: list[tuple[Leaf, Array]] = field(default_factory=list)
    is_over: bool = False  # no gradient came back, so W has nothing to do

    def run(self, section: str, leaves: list[Any], *gradient: Array) -> tuple[Any, ...]:
        """Run a section of the tape; return its results, the gradients of the inputs."""
        if self.is_over:
            return ()
        function = self.tape.sections[section]
        results, self.kept = function(self.parameters, leaves, walk_of(self.order), self.kept, *gradient)
        self.seed = None
        return results


class LaterLeaf:
    """A leaf that keeps contributions for later: I was asked of a tape with a whole backward."""

    def __init__(self, leaf: Leaf, into: list[tuple[Leaf, Array]]) -> None:
        self.leaf, self.into = leaf, into

    def add(self, contribution: Array, walk: BackwardWalk) -> None:
        """Keep a contribution."""
        self.into.append((self.leaf, contribution))


def walk_of(order: int) -> BackwardWalk:
    """Return the walk of a node's backward, for leaves that ask whether they were changed since."""
    walk = BackwardWalk()
    walk.order = order
    return walk


def as_node(held: ReplayedMicrobatch) -> Node:
    """Return a node that holds what a tape keeps of a microbatch."""
    arrays = [each for each in held.kept if isinstance(each, np.ndarray)]
    arrays += [array for _, array in held.postponed]
    return Node([(Node([], -1), partial(unchanged, *arrays))], held.order)  # memory.py looks into a partial


class Undescribed(Exception):
    """An attribute that cannot be compared with what it was."""


class Same:
    """An object that is compared by identity, and kept: no other object gets its ``id`` while a tape is keyed by it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def described(value: Any, depth: int) -> Any:
    """Return an attribute so that it can be compared and hashed: values by value, and what has a state by both.

    Functions, modules and parameters are themselves; the attributes of modules are described on their own. Of any other
    object the attributes count, too.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype):
        return type(value), repr(value)
    if isinstance(value, np.ndarray):
        return Same(value), value.dtype, value.shape, value.strides, blake2b(value.tobytes()).digest()
    if isinstance(value, Module | Parameter | type | FunctionType | BuiltinFunctionType | np.ufunc | ModuleType):
        return Same(value)
    if isinstance(value, tuple | list | set | frozenset | deque):
        return type(value), *(described(part, depth + 1) for part in value)
    if isinstance(value, dict):
        return type(value), *((described(name, depth + 1), described(part, depth + 1)) for name, part in value.items())
    if isinstance(value, partial):
        return Same(value), described((value.func, value.args, value.keywords), depth + 1)
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)]
    if depth == _DEEPEST or not (slots or hasattr(value, "__dict__")):
        raise Undescribed(f"holds a {type(value).__name__}, which may change unnoticed")
    own = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots if name[:2] != "__"}}
    return Same(value), described(own, depth + 1)


def attributes_of(*parts: Any) -> tuple[Any, ...] | str:
    """Return the described attributes of modules and losses; or why they cannot be compared."""
    try:
        return tuple(described(vars(part), 0) for part in parts)
    except Undescribed as error:
        return str(error)


def kind_of(arrays: list[Array], received: Payload, loss: Any) -> tuple[Any, ...] | str:
    """Return in what microbatches of one kind are alike, but for the layers; or why the loss cannot be compared."""
    attributes = () if loss is None else attributes_of(loss)
    if isinstance(attributes, str):
        return f"the loss {attributes}"
    shapes = tuple((array.shape, array.strides, array.dtype) for array in arrays)
    form = None if received.form is None else repr(received.form)
    return shapes, tuple(received.wanted), form, Same(loss), attributes


def reason_against(module: Sequential) -> str:
    """Return why no microbatch of these layers is replayed; empty if some may be."""
    first = module.first_layer
    for i, layer in enumerate(module.layers):
        for part in layer.modules():
            own = type(part).__module__.partition(".")[0] == "minipipe" and not isinstance(part, Function)
            is_listed = own or getattr(type(part), "is_replayable", False)
            if not is_listed or {"forward", "compute"} & vars(part).keys():
                name = type(part).__name__
                return f"layer {first + i}, {name}, runs code of its own, and its class lacks is_replayable = True"
    parameters = [p for layer in module.layers for p in parameters_of(layer)]
    if any(not p.is_filled or type(p.data) is not np.ndarray or p.data.itemsize == 2 for p in parameters):
        return "its parameters are no arrays of NumPy of full precision"
    return ""


@contextmanager
def observed(stages: Mapping[int, Stage], is_observed: bool = True) -> Iterator[None]:
    """Compute without replaying inside this block, where graphs are looked at."""
    for stage in stages.values():
        stage.is_observed = is_observed
    try:
        yield
    finally:
        for stage in stages.values():
            stage.is_observed = False
