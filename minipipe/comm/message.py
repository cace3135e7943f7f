"""What travels: a small fixed header, then the bytes of one array. No pickle.

MPI does not check messages: too short a one, or float64 into a float32 buffer, is silently accepted. So every message
carries its dtype, shape and step, and the receiver compares them before anybody sees the array.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from minipipe.autograd.backend import Array, dtype_name, is_floating, numpy_dtype
from minipipe.errors import MessageError

_MAGIC = b"mnpp"
_MAX_AXES = 8
_FORMAT = struct.Struct(f"<4sq8sB{_MAX_AXES}q11x")  # magic, step, dtype, number of axes, lengths
HEADER_SIZE = _FORMAT.size
"""The length of every header, 96 bytes."""


class Header(NamedTuple):
    """What a message holds.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    step : int
        The number of the call that it belongs to; 0 where there is none.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    step: int

    @classmethod
    def of(cls, array: np.ndarray, step: int = 0) -> Header:
        """Describe an array.

        Raises
        ------
        MessageError
            Codes ``dtype`` (objects and records do not travel) and ``shape`` (more than 8 axes).
        """
        return _described(numpy_dtype(array.dtype), array.shape, step)

    @property
    def nbytes(self) -> int:
        """How many bytes follow."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"


# What a step sends repeats, so each header is made, packed and unpacked once.
@lru_cache(maxsize=1024)
def _described(dtype: np.dtype, shape: tuple[int, ...], step: int) -> Header:
    if dtype.kind not in "biuc" and not is_floating(dtype):
        raise MessageError("dtype", f"Numbers and booleans can be sent; this array is {dtype}.")
    if len(shape) > _MAX_AXES:
        raise MessageError("shape", f"An array to send has at most {_MAX_AXES} axes; this one has {len(shape)}.")
    return Header(dtype, shape, step)


@lru_cache(maxsize=1024)
def packed(header: Header) -> bytes:
    """Return a header as bytes, always ``HEADER_SIZE`` of them."""
    dtype, shape, step = header
    return _FORMAT.pack(_MAGIC, step, dtype_name(dtype).encode(), len(shape), *shape, *(0,) * (_MAX_AXES - len(shape)))


@lru_cache(maxsize=1024)
def unpacked(data: bytes) -> Header:
    """Read a header.

    Raises
    ------
    MessageError
        Code ``header``, when the bytes are not one.
    """
    if len(data) < HEADER_SIZE or data[:4] != _MAGIC:
        raise MessageError(
            "header",
            f"{len(data)} bytes arrived that are not the header of a message. Did something else send with this "
            "tag, or do the ranks run different versions of minipipe?",
        )
    _, step, dtype, axes, *lengths = _FORMAT.unpack(data)
    return Header(np.dtype(dtype.rstrip(b"\0").decode("ascii")), tuple(lengths[:axes]), step)


def as_buffer(array: Array) -> Array:
    """Return an array that MPI can read and write: bfloat16, which Python's buffers do not know, as whole numbers.

    Examples
    --------
    >>> as_buffer(np.ones(2)).dtype
    dtype('float64')
    """
    return array.view("uint16") if array.dtype.kind == "V" else array


class Expectation(NamedTuple):
    """An awaited message, as far as its receiver knows it beforehand.

    Attributes
    ----------
    rank, source, tag : int
        Who waits, for whom.
    like : array or None
        An array of the same shape and dtype, if they are known.
    step : int or None
        The number of the call, if it matters.
    what : str
        In words, for messages.
    allocate : function
        ``(shape, dtype) -> array`` for the array that arrives, in a GPU's memory or where it can be copied to one fast.
    names : sequence of int
        The ranks' numbers in the world, for messages.
    """

    rank: int
    source: int
    tag: int
    like: np.ndarray | None = None
    step: int | None = None
    what: str = ""
    allocate: Callable[..., Array] = np.empty
    names: Sequence[int] = ()

    def check(self, header: Header) -> None:
        """Compare with the header that arrived.

        Raises
        ------
        MessageError
            Codes ``shape``, ``dtype`` and ``step``; names both sides.
        """
        if self.like is not None:
            mine = Header.of(self.like)
            for code in ("dtype", "shape"):
                if getattr(mine, code) != getattr(header, code):
                    raise MessageError(
                        code,
                        f"Rank {self._name(self.source)} sent {header} to rank {self._name(self.rank)}, which expects "
                        f"{mine} ({self}). Both ranks must describe the same model and batch.",
                    )
        if self.step is not None and header.step != self.step:
            raise MessageError(
                "step",
                f"Rank {self._name(self.source)} sent {self} in its step {header.step}, "
                f"but rank {self._name(self.rank)} is in step {self.step}. "
                "Every rank must call step, evaluate and predict equally often and in the same order.",
            )

    def awaited(self) -> str:
        """Return what the receiver waits for, and from whom."""
        return f"{self} from rank {self._name(self.source)}"

    def _name(self, rank: int) -> int:
        return self.names[rank] if self.names else rank

    def __str__(self) -> str:
        return self.what or f"a message with tag {self.tag}"
