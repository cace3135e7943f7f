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

Parameters ``p``, gradients ``d``, constants ``c``, temporaries and their views are
globals of the functions. Arrays for later sections are kept by slot, and unpacked at the
head of a function.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import CodeType
from typing import Any
from weakref import finalize

import numpy as np

from minipipe.compile.dialect import Dialect, dialect_of
from minipipe.compile.layout import Layout
from minipipe.compile.places import Places
from minipipe.compile.printing import Printer, preparation_of
from minipipe.compile.trace import Trace
from minipipe.core.autograd.backend import Array, copy

Functions = dict[str, Callable[..., Any]]
Stash = tuple[list[Any], int]
"""Values by slot, and the position of the parameter that is the number of the slot."""

_FUNCTIONS = ("add", "asarray", "broadcast_to", "copyto", "empty")
_numbers = count()  # of sources, for unique file names


class Pool:
    """Memory of temporaries, shared by all sections of all stages of a rank.

    Parameters
    ----------
    num_bytes : int
        The maximum over the stages (``Sections.temporary_bytes``). A stage that needs
        more gets other memory.
    """

    def __init__(self, num_bytes: int = 0) -> None:
        self._num_bytes = num_bytes
        self._memory: dict[Dialect, Array] = {}

    def memory(self, num_bytes: int, dialect: Dialect | None = None) -> Array:
        """Return an array of that many bytes or more, of NumPy by default."""
        dialect = dialect or dialect_of(np)
        memory = self._memory.get(dialect)
        if memory is None or memory.nbytes < num_bytes:
            size = max(num_bytes, self._num_bytes)
            if dialect.is_numpy:
                memory = _aligned(size)
            else:
                memory = dialect.empty((size,), "u1")
            self._memory[dialect] = memory
        return memory


class Sections:
    """Functions that compute a stage for one microbatch, section by section.

    Parameters
    ----------
    trace : Trace
        A trace without a graph break.
    stage : int or str
        Ends the names of the functions.
    gradients : {"static", "leaves"}
        Whether weight gradients are arrays, written by the first contribution of a
        step, or belong to leaves, as in an eager step.
    parameters : {"static", "read"}
        Whether parameters are arrays, or are read from their owners in each call.
    keeps : {"arrays", "values"}
        Whether a later section reads arrays that are written in each step, or values
        that can leave their slot meanwhile.

    Attributes
    ----------
    source : str
        The source of all functions.
    arrays : str
        The source that makes the arrays of their globals.
    has_leaves : bool
        Whether gradients belong to leaves.
    lifetimes : list of (str, str)
        By class of kept arrays, the section that makes them and the last that reads
        them.
    parameters : dict of str to tuple of str
        By section, the positional parameters of its function: ``slot{i}``, the number
        of a slot of class i; ``first``, whether this is the stage's first contribution
        to its weight gradients in the step; ``prepared``, the result of a function
        ``prepare_…``, which works on the host for other modules than NumPy, and is
        listed here as well; ``key`` of the random numbers; inputs ``x{i}``; gradients
        ``g{i}``; arrays ``out{i}`` for the results, in C order; ``y{i}``, the array
        ``out{i}`` of the forward.
    temporary_bytes : int
        The size of the temporaries of one function, in bytes.

    Examples
    --------
    >>> from minipipe.compile.trace import key_of
    >>> trace = Trace(key_of(0, 0, 0))
    >>> trace.begin("forward")
    >>> x = trace.input("x0", np.ones(2))
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
        parameters: str = "static",
        keeps: str = "arrays",
    ) -> None:
        is_static = gradients == "static"
        self._reads = parameters == "read"
        places = Places(trace, is_static, not self._reads, keeps == "arrays")
        self._layout = Layout(places, stage)
        sections = places.sections
        printed = [Printer(self._layout, i, is_static) for i in range(len(sections))]
        self.has_leaves = not is_static
        sources = [text for each in printed for text in (each.preparation, each.source)]
        functions = "\n\n".join(filter(None, sources))
        blocks = "\n\n".join(each.block for each in printed if each.block)
        self._block_names = [each.block_name for each in printed if each.block]
        self.source = "\n\n".join(filter(None, [blocks, functions]))
        self.arrays = self._layout.source()
        self.parameters = _parameters(sections, printed)
        self.dialect = trace.dialect
        self.lifetimes = [
            (sections[first], sections[last]) for first, last in self._layout.lifetimes
        ]
        self.temporary_bytes = places.temporary_bytes
        self.constants = places.constants
        self._functions = dict(trace.functions)
        dtypes = (variable.dtype for variable in trace.variables.values())
        self._dtypes = {each.name: trace.dialect.dtype(each) for each in dtypes}
        self._code_of_blocks = code_of(blocks, f"blocks of stage {stage}", self)
        self._code = code_of(functions, f"stage {stage}", self)
        self._code_of_arrays = code_of(self.arrays, f"arrays of stage {stage}", self)

    def bind(
        self,
        arrays: Sequence[Any],
        gradients: Sequence[Any],
        num_slots: Sequence[int],
        pool: Pool,
    ) -> Functions:
        """Return functions over these arrays. Only one section may run at a time.

        Parameters
        ----------
        arrays : sequence of array, or of Parameter
            The parameters, or their owners if functions read them.
        gradients : sequence of array, or of Leaf
            By leaf, the target of contributions.
        num_slots : sequence of int
            By class of ``lifetimes``, the number of microbatches in flight.
        pool : Pool
        """
        namespace: dict[str, Any] = {
            **self._functions_of_module(),
            **self._functions,
            **self._dtypes,
            **self.constants,
            "numpy": np,
            "errstate": np.errstate,
            "copied": copy,
            "__name__": __name__,  # for filters of warnings
        }
        prefix = "owner" if self._reads else "p"
        namespace |= {f"{prefix}{i}": each for i, each in enumerate(arrays)}
        prefix = "l" if self.has_leaves else "d"
        namespace |= {f"{prefix}{i}": each for i, each in enumerate(gradients)}
        # The memory has no bytes if all temporaries are arrays without elements.
        if "temporary" in self._code_of_arrays.co_names:
            memory = pool.memory(self.temporary_bytes, self.dialect)
            namespace["temporary"] = partial(self.dialect.in_memory, memory)
        exec(self._code_of_arrays, namespace)
        self._make_slots(namespace, num_slots)
        blocks = dict(namespace)  # without their functions: no reference cycle
        exec(self._code_of_blocks, blocks)
        namespace |= {name: blocks.pop(name) for name in self._block_names}
        exec(self._code, namespace)
        # Functions are not their own globals: no reference cycle keeps arrays alive.
        return {
            section: namespace.pop(self._layout.function(section))
            for section in self.parameters
        }

    def _functions_of_module(self) -> dict[str, Any]:
        """Return the functions that lines call besides the recorded ones."""
        xp = self.dialect.xp
        return {name: getattr(xp, name) for name in _FUNCTIONS if hasattr(xp, name)}

    def _make_slots(self, namespace: dict[str, Any], num_slots: Sequence[int]) -> None:
        """Make the lists by slot, from which sections unpack."""
        layout = self._layout
        for i, num in enumerate(num_slots):
            make = namespace.pop(layout.slot_function(i))
            slots = [make() for _ in range(num)]
            for number in layout.kept[i]:
                kept = [slot[layout.places.sections[number]] for slot in slots]
                namespace[layout.list_of_kept(i, number)] = kept
            if layout.stashes[i]:
                namespace[layout.list_of_stashes(i)] = [None] * num

    def stashes(self, functions: Functions) -> list[Any]:
        """Return the lists, by slot, of the values that functions keep, by class.

        None for a class of arrays alone.
        """
        names = map(self._layout.list_of_stashes, range(len(self.lifetimes)))
        return [functions["forward"].__globals__.get(name) for name in names]

    def stashes_of(
        self, functions: Functions
    ) -> dict[str, tuple[list[Stash], list[Stash]]]:
        """Return the stashes that each section fills, and those that it reads."""
        found = {}
        for section in self._layout.places.sections:
            names = self.parameters[section]
            pair = list[Stash](), list[Stash]()
            for i, stash in enumerate(self.stashes(functions)):
                if stash is not None and f"slot{i}" in names:
                    is_read = self.lifetimes[i][0] != section
                    pair[is_read].append((stash, names.index(f"slot{i}")))
            found[section] = pair
        return found


def _parameters(
    sections: Sequence[str], printed: Sequence[Printer]
) -> dict[str, tuple[str, ...]]:
    """Return the parameters of functions, by section or preparation."""
    parameters = {}
    for section, each in zip(sections, printed):
        parameters[section] = each.parameters
        if each.preparation:
            parameters[preparation_of(section)] = each.parameters_of_preparation
    return parameters


def code_of(source: str, name: str, owner: object) -> CodeType:
    """Return the code of a source; tracebacks show its lines while the owner lives."""
    file = f"<{name}, {next(_numbers)}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = len(source), None, lines, file
    finalize(owner, linecache.cache.pop, file, None)
    return compile(source, file, "exec")


def _aligned(num_bytes: int) -> np.ndarray:
    """Return bytes that begin at a cache line."""
    memory = np.empty(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + num_bytes]
