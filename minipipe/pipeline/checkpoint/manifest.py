"""The manifest: the description of a checkpoint, in JSON. Every field that is read from a file is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.autograd.backend import is_array
from minipipe.errors import ArgumentError, CheckpointCode, CheckpointError, FileError, quoted
from minipipe.io import json_value
from minipipe.pipeline.checkpoint import storage
from minipipe.pipeline.checkpoint.storage import Digest, is_name_of_file

FORMAT, VERSION = "minipipe checkpoint", 1


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint.

    Attributes
    ----------
    step : int
        As given to ``save``.
    num_steps, seed, dropout_seed, num_microbatches : int
        Of the pipeline.
    extra : dict
        Of the script.
    parameters : dict of str to (file, dtype, shape)
        For each parameter of the model, where its values and the optimisers' state for it are.
    optimisers : dict of str to dict
        For each optimiser its class, how many steps it took, its groups with the names of their parameters, and the
        numbers kept for each parameter.
    files : dict of str to Digest
    """

    step: int
    num_steps: int
    seed: int
    dropout_seed: int
    num_microbatches: int
    extra: dict[str, Any]
    parameters: dict[str, tuple[str, str, tuple[int, ...]]]
    optimisers: dict[str, dict[str, Any]]
    files: dict[str, Digest]

    def to_json(self) -> bytes:
        """Return the text of the file."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode()


def encoded(value: Any, what: str) -> bytes:
    """Return a value as JSON.

    Numbers of NumPy become numbers of Python, and arrays lists.

    Raises
    ------
    CheckpointError
        Code ``value``.

    Examples
    --------
    >>> encoded({"position": np.int64(3), "best": np.float32(0.5)}, "extra")
    b'{"position": 3, "best": 0.5}'
    """
    try:
        return json.dumps(value, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{what} cannot be kept in a checkpoint: {error}. Expected numbers, strings, lists and dicts of them."
        raise CheckpointError("value", message) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) or is_array(value):
        return value.tolist()
    raise ArgumentError("type", f"it holds a {type(value).__name__}")


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint, after comparing it with the marker.

    Raises
    ------
    CheckpointError
        Codes ``damaged`` and ``version``.
    """
    try:
        content, expected = storage.read_manifest(path)
    except FileError as error:
        raise damage(path, str(error)) from None
    if storage.digest_of(content).sha256 != expected:
        raise damage(path, f"{storage.MANIFEST} is not what was written there: its SHA-256 differs.")
    try:
        found = json.loads(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ArgumentError("value", "it is no manifest of minipipe")
        if found.get("version") != VERSION:
            message = f"{path} has version {quoted(found.get('version'))} of the form; this minipipe knows {VERSION}."
            raise CheckpointError(CheckpointCode.VERSION, message)
        return _checked(found)
    except KeyError as error:
        raise damage(path, f"{storage.MANIFEST} cannot be understood: it lacks {error}.") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise damage(path, f"{storage.MANIFEST} cannot be understood: {error}.") from None


def damage(path: Path, sentence: str) -> CheckpointError:
    """Return the error for a damaged checkpoint."""
    return CheckpointError(CheckpointCode.DAMAGED, f"The checkpoint {path.name} is damaged: {sentence}")


def mismatch(sentence: str) -> CheckpointError:
    """Return the error for a checkpoint of another model, optimiser or seed."""
    return CheckpointError(CheckpointCode.MISMATCH, f"Cannot resume from this checkpoint: {sentence}.")


def raise_first(errors: list[list[str] | None]) -> None:
    """Raise the first of the ranks' errors, the same on all ranks.

    Parameters
    ----------
    errors : list of (code, message) or None
        By rank.
    """
    for error in errors:
        if error is not None:
            raise CheckpointError(*error)


def _checked(found: Mapping[str, Any]) -> Manifest:
    """Return a manifest whose every part has the right kind, or raise ValueError, TypeError or KeyError."""
    numbers = {name: _whole(found[name], quoted(name)) for name in ("step", "num_steps", "num_microbatches")}
    seeds = {"seed": found["seed"], "dropout_seed": found.get("dropout_seed", found["seed"])}  # earlier there was one
    for name, seed in seeds.items():
        json_value(seed, int, repr(name))  # which may be below 0
    files = {}
    for name, (size, sha256) in json_value(found["files"], dict, "'files'").items():
        if not is_name_of_file(name):
            raise ArgumentError("value", f"{quoted(name)} is no name of a file in a checkpoint")
        files[name] = Digest(_whole(size, "the size of a file"), json_value(sha256, str, "the digest of a file"))
    parameters = {}
    for name, (file, dtype, shape) in json_value(found["parameters"], dict, "'parameters'").items():
        if file not in files:
            raise ArgumentError(
                "value", f"{quoted(name)} refers to file {quoted(file)}, which the manifest does not list"
            )
        lengths = [_whole(length, "a length") for length in json_value(shape, list, "a shape")]
        parameters[name] = file, json_value(dtype, str, "a dtype"), tuple(lengths)
    optimisers = json_value(found["optimisers"], dict, "'optimisers'")
    for name in optimisers:
        _check_optimiser(json_value(optimisers[name], dict, quoted(name)))
    extra = json_value(found["extra"], dict, "'extra'")
    return Manifest(**numbers, **seeds, extra=extra, parameters=parameters, optimisers=optimisers, files=files)


def _check_optimiser(told: Mapping[str, Any]) -> None:
    """Refuse an optimiser's state unless every part has the right kind."""
    json_value(told["class"], str, "the class of an optimiser")
    _whole(told.get("num_steps", 0), "the steps of an optimiser")  # earlier versions lack them
    for group in json_value(told["groups"], list, "groups"):
        _whole(group["place"], "the place of a group")
        for which in {"numbers", "first"} & {"numbers", *group}:  # earlier versions lack the first ones
            json_value(group[which], dict, quoted(which))
        for name in json_value(group["parameters"], list, "the parameters of a group"):
            json_value(name, str, "a parameter of a group")
    kept = json_value(told["kept"], dict, "'kept'")
    for name in kept:
        for what, value in json_value(kept[name], dict, quoted(name)).items():
            if not isinstance(value, int | float):
                raise ArgumentError("type", f"{quoted(what)} of {quoted(name)} is {quoted(value)}, expected a number")


def _whole(value: Any, name: str) -> int:
    """Return a whole number that fits into the header of a message."""
    if not 0 <= json_value(value, int, name) < 2**63:
        raise ArgumentError("type", f"{name} is {quoted(value)}, expected a whole number")
    return value
