"""The functions of a stage: straight-line NumPy over arrays that are allocated once.

A trace becomes a function for each section, such as these of a linear layer::

    def forward_0(x0, out0):
        x0.dot(p0, out0)
        add(out0, p1, out0)


    def backward_0(first, x0, g0, out0):
        if first:
            x0.T.dot(g0, d0)
        else:
            add(d0, x0.T.dot(g0, t0), d0)
        g0.dot(p0_T, out0)

Parameters ``p``, gradients ``d``, constants ``c``, temporaries and views of these are
globals of the functions. What a later section reads is kept by slot, and unpacked at
the head of a function.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from weakref import finalize

import numpy as np

from minipipe.compile.places import Cell, Places
from minipipe.compile.printing import Printer
from minipipe.compile.trace import Trace, Variable

Functions = dict[str, Callable[..., Any]]

_numbers = count()  # of programs: each has its own file name


class Pool:
    """Memory of temporaries, shared by all sections of all stages of a rank.

    Parameters
    ----------
    num_bytes : int
        The most that any of the stages needs (``Sections.temporary_bytes``). If one
        needs more, it gets other memory.
    """

    def __init__(self, num_bytes: int = 0) -> None:
        self._memory = _aligned(num_bytes)

    def memory(self, num_bytes: int) -> np.ndarray:
        """Return that many bytes or more."""
        if self._memory.nbytes < num_bytes:
            self._memory = _aligned(num_bytes)
        return self._memory


class Sections:
    """Functions that compute a stage for one microbatch, section by section.

    Parameters
    ----------
    trace : Trace
        A trace without a break.
    stage : int or str
        Ends the names of the functions.
    gradients : {"static", "leaves"}
        Whether weight gradients are arrays, written by the first contribution of a
        step, or belong to leaves, as in an eager step.
    names : mapping of str to str, optional
        Names of the program for parameters and gradients, such as ``{"p0": "weight"}``.

    Attributes
    ----------
    source : str
        That of all functions.
    lifetimes : list of (str, str)
        The classes of kept arrays: the section that makes them, and the last that reads
        them.
    parameters : dict of str to tuple of str
        By section, what its function takes by position: ``slot{i}`` the number of a
        slot of class i; ``first``, whether this is the stage's first contribution to
        its weight gradients in the step; ``key`` of the random numbers; inputs
        ``x{i}``, gradients ``g{i}``; arrays ``out{i}`` for the results, in C order;
        ``y{i}``, what was ``out{i}`` of the forward.
    temporary_bytes : int
        The size of the temporaries of one function.

    Examples
    --------
    >>> from minipipe.compile.trace import key_of
    >>> trace = Trace(key_of(0, 0, 0))
    >>> trace.begin("forward")
    >>> x = trace.given("x0", np.ones(2))
    >>> _ = trace.returned(x * 2 + x)
    >>> sections = Sections(trace, 0)
    >>> print(sections.source)
    def forward_0(x0, out0):
        multiply(x0, 2, out0)
        add(out0, x0, out0)
    <BLANKLINE>
    >>> result = np.empty(2)
    >>> sections.bind([], [], [], Pool())["forward"](np.ones(2), result)
    >>> result
    array([3., 3.])
    """

    def __init__(
        self,
        trace: Trace,
        stage: int | str,
        gradients: str = "static",
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._places = Places(trace, gradients == "static")
        self._printer = Printer(self._places, stage, gradients == "static", names or {})
        self._printer.print_all()
        self._is_static = gradients == "static"
        self.source = self._printer.source
        self.lifetimes = self._printer.lifetimes
        self.parameters = self._printer.parameters
        self.temporary_bytes = self._places.temporary_bytes
        self.constants = trace.constants
        self._functions = dict(trace.functions)
        file = f"<stage {stage}, {next(_numbers)}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = len(self.source), None, lines, file
        finalize(self, linecache.cache.pop, file, None)
        self._code = compile(self.source, file, "exec")

    def kept_bytes(self, lifetime: int) -> int:
        """Return the size of the arrays of one slot of a class."""
        kept = self._printer.kept_cells(lifetime)
        return sum(cell.num_bytes for cell in kept)

    def bind(
        self,
        arrays: Sequence[np.ndarray],
        gradients: Sequence[Any],
        num_slots: Sequence[int],
        pool: Pool,
    ) -> Functions:
        """Return functions over these arrays; no two sections may run at a time.

        Parameters
        ----------
        arrays : sequence of array
            The parameters.
        gradients : sequence of array, or of Leaf
            By leaf, where contributions are added.
        num_slots : sequence of int
            By class of ``lifetimes``, how many microbatches are in flight.
        pool : Pool
        """
        printer, places = self._printer, self._places
        namespace: dict[str, Any] = {
            **{name: getattr(np, name) for name in ("add", "copyto", "asarray")},
            **self._functions,
            "numpy": np,
            "__name__": __name__,  # for filters of warnings
        }
        namespace |= dict(self.constants.values())
        display = printer.display
        for letter, given in (("p", arrays), (printer.letter, gradients)):
            for i, each in enumerate(given):
                namespace[display(f"{letter}{i}")] = each
        memory = pool.memory(places.temporary_bytes)
        for name, cell in printer.temporaries.items():
            namespace[name] = _in_memory(memory, cell)
        for name, expression in printer.views:
            namespace[name] = eval(expression, namespace)
        namespace.pop("__builtins__", None)
        for i, (kept, num) in enumerate(zip(printer.kept, num_slots, strict=True)):
            slots = [self._slot(i, namespace) for _ in range(num)]
            for section, names in kept.items():
                namespace[printer.kept_name(i, section)] = [
                    tuple([slot[name] for name in names]) for slot in slots
                ]
        for name, i in printer.stashes.items():
            namespace[name] = [None] * num_slots[i]
        exec(self._code, namespace)
        functions: Functions = {}
        for section in places.sections:  # out of the namespace: no reference cycle
            functions[section] = namespace.pop(printer.function_name(section))
        return functions

    def _slot(self, lifetime: int, namespace: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays of a slot, and their views, by name."""
        slot: dict[str, Any] = {}
        cells = self._printer.kept_cells(lifetime)
        sizes = [-(-cell.num_bytes // 64) * 64 for cell in cells]
        memory, start = _aligned(sum(sizes)), 0
        for cell, size in zip(cells, sizes):
            slot[self._printer.cell_name(cell)] = _in_memory(memory, cell, start)
            start += size
        for name, expression in self._printer.kept_views(lifetime):
            slot[name] = eval(expression, namespace, slot)
        return slot


def _aligned(num_bytes: int) -> np.ndarray:
    """Return bytes that begin a line of the cache."""
    memory = np.empty(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + num_bytes]


def _in_memory(memory: np.ndarray, cell: Cell, offset: int | None = None) -> np.ndarray:
    """Return the array of a cell, at its offset."""
    start = cell.offset if offset is None else offset
    part = memory[start : start + cell.num_bytes]
    return _laid_out(part, cell.variable)


def _laid_out(memory: np.ndarray, variable: Variable) -> np.ndarray:
    """Return the bytes as an array of the variable's shape, dtype and strides."""
    array = np.ndarray(variable.shape, variable.dtype, memory, 0, variable.strides)
    if array.nbytes > memory.nbytes or array.base is None:
        raise AssertionError(f"{variable} does not lie in its memory")
    return array
