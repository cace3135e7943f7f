"""The manifest: the description of a checkpoint, in JSON. Every field that is read from
a file is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.autograd.backend import is_array
from minipipe.comm import ProcessGroup
from minipipe.comm.objects import broadcast
from minipipe.errors import ArgumentError, CheckpointError, FileError, quoted
from minipipe.io import json_value, parse_json, reading
from minipipe.pipeline.checkpoint import storage
from minipipe.pipeline.checkpoint.state import MOST, OptimiserState
from minipipe.pipeline.checkpoint.storage import Digest, is_name_of_file
from minipipe.specs import INDEX

FORMAT, VERSION = "minipipe checkpoint", 1
_SIZE = INDEX._replace(maximum=MOST)


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
            raise ArgumentError("value", "it is not a manifest of minipipe")
        if found.get("version") != VERSION:
            message = (
                f"it has version {quoted(found.get('version'))} of the format; this "
                f"minipipe supports {VERSION}"
            )
            raise CheckpointError("unsupported", message)
        names = ("step", "num_steps", "num_microbatches")
        numbers = {name: _SIZE.check(quoted(name), found[name]) for name in names}
        blocks = found.get("gradient_blocks", 1)  # earlier versions knew no replicas
        blocks = _SIZE._replace(minimum=1).check("'gradient_blocks'", blocks)
        seed = found["seed"]  # which may be below 0; earlier versions had one
        seeds = {
            name: json_value(found.get(name, seed), int, repr(name))
            for name in ("seed", "dropout_seed")
        }
        files = {}
        for name, (size, sha256) in json_value(found["files"], dict, "'files'").items():
            if not is_name_of_file(name):
                raise ArgumentError(
                    "value", f"{quoted(name)} is not the name of a file in a checkpoint"
                )
            size = _SIZE.check("the size of a file", size)
            files[name] = Digest(size, json_value(sha256, str, "the digest of a file"))
        parameters = {}
        for name, (file, dtype, shape) in json_value(
            found["parameters"], dict, "'parameters'"
        ).items():
            if file not in files:
                what = (
                    f"{quoted(name)} refers to file {quoted(file)}, which the manifest "
                    "does not list"
                )
                raise ArgumentError("value", what)
            lengths = [
                _SIZE.check("a length", one)
                for one in json_value(shape, list, "a shape")
            ]
            parameters[name] = file, json_value(dtype, str, "a dtype"), tuple(lengths)
        optimisers = {}
        for name, state in json_value(
            found["optimisers"], dict, "'optimisers'"
        ).items():
            optimisers[name] = OptimiserState.from_dict(
                json_value(state, dict, quoted(name))
            )
            for what, value in (
                one for kept in optimisers[name].kept.values() for one in kept.items()
            ):
                if not isinstance(value, int | float):
                    raise ArgumentError(
                        "type", f"{quoted(what)} is {quoted(value)}, expected a number"
                    )
        extra = json_value(found["extra"], dict, "'extra'")
        numbers |= {**seeds, "gradient_blocks": blocks}
        return cls(
            **numbers,
            extra=extra,
            parameters=parameters,
            optimisers=optimisers,
            files=files,
        )


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
    mine = attempt(act, *given) if group.rank == 0 else None
    return results([broadcast(group, 0, mine, call)])[0]
