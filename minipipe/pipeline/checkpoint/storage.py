"""The files of checkpoints. Every access to the file system is here, one call for each
operation that can fail.

A folder of checkpoints::

    runs/digits/
        000001-step-20/            the serial number of the save, and the step that was reached
            rank-0.safetensors     parameters and optimiser state of the layers on rank 0 when it was saved
            rank-1.safetensors
            manifest.json          their contents, with the size and the SHA-256 of each
            complete               the SHA-256 of the manifest; written last
        000002-step-40/
        .000003-step-60.partial-5f0c9e27/     is being written, or was when its job was killed

The order of a save: every file is written under the partial name and forced to the
disk, the marker ``complete`` last; then the folder is renamed to its final name, in one
step. So either a whole checkpoint exists under its final name, or none [1]. To delete
one, it is first renamed to a partial name, in one step, before any of its files is
touched [2]. So if a folder under a final name is not whole, something else has damaged
it.

The serial number determines which checkpoint is the newest: steps repeat after a return
to an earlier one. safetensors does not notice a flipped bit, hence the digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np
import safetensors

from minipipe.core.autograd import backend
from minipipe.errors import CheckpointError, FileError
from minipipe.io import read_bytes

MANIFEST = "manifest.json"
MARKER = "complete"
_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_PARTIAL = re.compile(r"\.(\d{6,})-step-\d+\.partial-(\w+)")
_FILE = re.compile(r"rank-\d{1,6}\.safetensors", re.ASCII)
# the number of its process would be the same after each start of a container
_THIS_JOB = token_hex(4)
_DELETED = "deleted"
# bytes: of some ten thousand parameters; JSON can take 26 times as much memory
_MOST_OF_A_MANIFEST = 2**24


class Digest(NamedTuple):
    """The size of a file in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


def digest_of(*pieces: bytes | memoryview) -> Digest:
    """Return the digest of a file's content, in one piece or several."""
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return Digest(sum(map(len, pieces)), sha256.hexdigest())


def name_of_file(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank}.safetensors"


def is_name_of_file(name: str) -> bool:
    """Return whether :func:`name_of_file` can return this name, so that it is not a
    path to another folder.
    """
    return _FILE.fullmatch(name) is not None


def begin(folder: Path, step: int) -> Path:
    """Make the folder of a new checkpoint, under its partial name, and delete the
    remains of killed jobs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = os.listdir(folder)
    serial = 1
    if MANIFEST in entries:
        reason = (
            "it is a checkpoint itself; pass the folder that holds it, "
            f"{str(folder.parent)!r}"
        )
        raise FileError("unwritable", reason)
    for entry in entries:
        partial = _PARTIAL.fullmatch(entry)
        if partial and partial[2] != _THIS_JOB:
            shutil.rmtree(folder / entry, ignore_errors=True)
        # this job's is being written in the background
        elif found := partial or _NAME.fullmatch(entry):
            serial = max(serial, int(found[1]) + 1)
    path = folder / f".{serial:06d}-step-{step}.partial-{_THIS_JOB}"
    path.mkdir()
    return path


def write(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a new file, and force it to the disk."""
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def finish(partial: Path, manifest: bytes) -> Path:
    """Write the manifest and the marker, and give the checkpoint its name [1].

    Raises
    ------
    FileError
        Code ``too-large``, when the manifest would not be read.
    OSError
        When the system refuses.
    """
    if len(manifest) > _MOST_OF_A_MANIFEST:  # nothing is written that would not be read
        reason = (
            f"the manifest has {len(manifest):,} bytes, extra included; the limit is "
            f"{_MOST_OF_A_MANIFEST:,}"
        )
        raise FileError("too-large", reason)
    write(partial / MANIFEST, manifest)
    write(partial / MARKER, digest_of(manifest).sha256.encode())
    _sync_folder(partial)
    final = partial.with_name(partial.name[1:].partition(".partial-")[0])
    os.rename(partial, final)
    _sync_folder(final.parent)
    return final


def discard(partial: Path) -> None:
    """Delete a checkpoint that could not be finished. Its name goes first [2]: no rank
    writes into it any more.
    """
    with suppress(OSError):
        _delete(partial)


def keep_last(folder: Path, number: int) -> None:
    """Delete all checkpoints except the last ones that have a marker [2], and all of
    later steps than the last.

    So a restarted run deletes no checkpoint of a longer run until it has reached the
    same step.
    """
    newest, *_ = found = checkpoints(folder)
    found = [path for path in found if _step_of(path) <= _step_of(newest)]
    kept = [path for path in found if (path / MARKER).is_file()][:number]
    for old in found:
        if old not in kept:
            _delete(old)


def _delete(path: Path) -> None:
    """Remove a checkpoint's name, in one step, and then its files; the next save
    deletes any remains.
    """
    name = path.name.removeprefix(".").partition(".")[0]
    deleted = path.with_name(f".{name}.partial-{_DELETED}")
    os.rename(path, deleted)
    shutil.rmtree(deleted, ignore_errors=True)


def _step_of(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[2]) if found else 0


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first, damaged ones too; or the
    folder, if it is one itself.
    """
    entries = os.listdir(folder)
    if MARKER in entries or MANIFEST in entries:
        return [folder]
    found = [match for match in map(_NAME.fullmatch, entries) if match]
    return [
        folder / match[0]
        for match in sorted(found, key=lambda match: int(match[1]), reverse=True)
    ]


def read_manifest(path: Path) -> tuple[bytes, str]:
    """Return the manifest of a checkpoint, and its SHA-256 according to the marker.

    Raises
    ------
    FileError
        Codes ``unreadable`` and ``too-large``.
    """
    return read(path / MANIFEST, _MOST_OF_A_MANIFEST), read(path / MARKER, 64).decode(
        "ascii", "replace"
    )


def read(path: Path, size: int) -> bytes:
    """Return the content of a file, and read at most its recorded size.

    Raises
    ------
    FileError
        Codes ``unreadable`` and ``too-large``.
    """
    return read_bytes(path, most=size, pipes=False)


def _sync_folder(path: Path) -> None:
    """Force the names in a folder to the disk, if the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- arrays as the content of a file ---------------------------------------------------


# The dtypes of safetensors by their names there, with NumPy's names; bfloat16 comes
# from ml_dtypes.
_DTYPES = {
    **{
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "BOOL": "bool",
        "C64": "complex64",
    },
    **{
        f"{letter}{bits}": f"{kind}{bits}"
        for letter, kind in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
}
_NAMES = {ours: theirs for theirs, ours in _DTYPES.items()}
# which axes a weight has, where another program would have others
METADATA = {"layout": "minipipe"}
# bytes: of some hundred thousand arrays, which take twelve times as much memory
MOST_OF_A_HEADER = 2**24


def pieces(arrays: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """Return the content of a safetensors file in pieces: a header, and the memory of
    each array, without a copy.

    safetensors' own ``save`` makes two copies of all arrays.

    Parameters
    ----------
    arrays : mapping of str to array
        In C order, or they are copied, because their memory is written unchanged.

    Raises
    ------
    CheckpointError
        Code ``value``, for a dtype that safetensors does not have.

    Examples
    --------
    >>> matrix = np.arange(6.0).reshape(2, 3)
    >>> header, memory = pieces({"transposed": matrix.T})
    >>> len(header) % 8, len(memory)
    (0, 48)
    >>> bool((unpacked(b"".join([header, memory]))["transposed"] == matrix.T).all())
    True
    """
    header: dict[str, Any] = {"__metadata__": METADATA}
    memory = []
    end = 0
    # The largest elements first, so that each array begins at a multiple of its element
    # size.
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        if array.dtype.name not in _NAMES:
            message = (
                f"{name} has the dtype {array.dtype}, which safetensors does not "
                "support."
            )
            raise CheckpointError("value", message)
        native = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        offsets = [end, end := end + native.nbytes]
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        memory.append(native.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *memory]


def unpacked(content: bytes, bfloat16: str = "bfloat16") -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file, by name.

    Parameters
    ----------
    content : bytes
    bfloat16 : str
        The dtype of numbers in bfloat16, for which NumPy itself has none; ``"V2"`` keeps
        their bits.

    Raises
    ------
    CheckpointError
        Codes ``damaged``, when it is not a safetensors file; ``value``, for a dtype
        that NumPy does not have here.

    Examples
    --------
    >>> unpacked(b"no tensors")
    Traceback (most recent call last):
        ...
    minipipe.errors.CheckpointError: it is not a safetensors file: Error while deserializing: header too large
    """
    length = int.from_bytes(content[:8], "little")
    if MOST_OF_A_HEADER < length <= len(content):
        message = f"its header has {length:,} bytes; the limit is {MOST_OF_A_HEADER:,}"
        raise CheckpointError("damaged", message)
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            "damaged", f"it is not a safetensors file: {error}"
        ) from None
    # In one order on all ranks, which exchange an optimiser's arrays in that order: the
    # order of safetensors is random.
    dtypes = {**_DTYPES, "BF16": bfloat16}
    return {name: _array(name, entry, dtypes) for name, entry in sorted(tensors)}


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the metadata of the content of a safetensors file, texts by name, once
    :func:`unpacked` has checked it.

    Examples
    --------
    >>> metadata_of(b"".join(pieces({})))
    {'layout': 'minipipe'}
    """
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]).get("__metadata__") or {}


def _array(
    name: str, entry: Mapping[str, Any], dtypes: Mapping[str, str]
) -> np.ndarray:
    try:
        dtype = backend.numpy_dtype(dtypes[entry["dtype"]])
    except (KeyError, TypeError):
        advice = ""
        if entry["dtype"] == "BF16":
            advice = ": pip install ml_dtypes, and import it"
        raise CheckpointError(
            "value",
            f"{name} has the dtype {entry['dtype']}, which NumPy does not "
            f"have{advice}.",
        ) from None
    return np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
