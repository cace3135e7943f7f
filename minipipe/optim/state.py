"""The checks of states, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, counted, quoted

if TYPE_CHECKING:
    from minipipe.optim.optimiser import Optimiser

MASTER = "master"
"""The name of the float32 values of a parameter in half precision."""
FIXED = frozenset({"orthogonal"})
"""Hyper-parameters that cannot be changed: what is kept, and where, depends on them."""


def problem_with(state: Any, optimiser: Optimiser) -> str | None:
    """Describe the error in a state, apart from the numbers of its groups; None if
    there is no error.
    """
    if not isinstance(state, Mapping) or {"groups", "states"} - state.keys():
        members = f"a {type(state).__name__}"
        if isinstance(state, Mapping):
            members = ", ".join(map(str, state)) or "empty"
        return (
            f"the state is {members}; expected the result of "
            'state_dict(), with "groups" and "states"'
        )
    known = [sorted(group.hyper_parameters) for group in optimiser.groups]
    for groups in (state["groups"], state.get("first") or state["groups"]):
        names = [sorted(numbers) for numbers in groups]
        if names != known:
            return f"the state's groups have {names}, and this optimiser's {known}"
    for numbers, group in zip(state["groups"], optimiser.groups):
        for name in FIXED & numbers.keys():
            own = getattr(group, name)
            if numbers[name] != own:
                return f"the state's {name} is {numbers[name]}; expected {own}"
    pairs = [(each, group) for group in optimiser.groups for each in group.parameters]
    if len(state["states"]) != len(pairs):
        size = counted(len(state["states"]), "parameter")
        return f"the state is of {size}; this optimiser has {len(pairs)}"
    for number, (parameter, group) in enumerate(pairs):
        kept = optimiser.kept_of(parameter, group)
        problem = _problem_of_one(state["states"][number], parameter, kept)
        if problem is not None:
            return f"for parameter {number}, the state keeps {problem}"
    return None


def _problem_of_one(
    state: Any, parameter: Any, kept: Mapping[str, float] | None
) -> str | None:
    """Describe the error in the state of one parameter."""
    least = dict(kept or {})
    names = set(state)
    dtype = backend.numpy_dtype(parameter.dtype)
    if backend.is_half(parameter.dtype):
        least = {MASTER: -inf, **least}
        names.discard(MASTER)
        dtype = np.dtype(np.float32)
    if kept is not None and names and names != kept.keys():
        return f"{', '.join(sorted(map(repr, names)))}; expected {', '.join(kept)}"
    for name in least.keys() & state.keys():
        problem = _problem_of_value(state[name], least[name], parameter.shape, dtype)
        if problem is not None:
            return f"{name} = {problem}"
    return None


def _problem_of_value(
    value: Any, least: float, shape: tuple[int, ...], dtype: np.dtype
) -> str | None:
    """Describe the error in a number or an array whose least value is known."""
    if isinstance(least, int):
        if type(value) is int and least <= value < 2**63:
            return None
        return f"{value!r:.40}; expected a whole number, at least {least}"
    if not backend.is_array(value):
        description = f"{value!r:.40}"
    elif value.shape != shape or backend.numpy_dtype(value.dtype) != dtype:
        description = f"an array of shape {value.shape} and dtype {value.dtype}"
    elif least > -inf and backend.array_module(value).any(value < least):
        return f"an array with elements below {least}"
    else:
        return None
    return f"{description}; expected an array of shape {shape} and dtype {dtype}"


def state_of(owner: str, state: Any, specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Return the members of a state, each as declared; refuse any other state.

    Parameters
    ----------
    owner : str
        The class that takes the state.
    state : Any
        The result of a method ``state_dict``, or anything else.
    specs : mapping of str to Spec

    Examples
    --------
    >>> state_of("LossScale", {"value": 2}, {"value": Spec(float, above=0)})
    {'value': 2.0}
    >>> state_of("LossScale", {}, {"value": Spec(float, above=0)})
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: LossScale: the state is {}; expected the result...
    """
    if not isinstance(state, Mapping) or state.keys() != specs.keys():
        raise ArgumentError(
            f"{owner}: the state is {quoted(state, 80)}; expected the result of "
            f"state_dict(), with {' and '.join(specs)}."
        )
    return {
        name: spec.check(f"{owner}: {name}", state[name])
        for name, spec in specs.items()
    }
