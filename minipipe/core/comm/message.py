"""Messages, and the requests of sends and receives that were started.

A message is a small fixed header, then the bytes of one array; no pickle. MPI does not
check messages: one that is too short, or float64 into a float32 buffer, is silently
accepted. So every message carries its dtype, shape and step, and the receiver compares
them before its program gets the array.
"""

from __future__ import annotations

import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from minipipe.core.autograd.backend import Array, dtype_name, is_floating, numpy_dtype
from minipipe.core.errors import MessageError, not_copyable
from minipipe.core.specs import Spec, as_float

_SECONDS = Spec(float, above=0, maximum=math.inf, expected="seconds, more than 0")
MAGIC = b"mnpp"
_MAX_AXES = 8
_STEP = struct.Struct("<4sq")  # magic, step
_FORM = struct.Struct(f"<8sB{_MAX_AXES}q11x")  # dtype, number of axes, lengths
HEADER_SIZE = _STEP.size + _FORM.size
"""The length of every header, 96 bytes."""
DEFAULT_TIMEOUT = 300.0
"""Seconds that a rank waits for another before it gives up with an error."""
_ALIGNMENT = 64  # of arrays in an array of bytes
_LENGTH = np.dtype("<u8")  # of a description, which it precedes
# codes of waits in which no message arrived
_NOT_YET = ("timeout", "rank-lost", "deadlock")
Label = str | Callable[[], str]
"""A description for errors, or a function that composes it for them."""


class Header(NamedTuple):
    """The description of the array in a message.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    step : int
        The number of the call that it belongs to; 0 if none.
    packed : bytes
        It as bytes, always ``HEADER_SIZE`` of them.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    step: int
    packed: bytes

    @classmethod
    def of(cls, array: np.ndarray, step: int = 0) -> Header:
        """Describe an array.

        Raises
        ------
        MessageError
            Codes ``dtype`` (objects and records do not travel) and ``shape`` (more than
            8 axes).
        """
        return described(array.dtype, array.shape, step)

    @property
    def nbytes(self) -> int:
        """The number of bytes that follow."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"


# Every step sends the same shapes, so each is described and read once; and once in a
# step, with its number.
# a dtype of array-api-strict warns when it is compared with one of NumPy
@lru_cache(maxsize=1024, typed=True)
def described(dtype: Any, shape: tuple[int, ...], step: int) -> Header:
    """Return the header of an array; see :meth:`Header.of`."""
    dtype = numpy_dtype(dtype)
    return Header(dtype, shape, step, packed_step(step) + packed_form(dtype, shape))


packed_step = partial(_STEP.pack, MAGIC)
"""Return the beginning of a header, which differs from step to step."""


@lru_cache(maxsize=1024)
def packed_form(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the rest of a header, which describes the array.

    Raises
    ------
    MessageError
        Codes ``dtype`` and ``shape``.

    Examples
    --------
    >>> packed_step(3) + packed_form(np.dtype("f4"), (2,)) == described(
    ...     np.dtype("f4"), (2,), 3
    ... ).packed
    True
    """
    if dtype.kind not in "biuc" and not is_floating(dtype):
        message = f"Numbers and booleans can be sent; this array is {dtype}."
        raise MessageError("dtype", message)
    if len(shape) > _MAX_AXES:
        raise MessageError(
            "shape",
            f"An array to send has at most {_MAX_AXES} axes; this one has "
            f"{len(shape)}.",
        )
    lengths = *shape, *(0,) * (_MAX_AXES - len(shape))
    return _FORM.pack(dtype_name(dtype).encode(), len(shape), *lengths)


@lru_cache(maxsize=1024)
def unpacked(data: bytes) -> Header:
    """Read a header.

    Raises
    ------
    MessageError
        Code ``damaged``, when the bytes are not one.
    """
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        raise MessageError(
            "damaged",
            f"{len(data)} bytes arrived that are not the header of a message. Did "
            "something else send with this "
            "tag, or do the ranks run different versions of minipipe?",
        )
    dtype, shape = _read(data[_STEP.size : HEADER_SIZE])
    return Header(dtype, shape, _STEP.unpack_from(data)[1], data)


@lru_cache(maxsize=1024)
def _read(form: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    dtype, axes, *lengths = _FORM.unpack(form)
    return np.dtype(dtype.rstrip(b"\0").decode("ascii")), tuple(lengths[:axes])


def as_buffer(array: Array) -> Array:
    """Return an array that MPI can read and write: bfloat16, which Python buffers lack,
    as whole numbers.

    Examples
    --------
    >>> as_buffer(np.ones(2)).dtype
    dtype('float64')
    """
    if array.dtype.kind == "V":
        return array.view("uint16")
    return array


class Expectation(NamedTuple):
    """A message as its receiver expects it.

    Attributes
    ----------
    rank, source, tag : int
        The receiver, the sender, and the tag.
    like : array or None
        An array of the expected shape and dtype, if they are known.
    step : int or None
        The number of the call, if it is to be compared.
    what : str or function
        A description, for error messages.
    allocate : function
        ``(shape, dtype) -> array`` for the array that arrives, such as one in a GPU's
        memory.
    names : sequence of int
        The world ranks, for error messages.
    """

    rank: int
    source: int
    tag: int
    like: np.ndarray | None = None
    step: int | None = None
    what: Label = ""
    allocate: Callable[..., Array] = np.empty
    names: Sequence[int] = ()

    def check(self, header: Header) -> None:
        """Compare the header that arrived.

        Raises
        ------
        MessageError
            Codes ``shape``, ``dtype`` and ``disagreement``; names both ranks.
        """
        if self.like is not None:
            mine = Header.of(self.like)
            for code in ("dtype", "shape"):
                if getattr(mine, code) != getattr(header, code):
                    raise MessageError(
                        code,
                        f"Rank {self._name(self.source)} sent {header} to rank "
                        f"{self._name(self.rank)}, which expects {mine} ({self}). "
                        "Both ranks must describe the same model and batch.",
                    )
        if self.step is not None and header.step != self.step:
            raise MessageError(
                "disagreement",
                f"Rank {self._name(self.source)} sent {self} in its step "
                f"{header.step}, but rank {self._name(self.rank)} is in step "
                f"{self.step}. Every rank must call step, evaluate and predict "
                "equally often and in the same order.",
            )

    def awaited(self) -> str:
        """Describe the message and its sender."""
        return f"{self} from rank {self._name(self.source)}"

    def _name(self, rank: int) -> int:
        if self.names:
            return self.names[rank]
        return rank

    def __str__(self) -> str:
        what = self.what
        if callable(what):
            what = what()
        return what or f"a message with tag {self.tag}"


# -- requests --------------------------------------------------------------------------


class Request(ABC):
    """A send or a receive that was started.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import init_process_group
    >>> with init_process_group() as group:
    ...     sending = group.isend(np.array([1.0, 2.0]), destination=0)
    ...     receiving = group.irecv(source=0)
    ...     print(receiving.wait(), sending.wait())
    [1. 2.] None
    """

    @abstractmethod
    def wait(self, timeout: float | None = None) -> np.ndarray | None:
        """Wait until it is done, and return the array of a receive; None for a send.

        Parameters
        ----------
        timeout : float, optional
            In seconds; the group's timeout by default.

        Raises
        ------
        MessageError
            Code ``timeout``, naming the message, its sender and the time waited; or the
            code of its mismatch.
        """

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied and pickled."""
        raise not_copyable(
            self,
            "the message that it stands for is one",
            "Copy the array that wait() returns.",
        )


class Receive(Request):
    """A receive of one message, however often it is waited for; copied into the
    caller's array if there is one.

    Parameters
    ----------
    take : function
        ``(expected, timeout) -> array``: waits for the message.
    expected : Expectation
    settled : function
        Called once the message has arrived, whether or not it was as expected.
    """

    def __init__(
        self,
        take: Callable[[Expectation, float | None], np.ndarray],
        expected: Expectation,
        settled: Callable[[], object] | None = None,
    ) -> None:
        self._take = take
        self._expected = expected
        self._settled = settled
        self._array: np.ndarray | None = None
        self._error: MessageError | None = None

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Return the array, or raise the error of the message, the same each time."""
        if self._error is not None:
            raise self._error
        if self._array is None:
            try:
                array = self._take(self._expected, timeout)
                out = self._expected.like
            except MessageError as error:
                if error.code not in _NOT_YET:
                    self._error = error
                    if self._settled is not None:
                        self._settled()
                raise
            if out is not None and out is not array:
                out[...] = array
                array = out
            self._array = array
            if self._settled is not None:
                self._settled()
        return self._array


class Done(Request):
    """A send that is complete, because the array was copied."""

    def wait(self, timeout: float | None = None) -> None:
        """Return at once."""
        return None


class Given(Request):
    """The root's part of a broadcast: its own array, once it is sent."""

    def __init__(self, array: np.ndarray, sends: list[Request]) -> None:
        self._array = array
        self._sends = sends

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Return the array."""
        finish(self._sends, timeout)
        return self._array


def finish(requests: Iterable[Request], timeout: float | None = None) -> None:
    """Wait until each is done."""
    for request in requests:
        request.wait(timeout)


# -- arguments -------------------------------------------------------------------------


def chosen_timeout(argument: float | None) -> float:
    """Return the timeout argument, else the value of ``MINIPIPE_TIMEOUT``, else the
    default, in seconds.

    Raises
    ------
    ArgumentError
        Code ``value``: when it is not above 0.
    """
    name = "timeout"
    chosen: Any = argument
    if argument is None:
        name = "MINIPIPE_TIMEOUT"
        chosen = os.environ.get(name) or DEFAULT_TIMEOUT
    with suppress(TypeError, ValueError):
        return _SECONDS.check(name, as_float(chosen))
    raise _SECONDS.refusal(name, chosen)


# -- several arrays as one: the length of a description, it, and each array's memory ---


def join(description: bytes, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return a description and copies of arrays as one array of bytes,
    for :func:`split`. Each array begins at a multiple of 64 bytes.
    """
    ends = [_LENGTH.itemsize + len(description)]
    starts = []
    for array in arrays:
        starts.append(ends[-1] + -ends[-1] % _ALIGNMENT)
        ends.append(starts[-1] + array.nbytes)
    message = np.zeros(ends[-1], np.uint8)
    message[: _LENGTH.itemsize].view(_LENGTH)[0] = len(description)
    message[_LENGTH.itemsize : ends[0]] = np.frombuffer(description, np.uint8)
    for array, start, end in zip(arrays, starts, ends[1:]):
        message[start:end].view(array.dtype).reshape(array.shape)[...] = array
    return message


def split(
    message: np.ndarray,
) -> tuple[bytes, Callable[[str, Sequence[int]], np.ndarray]]:
    """Return the description of a message, and a function that returns its next array,
    given dtype and shape: a view of the message.
    """
    position = _LENGTH.itemsize + int(message[: _LENGTH.itemsize].view(_LENGTH)[0])
    description = message[_LENGTH.itemsize : position].tobytes()

    def take(name: str, shape: Sequence[int]) -> np.ndarray:
        nonlocal position
        dtype = np.dtype(name)
        start = position + -position % _ALIGNMENT
        position = start + dtype.itemsize * math.prod(shape)
        return message[start:position].view(dtype).reshape(shape)

    return description, take
