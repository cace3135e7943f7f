"""The sections of a stage in a compiled row, with their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minipipe.compile.memory import Use, slots_of
from minipipe.compile.printing import preparation_of
from minipipe.compile.recording import Recorded
from minipipe.compile.value_form import Form
from minipipe.core.schedules.action import Action, ActionKind, B, F, I, R, W

SECTIONS = {
    F: "forward",
    R: "recompute",
    B: "backward",
    I: "backward_input",
    W: "backward_weight",
}
"""The section of a stage that an action runs."""


@dataclass
class StageProgram:
    """The compiled sections of a stage, for one form of microbatches.

    Attributes
    ----------
    stage : int
    suffix : str
        The end of the names of its functions.
    recorded : Recorded
    sections : Sections
    slots : dict of int to tuple of int
        By microbatch, its slot in each class of kept arrays.
    num_slots : list of int
    is_static : bool
        Whether weight gradients are arrays that exist before a step.
    contributes : list of int
        The uses of parameters that get a gradient.
    leaves : bool
        Whether values of microbatches are offloaded before a backward.
    functions : dict of str to function
        By section or preparation, once they are bound to arrays.
    """

    stage: int
    suffix: str
    recorded: Recorded
    sections: Any
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_slots: list[int] = field(default_factory=list)
    is_static: bool = False
    contributes: list[int] = field(default_factory=list)
    leaves: bool = False
    functions: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The end of the names of functions, and of lists by slot."""
        return f"{self.stage}{self.suffix}"

    def name_of(self, section: str) -> str:
        """Return the name of the function of a section."""
        return f"{section}_{self.name}"

    @property
    def read_later(self) -> list[str]:
        """The inputs and results of its forward that later sections read."""
        parameters = self.sections.parameters
        names = [
            name
            for section, of_section in parameters.items()
            if section not in ("forward", preparation_of("forward"))
            for name in of_section
        ]
        return [name for name in dict.fromkeys(names) if name[0] in "xy"]

    def takes_away(self, letter: str) -> bool:
        """Return whether inputs (x) or results (y) are offloaded with its values."""
        return self.leaves and any(name[0] == letter for name in self.read_later)

    def further(self, section: str) -> Form:
        """Return the form of the results of a section for other slices.

        These are keys and values, or their gradients.
        """
        recorded = self.recorded
        if section != "forward":
            count = recorded.num_inputs
        elif recorded.result is None:
            count = 1  # the loss
        else:
            count = len(recorded.result.shapes)
        names = recorded.trace.results[section]
        variables = recorded.trace.variables
        return Form.of_variables([variables.get(name) for name in names[count:]])

    def section_of(self, kind: ActionKind) -> str:
        """Return the section that an action of this kind runs.

        The I of a frozen stage, without a W, is a whole backward.
        """
        section = SECTIONS[kind]
        if section in self.sections.parameters:
            return section
        return "backward"


def assign_slots(program: StageProgram, places: Mapping[tuple[str, int], int]) -> None:
    """Assign slots to microbatches. A slot is free after the last section that reads it.

    Parameters
    ----------
    program : StageProgram
    places : mapping of (str, int) to int
        By section and microbatch, the position in the row.
    """
    assigned: dict[int, list[int]] = {k: [] for k in sorted({k for _, k in places})}
    program.num_slots = []
    for first, last in program.sections.lifetimes:
        slots = slots_of(Use(k, places[first, k], places[last, k]) for k in assigned)
        for number, slot in enumerate(slots):
            for use in slot:
                assigned[use.name].append(number)
        program.num_slots.append(len(slots))
    program.slots = {k: tuple(numbers) for k, numbers in assigned.items()}


def suffix_of(number: int) -> str:
    """Return the end of a stage's name for another form of microbatches.

    Nothing for the first form, then ``b``, ``c``, …
    """
    return chr(ord("a") + number) if number else ""


_OF_MICROBATCHES = (F, B, I, W, R)


def action_kinds(row: Sequence[Action], stage: int) -> dict[int, str]:
    """Return the kinds of actions of each microbatch of a stage, in their order."""
    kinds: dict[int, str] = {}
    for action in row:
        if action.stage == stage and action.kind in _OF_MICROBATCHES:
            k = action.microbatch
            kinds[k] = f"{kinds.get(k, '')} {action.kind}"
    return kinds
