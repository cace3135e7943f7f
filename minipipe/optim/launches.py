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
    items: dict[str, list[tuple[Unit, Item]]] = {}
    for one in units:
        module = backend.array_module(one.data).__name__
        has_launch = module in launches and not isinstance(one.node, HalfLeaf)
        if not has_launch or takes_whole(one, group) or (gradient := one.grad) is None:
            others.append(one)
            continue
        state = one.state if isinstance(one, Run) else states[id(one)]
        items.setdefault(module, []).append((one, (one.data, gradient, state)))
    for module, found in items.items():
        launches[module]([item for _, item in found], group, update)
        for one, _ in found:
            one.note_change(order)
    return others
