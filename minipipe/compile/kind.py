"""The sections of a stage for one kind of its microbatches, in rows of any length.

A microbatch gets a slot when its forward begins, and gives it up when its last section
has run. So there are as many slots as microbatches were in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from minipipe.compile.lines import Variable
from minipipe.compile.offloads import Kept
from minipipe.compile.printing import preparation_of
from minipipe.compile.recording import Recorded, Recorder
from minipipe.compile.sections import Pool, Sections
from minipipe.compile.trace import Key
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.errors import MessageError


class Held(Kept):
    """Values that the compiled forward of a microbatch leaves for its backward.

    Attributes
    ----------
    program : KindProgram
    key : Key
        Of its random numbers.
    arrays : dict of str to array
        By the names of parameters of sections: ``x0`` and ``y0``; and the seed, ``g0``.
    slot : int
    """

    def __init__(self, program: KindProgram, key: Key, inputs: Iterable[Array]) -> None:
        self.program = program
        self.key = key
        self.slot = program.new_slot()
        arrays = {f"x{i}": array for i, array in enumerate(inputs)}
        super().__init__(arrays, [(stash, self.slot) for stash in program.stashes])

    def value(self, name: str) -> Any:
        """Return what a parameter of a section stands for."""
        return self.key if name == "key" else self.arrays[name]


class SectionCall(NamedTuple):
    """A section, and how it is called.

    Attributes
    ----------
    function : function
    parameters : list of (str, str, int)
        Their names, and the parts of these.
    results : list of (shape, dtype) or None
        The arrays to make for its results; None for a result that is none.
    returned : list of int
        The results that it returns.
    """

    function: Any
    parameters: list[tuple[str, str, int]]
    results: list[Any]
    returned: list[int]


def _layout(made: Variable | None) -> tuple[Any, Any] | None:
    return None if made is None or made.shape == () else (made.shape, made.dtype)


class KindProgram:
    """The sections of a stage for one kind of its microbatches.

    Parameters
    ----------
    recorded : Recorded
    name : str
        Ends the names of the functions.
    recorder : Recorder
        Has the parameters.
    pool : Pool
        For temporaries.

    Attributes
    ----------
    source : str
    stashes : list of list
        What sections have kept, by class of values and slot.
    num_slots : int
    """

    def __init__(
        self, recorded: Recorded, name: str, recorder: Recorder, pool: Pool
    ) -> None:
        self.recorded = recorded
        trace = recorded.trace
        sections = Sections(
            trace, name, gradients="leaves", parameters="read", keeps="values"
        )
        self.source = sections.source
        self._sections = sections
        count = len(sections.lifetimes)
        leaves = [use.node for use in recorder.uses]
        self._functions = sections.bind(recorder.owners, leaves, [0] * count, pool)
        self.stashes = sections.stashes(self._functions)
        self.num_slots = 0
        self._free = list[int]()
        self._calls = {section: self._call(section) for section in trace.sections}
        self._last = list(trace.sections)[-1]
        backward = next((s for s in trace.sections if s.startswith("backward")), "")
        self._awaited = set(trace.inputs.get(backward, ()))

    def _call(self, section: str) -> SectionCall:
        trace = self.recorded.trace
        parameters = []
        for name in self._sections.parameters[section]:
            letters = name.rstrip("0123456789")
            parameters.append((name, letters, int(name[len(letters) :] or 0)))
        results = [trace.variables.get(name) for name in trace.results[section]]
        return SectionCall(
            self._functions[section],
            parameters,
            results=list(map(_layout, results)),
            returned=[i for i, r in enumerate(results) if r and r.shape == ()],
        )

    def has(self, section: str) -> bool:
        """Return whether there is such a section."""
        return section in self._functions

    def run(self, section: str, held: Held) -> list[Any]:
        """Run a section of a microbatch; return its results, None if there is none."""
        call = self._calls[section]
        dialect = self.recorded.trace.dialect
        arrays = [layout and dialect.empty(*layout) for layout in call.results]
        given: list[Any] = []
        for name, letters, number in call.parameters:
            if letters == "slot":
                given.append(held.slot)
            elif letters == "out":
                given.append(arrays[number])
            elif letters == "prepared":
                given.append(self._prepared(section, held))
            else:
                given.append(held.value(name))
        found = call.function(*given)
        numbers = iter(found if isinstance(found, tuple) else (found,))
        for i in call.returned:
            arrays[i] = backend.as_array(next(numbers))
        if section == self._last:
            self._free.append(held.slot)
        return arrays

    def _prepared(self, section: str, held: Held) -> Any:
        """Return what the host does before a section; None if it does nothing."""
        name = preparation_of(section)
        if name not in self._functions:
            return None
        names = self._sections.parameters[name]
        return self._functions[name](*map(held.value, names))

    def begin_row(self) -> None:
        """Take back the slots of microbatches that a row with an error has left."""
        self._free = list(range(self.num_slots))

    def new_slot(self) -> int:
        """Return a slot that is free, or make one."""
        if self._free:
            return self._free.pop()
        for stash in self.stashes:
            stash.append(None)
        self.num_slots += 1
        return self.num_slots - 1

    def take_gradients(self, held: Held, gradients: Sequence[Array | None]) -> None:
        """Take the gradients of results, after checking their form."""
        variables = self.recorded.trace.variables
        expected = []
        given = []
        for i, gradient in enumerate(gradients):
            own = None if gradient is None else backend.contiguous(gradient)
            held.arrays[f"g{i}"] = own
            dtype = None if own is None else backend.numpy_dtype(own.dtype)
            given.append(None if own is None else (own.shape, dtype))
            made = variables[f"g{i}"] if f"g{i}" in self._awaited else None
            expected.append(None if made is None else (made.shape, made.dtype))
        if given != expected:
            message = f"Gradients of the form {given} came, where {expected} came"
            message += " before, for a microbatch of the same form."
            raise MessageError("shape", message)
