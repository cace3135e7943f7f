"""R, O and L, run: activations that are computed again, or kept in a file, between a forward and its backward.

An observer of the executor runs these actions. A forward whose microbatch has an R records nothing but its inputs
(:class:`minipipe.nn.Recompute`), and R computes the graph that the backward will find. O takes the arrays out of a
graph, to be written by a thread; L has them read again, and the backward waits for that::

    rank     0F0   0O0      0F1      0F2   0L0     0B2   0B0
    thread         |-- writes --|          |-- reads --| ^ waits, if they are not there yet

Values and bits stay as they are: an array that comes back has the bytes and the strides that it had. What cannot be
taken out stays in memory: parameters, inputs of the batch, and what an object other than a closure refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import is_
from tempfile import TemporaryFile
from time import perf_counter
from types import CellType
from typing import IO, Any, NamedTuple

import numpy as np

from minipipe.autograd import Node
from minipipe.autograd.memory import behind, buffer_of
from minipipe.autograd.modes import current_place
from minipipe.autograd.recompute import RecomputedNode
from minipipe.execution.batch import Batch
from minipipe.execution.executor import Executor, Step
from minipipe.nn import Module, Recompute
from minipipe.schedules.action import Action, B, I, L, O, R
from minipipe.tensor import Tensor

_Place = tuple[int, int]  # stage, microbatch


def recomputing(module: Module, row: Iterable[Action], stage: int) -> Callable[[Any], Any]:
    """Return a forward that keeps only the inputs of the microbatches that have an R in a row; else the module."""
    again = {k for s, kind, k in row if s == stage and kind is R}
    dropping = Recompute(module)
    return (lambda x: (dropping if current_place().microbatch in again else module)(x)) if again else module


class Offloading:
    """An observer of the executor that runs R, O and L.

    Parameters
    ----------
    row : sequence of Action
        Of this rank.

    Attributes
    ----------
    observers : tuple
        Itself; none where the row has no such action.
    """

    def __init__(self, row: Sequence[Action]) -> None:
        self.observers = (self,) if any(kind in (R, O, L) for _, kind, _ in row) else ()
        self._away: dict[_Place, tuple[Parked, Any]] = {}  # with what the stage holds of it otherwise
        self._threads = ThreadPoolExecutor(1)  # which begins with the first O
        # By stage and microbatch that has an O, the action that needs its arrays: what follows its L.
        self._needed_by = {}
        for stage, _, k in (action for action in row if action.kind is O):
            later = (a for a in row if a.kind in (R, B, I) and a[::2] == (stage, k))
            self._needed_by[stage, k] = next(later)

    def watch(self, action: Action, step: Step) -> Step:
        """Return a step that runs R, O or L; or a backward that first waits for what it needs."""
        stage, kind, k = action

        def recompute(executor: Executor, batch: Batch) -> None:
            start = perf_counter()
            for node in behind(executor.stages[stage].graph_of(k)):
                if isinstance(node, RecomputedNode) and node.recomputation is not None:
                    node.recomputation.root(node.number)
            executor.note(executor.stages[stage], start)

        def offload(executor: Executor, batch: Batch) -> None:
            of_stage = executor.stages[stage]
            kept = [*(parameter.data for parameter in of_stage.parameters.values()), *batch.arrays]
            parked = Parked(of_stage.graph_of(k), kept, self._threads)
            self._away[stage, k] = parked, of_stage._held.pop(k)

        def load(executor: Executor, batch: Batch) -> None:
            parked, executor.stages[stage]._held[k] = self._away[stage, k]
            parked.read()

        run = {R: recompute, O: offload, L: load}.get(kind, step)

        def wait_and_run(executor: Executor, batch: Batch) -> None:
            self._away.pop((stage, k))[0].put_back()
            run(executor, batch)

        return wait_and_run if self._needed_by.get((stage, k)) == action else run


class _Seen(NamedTuple):
    """Stands for an array that was taken out: the number of its buffer, and where in that it lies."""

    buffer: int
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    strides: tuple[int, ...]


class Parked:
    """The arrays of a graph, in a file. The graph refers to stand-ins until they are put back.

    Parameters
    ----------
    roots : list of Node
    kept : iterable of array
        These stay, with all that look at the same memory.
    threads : ThreadPoolExecutor
        Writes and reads.
    """

    def __init__(self, roots: list[Node], kept: Iterable[Any], threads: ThreadPoolExecutor) -> None:
        self._threads, self._kept = threads, {id(buffer_of(array)) for array in kept}
        self._cells: dict[int, CellType] = {}
        self._tensors: list[Tensor] = []
        buffers: dict[int, np.ndarray] = {}
        for node in behind(roots):
            if isinstance(node, RecomputedNode) and node.recomputation is not None:
                self._take_from(node.recomputation.compute_again, buffers)
            for _, vjp in node.edges or ():
                self._take_from(vjp, buffers)
        self._sizes = [buffer.nbytes for buffer in buffers.values()]
        self._file = TemporaryFile()  # noqa: SIM115 (read later, and gone with this object)
        self._done: Future[Any] = threads.submit(_write, self._file, list(buffers.values()))

    @property
    def num_bytes(self) -> int:
        """The bytes that are in the file, or on their way."""
        return sum(self._sizes)

    def read(self) -> None:
        """Begin to read, behind what is to be written."""
        self._done = self._threads.submit(_read, self._done, self._file, self._sizes)

    def put_back(self) -> None:
        """Wait for the arrays, and let the graph refer to them again."""
        buffers = self._done.result()
        for cell in self._cells.values():
            cell.cell_contents = _changed(cell.cell_contents, partial(_array_of, buffers))
        for tensor in self._tensors:
            tensor.data = _array_of(buffers, tensor.data)

    def _take_from(self, function: Any, buffers: dict[int, np.ndarray]) -> None:
        for cell in getattr(function, "__closure__", None) or ():
            if id(cell) not in self._cells:
                self._cells[id(cell)] = cell
                contents = cell.cell_contents
                if callable(contents) and not isinstance(contents, Tensor):
                    self._take_from(contents, buffers)
                else:
                    cell.cell_contents = _changed(contents, partial(self._stand_in, buffers))

    def _stand_in(self, buffers: dict[int, np.ndarray], item: Any) -> Any:
        if isinstance(item, Tensor):
            found = self._stand_in(buffers, item.data)
            if found is not item.data:
                item.data = found
                self._tensors.append(item)
            return item
        if type(item) is not np.ndarray or not item.nbytes:
            return item
        base = buffer_of(item)
        if id(base) in self._kept or not (base.flags.c_contiguous or base.flags.f_contiguous):
            return item
        number = list(buffers).index(id(base)) if id(base) in buffers else len(buffers)
        buffers[id(base)] = base
        offset = item.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return _Seen(number, item.shape, item.dtype, offset, item.strides)


def _changed(item: Any, change: Callable[[Any], Any]) -> Any:
    """Return an item, or the same row with other items where a change makes them others."""
    if isinstance(item, tuple | list) and not isinstance(item, _Seen):
        parts = [_changed(part, change) for part in item]
        if all(map(is_, parts, item)):
            return item
        return item._make(parts) if hasattr(item, "_make") else type(item)(parts)
    return change(item)


def _array_of(buffers: Sequence[np.ndarray], item: Any) -> Any:
    if not isinstance(item, _Seen):
        return item
    return np.ndarray(item.shape, item.dtype, buffers[item.buffer], item.offset, item.strides)


def _write(file: IO[bytes], buffers: Iterable[np.ndarray]) -> None:
    for buffer in buffers:
        file.write(buffer.ravel(order="K").view(np.uint8).data)


def _read(written: Future[Any], file: IO[bytes], sizes: Iterable[int]) -> list[np.ndarray]:
    written.result()  # raises what went wrong there, such as a full disk
    file.seek(0)
    return [np.frombuffer(bytearray(file.read(size)), np.uint8) for size in sizes]
