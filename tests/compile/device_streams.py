"""Streams, captures and memory of the stand-in for a GPU's array module (`device.py`).

Stricter than a GPU, so that a test fails where a GPU would only sometimes be wrong:

- a stream that captures must not block others, and must wait for all work of others;
- a copy to or from the host, a wait for the device, and whatever an own library of the
  vendor's computes raise in a capture, which is invalid from then on;
- memory of a pool is given out again as soon as its array is gone, also to arrays
  outside of the pool if that is gone as well.
"""

import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

_of_thread = threading.local()
_released = {}  # memory of pools that are gone, by size


class CaptureError(Exception):
    """Something that a graph cannot capture."""


class Race(Exception):
    """Work that does not wait for that of another stream."""


# -- streams ---------------------------------------------------------------------------


class Event:
    """The work of a stream so far, and the work for which it has waited."""

    def __init__(self, stream):
        self.counts = {**stream._seen, stream: stream.count}


class Stream:
    """A queue of kernels, which the stand-in runs at once.

    Attributes
    ----------
    count : int
        Of the kernels that it has run.
    kernels : list of function, or None
        Those of its capture so far.
    """

    def __init__(self, non_blocking=False):
        self._non_blocking, self.count = non_blocking, 0
        self._seen = {}  # by stream, the work for which this one has waited
        self.kernels = None
        self._is_valid = True
        self.ptr = id(self)

    def __enter__(self):
        _stack().append(self)
        return self

    def __exit__(self, *error):
        _stack().pop()

    def record(self, event=None):
        return Event(self)

    def wait_event(self, event):
        if self.kernels is not None:
            self.forbid("Work outside of the graph is awaited")
        for stream, count in event.counts.items():
            self._seen[stream] = max(count, self._seen.get(stream, 0))

    def synchronize(self):
        self.forbid("The host waits for the device")

    @property
    def done(self):
        self.forbid("The host asks for the work of a stream")
        return True

    def forbid(self, what):
        """Raise an error if the stream captures, and make the capture invalid."""
        if self.kernels is not None:
            self._is_valid = False
            raise CaptureError(f"{what} while a graph captures")

    def begin_capture(self, mode=None):
        if not self._non_blocking:
            raise CaptureError("A stream that blocks others cannot capture")
        assert self.kernels is None
        self.kernels, self.num_allocations = [], 0
        self._old_settings = np.seterr(all="ignore")  # shapes are found by computing

    def is_capturing(self):
        if not self._is_valid:  # as in CuPy, also before the capture has ended
            raise RuntimeError("An error has invalidated the capture")
        return self.kernels is not None

    def end_capture(self):
        if self.kernels is None:
            raise CaptureError("The stream does not capture")
        kernels, is_valid = self.kernels, self._is_valid
        self.kernels, self._is_valid = None, True
        np.seterr(**self._old_settings)
        if not is_valid:
            raise CaptureError("The capture is invalid")
        return Graph(kernels, self.num_allocations)

    def do(self, kernel):
        """Run a kernel, or note it."""
        if self.kernels is not None:
            self.kernels.append(kernel)
            return
        for other in _of_thread.streams:
            if other is not self and other.count > self._seen.get(other, 0):
                raise Race("A kernel does not wait for those of another stream")
        self.count += 1
        if self not in _of_thread.streams:
            _of_thread.streams.append(self)
        kernel()


class Graph:
    """The kernels of a capture."""

    made = []  # while a test asks for them

    def __init__(self, kernels, num_allocations):
        self._kernels, self.num_allocations = kernels, num_allocations
        self.num_kernels, self.num_launches = len(kernels), 0
        Graph.made.append(self)

    def launch(self, stream=None):
        self.num_launches += 1
        for kernel in self._kernels:
            (stream or current()).do(kernel)


def _stack():
    if not hasattr(_of_thread, "stack"):
        _of_thread.stack, _of_thread.streams = [Stream()], []
    return _of_thread.stack


def current():
    """Return the current stream of the thread."""
    return _stack()[-1]


def forbid(what):
    """Raise an error if the current stream captures."""
    current().forbid(what)


@contextmanager
def capturing():
    """Note kernels inside this block, without running them."""
    with Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            yield stream
        finally:
            kernels = stream.kernels
            stream.end_capture()
            stream.kernels = kernels


# -- memory ----------------------------------------------------------------------------


class Memory:
    """Bytes of the device, which their allocator gets back."""

    def __init__(self, num_bytes, pool=None, block=None):
        self._free = None if pool is None else weakref.ref(pool)
        self.block = block
        if block is None:
            self.block = np.empty(num_bytes, np.uint8)
        self.ptr = self.block.ctypes.data

    def __del__(self):
        pool = None if self._free is None else self._free()
        if pool is not None:
            pool.free.setdefault(self.block.size, []).append(self.block)
        elif self._free is not None and _released is not None:
            _released.setdefault(self.block.size, []).append(self.block)


def _release(free):
    for size, blocks in free.items():
        _released.setdefault(size, []).extend(blocks)


class MemoryPool:
    """Memory that is used again, for arrays of the same size."""

    def __init__(self):
        self.free = {}
        weakref.finalize(self, _release, self.free)

    def malloc(self, num_bytes):
        blocks = self.free.get(num_bytes)
        return Memory(num_bytes, self, blocks.pop() if blocks else None)


def _plain(num_bytes):
    blocks = _released.get(num_bytes)
    return Memory(num_bytes, None, blocks.pop() if blocks else None)


@contextmanager
def using_allocator(allocator):
    before = getattr(_of_thread, "allocator", _plain)
    _of_thread.allocator = allocator
    try:
        yield
    finally:
        _of_thread.allocator = before


def allocate(shape, dtype):
    """Return memory of the device, and an array in it."""
    if current().kernels is not None:
        current().num_allocations += 1
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    memory = getattr(_of_thread, "allocator", _plain)(size)
    return memory, memory.block[:size].view(dtype).reshape(shape)


cuda = SimpleNamespace(
    Stream=Stream,
    MemoryPool=MemoryPool,
    Memory=Memory,
    get_current_stream=current,
    using_allocator=using_allocator,
    runtime=SimpleNamespace(getDevice=lambda: 0),
)


class Forbidding:
    """Functions of a library that refuses to work in a capture."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        forbid(f"{self._name}.{name} is called")
        return getattr(getattr(np, self._name), name)
