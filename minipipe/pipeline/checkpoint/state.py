"""The state of a pipeline's optimisers by the names of parameters: for one rank, or
merged for several.

Names refer to the whole model, so any rank finds its state, whatever the partition was.
Elastic training also makes its copies with these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.objects import broadcast
from minipipe.core.autograd import backend
from minipipe.core.specs import INDEX, Spec
from minipipe.errors import ArgumentError, CheckpointError, quoted
from minipipe.io import json_value
from minipipe.nn import Parameter
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline

_OPTIMISER = Spec(
    Optimiser, expected="an optimiser, or a mapping of names to optimisers", code="type"
)
Optimisers = Mapping[str, Optimiser]
Arrays = dict[str, np.ndarray]
MOST = 2**63 - 1  # of a step: the largest number in the header of a message
_NUMBER = INDEX._replace(maximum=MOST)


@dataclass
class Group:
    """A group of parameters: its place among an optimiser's, its numbers now and before
    the first step, its names.
    """

    place: int
    numbers: dict[str, Any]
    first: dict[str, Any]
    parameters: list[str]


@dataclass
class OptimiserState:
    """The state on which the next steps of an optimiser depend.

    Attributes
    ----------
    kind : str
        The name of its class.
    num_steps : int
        How many it took.
    groups : list of Group
    kept : dict of str to dict
        For each parameter the values that the optimiser keeps, by name: arrays and
        numbers.
    """

    kind: str
    num_steps: int
    groups: list[Group]
    kept: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, pipeline: Pipeline, optimiser: Optimiser) -> OptimiserState:
        """Return a copy of the state on this rank. Local.

        Raises
        ------
        ArgumentError
            Code ``value``, for an optimiser of other parameters than this pipeline's.
        """
        state = optimiser.state_dict()
        names = [names_of(pipeline, group.parameters) for group in optimiser.groups]
        numbers = zip(state["groups"], state["first"] or state["groups"], names)
        groups = [Group(place, *entries) for place, entries in enumerate(numbers)]
        kept = {}
        for name, own in zip(chain(*names), state["states"]):
            kept[name] = {what: _entry(value) for what, value in own.items()}
        kind = optimiser.settings["class"].__qualname__
        return cls(kind, state["num_steps"], groups, kept)

    @classmethod
    def merged(cls, parts: Iterable[OptimiserState]) -> OptimiserState:
        """Return several ranks' states of one optimiser as one. Groups with equal place
        and numbers become one.
        """
        parts = list(parts)
        groups = list[Group]()
        for group in chain(*(part.groups for part in parts)):
            for same in groups:
                if same == replace(group, parameters=same.parameters):
                    break
            else:
                same = replace(group, parameters=[])
                groups.append(same)
            known = same.parameters
            known += [name for name in group.parameters if name not in known]
        kept: dict[str, dict[str, Any]] = {}
        for part in parts:
            kept |= part.kept
        return replace(parts[0], groups=groups, kept=kept)

    def part(self, names: Iterable[str]) -> OptimiserState:
        """Return the same with the states of some parameters only."""
        kept = {name: self.kept[name] for name in names if name in self.kept}
        return replace(self, kept=kept)

    def state_dict(self, pipeline: Pipeline, optimiser: Optimiser) -> dict[str, Any]:
        """Return the state for an optimiser of this rank, whose parameters are all in
        this state. Local.

        Raises
        ------
        ArgumentError
            Code ``value``, when it cannot be loaded.
        """
        groups = []
        for place, group in enumerate(optimiser.groups):
            names = names_of(pipeline, group.parameters)
            saved = [one for one in self.groups if set(names) & set(one.parameters)]
            if any(one.numbers != saved[0].numbers for one in saved):
                raise ArgumentError(
                    f"The parameters of group {place}, {', '.join(names)}, were in "
                    "groups of other numbers."
                )
            # this rank may have none of this group
            saved += [one for one in self.groups if one.place == place]
            own = group.hyper_parameters
            saved.append(Group(place, own, own, []))
            groups.append(saved[0])
        state = {"num_steps": self.num_steps, "groups": [one.numbers for one in groups]}
        names = names_of(pipeline, optimiser.parameters)
        pairs = zip(names, optimiser.parameters)
        states = [_each(self.kept.get(name, {}), one.cut) for name, one in pairs]
        state |= {"first": [one.first for one in groups], "states": states}
        optimiser.check_state(state)
        return state

    def to_dict(self) -> dict[str, Any]:
        """Return it in dicts and lists, for JSON or a message."""
        numbers = {"class": self.kind, "num_steps": self.num_steps}
        return {**numbers, "groups": list(map(vars, self.groups)), "kept": self.kept}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> OptimiserState:
        """Return the state from the result of :meth:`to_dict`. Every field is checked,
        since it may come from a file.

        Raises
        ------
        ValueError, TypeError, KeyError
            When a field has another kind, or is not there.
        """
        groups = []
        for group in json_value(found["groups"], list, "groups"):
            names = json_value(group["parameters"], list, "the parameters of a group")
            names = [json_value(name, str, "a parameter of a group") for name in names]
            numbers = json_value(group["numbers"], dict, "'numbers'")
            # earlier versions lack it
            first = json_value(group.get("first", numbers), dict, "'first'")
            place = _NUMBER.check("the place of a group", group["place"])
            groups.append(Group(place, numbers, first, names))
        kept = json_value(found["kept"], dict, "'kept'")
        for name, entries in kept.items():
            json_value(entries, dict, quoted(name))
        steps = found.get("num_steps", 0)  # which they lack as well
        num_steps = _NUMBER.check("the number of an optimiser's steps", steps)
        kind = json_value(found["class"], str, "the class of an optimiser")
        return cls(kind, num_steps, groups, kept)


def _each(kept: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    changed = dict(kept)
    for name, value in kept.items():
        if backend.is_array(value):
            changed[name] = change(value)
    return changed


def _entry(value: Any) -> Any:
    # A scalar of NumPy's decides about dtypes as an array does, and a number of
    # Python's does not.
    if isinstance(value, np.generic):
        return np.asarray(value)
    return value


def names_of(pipeline: Pipeline, parameters: Iterable[Parameter]) -> list[str]:
    """Return the names in the whole model of some parameters of this rank.

    Raises
    ------
    ArgumentError
        Code ``value``, for a parameter that is not the pipeline's.
    """
    names = {
        id(parameter.owner): name
        for name, parameter in reversed(list(pipeline.named_parameters()))
    }
    parameters = list(parameters)
    for parameter in parameters:
        if id(parameter.owner) not in names:
            raise ArgumentError(
                f"The optimiser has a parameter of shape {parameter.shape} that is "
                "not in this pipeline. A pipeline "
                "trains copies: give it pipeline.parameters()."
            )
    return [names[id(parameter.owner)] for parameter in parameters]


def put(
    pipeline: Pipeline,
    optimisers: Optimisers,
    values: Mapping[str, Any],
    states: Mapping[str, Any],
) -> None:
    """Load all of this rank's parameters, and a state dict into each optimiser.
    Local.
    """
    for name, parameter in pipeline.named_parameters():
        parameter.load(values[name], name)
    for key, optimiser in optimisers.items():
        optimiser.load_state_dict(states[key])


# -- as the files of a checkpoint have it: arrays by key, and numbers ------------------


def take(
    pipeline: Pipeline, optimisers: Optimisers, names: Iterable[str]
) -> tuple[Arrays, dict[str, OptimiserState]]:
    """Return copies of the values of some of this rank's parameters, and of their
    optimisers' states.

    Local, unless parameters are divided among ranks: then these concatenate them,
    whatever names each rank passes.

    Parameters
    ----------
    pipeline : Pipeline
    optimisers : mapping of str to Optimiser
    names : iterable of str
        Of parameters on this rank.

    Returns
    -------
    arrays : dict of str to array
        In C order. A key is ``parameters/NAME``, or ``OPTIMISER/WHAT/NAME`` such as
        ``optimiser/velocity/2.weight``.
    states : dict of str to OptimiserState
        By optimiser, without the arrays.

    Raises
    ------
    ArgumentError
        Code ``value``, for an optimiser of other parameters than this pipeline's.
    CheckpointError
        Code ``value``, for something kept that is neither an array nor a number.
    """
    names = dict.fromkeys(names)
    arrays = Arrays()
    own = dict(pipeline.named_parameters())
    for name, one in list(own.items()):
        if name not in names and not one.is_divided:
            del own[name]
            continue
        whole = one.joined(one.data)
        if name in names:
            arrays[f"parameters/{name}"] = np.array(backend.to_numpy(whole), order="C")
    states = {
        key: OptimiserState.of(pipeline, optimiser)
        for key, optimiser in optimisers.items()
    }
    for key, state in states.items():
        kept_here = [name for name in own if name in state.kept]
        joined = {name: _each(state.kept[name], own[name].joined) for name in kept_here}
        states[key] = state = replace(state, kept=joined).part(names)
        for name, kept in state.kept.items():
            for what, value in list(kept.items()):
                if backend.is_array(value):
                    array = np.asarray(kept.pop(what), order="C")
                    arrays[f"{key}/{what}/{name}"] = array
                elif not isinstance(value, int | float):
                    given = f"For {name} the optimiser keeps {what} = {quoted(value)}"
                    message = f"{given}; expected an array or a number."
                    raise CheckpointError("value", message)
    return arrays, states


def with_arrays(
    state: OptimiserState, key: str, arrays: Mapping[str, np.ndarray]
) -> OptimiserState:
    """Return the state of the optimiser of a name, from results of :func:`take` on any
    ranks.
    """
    kept = {name: dict(numbers) for name, numbers in state.kept.items()}
    for path, array in arrays.items():
        optimiser, _, rest = path.partition("/")
        what, _, name = rest.partition("/")
        if optimiser == key:
            kept.setdefault(name, {})[what] = array
    return replace(state, kept=kept)


# -- arguments -------------------------------------------------------------------------


def everyone(pipeline: Pipeline) -> ProcessGroup:
    """Return the group of all ranks that save and restore together: on a device mesh,
    the ranks of all parts.
    """
    if pipeline.grid:
        return pipeline.grid.group
    return pipeline.group


def begin_call(pipeline: Pipeline, call: str) -> None:
    """Check that all ranks are in the same call. Collective.

    The check uses the groups and the order of ranks of a step's first check. So a rank
    that is in a step learns of the difference; over another group, both would wait.

    Raises
    ------
    MessageError
        Code ``disagreement``.
    """
    if pipeline.grid is not None and pipeline.grid.tensor.size > 1:
        broadcast(pipeline.grid.tensor, 0, None, call)
    broadcast(pipeline.group, pipeline.plan.program.ranks_of(0)[0], None, call)


def named(optimisers: Optimisers) -> str | None:
    """Return the names and classes of optimisers, which are the same on all ranks."""
    found = [
        f"{name} ({type(one).__qualname__})" for name, one in sorted(optimisers.items())
    ]
    return ", ".join(found) or None


def checked(
    call: str, folder: Any, pipeline: Any, optimiser: Any
) -> dict[str, Optimiser]:
    """Return the optimisers of a call, by name. Refuse arguments in another order, and
    a model.

    Raises
    ------
    ArgumentError
        Codes ``type`` and ``value``.
    """
    if not isinstance(folder, str | Path) or not isinstance(pipeline, Pipeline):
        given = f"a {type(folder).__name__} and a {type(pipeline).__name__}"
        message = (
            f"checkpoint.{call} got {given}; expected a path and a Pipeline first."
        )
        raise ArgumentError("type", message)
    named = optimiser
    if not isinstance(optimiser, Mapping):
        named = {"optimiser": optimiser}
    optimisers = {name: one for name, one in named.items() if one is not None}
    for name, one in optimisers.items():
        _OPTIMISER.check("optimiser", one)
        if not isinstance(name, str) or "/" in name or name in ("", "parameters"):
            raise ArgumentError(
                f"{name!r} is not a name for an optimiser; expected a string, such "
                "as 'body'."
            )
    return optimisers
