"""Updates of several parameters in one launch, for devices that have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.nn.parameter import HalfLeaf, Parameter
from minipipe.optim.runs import Run, States

Unit = Parameter | Run
Item = tuple[Array, Array, dict[str, Any]]
"""Values of a parameter, their gradient and the state."""
Update = Callable[[Array, Array, dict[str, Any], Any], None]
"""Changes one parameter, by the numbers of a group."""
Launch = Callable[[Sequence[Item], Any, Update], None]
"""Changes several parameters at once; calls update for each that it cannot change."""


def launched(
    launches: Mapping[str, Launch],
    units: Sequence[Unit],
    states: States,
    rule: tuple[Any, Update, Callable[[Any, Any], bool]],
    order: int,
) -> list[Unit]:
    """Change units by one launch for each array module that has it; return the others.

    Parameters
    ----------
    launches : dict of str to function
        By the name of the array module.
    units : sequence of Parameter or Run
    states : dict
        The states of all parameters of the optimiser, by id.
    rule : (ParameterGroup, function, function)
        The numbers, the function that changes one parameter, and whether one is taken
        whole.
    order : int
        As for ``note_change``.
    """
    group, update, takes_whole = rule
    others: list[Unit] = []
    changed: list[Unit] = []
    items: dict[str, list[Item]] = {}
    for one in units:
        values = one.data
        module = backend.array_module(values).__name__
        is_left = isinstance(one.node, HalfLeaf) or takes_whole(one, group)
        gradient = None
        if module in launches and not is_left:
            gradient = one.grad
        if gradient is None:
            others.append(one)
            continue
        state = one.state if isinstance(one, Run) else states[id(one)]
        items.setdefault(module, []).append((values, gradient, state))
        changed.append(one)
    for module, found in items.items():
        launches[module](found, group, update)
    for one in changed:
        one.note_change(order)
    return others
