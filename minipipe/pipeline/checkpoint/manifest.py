"""The manifest: the description of a checkpoint, in JSON. Every field that is read from
a file is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.objects import broadcast
from minipipe.core.autograd.backend import is_array
from minipipe.core.specs import INDEX, Spec
from minipipe.errors import ArgumentError, CheckpointError, FileError, quoted
from minipipe.io import json_value, parse_json, reading
from minipipe.pipeline.checkpoint import storage
from minipipe.pipeline.checkpoint.state import MOST, OptimiserState
from minipipe.pipeline.checkpoint.storage import Digest, is_name_of_file

FORMAT = "minipipe checkpoint"
VERSION = 1
_SIZE = INDEX._replace(maximum=MOST)
_NUMBERS = {
    **dict.fromkeys(("step", "num_steps", "num_microbatches"), _SIZE),
    "gradient_blocks": _SIZE._replace(minimum=1),
    **dict.fromkeys(("seed", "dropout_seed"), Spec(int)),  # also below 0
}


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint, or of one rank's part of it.

    Attributes
    ----------
    step : int
        The argument of ``save``.
    num_steps, seed, dropout_seed, num_microbatches, gradient_blocks : int
        Numbers of the pipeline.
    extra : dict
        The state of the user's program.
    parameters : dict of str to (file, dtype, shape)
        For each parameter of the model, the file with its values and the optimisers'
        state for it.
    optimisers : dict of str to OptimiserState
        The states of the optimisers, without arrays.
    files : dict of str to Digest
    """

    step: int
    num_steps: int
    seed: int
    dropout_seed: int
    num_microbatches: int
    gradient_blocks: int
    extra: dict[str, Any]
    parameters: dict[str, tuple[str, str, tuple[int, ...]]]
    optimisers: dict[str, OptimiserState]
    files: dict[str, Digest]

    @classmethod
    def merged(cls, parts: Sequence[Manifest]) -> Manifest:
        """Return the manifest of a checkpoint from the manifests of all ranks'
        parts.
        """
        parameters = {
            name: entry for part in parts for name, entry in part.parameters.items()
        }
        files = {name: digest for part in parts for name, digest in part.files.items()}
        extra = {name: value for part in parts for name, value in part.extra.items()}
        optimisers = {
            key: OptimiserState.merged(part.optimisers[key] for part in parts)
            for key in parts[0].optimisers
        }
        return replace(
            parts[0],
            extra=extra,
            parameters=parameters,
            optimisers=optimisers,
            files=files,
        )

    def to_json(self) -> str:
        """Return the text of the file."""
        optimisers = {key: state.to_dict() for key, state in self.optimisers.items()}
        found = {
            "format": FORMAT,
            "version": VERSION,
            **vars(self),
            "optimisers": optimisers,
        }
        return encoded(found, "the optimiser's state", indent=1)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Return the manifest of a checkpoint, after comparing it with the marker.

        Raises
        ------
        CheckpointError
            Codes ``damaged`` and ``unsupported``.
        """
        try:
            content, expected = storage.read_manifest(path)
        except FileError as error:
            raise damage(path, str(error)) from None
        if storage.digest_of(content).sha256 != expected:
            raise changed(path, storage.MANIFEST)
        wrong = f"{storage.MANIFEST} cannot be parsed"
        try:
            with reading(lambda reason: damage(path, f"{wrong}: {reason}.")):
                return cls.from_json(content)
        except CheckpointError as error:
            if error.code == "damaged":
                raise
            raise CheckpointError(
                error.code,
                f"The checkpoint {path.name} cannot be read: {error.message}.",
            ) from None

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Return the manifest that a text describes, every part of the right kind.

        Raises
        ------
        CheckpointError
            Code ``unsupported``.
        ArgumentError, ValueError, TypeError, KeyError
            For anything else.
        """
        found = parse_json(text)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ArgumentError("it is not a manifest of minipipe")
        if found.get("version") != VERSION:
            message = (
                f"it has version {quoted(found.get('version'))} of the format; this "
                f"minipipe supports {VERSION}"
            )
            raise CheckpointError("unsupported", message)
        # Earlier versions knew no replicas, and had one seed.
        found = {"gradient_blocks": 1, "dropout_seed": found["seed"], **found}
        numbers = {
            name: spec.check(repr(name), found[name]) for name, spec in _NUMBERS.items()
        }
        mappings = ("files", "parameters", "optimisers", "extra")
        parts = {name: json_value(found[name], dict, repr(name)) for name in mappings}
        files = {name: _digest(name, one) for name, one in parts["files"].items()}
        parameters = {
            name: _entry(name, one, files) for name, one in parts["parameters"].items()
        }
        optimisers = {
            name: _state(name, one) for name, one in parts["optimisers"].items()
        }
        extra = parts["extra"]
        return cls(
            **numbers,
            extra=extra,
            parameters=parameters,
            optimisers=optimisers,
            files=files,
        )


def _digest(name: str, entry: Any) -> Digest:
    """Return the length and the SHA-256 of a file."""
    size, sha256 = entry
    if not is_name_of_file(name):
        raise ArgumentError(f"{quoted(name)} is not the name of a file in a checkpoint")
    size = _SIZE.check("the size of a file", size)
    return Digest(size, json_value(sha256, str, "the digest of a file"))


def _entry(
    name: str, entry: Any, files: Collection[str]
) -> tuple[str, str, tuple[int, ...]]:
    """Return the file, dtype and shape of a parameter."""
    file, dtype, shape = entry
    if file not in files:
        message = f"{quoted(name)} refers to file {quoted(file)}"
        raise ArgumentError(f"{message}, which the manifest does not list")
    shape = json_value(shape, list, "a shape")
    lengths = tuple(_SIZE.check("a length", one) for one in shape)
    return file, json_value(dtype, str, "a dtype"), lengths


def _state(name: str, entry: Any) -> OptimiserState:
    """Return the state of an optimiser, without arrays."""
    state = OptimiserState.from_dict(json_value(entry, dict, quoted(name)))
    for kept in state.kept.values():
        for what, value in kept.items():
            if not isinstance(value, int | float):
                message = f"{quoted(what)} is {quoted(value)}, expected a number"
                raise ArgumentError("type", message)
    return state


def encoded(value: Any, what: str, indent: int | None = None) -> str:
    """Return a value as JSON.

    Numbers of NumPy become numbers of Python, and arrays lists.

    Raises
    ------
    CheckpointError
        Code ``value``.

    Examples
    --------
    >>> encoded({"position": np.int64(3), "best": np.float32(0.5)}, "extra")
    '{"position": 3, "best": 0.5}'
    """
    try:
        return json.dumps(value, default=_plain, indent=indent)
    except (TypeError, ValueError, RecursionError) as error:
        message = (
            f"{what} cannot be kept in a checkpoint: {error}. Expected numbers, "
            "strings, lists and dicts of them."
        )
        raise CheckpointError("value", message) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) or is_array(value):
        return value.tolist()
    raise ArgumentError("type", f"it holds a {type(value).__name__}")


# -- errors ----------------------------------------------------------------------------


def damage(path: Path, sentence: str) -> CheckpointError:
    """Return the error for a damaged checkpoint."""
    return CheckpointError(
        "damaged", f"The checkpoint {path.name} is damaged: {sentence}"
    )


def changed(path: Path, file: str) -> CheckpointError:
    """Return the error for a file whose digest differs from the written one."""
    what = f"{file} was changed after it was written: its SHA-256 differs."
    return damage(path, what)


def mismatch(sentence: str) -> CheckpointError:
    """Return the error for a checkpoint of another model, optimiser or seed."""
    return CheckpointError(
        "mismatch", f"Cannot resume from this checkpoint: {sentence}."
    )


def attempt(act: Callable[..., Any], *given: Any) -> list[Any]:
    """Return ``[error, result]`` of a function, for other ranks: one is None, a
    CheckpointError is (code, message).
    """
    try:
        return [None, act(*given)]
    except CheckpointError as error:
        return [(str(error.code), error.message), None]


def results(attempts: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the results of all ranks' attempts, or raise the first error, the same on
    all ranks.
    """
    found = list(attempts)
    for error, _ in found:
        if error is not None:
            raise CheckpointError(*error)
    return [result for _, result in found]


def from_rank_0(
    group: ProcessGroup, call: str, act: Callable[..., Any], *given: Any
) -> Any:
    """Return on every rank the result of a function on rank 0, or raise its
    CheckpointError. Collective.
    """
    mine = None
    if group.rank == 0:
        mine = attempt(act, *given)
    return results([broadcast(group, 0, mine, call)])[0]
