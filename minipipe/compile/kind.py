"""The sections of a stage for one kind of its microbatches, and slots for their arrays.

A microbatch gets slots when its forward begins, and gives each up when the last section
that reads it has run. So there are as many slots as microbatches were in flight. An O
takes the arrays out of the slots of a microbatch; an L puts them into free ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.compile.lines import Variable
from minipipe.compile.printing import preparation_of
from minipipe.compile.recording import Recorded, Recorder
from minipipe.compile.sections import Pool, Sections
from minipipe.compile.trace import Key
from minipipe.errors import MessageError

Slots = dict[int, list[Any]]
"""By class of kept arrays, and by list of a slot: a tuple of values."""


class Held:
    """Values that the compiled forward of a microbatch leaves for its backward.

    To what offloads or measures graphs, it is a node of one, which has saved them.

    Attributes
    ----------
    program : KindProgram
    key : Key
        Of its random numbers.
    arrays : dict of str to array
        By the names of parameters of sections: ``x0`` and ``y0``; and the seed, ``g0``.
    slots : dict of int to int
        By class of kept arrays.
    """

    inputs = ()

    def __init__(self, program: KindProgram, key: Key, inputs: Iterable[Array]) -> None:
        self.program, self.key = program, key
        self.arrays = {f"x{i}": array for i, array in enumerate(inputs)}
        self.slots: dict[int, int] = {}
        self._away: tuple[Slots, dict[int, Any]] | None = None

    def value(self, name: str) -> Any:
        """Return what a parameter of a section stands for."""
        return self.key if name == "key" else self.arrays[name]

    @property
    def graph(self) -> list[Any]:
        """The roots of the graph."""
        return [self]

    @property
    def saved(self) -> tuple[Any, ...]:
        """The arrays, or what stands for them while they are away."""
        kept = self._away[1] if self._away else self._unique()
        return tuple(self.arrays.values()), tuple(kept.values())

    @saved.setter
    def saved(self, saved: tuple[Any, ...]) -> None:
        arrays, others = saved
        self.arrays = dict(zip(self.arrays, arrays))
        if self._away is None:
            numbered = _map_parts(id, self.program.kept(self))
            self._away = numbered, dict(zip(self._unique(), others))
            self.program.give_up(self)
        else:
            numbered, values = self._away
            values = dict(zip(values, others))
            self.program.take_back(self, _map_parts(values.__getitem__, numbered))
            self._away = None

    def _unique(self) -> dict[int, Any]:
        """Return the values in its slots once each, by identity."""
        slots = self.program.kept(self).values()
        return {id(value): value for parts in slots for part in parts for value in part}


def _map_parts(function: Callable[[Any], Any], slots: Slots) -> Slots:
    """Apply a function to all values in some slots."""
    return {
        i: [tuple(map(function, part)) for part in parts] for i, parts in slots.items()
    }


class SectionCall(NamedTuple):
    """A section, and how it is called.

    Attributes
    ----------
    function : function
    parameters : list of (str, str, int)
        Their names, and the parts of these.
    begins, ends : list of int
        The classes of kept arrays that it makes first, and that it reads last.
    results : list of (shape, dtype) or None
        The arrays to make for its results; None for a result that is none.
    returned : list of int
        The results that it returns.
    """

    function: Any
    parameters: list[tuple[str, str, int]]
    begins: list[int]
    ends: list[int]
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
    num_slots : list of int
        By class of kept arrays, the number of slots with memory.
    """

    def __init__(
        self, recorded: Recorded, name: str, recorder: Recorder, pool: Pool
    ) -> None:
        self.recorded = recorded
        trace = recorded.trace
        sections = Sections(trace, name, gradients="leaves", parameters="read")
        self.source, self._sections = sections.source, sections
        count = len(sections.lifetimes)
        leaves = [use.node for use in recorder.uses]
        self._functions = sections.bind(recorder.owners, leaves, [0] * count, pool)
        self._slots = [sections.lists(self._functions, i) for i in range(count)]
        self.num_slots = [0] * count
        self._free: list[list[int]] = [[] for _ in range(count)]
        self._empty: list[list[int]] = [[] for _ in range(count)]
        self._calls = {section: self._call(section) for section in trace.sections}
        backward = next((s for s in trace.sections if s.startswith("backward")), "")
        self._awaited = set(trace.inputs.get(backward, ()))

    def _call(self, section: str) -> SectionCall:
        trace, parameters = self.recorded.trace, []
        spans = list(enumerate(self._sections.lifetimes))
        for name in self._sections.parameters[section]:
            letters = name.rstrip("0123456789")
            parameters.append((name, letters, int(name[len(letters) :] or 0)))
        results = [trace.variables.get(name) for name in trace.results[section]]
        return SectionCall(
            self._functions[section],
            parameters,
            begins=[i for i, (first, _) in spans if first == section],
            ends=[i for i, (_, last) in spans if last == section],
            results=list(map(_layout, results)),
            returned=[i for i, r in enumerate(results) if r and r.shape == ()],
        )

    def has(self, section: str) -> bool:
        """Return whether there is such a section."""
        return section in self._functions

    def run(self, section: str, held: Held) -> list[Any]:
        """Run a section of a microbatch; return its results, None if there is none."""
        call = self._calls[section]
        for i in call.begins:
            held.slots[i] = self._new_slot(i)
        dialect = self.recorded.trace.dialect
        arrays = [layout and dialect.empty(*layout) for layout in call.results]
        sources: dict[str, Any] = {"slot": held.slots, "out": arrays}
        sources["prepared"] = [self._prepared(section, held)]
        given = [
            sources[letters][number] if letters in sources else held.value(name)
            for name, letters, number in call.parameters
        ]
        found = call.function(*given)
        numbers = iter(found if isinstance(found, tuple) else (found,))
        for i in call.returned:
            arrays[i] = backend.as_array(next(numbers))
        for i in call.ends:
            self._free[i].append(held.slots.pop(i))
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
        for lists, free, empty in zip(self._slots, self._free, self._empty):
            free[:] = [slot for slot in range(len(lists[0])) if slot not in empty]

    def _new_slot(self, lifetime: int) -> int:
        """Return a slot that is free, or make one."""
        if self._free[lifetime]:
            return self._free[lifetime].pop()
        new = self._sections.new_slot(self._functions, lifetime)
        return self._filled_slot(lifetime, new)

    def _filled_slot(self, lifetime: int, kept: Iterable[Any]) -> int:
        """Return a slot with these arrays, instead of the arrays of a free one."""
        lists, empty = self._slots[lifetime], self._empty[lifetime]
        if self._free[lifetime]:
            slot = self._free[lifetime].pop()
        else:
            self.num_slots[lifetime] += 1
            if not empty:
                empty.append(len(lists[0]))
                for each in lists:
                    each.append(None)
            slot = empty.pop()
        for each, own in zip(lists, kept):
            each[slot] = own
        return slot

    # -- arrays that are away ----------------------------------------------------------

    def kept(self, held: Held) -> Slots:
        """Return the values in the slots of a microbatch, by class and list."""
        return {
            i: [each[slot] or () for each in self._slots[i]]
            for i, slot in held.slots.items()
        }

    def give_up(self, held: Held) -> None:
        """Let the memory of the slots of a microbatch go."""
        for i, slot in held.slots.items():
            self.num_slots[i] -= 1
            self._empty[i].append(slot)
            for each in self._slots[i]:
                each[slot] = None
        held.slots.clear()

    def take_back(self, held: Held, kept: Slots) -> None:
        """Give a microbatch slots with arrays that were away."""
        for i, own in kept.items():
            held.slots[i] = self._filled_slot(i, own)

    # -- what goes in and comes out ----------------------------------------------------

    def take_gradients(self, held: Held, gradients: Sequence[Array | None]) -> None:
        """Take the gradients of results, after checking their form."""
        variables, expected, given = self.recorded.trace.variables, [], []
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
