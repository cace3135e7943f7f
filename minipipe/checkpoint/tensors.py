"""Arrays as the content of a safetensors file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save

from minipipe import backend
from minipipe.errors import CheckpointError

# The dtypes of safetensors by their names there, with NumPy's names; bfloat16 is that of ml_dtypes.
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"},
    **{
        f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
    },
}

_MOST_OF_A_HEADER = 2**24  # bytes: of some hundred thousand arrays, which take twelve times as much memory


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the content of a safetensors file.

    Raises
    ------
    CheckpointError
        Code ``value``, for a dtype that safetensors does not have.

    Examples
    --------
    safetensors writes the memory of an array as it lies, so a transposed one would come back with other values.

    >>> matrix = np.arange(6.0).reshape(2, 3)
    >>> bool((unpacked(packed({"transposed": matrix.T}))["transposed"] == matrix.T).all())
    True
    """
    try:
        # np.ascontiguousarray would give an array of no axes one.
        return save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    except safetensors.SafetensorError as error:
        message = f"An array cannot be written to a safetensors file: {error}."
        raise CheckpointError("value", message) from None


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
    if _MOST_OF_A_HEADER < length <= len(content):
        message = f"its header has {length:,} bytes; the limit is {_MOST_OF_A_HEADER:,}"
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
