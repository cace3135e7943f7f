"""The names of a stage's variables, and the source that makes its arrays.

Cells, constants and views that are the same each time are globals of the functions.
Kept arrays, and their views, are made for each slot; a section unpacks those it reads.
Dynamic variables that a later section reads are kept in lists of the same classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from minipipe.compile.lines import Variable
from minipipe.compile.places import Cell, Places, Step
from minipipe.compile.statements import listed, renamed, written
from minipipe.compile.wrapping import wrapped

SMALL = 1 << 16
"""Bytes of an array that may be twice in memory, or stay there for a while."""


class Names(dict[str, str]):
    """Names of variables in a section of the program, some of them overridden."""

    def __init__(self, layout: Layout, section: int, **replaced: str) -> None:
        super().__init__(replaced)
        self._layout = layout
        self._section = section

    def __missing__(self, name: str) -> str:
        return self._layout.name(name, self._section)


class Layout:
    """The names of variables, and the source of their arrays.

    Parameters
    ----------
    places : Places
    stage : int or str
        The end of the names of functions, and of lists by slot.

    Attributes
    ----------
    lifetimes : list of (int, int)
        By class of kept arrays, the numbers of the first and the last section.
    kept : list of dict of int to dict of str to None
        By class and section, the names that the section unpacks.
    stashes : list of dict of str to None
        By class, the dynamic variables that later sections read.
    """

    def __init__(self, places: Places, stage: int | str) -> None:
        self.places = places
        self._stage = stage
        self._names: dict[str, str] = {}
        self._cell_names: dict[Cell, str] = {}
        self._temporaries: dict[object, tuple[str, Cell]] = {}
        self.whole: dict[tuple[str, tuple[int, ...]], str] = {}
        self._expressions: dict[str, str] = {}  # of views, by name
        self._name_variables()
        self.needs = [self._needs(i) for i in range(len(places.sections))]
        spans = {
            self._span(name)
            for number, needed in enumerate(self.needs)
            for name in needed
            if self.is_kept(name) or self.is_stashed(name, number)
        }
        self.lifetimes = sorted(spans)
        self.kept: list[dict[int, dict[str, None]]] = [{} for _ in spans]
        self.stashes: list[dict[str, None]] = [{} for _ in spans]
        for number, needed in enumerate(self.needs):
            self._collect_kept(number, needed)

    # -- names -------------------------------------------------------------------------

    def name(self, variable: str, section: int = 0) -> str:
        """Return the name of a variable in a section of the program."""
        cell = self.places.cells.get(variable)
        if cell is None:
            return self._names.get(variable, variable)
        if cell.result is None:
            return self._cell_names[cell]
        if section == cell.section:
            return f"out{cell.result}"
        return f"y{cell.result}"

    def function(self, section: str) -> str:
        """Return the name of the function of a section."""
        return f"{section}_{self._stage}"

    def list_of_kept(self, lifetime: int, section: int) -> str:
        """Return the name of the list, by slot, from which a section unpacks."""
        return f"kept{lifetime}_{self.places.sections[section]}_{self._stage}"

    def list_of_stashes(self, lifetime: int) -> str:
        """Return the name of the list, by slot, of dynamic variables."""
        return f"stash{lifetime}_{self._stage}"

    def slot_function(self, lifetime: int) -> str:
        """Return the name of the function that makes the arrays of a slot."""
        return f"slot_of_class{lifetime}_{self._stage}"

    def scratch(self, step: Step) -> str:
        """Return the name of the temporary for a contribution."""
        return self._temporary(self.places.scratch[step.position])

    def _temporary(self, cell: Cell) -> str:
        """Return the name of a temporary, which others of its layout and offset share."""
        layout = cell.offset, cell.variable.layout
        new = f"t{len(self._temporaries)}", cell
        return self._temporaries.setdefault(layout, new)[0]

    def constant(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the name of a constant that is expanded to a shape.

        NumPy computes with it in a third of the time of a broadcast.
        """
        new = f"{name}_{'x'.join(map(str, shape))}"
        return self.whole.setdefault((name, shape), new)

    def _name_variables(self) -> None:
        """Number the variables in the order of the program."""
        number = 0
        for step in self.places.all_steps:
            if step.leaf is not None:
                self.scratch(step)
                continue
            for variable in step.line.makes:
                cell = self.places.cells.get(variable)
                if cell is None and not self._name_view(variable, step):
                    self._names[variable] = f"v{number}"
                elif cell is None or cell.result is not None:
                    continue
                elif cell.is_temporary:
                    self._cell_names[cell] = self._temporary(cell)
                    continue
                elif cell not in self._cell_names:
                    self._cell_names[cell] = f"v{number}"
                else:
                    continue
                number += 1

    def _name_view(self, variable: str, step: Step) -> bool:
        """Name a view after its array, unless another view has the name."""
        places = self.places
        line = step.line
        is_lasting = places.is_made_once(step) or places.is_of_inputs(variable)
        if not is_lasting or len(line.reads) != 1:
            return False
        (base,) = line.reads
        prefix = self.name(places.root(base), step.section)
        expression = renamed(line.form.text, Names(self, step.section))
        made = places.trace.variables[variable]
        source = places.trace.variables[base]
        end = "x".join(map(str, made.shape))
        if line.form.text == f"{{{base}}}.T":
            prefix = self.name(base, step.section)
            end = "T"
        elif made.dtype != source.dtype:
            end = made.dtype.name
        name = f"{prefix}_{end}"
        if self._expressions.setdefault(name, expression) != expression:
            return False
        self._names[variable] = name
        return True

    # -- variables of a section --------------------------------------------------------

    def is_kept(self, name: str) -> bool:
        """Return whether a variable is an array of a slot, or its view."""
        cell = self.places.cell(name)
        return cell is not None and cell.is_kept and self.places.is_static(name)

    def is_stashed(self, name: str, section: int) -> bool:
        """Return whether a section reads a dynamic variable of an earlier one."""
        places = self.places
        return places.is_dynamic(name) and places.makers[name].section < section

    def class_of(self, name: str) -> int:
        """Return the number of the class of a variable that is kept or stashed."""
        return self.lifetimes.index(self._span(name))

    def _needs(self, number: int) -> dict[str, None]:
        """Return the variables in the lines of a section, in their order."""
        needed: dict[str, None] = {}
        places = self.places
        for step in places.steps[number]:
            line = step.line
            if line.is_on_host:
                needed |= dict.fromkeys(line.makes)
            elif not places.is_made_once(step):
                needed |= dict.fromkeys((*line.makes, *line.reads, *line.changes))
        results = places.trace.results[places.sections[number]]
        needed |= dict.fromkeys(name for name in results if name != "None")
        for name in list(needed):
            while places.is_of_inputs(name):  # each section makes it from its base
                (name,) = places.makers[name].line.reads
                needed[name] = None
        return needed

    def _span(self, name: str) -> tuple[int, int]:
        cell = self.places.cell(name)
        if cell is not None and self.places.is_static(name):
            return cell.section, cell.last_section
        return self.places.makers[name].section, self._last_needs[name]

    @cached_property
    def _last_needs(self) -> dict[str, int]:
        return {name: i for i, needed in enumerate(self.needs) for name in needed}

    def _collect_kept(self, number: int, needed: Mapping[str, None]) -> None:
        for variable in needed:
            name = self.name(variable, number)
            if self.is_kept(variable):
                self.kept[self.class_of(variable)].setdefault(number, {})[name] = None
            elif self.is_stashed(variable, number):
                self.stashes[self.class_of(variable)][name] = None

    # -- the source of the arrays ------------------------------------------------------

    def kept_cells(self, lifetime: int) -> list[Cell]:
        """Return the arrays of a class."""
        span = self.lifetimes[lifetime]
        cells = self.places.unique_cells
        return [c for c in cells if c.is_kept and (c.section, c.last_section) == span]

    def source(self) -> str:
        """Return the lines that make temporaries, constants, views and slots."""
        lines = [
            f"{name} = {_allocated(f'temporary({cell.offset}, ', cell.variable)}"
            for name, cell in self._temporaries.values()
        ]
        lines += [f"{name} = {text}" for name, text in self._views(None)]
        lines += [
            f"{new} = broadcast_to({name}, {shape}).copy()"
            for (name, shape), new in self.whole.items()
        ]
        lines = list(dict.fromkeys(lines))
        text = "".join(f"{line}\n" for line in lines)
        slots = map(self.slot_source, range(len(self.lifetimes)))
        return "\n\n".join(part for part in (text, *slots) if part)

    def _views(self, lifetime: int | None) -> Iterator[tuple[str, str]]:
        """Yield names and expressions of the views of a class; None: of those made once."""
        for step in self.places.all_steps:
            if not self.places.is_made_once(step):
                continue
            (name,) = step.line.makes
            own_class = self.class_of(name) if self.is_kept(name) else None
            if own_class == lifetime:
                names = Names(self, step.section)
                yield names[name], written(renamed(step.line.form.text, names))

    def slot_source(self, lifetime: int) -> str:
        """Return the function that makes a slot of a class."""
        lines = [f"def {self.slot_function(lifetime)}():"]
        for cell in self.kept_cells(lifetime):
            allocated = _allocated("empty(", cell.variable)
            lines.append(f"    {self._cell_names[cell]} = {allocated}")
        lines += [f"    {name} = {text}" for name, text in self._views(lifetime)]
        lines.append("    return {")
        for number, names in self.kept[lifetime].items():
            section = self.places.sections[number]
            text = f'"{section}": ({written(listed(names))}),'
            lines += wrapped(text, 8)
        lines.append("    }")
        return "".join(f"{line}\n" for line in lines)


def _allocated(call: str, variable: Variable) -> str:
    """Return the expression of a new array with the strides of a variable."""
    shape = variable.shape
    strides = variable.strides
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    made = f"{call}{tuple(shape[axis] for axis in order)}, {variable.dtype.name})"
    if order == sorted(order):
        return made
    return f"{made}.transpose({tuple(np.argsort(order).tolist())})"
