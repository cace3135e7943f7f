"""Runs: parameters side by side in an arena, which a rule changes as one array."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from itertools import pairwise
from operator import attrgetter, is_, itemgetter
from types import ModuleType
from typing import Any
from weakref import ref

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.nn.parameter import HalfLeaf, Parameter

States = MutableMapping[int, dict[str, Any]]
Units = Sequence["Run | Parameter"]

# Values that no rule changes in place.
_NUMBERS = (int, float, complex, str, np.generic, type(None))
_NOTHING = object()
_DATA = attrgetter("data")
_GRAD = attrgetter("grad")


class Run:
    """Parameters side by side in an arena, which a rule changes as if they were one.

    The arrays of the state are joined, and the state of each parameter has views of
    them, so nothing else needs to know of the run. It is used while every step treats
    its parameters alike.

    In a gap between two parameters every array repeats the last element before it, so
    that a rule meets nothing there that it does not meet in a parameter.

    Parameters
    ----------
    parameters : list of Parameter
        They follow each other in an arena, and their states have the same numbers.
    states : dict
        The states of all parameters of the optimiser, by id.

    Attributes
    ----------
    parameters : list of Parameter
    members : slice
        Their positions in the block.
    block : weak reference to Block
        Not to keep the memory of an arena that is not used any more.
    node : Leaf
        The leaf of one of them.
    state : dict
        The state of all; what it keeps for each element has shape (elements,).
    is_divided : bool
        Whether the state is not joined, or some parameters were changed alone since.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        states: States,
    ) -> None:
        block, first = place_of(parameters[0])
        self.parameters = parameters
        self.node = parameters[0].node
        self.block = ref(block)
        self.members = slice(first, first + len(parameters))
        self._leaves = block.leaves[self.members]
        places = block.places[self.members]
        start = places[0].start
        self._elements = slice(start, places[-1].stop)
        self._places = [slice(at.start - start, at.stop - start) for at in places]
        self._size = self._places[-1].stop
        self._gaps = _gaps(self._places, backend.array_module(block.values))
        self._states = [states[id(each)] for each in parameters]
        self.state: dict[str, Any] = {}
        self._handed_out: dict[str, Any] = {}
        self.is_divided = self.have_gradients() and not block.has_all(self.members)
        if not self.is_divided:
            self._join()

    def _join(self) -> None:
        for name, value in self._states[0].items():
            if backend.is_array(value):
                value = self._joined([state[name] for state in self._states])
                self._hand_out(name, value)
            self.state[name] = value
        self._handed_out = dict(self.state)

    def _joined(self, arrays: Sequence[Array]) -> Array:
        xp = backend.array_module(arrays[0])
        flat = xp.zeros(self._size, dtype=arrays[0].dtype)
        for part, array in zip(self._parts_of(flat), arrays):
            part[...] = array
        return self._filled(flat)

    def _parts_of(self, array: Array) -> list[Array]:
        """Return the part of each parameter in an array of all, a view."""
        parts = zip(self._places, self.parameters)
        return [array[place].reshape(each.shape) for place, each in parts]

    def _filled(self, array: Array) -> Array:
        """Repeat the element before each gap of an array in it; return the array."""
        if self._gaps is not None:
            targets, sources = self._gaps
            array[targets] = array[sources]
        return array

    def have_gradients(self) -> bool:
        """Return whether any has a gradient, in the arena or elsewhere."""
        return any(leaf.grad is not None for leaf in self._leaves)

    @property
    def grad(self) -> Array:
        """The gradients as one array."""
        block: Any = self.block()
        gradients = block.gradients[self._elements]
        if self._gaps is None:
            return gradients
        return self._filled(gradients)

    @property
    def data(self) -> Array:
        """The values as one array."""
        block: Any = self.block()
        values = block.values[self._elements]
        if self._gaps is None:
            return values
        return self._filled(values)

    def change(
        self, update: Callable[[Array, Array, Any, Any], None], group: Any, order: int
    ) -> bool:
        """Change the values, if they and all gradients are in the arena; return whether
        they are.

        One function, since a step of small layers is hardly longer than some calls.

        Parameters
        ----------
        update : function
            ``(values, gradients, state, group)``: the rule.
        group : ParameterGroup
        order : int
            As for :meth:`note_change`.
        """
        block: Any = self.block()
        if block is None or self.is_divided:
            return False
        members = self.members
        leaves = self._leaves
        if not all(map(is_, map(_GRAD, leaves), block.gradient_views[members])):
            return False
        if not all(map(is_, map(_DATA, self.parameters), block.value_views[members])):
            return False
        values = block.values[self._elements]
        gradients = block.gradients[self._elements]
        if self._gaps is not None:
            self._filled(values)
            self._filled(gradients)
        update(values, gradients, self.state, group)
        for leaf in leaves:
            leaf.changed = order
        if self.state or self._handed_out:
            self._hand_out_changes()
        return True

    def note_change(self, order: int) -> None:
        """Note that the values have changed, and give each parameter its new state."""
        for leaf in self._leaves:
            leaf.changed = order
        self._hand_out_changes()

    def _hand_out_changes(self) -> None:
        for name, value in self.state.items():
            if self._handed_out.get(name, _NOTHING) is not value:
                self._hand_out(name, value)
        if len(self.state) < len(self._handed_out):
            for state in self._states:
                for name in state.keys() - self.state.keys():
                    del state[name]
        self._handed_out = dict(self.state)

    def _hand_out(self, name: str, value: Any) -> None:
        if backend.is_array(value) and value.shape == (self._size,):
            parts = self._parts_of(value)
        elif isinstance(value, _NUMBERS):
            parts = [value] * len(self._states)
        else:
            # It may be changed in place, so that each parameter needs one of its own.
            parts = [copy.deepcopy(value) for _ in self._states]
            self.is_divided = True
        for state, part in zip(self._states, parts):
            state[name] = part


def _gaps(places: Sequence[slice], xp: ModuleType) -> tuple[Array, Array] | None:
    """Return the elements between places, and which to repeat there; None without."""
    targets: list[int] = []
    sources: list[int] = []
    for before, after in pairwise(places):
        targets += range(before.stop, after.start)
        sources += [before.stop - 1] * (after.start - before.stop)
    if not targets:
        return None
    return xp.asarray(targets), xp.asarray(sources)


def place_of(parameter: Parameter) -> Any:
    """Return the block and the position of a parameter in its arena, or None."""
    if parameter.arena is None or (arena := parameter.arena()) is None:
        return None
    return arena.place_of(parameter)


class Walk:
    """How a rule walks over a group of parameters: in runs if possible, others alone.

    Parameters
    ----------
    parameters : tuple of Parameter
    states : dict

    Attributes
    ----------
    only : Run or None
        The only one, if it has all parameters of the group, in float32 or wider.
    """

    def __init__(
        self,
        parameters: tuple[Parameter, ...],
        states: States,
    ) -> None:
        self._parameters = parameters
        self._runs: list[Run] = []
        self._alone: list[Parameter] = []
        for each in side_by_side(parameters, states):
            if len(each) == 1:
                self._alone += each
            else:
                self._runs.append(Run(each, states))
        self.only = None
        if len(self._runs) == 1 and not self._alone:
            (run,) = self._runs
            if not isinstance(run.node, HalfLeaf):
                self.only = run
        # An arena has all trained parameters of a rank: one of them shows a new one.
        trained = (each for each in self._alone if each.requires_grad)
        self._watched = next(trained, None)
        self._arena = None
        if self._watched is not None:
            self._arena = self._watched.arena

    def units(self, parameters: tuple[Parameter, ...]) -> Units | None:
        """Return what this step changes as one array each: runs, and parameters.

        None if the walk must be planned again, because something has changed since.
        """
        if parameters is not self._parameters:
            return None
        if self._watched is not None and self._watched.arena is not self._arena:
            return None
        units: list[Run | Parameter] = []
        for run in self._runs:
            block = run.block()
            if block is None:
                return None
            if block.has_all(run.members):
                if run.is_divided:
                    return None
                units.append(run)
            elif run.have_gradients():
                run.is_divided = True
                units += run.parameters
        return units + self._alone


def side_by_side(
    parameters: Iterable[Parameter],
    states: States,
) -> list[list[Parameter]]:
    """Return lists of parameters that can be one run, and others alone."""
    lists: list[list[Parameter]] = []
    placed: list[tuple[int, int, Hashable, Parameter]] = []
    for each in parameters:
        place = place_of(each)
        kind = None if place is None else _kind(each, states[id(each)], place)
        if kind is None:
            lists.append([each])
        else:
            block, position = place
            placed.append((id(block), position, kind, each))
    last = None
    for block, position, kind, each in sorted(placed, key=itemgetter(0, 1)):
        if last != (block, position - 1, kind):
            lists.append([])
        lists[-1].append(each)
        last = block, position, kind
    return lists


def _kind(parameter: Parameter, state: dict[str, Any], place: Any) -> Hashable:
    """Return what parameters of a run have in common; None for one to be alone."""
    block, position = place
    gradient = parameter.node.grad
    is_joined = gradient is block.gradient_views[position]
    common: list[Hashable] = [gradient is None, is_joined]
    for name, value in sorted(state.items()):
        if isinstance(value, _NUMBERS):
            common.append((name, type(value), value))
        elif backend.is_array(value) and value.shape == parameter.shape:
            common.append((name, value.dtype))
        else:
            return None
    return tuple(common)
