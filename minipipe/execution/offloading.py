"""The actions R, O and L: activations are computed again, or kept in a file, between a forward and its backward.

An observer of the executor runs these actions. A forward whose microbatch has an R records nothing but its inputs
(:class:`minipipe.nn.Recompute`), and R computes the graph for the backward. O takes the arrays out of a graph, and a
thread writes them; L has them read again, and the backward waits for that::

    rank     0F0   0O0      0F1      0F2   0L0     0B2   0B0
    thread         |-- writes --|          |-- reads --| ^ waits, if they have not arrived yet

Values and bits stay as they are: an array that comes back has its old bytes and strides. Everything that is not an
activation stays in memory: parameters, also those that a fully sharded layer has for a moment, arrays that layers keep,
and inputs of the batch. So do arrays inside objects other than tensors, containers, closures and partial functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import is_
from tempfile import TemporaryFile
from time import perf_counter
from types import CellType, FunctionType
from typing import IO, Any, NamedTuple

import numpy as np

from minipipe.autograd import Node
from minipipe.autograd.memory import behind, buffer_of, contents_of, saved_by
from minipipe.autograd.modes import current_place
from minipipe.autograd.recompute import RecomputedNode
from minipipe.execution.batch import Batch
from minipipe.execution.executor import Executor, Step
from minipipe.nn import Module, Recompute
from minipipe.nn.fully_sharded import persistent_arrays
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
        Itself; none if the row has no such action.
    """

    def __init__(self, row: Sequence[Action]) -> None:
        self.observers = (self,) if any(kind in (R, O, L) for _, kind, _ in row) else ()
        self._away: dict[_Place, tuple[Parked, Any]] = {}  # with the stage's own record of the microbatch
        self._threads = ThreadPoolExecutor(1)  # which begins with the first O
        # By stage and microbatch that has an O, the action that needs its arrays: the one after its L.
        self._needed_by = {}
        for stage, _, k in (action for action in row if action.kind is O):
            later = (a for a in row if a.kind in (R, B, I) and a[::2] == (stage, k))
            self._needed_by[stage, k] = next(later)

    def watch(self, action: Action, step: Step) -> Step:
        """Return a handler that runs R, O or L; or a backward that first waits for its arrays."""
        stage, kind, k = action

        def recompute(executor: Executor, batch: Batch) -> None:
            start = perf_counter()
            for node in behind(executor.stages[stage].graph_of(k)):
                if isinstance(node, RecomputedNode) and node.recomputation is not None:
                    node.recomputation.root(node.number)
            executor.note(executor.stages[stage], start)

        def offload(executor: Executor, batch: Batch) -> None:
            of_stage = executor.stages[stage]
            kept = [*persistent_arrays(of_stage.module), *batch.arrays]
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

    Layers and other graphs may refer to the same functions, tensors and containers. So none of these is changed: the
    graph gets copies of the objects that lead to an array that is taken out.

    Parameters
    ----------
    roots : list of Node
    kept : iterable of array
        These stay, with all views of the same memory.
    threads : ThreadPoolExecutor
        Writes and reads.
    """

    def __init__(self, roots: list[Node], kept: Iterable[Any], threads: ThreadPoolExecutor) -> None:
        kept = list(kept)  # while their identities are compared
        self._threads, self._kept = threads, {id(buffer_of(array)) for array in kept}
        self._nodes = behind(roots)
        self._own_cells: list[CellType] = []
        self._buffers: dict[int, np.ndarray] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # by identity: a function or a cell, and its replacement
        self._replace(self._taken_out)
        buffers = list(self._buffers.values())
        self._buffers.clear()
        self._copies.clear()
        self._sizes = [buffer.nbytes for buffer in buffers]
        self._file = TemporaryFile()  # noqa: SIM115 (read later, and gone with this object)
        self._done: Future[Any] = threads.submit(_write, self._file, buffers)

    @property
    def num_bytes(self) -> int:
        """The bytes that are in the file, or on their way."""
        return sum(self._sizes)

    def read(self) -> None:
        """Begin to read, after pending writes."""
        self._done = self._threads.submit(_read, self._done, self._file, self._sizes)

    def put_back(self) -> None:
        """Wait for the arrays, and let the graph refer to them again."""
        buffers = self._done.result()
        for cell in self._own_cells:
            cell.cell_contents = _changed(cell.cell_contents, partial(_put_back, buffers))
        self._replace(partial(_put_back, buffers))

    def _replace(self, change: Callable[[Any], Any]) -> None:
        """Replace the objects that the vjps of the graph refer to."""
        for node in self._nodes:
            if isinstance(node, RecomputedNode) and node.recomputation is not None:
                recomputation = node.recomputation
                recomputation.compute_again = _changed(recomputation.compute_again, change)
            saved = _changed(saved_by(node), change)
            if saved is not saved_by(node):
                node.saved = saved if isinstance(node.saved, tuple) else node.saved.part(saved)

    def _taken_out(self, item: Any) -> Any:
        """Return a stand-in for an array, a copy of a tensor or function that leads to one, or the item itself."""
        if isinstance(item, FunctionType):
            return self._function(item)
        if type(item) is Tensor:
            return _with_data(item, self._taken_out(item.data))
        if type(item) is not np.ndarray or not item.nbytes:
            return item
        base = buffer_of(item)
        if id(base) in self._kept or not (base.flags.c_contiguous or base.flags.f_contiguous):
            return item
        number = list(self._buffers).index(id(base)) if id(base) in self._buffers else len(self._buffers)
        self._buffers[id(base)] = base
        offset = item.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return _Seen(number, item.shape, item.dtype, offset, item.strides)

    def _function(self, function: FunctionType) -> FunctionType:
        if id(function) not in self._copies:
            self._copies[id(function)] = function, function  # as long as its cells are looked at: it may be in one
            cells = function.__closure__ or ()
            own = tuple(map(self._cell, cells))
            if not all(map(is_, own, cells)):
                code, defaults = function.__code__, function.__defaults__
                twin = FunctionType(code, function.__globals__, function.__name__, defaults, own)
                twin.__kwdefaults__, twin.__qualname__ = function.__kwdefaults__, function.__qualname__
                twin.__dict__.update(function.__dict__)
                self._copies[id(function)] = function, twin
        return self._copies[id(function)][1]

    def _cell(self, cell: CellType) -> CellType:
        if id(cell) not in self._copies:
            self._copies[id(cell)] = cell, cell
            for contents in contents_of(cell):
                changed = _changed(contents, self._taken_out)
                if changed is not contents:
                    self._own_cells.append(CellType(changed))
                    self._copies[id(cell)] = cell, self._own_cells[-1]
        return self._copies[id(cell)][1]


def _changed(item: Any, change: Callable[[Any], Any]) -> Any:
    """Return an item, or the same container or partial function with other items if a change makes them others."""
    if isinstance(item, partial):
        parts = [item.func, item.args, tuple(item.keywords.values())]
        function, arguments, values = changed = [_changed(part, change) for part in parts]
        if all(map(is_, changed, parts)):
            return item
        return partial(function, *arguments, **dict(zip(item.keywords, values)))
    if type(item) in (tuple, list) or (isinstance(item, tuple) and hasattr(item, "_make") and type(item) is not _Seen):
        parts = [_changed(part, change) for part in item]
        if all(map(is_, parts, item)):
            return item
        return item._make(parts) if hasattr(item, "_make") else type(item)(parts)
    return change(item)


def _with_data(tensor: Tensor, data: Any) -> Tensor:
    """Return a tensor with other values and the same node; the tensor itself if it has these values."""
    if data is tensor.data:
        return tensor
    twin = Tensor.__new__(Tensor)
    twin.data, twin.node = data, tensor.node
    return twin


def _put_back(buffers: Sequence[np.ndarray], item: Any) -> Any:
    """Return the array for which a stand-in was made; any other item as it is."""
    if type(item) is Tensor:
        return _with_data(item, _put_back(buffers, item.data))
    if not isinstance(item, _Seen):
        return item
    return np.ndarray(item.shape, item.dtype, buffers[item.buffer], item.offset, item.strides)


def _write(file: IO[bytes], buffers: Iterable[np.ndarray]) -> None:
    for buffer in buffers:
        file.write(buffer.ravel(order="K").view(np.uint8).data)


def _read(written: Future[Any], file: IO[bytes], sizes: Iterable[int]) -> list[np.ndarray]:
    written.result()  # raises an error of the writing thread, such as a full disk
    file.seek(0)
    return [np.frombuffer(bytearray(file.read(size)), np.uint8) for size in sizes]
