"""Runs: parameters side by side in an arena, which a rule changes as one array."""

from __future__ import annotations

import copy
from collections.abc import Hashable, MutableMapping, Sequence
from typing import Any
from weakref import ref

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.nn.arena import side_by_side
from minipipe.nn.parameter import Parameter

States = MutableMapping[int, dict[str, Any]]
Masters = MutableMapping[int, Array]
Units = Sequence["Run | Parameter"]

# Values that no rule changes in place.
_NUMBERS = (int, float, complex, str, np.generic, type(None))
_NOTHING = object()


class Run:
    """Parameters side by side in an arena, which a rule changes as if they were one.

    The arrays of the state are joined, and the state of each parameter has views of
    them, so nothing else needs to know of the run. It is used while every step treats
    its parameters alike.

    Parameters
    ----------
    parameters : list of Parameter
        Neighbours in an arena, whose states have the same numbers.
    states : dict
        The states of all parameters of the optimiser, by id.
    masters : dict
        The master values of parameters in half precision, by id.

    Attributes
    ----------
    parameters : list of Parameter
    neighbours : weak reference to Neighbours
    node : Leaf
        The leaf of one of them.
    state : dict
        The state of all; what it keeps for each element has shape (elements,).
    master : array of shape (elements,), or None
    is_divided : bool
        Whether the state is not joined, or some parameters were changed alone since.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        states: States,
        masters: Masters,
    ) -> None:
        arena: Any = parameters[0].arena
        # A weak reference: the memory of an arena that is not used any more is freed.
        self.neighbours = ref(arena().neighbours(parameters))
        self.parameters = parameters
        self.node = parameters[0].node
        self._states = [states[id(each)] for each in parameters]
        self._masters = masters
        self.state: dict[str, Any] = {}
        self._handed_out: dict[str, Any] = {}
        self.master: Array | None = None
        neighbours: Any = self.neighbours()
        self.is_divided = neighbours.have_gradients() and not neighbours.are_joined()
        if not self.is_divided:
            self._join()

    def _join(self) -> None:
        for name, value in self._states[0].items():
            if backend.is_array(value):
                value = self._joined([state[name] for state in self._states])
                self._hand_out(name, value)
            self.state[name] = value
        self._handed_out = dict(self.state)
        masters = [self._masters.get(id(each)) for each in self.parameters]
        if masters[0] is not None:
            self.set_master(self._joined(masters))

    def _joined(self, arrays: Sequence[Array]) -> Array:
        neighbours: Any = self.neighbours()
        xp = backend.array_module(arrays[0])
        flat = xp.zeros(neighbours.size, dtype=arrays[0].dtype)
        for part, array in zip(neighbours.parts_of(flat), arrays):
            part[...] = array
        return neighbours.filled(flat)

    @property
    def grad(self) -> Array:
        """The gradients as one array."""
        neighbours: Any = self.neighbours()
        return neighbours.gradient()

    @property
    def data(self) -> Array:
        """The values as one array."""
        neighbours: Any = self.neighbours()
        return neighbours.values()

    def note_change(self, order: int) -> None:
        """Note that the values have changed, and give each parameter its new state."""
        neighbours: Any = self.neighbours()
        neighbours.note_change(order)
        for name, value in self.state.items():
            if self._handed_out.get(name, _NOTHING) is not value:
                self._hand_out(name, value)
        if len(self.state) < len(self._handed_out):
            for state in self._states:
                for name in state.keys() - self.state.keys():
                    del state[name]
        self._handed_out = dict(self.state)

    def _hand_out(self, name: str, value: Any) -> None:
        neighbours: Any = self.neighbours()
        if backend.is_array(value) and value.shape == (neighbours.size,):
            parts = neighbours.parts_of(value)
        elif isinstance(value, _NUMBERS):
            parts = [value] * len(self._states)
        else:
            # It may be changed in place, so that each parameter needs one of its own.
            parts = [copy.deepcopy(value) for _ in self._states]
            self.is_divided = True
        for state, part in zip(self._states, parts):
            state[name] = part

    def set_master(self, master: Array) -> None:
        """Take master values, and give each parameter its part of them."""
        neighbours: Any = self.neighbours()
        self.master = master
        for each, part in zip(self.parameters, neighbours.parts_of(master)):
            self._masters[id(each)] = part


class Walk:
    """How a rule walks over a group of parameters: in runs if possible, others alone.

    Parameters
    ----------
    parameters : tuple of Parameter
    states, masters : dict
    """

    def __init__(
        self,
        parameters: tuple[Parameter, ...],
        states: States,
        masters: Masters,
    ) -> None:
        self._parameters = parameters

        def kind(parameter: Parameter) -> Hashable:
            state, master = states[id(parameter)], masters.get(id(parameter))
            return _kind(parameter, state, master)

        self._runs: list[Run] = []
        self._alone: list[Parameter] = []
        for each in side_by_side(parameters, kind):
            if len(each) == 1:
                self._alone += each
            else:
                self._runs.append(Run(each, states, masters))
        self._arenas = [each.arena for each in self._alone]

    def units(self, parameters: tuple[Parameter, ...]) -> Units | None:
        """Return what this step changes as one array each: runs, and parameters.

        None if the walk must be planned again, because something has changed since.
        """
        if parameters is not self._parameters:
            return None
        if [each.arena for each in self._alone] != self._arenas:
            return None
        units: list[Run | Parameter] = []
        for run in self._runs:
            neighbours = run.neighbours()
            if neighbours is None:
                return None
            if neighbours.are_joined():
                if run.is_divided:
                    return None
                units.append(run)
            elif neighbours.have_gradients():
                run.is_divided = True
                units += run.parameters
        return units + self._alone


def _kind(parameter: Parameter, state: dict[str, Any], master: Any) -> Hashable:
    """Return what neighbours must have in common; None for a parameter to be alone."""
    common: list[Hashable] = [parameter.grad is None, master is None]
    for name, value in sorted(state.items()):
        if isinstance(value, _NUMBERS):
            common.append((name, type(value), value))
        elif backend.is_array(value) and value.shape == parameter.shape:
            common.append((name, value.dtype))
        else:
            return None
    return tuple(common)
