"""Sections as graphs of a device: one launch for all kernels of a section.

Python launches a kernel more slowly than a GPU runs a small one. A stream that *captures*
runs no kernel, but notes it, with the addresses of its arrays and with its numbers. From
then on all these kernels, their graph, are one launch::

    call      1           2                       3, 4, ...
    section   runs        is captured, launched   is launched

A section has a graph for each of its slots, and for a first contribution or not. Its
arrays stay at their addresses, or are copied into arrays that stay. The first call runs on
the stream that captures: it loads the kernels, and fills a pool of memory. Nothing here
waits for the device.

A device can capture if its array module has streams that can, as CuPy's has. What a
capture refuses runs without a graph, and the report tells why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from types import ModuleType
from typing import Any
from weakref import finalize

import numpy as np

from minipipe.compile.dialect import dialect_of
from minipipe.compile.sections import Functions, Sections, Stash
from minipipe.core.autograd.backend import Array, array_module, is_array, num_bytes

MOST_CHANGES = 8
"""Times that a graph is captured again before its section runs without graphs."""
_ALIGNMENT = 256  # bytes, of each array that a device allocates


def can_capture(xp: ModuleType) -> bool:
    """Return whether the streams of an array module can capture a graph."""
    stream = getattr(getattr(xp, "cuda", None), "Stream", None)
    return hasattr(stream, "begin_capture")


def as_graphs(sections: Sections, functions: Functions, reason: str = "") -> Functions:
    """Return functions that launch graphs instead, if the device can capture.

    Parameters
    ----------
    sections : Sections
    functions : dict of str to function
        By section or preparation, as ``sections.bind`` returns them.
    reason : str
        Why they run without graphs; empty if they need not.
    """
    if not can_capture(sections.dialect.xp):
        return functions
    graphs = dict(functions)
    for section, stashes in sections.stashes_of(functions).items():
        made = SectionGraphs(
            functions[section],
            sections.parameters[section],
            stashes,
            sections.dialect.xp,
        )
        made.reason = reason
        if sections.has_leaves and section not in ("forward", "recompute"):
            made.reason = reason or "its gradients are new arrays in each step"
        graphs[section] = made
    return graphs


def note_of(functions: Functions) -> str:
    """Return the end of a stage's line in a report: which sections have no graphs."""
    graphs = {n: f for n, f in functions.items() if isinstance(f, SectionGraphs)}
    if not graphs:
        return ""
    refused = [f"{name} ({f.reason})" for name, f in graphs.items() if f.reason]
    if not refused:
        return ", as graphs"
    return f", but without graphs of {', '.join(refused)}"


@dataclass(eq=False)
class Graph:
    """The graph of a section for some slots; until it is captured, what it will need.

    Attributes
    ----------
    values : list of object
        Its arguments that stay, and what it reads of earlier sections.
    pool : MemoryPool
        The memory of arrays that the section allocates: the graph writes into it.
    own : dict of int to array
        By position of an argument that does not stay, the array that stands in for it.
    launch : function or None
    kept : list of object
        What it keeps for later sections.
    result : array, tuple of array, or None
        What the section returns.
    num_changes : int
        The times that it had to be captured again.
    """

    values: list[Any]
    pool: Any
    own: dict[int, Array] = field(default_factory=dict)
    launch: Callable[[], None] | None = None
    kept: list[Any] = field(default_factory=list)
    result: Any = None
    num_changes: int = 0

    def moved(self, values: list[Any]) -> list[int]:
        """Return the positions of arguments that are others than before."""
        return [
            i
            for i, (new, old) in enumerate(zip(values, self.values))
            if new is not old and i not in self.own
            if type(new) is not int or new != old
        ]


class SectionGraphs:
    """A section as a function that launches graphs.

    Parameters
    ----------
    function : function
        The section, bound to arrays.
    names : sequence of str
        Its parameters.
    stashes : (sequence of (list, int), sequence of (list, int))
        The lists, by slot, of values that it keeps, and of those that it reads; with
        the position of the parameter that is the slot.
    xp : module

    Attributes
    ----------
    reason : str
        Why it runs without graphs; empty if it need not.
    graphs : dict of tuple to Graph
        By slots, and whether this is a first contribution.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        names: Sequence[str],
        stashes: tuple[Sequence[Stash], Sequence[Stash]],
        xp: Any,
    ) -> None:
        self.reason = ""
        self.graphs: dict[tuple[Any, ...], Graph] = {}
        self._function = function
        self._makes, self._reads = stashes
        self._xp, self._cuda = xp, xp.cuda
        # Other graphs run while later sections still need such values.
        self._pool = None if self._makes else self._new_pool()
        self._begin = sum(name == "first" or name[:4] == "slot" for name in names)
        self._num_results = sum(name[:3] == "out" for name in names)

    def __call__(self, *given: Any) -> Any:
        """Compute the section of a microbatch."""
        if self.reason:
            return self._function(*given)
        begin = self._begin
        values = _flat(given[begin:])
        num_arguments = len(values)
        values += [stash[given[i]] for stash, i in self._reads]
        graph = self.graphs.get(given[:begin])
        if graph is None:
            graph = Graph(values, self._pool or self._new_pool())
            self.graphs[given[:begin]] = graph
            return self._run_first(graph, given)
        moved = graph.moved(values)
        if moved or graph.launch is None:
            return self._renewed(graph, given, values, moved)
        result = self._launched(graph, values, num_arguments - self._num_results)
        for (stash, i), kept in zip(self._makes, graph.kept):
            stash[given[i]] = kept
        return result

    def _renewed(
        self, graph: Graph, given: tuple[Any, ...], values: list[Any], moved: list[int]
    ) -> Any:
        """Capture a graph, at once if only its arguments have moved, and launch it."""
        num_arguments = len(values) - len(self._reads)
        copied = [i for i in moved if i < num_arguments and is_array(values[i])]
        graph.num_changes += graph.launch is not None or len(copied) < len(moved)
        graph.own |= {i: _copied(values[i]) for i in copied}
        graph.values = values
        graph.launch = None
        if graph.num_changes > MOST_CHANGES:
            self._refuse("its arguments are others in each step")
            return self._function(*given)
        if len(copied) < len(moved):
            return self._run_first(graph, given)
        if not self._captured(graph, given):
            return self._function(*given)
        return self(*given)

    def _refuse(self, reason: str) -> None:
        self.reason = reason
        self.graphs.clear()

    def _new_pool(self) -> Any:
        """Return memory that other graphs use again when this object is gone: CuPy
        never frees the blocks of a pool that is.
        """
        spare = _spare_pools(self._xp)
        try:
            pool = spare.pop()
        except IndexError:
            pool = self._cuda.MemoryPool()
        finalize(self, spare.append, pool)
        return pool

    def _stream(self) -> Any:
        device = self._cuda.runtime.getDevice()
        return _stream_of(self._xp, device, threading.get_ident())

    def _run_first(self, graph: Graph, given: tuple[Any, ...]) -> Any:
        """Run the section on the stream that will capture it."""
        current = self._cuda.get_current_stream()
        stream = self._stream()
        stream.wait_event(current.record())
        try:
            with stream, self._cuda.using_allocator(graph.pool.malloc):
                return self._function(*given)
        finally:
            current.wait_event(stream.record())

    def _captured(self, graph: Graph, given: tuple[Any, ...]) -> bool:
        """Capture the section over arrays that stay; return whether it could be."""
        staying = iter([graph.own.get(i, each) for i, each in enumerate(graph.values)])
        arguments = [
            tuple(islice(staying, len(each))) if type(each) is tuple else next(staying)
            for each in given[self._begin :]
        ]
        stream = self._stream()
        try:
            with stream, self._cuda.using_allocator(graph.pool.malloc):
                stream.begin_capture()
                graph.result = self._function(*given[: self._begin], *arguments)
                graph.launch = stream.end_capture().launch
        except Exception as error:
            _stream_of.cache_clear()  # an invalid capture may have spoilt it
            self._refuse(f"a capture refuses it: {error}")
            return False
        finally:
            if graph.launch is None:  # after an error, which may have ended it
                with suppress(Exception):
                    stream.end_capture()
        graph.kept = [stash[given[i]] for stash, i in self._makes]
        pairs = enumerate(graph.values)  # a graph keeps nothing of a microbatch
        graph.values = [None if i in graph.own else each for i, each in pairs]
        return True

    def _launched(self, graph: Graph, values: list[Any], num_read: int) -> Any:
        """Launch a graph, with copies of arguments and results that do not stay."""
        for i, own in graph.own.items():
            if i < num_read:
                own[...] = values[i]
        assert graph.launch is not None
        graph.launch()
        for i, own in graph.own.items():
            if i >= num_read:
                values[i][...] = own
        result = graph.result
        if type(result) is tuple:
            return tuple(each.copy() for each in result)
        return result if result is None else result.copy()


def _flat(given: Iterable[Any]) -> list[Any]:
    """Return arguments; several results of the host are a tuple."""
    values = list[Any]()
    for each in given:
        if type(each) is tuple:
            values += each
        else:
            values.append(each)
    return values


def _copied(array: Array) -> Array:
    """Return a copy of an array with the order of its axes and its alignment, on which
    the kernel of a product may depend.
    """
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    shape = tuple(array.shape[axis] for axis in order)
    xp = array_module(array)
    offset = array.data.ptr % _ALIGNMENT
    memory = xp.empty(offset + num_bytes(array), dtype="u1")
    made = dialect_of(xp).in_memory(memory, offset, shape, array.dtype)
    made = made.transpose(tuple(np.argsort(order).tolist()))
    made[...] = array
    return made


@lru_cache(maxsize=8)
def _spare_pools(xp: Any) -> list[Any]:
    """Return the pools of a module whose graphs are gone."""
    return []


@lru_cache(maxsize=64)
def _stream_of(xp: Any, device: int, thread: int) -> Any:
    """Return the stream that captures on a device in a thread."""
    return xp.cuda.Stream(non_blocking=True)
