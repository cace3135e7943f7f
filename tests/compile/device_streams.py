"""Streams, captures and memory of the stand-in for a GPU's array module (`device.py`).

Stricter than a GPU, so that a test fails where a GPU would only sometimes be wrong:

- a stream that captures must not block others, and must wait for all work of others;
- a copy to or from the host, a wait for the device, and whatever an own library of the
  vendor's computes raise in a capture, which is invalid from then on;
- a copy from pinned memory takes place when somebody waits for it, with the bytes that
  are there then; a kernel that uses its memory before raises, and so does a copy to
  memory that a kernel may still use;
- memory is given out again as soon as its array is gone; that of a pool to its arrays,
  and to others when the pool is gone as well.
"""

import threading
import weakref
from collections import deque
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
        self.copies = {**stream._seen_copies, stream: stream.num_copies}

    def synchronize(self):
        """Let the host wait."""
        forbid("The host waits for an event")
        for stream, number in self.copies.items():
            stream.finish(number)


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
        self._seen_copies = {}
        self.num_copies, self._coming = 0, deque()
        self._copied = deque(maxlen=500)  # (number, memory) of copies
        self._used = deque(maxlen=5000)  # (count, memory) of kernels
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
        for stream, number in event.copies.items():
            stream.finish(number)
            self._seen_copies[stream] = max(number, self._seen_copies.get(stream, 0))

    def copy(self, target, source):
        """Copy from memory of the host, if it is pinned when somebody waits."""
        forbid("An array is copied from the host")
        for other in _of_thread.streams:
            seen = self._seen.get(other, 0)
            used = (memory for count, memory in other._used if count > seen)
            if other is not self and any(_share(target, each) for each in used):
                raise Race("A copy does not wait for kernels that use its memory")
        self.num_copies += 1
        self._coming.append((self.num_copies, target, source))
        self._copied.append((self.num_copies, target))
        if self not in _of_thread.copying:
            _of_thread.copying.append(self)
        if not any(np.may_share_memory(source, each) for each in _pinned):
            self.finish(self.num_copies)

    def finish(self, number):
        """Copy what is not copied yet, up to a number."""
        while self._coming and self._coming[0][0] <= number:
            _, target, source = self._coming.popleft()
            target[...] = source

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

    def do(self, kernel, memory=()):
        """Run a kernel that uses memory, or note it."""
        if self.kernels is not None:
            self.kernels.append((kernel, memory))
            return
        for other in _of_thread.copying:
            seen = self._seen_copies.get(other, 0)
            coming = [target for number, target in other._copied if number > seen]
            if other is not self and any(_share(each, memory) for each in coming):
                raise Race("A kernel does not wait for a copy to memory that it uses")
        for other in _of_thread.streams:
            if other is not self and other.count > self._seen.get(other, 0):
                raise Race("A kernel does not wait for those of another stream")
        self.count += 1
        if self not in _of_thread.streams:
            _of_thread.streams.append(self)
            self._used.clear()  # by an earlier thread
        self._used.append((self.count, memory))
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
        for kernel, memory in self._kernels:
            (stream or current()).do(kernel, memory)


def _share(target, memory):
    """Return whether a kernel uses memory: arrays, in any tuples, lists and dicts."""
    if isinstance(memory, np.ndarray):
        return np.may_share_memory(target, memory)
    if isinstance(memory, dict):
        memory = tuple(memory.values())
    return type(memory) in (tuple, list) and any(_share(target, m) for m in memory)


def _stack():
    if not hasattr(_of_thread, "stack"):
        _of_thread.stack, _of_thread.streams = [Stream()], []
        _of_thread.copying = []
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
        elif _released is not None:
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


_pinned = []


def alloc_pinned_memory(num_bytes):
    """Return memory of the host from which a copy does not wait for the host."""
    _pinned.append(np.zeros(num_bytes, np.uint8))
    del _pinned[:-64]
    return _pinned[-1]


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
    alloc_pinned_memory=alloc_pinned_memory,
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
