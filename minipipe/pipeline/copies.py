"""Copies of batches to a device, on a stream of their own.

Each microbatch is copied when its forward begins, while the device computes earlier ones;
an event lets the device wait for it::

    host              copies 0 | launches 0 | copies 1 | launches 1
    stream of copies        0 -->                    1 -->
    device's stream              computes 0 ----------> computes 1 --->

A device copies from pinned memory without the host, so these bytes must stay as they are
meanwhile: a few buffers take turns, each with the event of its last copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.host import note_source
from minipipe.core.execution.payload import Payload
from minipipe.core.pytree import flattened
from minipipe.execution.samples import Cut, Samples, rows_of, samples

LEAST = 2**20
"""Bytes of a batch from which on its microbatches are copied one by one: a copy takes the
host some 20 µs.
"""
_NUM_BUFFERS = 8


class Copies:
    """The stream of a rank that copies batches, and its pinned memory.

    Parameters
    ----------
    xp : module
        The module of the device: ``xp.cuda`` has streams and ``alloc_pinned_memory``, as
        in CuPy.
    """

    def __init__(self, xp: ModuleType) -> None:
        self._xp: Any = xp
        self.stream: Any = None
        self._buffers = deque[tuple[np.ndarray, Any]](maxlen=_NUM_BUFFERS)

    def samples(
        self,
        given: Any,
        name: str,
        dtype: Any = None,
        xp: ModuleType | None = None,
        requires_grad: bool = False,
    ) -> Samples:
        """Return inputs or targets as :func:`minipipe.execution.samples.samples` does;
        large arrays of NumPy arrive by microbatch.
        """
        leaves, _ = flattened(given)
        is_here = all(isinstance(each, np.ndarray) for each in leaves)
        if not is_here or sum(each.nbytes for each in leaves) < LEAST:
            return samples(given, name, dtype, xp, requires_grad)
        here = samples(given, name, None, np, requires_grad)
        (part,) = here.parts
        arrays = [self._like(array, dtype) for array in part.arrays]
        if self.stream is None:
            self.stream = self._xp.cuda.Stream(non_blocking=True)
        # The device may still compute with arrays that had their memory.
        self.stream.wait_event(self.current.record())
        coming = _Coming([part._replace(arrays=arrays)], here.sizes)
        coming.copies, coming.sources = self, part.arrays
        return coming

    @property
    def current(self) -> Any:
        """The stream that computes."""
        return self._xp.cuda.get_current_stream()

    def _like(self, source: np.ndarray, dtype: Any) -> Array:
        """Return an array of the device for the values of an array, without them."""
        found = source.dtype
        if dtype is not None and backend.is_floating(found):
            found = backend.numpy_dtype(dtype)
        own_dtype = getattr(self._xp, found.name, found)
        array = self._xp.empty(source.shape, dtype=own_dtype)
        if found == source.dtype:
            note_source(array, source)
        return array

    def copy(self, source: np.ndarray, target: Array) -> Any:
        """Begin to copy; return the event of its end."""
        dtype = backend.numpy_dtype(target.dtype)
        num_bytes = source.size * dtype.itemsize
        buffer = self._buffer(num_bytes)
        pinned = buffer[:num_bytes].view(dtype).reshape(source.shape)
        pinned[...] = source
        target.set(pinned, stream=self.stream)
        event = self.stream.record()
        self._buffers.append((buffer, event))
        return event

    def _buffer(self, num_bytes: int) -> np.ndarray:
        """Return pinned memory from which no copy is under way."""
        if len(self._buffers) == _NUM_BUFFERS:
            buffer, event = self._buffers.popleft()
            event.synchronize()
            if buffer.size >= num_bytes:
                return buffer
        return backend.empty_on_host(self._xp)((num_bytes,), np.uint8)


class _Coming(Samples):
    """A batch whose arrays have no values yet."""

    copies: Copies
    sources: list[np.ndarray]

    def cut(self, sizes: tuple[int, ...]) -> Sequence[Payload]:
        """Return the microbatches of these sizes, copied when they are read."""
        return _Arriving(self, rows_of(sizes))


class _Arriving(Cut):
    """The microbatches of a batch, of which each is copied when it is first read."""

    __slots__ = ("_coming", "_events")

    def __init__(self, coming: _Coming, rows: list[slice]) -> None:
        super().__init__(coming.parts[0], rows)
        self._coming = coming
        self._events: dict[int, Any] = {}

    def __getitem__(self, microbatch: Any) -> Any:
        part = super().__getitem__(microbatch)
        if not isinstance(microbatch, slice):
            copies = self._coming.copies
            copies.current.wait_event(self._event(microbatch, part.arrays))
        return part

    def _event(self, microbatch: int, targets: list[Array]) -> Any:
        """Return the event of the last copy of a microbatch, and begin them once."""
        if microbatch not in self._events:
            rows = self.rows[microbatch]
            for source, target in zip(self._coming.sources, targets):
                event = self._coming.copies.copy(source[rows], target)
            self._events[microbatch] = event
        return self._events[microbatch]
