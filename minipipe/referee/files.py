"""Records of a run: losses, gradients and weights by name, from files or a mapping.

A name says what an array is::

    loss                                    the loss of each step, shape (steps,)
    gradients/0.weight                      a gradient of the first step
    step/3/gradients/0.weight               one of step 3; steps count from 1
    microbatch/2/gradients/0.weight         the part that microbatch 2 adds to the sum
    step/0/weights/0.weight                 a weight before the first step
    weights/0.weight                        a weight after an unknown number of steps

Names without a kind, as in a file of weights, take the kind that the caller states.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minipipe.errors import ArgumentError, CheckpointError, FileError, quoted
from minipipe.io import MOST_BYTES, printable, read_bytes
from minipipe.pipeline.checkpoint.storage import unpacked
from minipipe.referee.formats import from_bfloat16

KINDS = ("gradients", "weights")
LOSS = "loss"
_NAME = re.compile(
    r"(?:step/(\d{1,9})/)?(?:microbatch/(\d{1,9})/)?(?:(gradients|weights)/)?(.+)"
)
_SHOWN = 3  # names in a message
_DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError)


def place_of(step: int, microbatch: int, *words: str) -> str:
    """Return words, step and microbatch, as far as they are known."""
    parts = [word for word in words if word]
    for noun, number in (("step", step), ("microbatch", microbatch)):
        if number >= 0:
            parts.append(f"{noun} {number}")
    return ", ".join(parts)


class Name(NamedTuple):
    """The parts of a name; step and microbatch are -1 if it does not state them."""

    step: int
    microbatch: int
    kind: str
    tensor: str

    def __str__(self) -> str:
        if self.kind == LOSS:
            return LOSS
        return f"{self.kind}/{printable(self.tensor)}"


Run = dict[Name, np.ndarray]


def parse_name(text: str, kind: str = "") -> Name:
    """Return the parts of a name.

    Raises
    ------
    ArgumentError
        Code ``name``, if neither the name nor the caller says of which kind it is.

    Examples
    --------
    >>> parse_name("step/3/gradients/0.weight")
    Name(step=3, microbatch=-1, kind='gradients', tensor='0.weight')
    """
    if text in (LOSS, "losses"):
        return Name(-1, -1, LOSS, "")
    match = _NAME.fullmatch(text)
    step, microbatch, stated, tensor = match.groups() if match else (None,) * 4
    kind = stated or kind
    if not kind or not tensor:
        expected = "loss, gradients/NAME or weights/NAME, perhaps after step/N/"
        message = f"the array {quoted(text)} has no kind; expected {expected}"
        advice = "or pass --kind gradients or --kind weights for plain names"
        raise ArgumentError("name", f"{message}, {advice}.")
    number = int(step or -1)
    if kind == "gradients":
        number = int(step or 1)
        if number < 1:
            message = f"{quoted(text)} is of step 0; steps count from 1"
            raise ArgumentError("name", f"{message}; weights of step 0 are the first.")
    return Name(number, int(microbatch or -1), kind, tensor)


def run_of(arrays: Mapping[str, Any], source: str, kind: str = "") -> Run:
    """Return the record of a run, as float64.

    Parameters
    ----------
    arrays : mapping of str to array
    source : str
        Where the arrays come from, for messages.
    kind : str
        The kind of names that state none.

    Raises
    ------
    ArgumentError
        Codes ``name``, ``dtype``, ``shape``, ``not-finite`` and ``missing``.
    """
    if not isinstance(arrays, Mapping):
        message = f"{source} gives {type(arrays).__name__}"
        raise ArgumentError("type", f"{message}; expected a mapping of arrays by name.")
    run: Run = {}
    for text, array in arrays.items():
        name = parse_name(str(text), kind)
        values = _as_numbers(np.asarray(array), f"{quoted(text)} of {source}")
        if name.kind == LOSS and values.ndim != 1:
            message = f"{quoted(text)} of {source} has the shape {values.shape}"
            expected = "one loss for each step, shape (steps,)"
            raise ArgumentError("shape", f"{message}; expected {expected}.")
        if name in run:
            message = f"{source} has {_listed([name])} twice"
            raise ArgumentError("duplicate", f"{message}; record it once.")
        run[name] = values
    if not any(values.size for values in run.values()):
        message = f"{source} has no numbers; expected losses, gradients or weights."
        raise ArgumentError("missing", message)
    return run


def _as_numbers(array: np.ndarray, described: str) -> np.ndarray:
    if array.dtype == np.dtype("V2"):
        array = from_bfloat16(np.ascontiguousarray(array))
    is_bfloat16 = array.dtype.name == "bfloat16"
    if array.dtype.kind not in "fiu" and not is_bfloat16:
        message = f"{described} has the dtype {array.dtype}; expected real numbers."
        raise ArgumentError("dtype", message)
    values = array.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        place = tuple(map(int, np.unravel_index(wrong[0], values.shape)))
        message = f"{described} has {wrong.size} values that are not finite"
        found = f"the first is {values[place]} at {place}"
        advice = "a run that overflowed has no rounding errors to compare"
        raise ArgumentError("not-finite", f"{message}; {found}: {advice}.")
    return values


def read_run(path: str | Path, kind: str = "") -> Run:
    """Return the record of a run in a file that ends in .npz or .safetensors.

    Raises
    ------
    FileError
        Codes ``unreadable`` and ``too-large``.
    ArgumentError
        As :func:`run_of`.
    """
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    read = readers.get(Path(path).suffix.lower())
    if read is None:
        raise FileError.of(path, "its name ends in neither .npz nor .safetensors")
    try:
        arrays = read(read_bytes(path))
    except (CheckpointError, ArgumentError) as error:
        raise FileError.of(path, error.message.rstrip(".")) from None
    return run_of(arrays, quoted(str(path), 200), kind)


def _read_safetensors(content: bytes) -> dict[str, np.ndarray]:
    return unpacked(content, bfloat16="V2")


def _read_npz(content: bytes) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            size = sum(member.file_size for member in file.infolist())
        if size > MOST_BYTES:
            message = f"its arrays have {size:,} bytes; the limit is {MOST_BYTES:,}"
            raise ArgumentError("too-large", message)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    # a damaged archive may fail in any of these ways
    except (*_DAMAGED, ValueError, OSError, EOFError, SyntaxError) as error:
        message = f"it is not an .npz file of numbers: {printable(str(error))}"
        raise ArgumentError(message) from None


def check_alike(a: Run, b: Run) -> None:
    """Refuse runs that record different arrays, or arrays of different shapes.

    Microbatches may differ if their sum is recorded: the runs then have other numbers
    of them.

    Raises
    ------
    ArgumentError
        Codes ``name`` and ``shape``.
    """
    decisive = []
    for run in (a, b):
        alone = (name for name in run if name._replace(microbatch=-1) not in run)
        wholes = (name for name in run if name.microbatch < 0)
        decisive.append({*alone, *wholes})
    only = [sorted(one - other) for one, other in (decisive, decisive[::-1])]
    if any(only):
        parts = []
        for letter, names in zip("AB", only):
            if names:
                parts.append(f"only {letter} has {_listed(names)}")
        message = f"the runs record different arrays: {'; '.join(parts)}"
        raise ArgumentError("name", f"{message}. Record the same names in both.")
    shapes: dict[str, tuple[int, ...]] = {}
    for name, values in (*a.items(), *b.items()):
        shape = shapes.setdefault(str(name), values.shape)
        if shape != values.shape:
            message = f"{name} has the shapes {shape} and {values.shape}"
            expected = "the same in both runs, and in all steps and microbatches"
            raise ArgumentError("shape", f"{message}; expected {expected}.")


def _listed(names: Sequence[Name]) -> str:
    shown = ", ".join(place_of(*it[:2], str(it)) for it in names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    return shown
