"""The state of a pipeline and its optimisers on one rank: read and written by name.

A rank's part is arrays by key, and a description of the optimisers in numbers. A key is ``parameters/NAME``, or
``OPTIMISER/WHAT/NAME`` such as ``optimiser/velocity/2.weight``: names are those of the whole model, so any rank finds
what it needs, whatever the partition was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.errors import ArgumentError, CheckpointError, quoted
from minipipe.nn import Parameter
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint.manifest import encoded, mismatch

Optimisers = Mapping[str, Optimiser]
Arrays = dict[str, np.ndarray]
Told = dict[str, dict[str, Any]]


def by_name(optimiser: Optimiser | Optimisers | None) -> dict[str, Optimiser]:
    """Return the optimisers that were given, by name.

    Raises
    ------
    ArgumentError
        Codes ``type`` and ``value``.

    Examples
    --------
    >>> from minipipe import optim
    >>> list(by_name(optim.SGD([], 0.1))), list(by_name({"body": optim.SGD([], 0.1)}))
    (['optimiser'], ['body'])
    """
    named = optimiser if isinstance(optimiser, Mapping) else {"optimiser": optimiser}
    given = {name: one for name, one in named.items() if one is not None}
    for name, one in given.items():
        if not isinstance(one, Optimiser):
            message = f"optimiser is {one!r:.60}; expected an optimiser, or a mapping of names to optimisers."
            raise ArgumentError("type", message)
        if not isinstance(name, str) or "/" in name or name in ("", "parameters"):
            raise ArgumentError("value", f"{name!r} is no name for an optimiser; expected a word, such as 'body'.")
    return given


def check_given(call: str, folder: Any, pipeline: Any) -> None:
    """Refuse arguments in another order, and a model in place of a pipeline.

    Raises
    ------
    ArgumentError
        Code ``type``.
    """
    if not isinstance(folder, str | Path) or not isinstance(pipeline, Pipeline):
        kinds = f"a {type(folder).__name__} and a {type(pipeline).__name__}"
        raise ArgumentError(
            "type", f"checkpoint.{call} was given {kinds}; expected a path and a Pipeline, then the rest."
        )


def take(pipeline: Pipeline, optimisers: Optimisers, names: Iterable[str]) -> tuple[Arrays, Told]:
    """Return copies of the values of some of this rank's parameters, and of what its optimisers keep for them. Local.

    Parameters
    ----------
    pipeline : Pipeline
    optimisers : mapping of str to Optimiser
    names : iterable of str
        Of parameters on this rank.

    Returns
    -------
    arrays : dict of str to array
        In C order: safetensors takes the memory as it lies.
    told : dict of str to dict
        By optimiser: its ``"class"`` and ``"num_steps"``; its ``"groups"``, each with its ``"numbers"``, those before
        the ``"first"`` step, and its ``"parameters"`` by name; and the numbers ``"kept"`` for each parameter.

    Raises
    ------
    ArgumentError
        Code ``value``, for an optimiser of other parameters than this pipeline's.
    CheckpointError
        Code ``value``, for something kept that is neither an array nor a number.
    """
    own = dict(pipeline.named_parameters())
    arrays: Arrays = {f"parameters/{name}": _copy(own[name].data) for name in names}
    told: Told = {}
    for key, optimiser in optimisers.items():
        state, kept = optimiser.state_dict(), {}
        for name, states in named(own, optimiser, state["states"]):
            if f"parameters/{name}" in arrays:
                # A scalar of NumPy's decides about dtypes as an array does, and a number of Python's does not.
                found = {k: v for k, v in states.items() if backend.is_array(v) or isinstance(v, np.generic)}
                arrays |= {f"{key}/{what}/{name}": _copy(value) for what, value in found.items()}
                kept[name] = {what: _number(value, what, name) for what, value in states.items() if what not in found}
        both = zip(state["groups"], state["first"] or state["groups"])
        groups = [{"numbers": numbers, "first": first, "parameters": []} for numbers, first in both]
        for group, optimisers_group in zip(groups, optimiser.groups):
            group["parameters"] = [name for name, _ in named(own, optimisers_group, optimisers_group.parameters)]
        told[key] = {"class": type(optimiser).__qualname__, "num_steps": state["num_steps"]}
        told[key] |= {"groups": groups, "kept": kept}
    return arrays, told


def check(pipeline: Pipeline, optimisers: Optimisers, told: Told) -> None:
    """Refuse the state of other optimisers. Local.

    Raises
    ------
    CheckpointError
        Code ``mismatch``.
    """
    known, others = ", ".join(map(quoted, told)) or "none", sorted(told.keys() - optimisers.keys())
    if optimisers and others:
        other = quoted(others[0])
        raise mismatch(f"it also has the state of an optimiser {other}; give all of them, by name, as in save: {known}")
    for key, optimiser in optimisers.items():
        name = type(optimiser).__qualname__
        if key not in told:
            raise mismatch(f"it has no state of an optimiser {key!r}; give them by name, as in save: {known}")
        if told[key]["class"] != name:
            there = quoted(told[key]["class"])[1:-1]
            raise mismatch(f"its {key} is of the class {there}, and this one of the class {name}")
        _check_trained(pipeline, key, optimiser, told[key])


def states(pipeline: Pipeline, optimisers: Optimisers, arrays: Mapping[str, np.ndarray], told: Told) -> Told:
    """Return the state of each optimiser on this rank, from what :func:`take` returned. Local.

    Parameters
    ----------
    pipeline : Pipeline
    optimisers : mapping of str to Optimiser
    arrays : mapping of str to array
        From any ranks, as long as everything of this rank's parameters is among them.
    told : dict of str to dict
        Of all ranks, merged by :func:`merged`.

    Raises
    ------
    CheckpointError
        Code ``mismatch``, for one that its optimiser would not take.
    """
    own, found = dict(pipeline.named_parameters()), {}
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for key, array in arrays.items():
        optimiser_key, _, rest = key.partition("/")
        what, _, name = rest.partition("/")
        if optimiser_key in optimisers:
            kept.setdefault((optimiser_key, name), {})[what] = array
    for key, optimiser in optimisers.items():
        names = [name for name, _ in named(own, optimiser, optimiser.parameters)]
        of_each = [{**kept.get((key, name), {}), **told[key]["kept"].get(name, {})} for name in names]
        groups = _groups(pipeline, optimiser, told[key])
        first = [group.get("first", group["numbers"]) for group in groups]
        found[key] = {"groups": [group["numbers"] for group in groups], "first": first, "states": of_each}
        found[key]["num_steps"] = told[key].get("num_steps", 0)  # earlier versions did not keep it
        try:
            optimiser.check_state(found[key])
        except ArgumentError as error:
            raise mismatch(f"its {key} cannot be taken. {error.message.rstrip('.')}") from None
    return found


def replaced(optimisers: Optimisers, found: Told) -> Iterator[str]:
    """Yield a sentence for each hyper-parameter that the script gives another value than that of the checkpoint. Local.

    A schedule changes them from step to step: what was given then is compared with what is given now, before the first
    step of both.
    """
    for key, optimiser in optimisers.items():
        given, state = optimiser.first or optimiser.state_dict()["groups"], found[key]
        for place, (own, first, now) in enumerate(zip(given, state["first"], state["groups"])):
            for name, value in own.items():
                if encoded(value, name) not in [encoded(one.get(name), name) for one in (first, now)]:
                    there = f"is taken, {quoted(now[name])} ({quoted(first.get(name))} before its first step)"
                    keep = f"{key}.groups[{place}].{name} = {value}"
                    yield f"{name} is {value} in this script; that of the checkpoint {there}. To keep it: {keep}"


def put(pipeline: Pipeline, optimisers: Optimisers, arrays: Mapping[str, np.ndarray], found: Told) -> None:
    """Take all of this rank's parameters, and the states that :func:`states` found. Local."""
    for name, parameter in pipeline.named_parameters():
        parameter.load(arrays[f"parameters/{name}"], name)
    for key, optimiser in optimisers.items():
        optimiser.load_state_dict(found[key])


def _check_trained(pipeline: Pipeline, key: str, optimiser: Optimiser, told: dict[str, Any]) -> None:
    """Refuse an optimiser that trains other parameters of this rank, for which there is no state."""
    own = dict(pipeline.named_parameters())
    here = {name for name, _ in named(own, optimiser, optimiser.parameters)}
    there = {name for group in told["groups"] for name in group["parameters"] if name in own}
    if here != there:
        names = ", ".join(sorted(here ^ there)[:3])
        raise mismatch(f"its {key} and this one train other parameters: {names} is with one of the two only")


def merged(parts: Iterable[Told]) -> Told:
    """Return several ranks' descriptions of the same optimisers, merged.

    Groups in the same place with the same numbers become one group.
    """
    result: Told = {}
    for part in parts:
        for key, told in part.items():
            whole = result.setdefault(key, {**told, "groups": [], "kept": {}})
            whole["kept"].update(told["kept"])
            for place, group in enumerate(told["groups"]):
                alike = (g for g in whole["groups"] if g == {"place": place, **group, "parameters": g["parameters"]})
                same = next(alike, None)
                if same is None:
                    same = {"place": place, **group, "parameters": []}
                    whole["groups"].append(same)
                same["parameters"] += [name for name in group["parameters"] if name not in same["parameters"]]
    return result


def _groups(pipeline: Pipeline, optimiser: Optimiser, told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the saved group for each group of an optimiser: that of its parameters, or one in the same place."""
    own, found = dict(pipeline.named_parameters()), []
    for place, group in enumerate(optimiser.groups):
        names = [name for name, _ in named(own, group, group.parameters)]
        saved = [g for g in told["groups"] if set(names) & set(g["parameters"])]
        if any(g["numbers"] != saved[0]["numbers"] for g in saved):
            raise mismatch(f"the parameters of group {place}, {', '.join(names)}, were in groups of other numbers")
        if not saved:  # this rank has none of this group
            saved = [g for g in told["groups"] if g["place"] == place]
        found.append(saved[0] if saved else {"numbers": group.hyper_parameters})
    return found


def named(own: Mapping[str, Parameter], owner: Any, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each parameter of an optimiser or of a group of it, and the value that belongs to it.

    Parameters
    ----------
    own : mapping of str to Parameter
        Those of the pipeline on this rank.
    owner : Optimiser or ParameterGroup
    values : iterable
        One for each of the owner's parameters, in their order.

    Raises
    ------
    ArgumentError
        Code ``value``: when the owner has a parameter that is not the pipeline's.
    """
    names = {id(parameter.owner): name for name, parameter in reversed(list(own.items()))}
    for parameter, value in zip(owner.parameters, values):
        if id(parameter.owner) not in names:
            raise ArgumentError(
                "value",
                f"The optimiser has a parameter of shape {parameter.shape} that is not in this pipeline. A pipeline "
                "trains copies: give it pipeline.parameters().",
            )
        yield names[id(parameter.owner)], value


def _number(value: Any, what: str, name: str) -> Any:
    if not isinstance(value, int | float):
        message = f"For {name} the optimiser keeps {what} = {quoted(value)}; expected an array or a number."
        raise CheckpointError("value", message)
    return value


def _copy(array: Any) -> np.ndarray:
    return np.array(backend.to_numpy(array), order="C")
