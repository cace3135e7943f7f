"""The actions R, O and L: activations are computed again, or kept in a file, between a
forward and its backward.

A forward whose microbatch has an R records nothing but its inputs
(:class:`minipipe.nn.Recompute`), and R computes the graph for the backward. O takes the
arrays out of a graph, and a thread writes them; L has them read again, and the backward
waits for that::

    rank     0F0   0O0      0F1      0F2   0L0     0B2   0B0
    thread         |-- writes --|          |-- reads --| ^ waits, if they have not arrived yet

Values and bits stay as they are: an array that comes back has its old bytes and
strides. Everything that is not an activation stays in memory: parameters, also those
that a fully sharded layer has for a moment, arrays that layers keep, and inputs of the
batch. So do the arrays that custom vjps refer to (``record`` with functions of a user):
only what the nodes of the graph have saved as data, as operations do (``op``), is
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np

from minipipe.autograd import Node
from minipipe.autograd.memory import behind, buffer_of, inputs_again, saved_by
from minipipe.core.execution.executor import Executor, Handlers, Pending
from minipipe.core.schedules.action import Action, L, O
from minipipe.core.values import gives, takes
from minipipe.execution.batch import arrays_of
from minipipe.execution.meter import persistent_arrays


class Offloading:
    """The handlers of O and L, with the thread that writes and reads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1)  # which begins with the first O

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers that also run O and L."""
        return {**handlers, O: self._offload, L: self._load}

    @takes("graph")
    @gives("away")
    def _offload(
        self, executor: Executor, action: Action, graph: Any
    ) -> tuple[Parked, Any]:
        kept = [
            *persistent_arrays(executor.stages[action.stage].module),
            *arrays_of(executor.batch),
        ]
        return Parked(graph.graph, kept, self._threads), graph

    @takes("away")
    @gives("graph")
    def _load(
        self, executor: Executor, action: Action, away: tuple[Parked, Any]
    ) -> Pending:
        return Loaded(*away)


class Loaded(Pending):
    """A graph whose arrays are read from a file."""

    def __init__(self, parked: Parked, held: Any) -> None:
        self._parked = parked
        self._held = held
        parked.read()

    @property
    def graph(self) -> list[Node]:
        """The roots of the graph, with stand-ins for the arrays."""
        return self._held.graph

    def wait(self) -> Any:
        """Return what the forward has left for the backward, with its arrays."""
        self._parked.put_back()
        return self._held


class _StandIn(NamedTuple):
    """Stands for an array that was taken out: the number of its buffer, and where in
    that it lies.
    """

    buffer: int
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    strides: tuple[int, ...]


class Parked:
    """The arrays of a graph, in a file. The graph has stand-ins until they are put
    back.

    Parameters
    ----------
    roots : list of Node
    kept : iterable of array
        These stay, with all views of the same memory.
    threads : ThreadPoolExecutor
        Writes and reads.
    """

    def __init__(
        self, roots: list[Node], kept: Iterable[Any], threads: ThreadPoolExecutor
    ) -> None:
        kept = list(kept)  # while their identities are compared
        self._threads = threads
        self._nodes = behind(roots)
        buffers: dict[int, np.ndarray] = {}
        self._replace(
            partial(_taken_out, buffers, {id(buffer_of(array)) for array in kept})
        )
        self._sizes = [buffer.nbytes for buffer in buffers.values()]
        self._file = TemporaryFile()  # noqa: SIM115 (read later, and gone with this object)
        self._done: Future[Any] = threads.submit(
            _write, self._file, [*buffers.values()]
        )

    @property
    def num_bytes(self) -> int:
        """The bytes that are in the file, or on their way."""
        return sum(self._sizes)

    def read(self) -> None:
        """Begin to read, after pending writes."""
        self._done = self._threads.submit(_read, self._done, self._file, self._sizes)

    def put_back(self) -> None:
        """Wait for the arrays, and give them back to the graph."""
        self._replace(partial(_put_back, self._done.result()))

    def _replace(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays of the graph; of inputs that several nodes are computed
        from again, once.
        """
        for node in self._nodes:
            for tensor in inputs_again(node):
                tensor.data = change(tensor.data)
            saved = _changed(saved_by(node), change)
            node.saved = (
                saved if isinstance(node.saved, tuple) else node.saved.part(saved)
            )


def _changed(item: Any, change: Callable[[Any], Any]) -> Any:
    """Return what a function returns for an item, or a tuple or list of what it returns
    for each of its items.
    """
    if type(item) in (tuple, list):
        return type(item)(_changed(part, change) for part in item)
    return change(item)


def _taken_out(buffers: dict[int, np.ndarray], kept: set[int], item: Any) -> Any:
    """Return a stand-in for an array, whose buffer is added to others, by identity; any
    other item as it is.
    """
    if type(item) is not np.ndarray or not item.nbytes:
        return item
    base = buffer_of(item)
    # a copy: memory with gaps
    if id(base) in kept or not np.may_share_memory(base, base.ravel(order="K")):
        return item
    buffers.setdefault(id(base), base)
    offset = item.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return _StandIn(
        [*buffers].index(id(base)), item.shape, item.dtype, offset, item.strides
    )


def _put_back(buffers: Sequence[np.ndarray], item: Any) -> Any:
    """Return the array for which a stand-in was made; any other item as it is."""
    if not isinstance(item, _StandIn):
        return item
    return np.ndarray(
        item.shape, item.dtype, buffers[item.buffer], item.offset, item.strides
    )


def _write(file: IO[bytes], buffers: Iterable[np.ndarray]) -> None:
    for buffer in buffers:
        file.write(buffer.ravel(order="K").view(np.uint8).data)


def _read(
    written: Future[Any], file: IO[bytes], sizes: Iterable[int]
) -> list[np.ndarray]:
    written.result()  # raises an error of the writing thread, such as a full disk
    file.seek(0)
    return [np.frombuffer(bytearray(file.read(size)), np.uint8) for size in sizes]
