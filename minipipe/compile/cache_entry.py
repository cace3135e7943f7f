"""The compiled sections of a stage, called one by one, in rows of any length.

A cache entry serves the microbatches of one form. Each of them gets a slot when its
forward begins, and gives it up after its last section. So there are as many slots as
microbatches were in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minipipe.compile.offloads import Kept
from minipipe.compile.printing import preparation_of
from minipipe.compile.recording import Recorded, Recorder
from minipipe.compile.sections import Pool, Sections
from minipipe.compile.trace import Key
from minipipe.compile.value_form import Form
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array


class Held(Kept):
    """Values that the compiled forward of a microbatch keeps for its backward.

    Parameters
    ----------
    entry : CacheEntry
    key : Key
        The key of the random numbers of the microbatch.
    inputs : iterable of array

    Attributes
    ----------
    entry : CacheEntry
    slot : int
    numbers : dict of str to object
        Arguments of sections that are not arrays, by parameter: ``key`` and ``slot0``.
    arrays : dict of str to array
        Arguments of sections, by parameter: ``x0``, ``y0`` and ``g0``.
    """

    def __init__(self, entry: CacheEntry, key: Key, inputs: Iterable[Array]) -> None:
        self.entry = entry
        self.slot = entry.new_slot()
        stashes = entry.stashes
        slots = {f"slot{i}": self.slot for i in range(len(stashes))}
        self.numbers = {"key": key, **slots}
        arrays = {f"x{i}": array for i, array in enumerate(inputs)}
        super().__init__(arrays, [(stash, self.slot) for stash in stashes])


class CacheEntry:
    """The compiled sections of a stage for microbatches of one form.

    Parameters
    ----------
    recorded : Recorded
    name : str
        The end of the names of the functions.
    recorder : Recorder
        The recorder of the stage, which has its parameters.
    pool : Pool
        The memory of temporaries.

    Attributes
    ----------
    source : str
    stashes : list of list
        Values that sections have kept, by lifetime and slot.
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
        self._parameters = sections.parameters
        leaves = [use.node for use in recorder.uses]
        num_slots = [0] * len(sections.lifetimes)  # `new_slot` makes them
        self._functions = sections.bind(recorder.owners, leaves, num_slots, pool)
        self.stashes = sections.stashes(self._functions)
        self.num_slots = 0
        self._free = list[int]()
        self._results = {
            section: Form.of_variables([trace.variables.get(name) for name in results])
            for section, results in trace.results.items()
        }
        self._last = list(trace.sections)[-1]

    def has(self, section: str) -> bool:
        """Return whether the section exists."""
        return section in self._functions

    def run(self, section: str, held: Held) -> list[Any]:
        """Run a section of a microbatch; return its results, None for a missing one."""
        form = self._results[section]
        results = form.new(self.recorded.trace.dialect.xp)
        outputs = {f"out{i}": array for i, array in enumerate(results)}
        arguments = {**held.numbers, **held.arrays, **outputs}
        preparation = preparation_of(section)
        if self.has(preparation):
            arguments["prepared"] = self._call(preparation, arguments)
        returned = self._call(section, arguments)
        # A section writes into its outputs, but returns numbers without axes.
        numbers = iter(returned if isinstance(returned, tuple) else [returned])
        for i, shape in enumerate(form.shapes):
            if shape == ():
                results[i] = backend.as_array(next(numbers))
        if section == self._last:
            self._free.append(held.slot)
        return results

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a section, or its preparation, with the arguments that it takes."""
        return self._functions[name](*[arguments[p] for p in self._parameters[name]])

    def begin_row(self) -> None:
        """Take back the slots of microbatches that were in flight when a row failed."""
        self._free = list(range(self.num_slots))

    def new_slot(self) -> int:
        """Return a free slot; make one if there is none."""
        if self._free:
            return self._free.pop()
        for stash in self.stashes:
            stash.append(None)
        self.num_slots += 1
        return self.num_slots - 1
