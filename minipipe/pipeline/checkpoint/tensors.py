"""Arrays as the content of a safetensors file, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors

from minipipe.autograd import backend
from minipipe.errors import CheckpointError

# The dtypes of safetensors by their names there, with NumPy's names; bfloat16 is that of ml_dtypes.
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"},
    **{
        f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
    },
}
_NAMES = {ours: theirs for theirs, ours in _DTYPES.items()}
MOST_OF_A_HEADER = 2**24  # bytes: of some hundred thousand arrays, which take twelve times as much memory


def pieces(arrays: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """Return the content of a safetensors file in pieces: a header, and the memory of each array, without a copy.

    safetensors' own ``save`` makes two copies of all arrays.

    Parameters
    ----------
    arrays : mapping of str to array
        In C order, or they are copied: what is written is the memory as it lies.

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
    header, memory, end = {}, [], 0
    # The largest elements first, so that each array begins at a multiple of the size of its own.
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        if array.dtype.name not in _NAMES:
            message = f"{name} has the dtype {array.dtype}, which safetensors has not."
            raise CheckpointError("value", message)
        native = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        offsets = [end, end := end + native.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        memory.append(native.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *memory]


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file.

    Raises
    ------
    CheckpointError
        Codes ``damaged``, when it is no such file; ``value``, for a dtype that NumPy does not have here.

    Examples
    --------
    >>> unpacked(b"no tensors")
    Traceback (most recent call last):
        ...
    minipipe.errors.CheckpointError: it is no safetensors file: Error while deserializing: header too large
    """
    length = int.from_bytes(content[:8], "little")
    if MOST_OF_A_HEADER < length <= len(content):
        message = f"its header has {length:,} bytes; the limit is {MOST_OF_A_HEADER:,}"
        raise CheckpointError("damaged", message)
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise CheckpointError("damaged", f"it is no safetensors file: {error}") from None
    return {name: _array(name, told) for name, told in tensors}


def _array(name: str, told: Mapping[str, Any]) -> np.ndarray:
    try:
        dtype = backend.numpy_dtype(_DTYPES[told["dtype"]])
    except (KeyError, TypeError):
        advice = ": pip install ml_dtypes, and import it" if told["dtype"] == "BF16" else ""
        raise CheckpointError("value", f"{name} has the dtype {told['dtype']}, which NumPy has not{advice}.") from None
    return np.frombuffer(told["data"], dtype).reshape(told["shape"])
