"""The memory of each array of a traced stage: assigned once, from its first and last use.

============  ====================================================================
parameter     an array that is passed to ``bind``; a gradient as well
constant      computed when the functions are bound: it depends on no value
temporary     used in one section; its memory is shared by all sections
kept          made in one section, used in a later one: an array for each slot
result        an array that the caller passes for it
input         an array that the caller passes
dynamic       allocated by NumPy in each call
============  ====================================================================

A view lies in the memory of its base. Arrays of a section that are computed in place of
an operand, which is not used again, are in one *cell*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from minipipe.compile.biases import with_biases
from minipipe.compile.lines import Line, Variable, roots_of
from minipipe.compile.trace import Trace

ALIGNMENT = 64  # bytes of a temporary: a cache line


@dataclass(eq=False)
class Cell:
    """Memory of one array, or of several that follow each other.

    Attributes
    ----------
    members : list of str
        The variables that own it, one after the other.
    variable : Variable
        The layout of all of them.
    section : int
        The section in which they are made.
    born, dies : int
        The positions of the first and the last use.
    last_section : int
        The section of the last use.
    result : int or None
        The number of the result that is computed here.
    offset : int
        Bytes before a temporary in the shared memory.
    """

    members: list[str]
    variable: Variable
    section: int
    born: int
    dies: int
    last_section: int
    result: int | None = None
    offset: int = 0

    @property
    def is_temporary(self) -> bool:
        """Whether the memory is free again at the end of the section."""
        return self.result is None and self.section == self.last_section

    @property
    def is_kept(self) -> bool:
        """Whether each slot has such an array."""
        return self.result is None and self.section < self.last_section

    @property
    def num_bytes(self) -> int:
        """The size of the array in bytes."""
        return num_bytes(self.variable)


def num_bytes(variable: Variable) -> int:
    """Return the size of an array in bytes."""
    return int(np.prod(variable.shape, dtype=int)) * variable.dtype.itemsize


@dataclass
class Step:
    """A line of a section, at a position that counts the lines of all sections.

    Attributes
    ----------
    line : Line
    section, position : int
    leaf : int or None
        The leaf to whose gradient the line itself adds its result.
    """

    line: Line
    section: int
    position: int
    leaf: int | None = None


@dataclass
class Uses:
    """The uses of the memory of a variable, through any view of it."""

    positions: list[int] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)
    is_changed: bool = False
    is_result: bool = False


class Places:
    """The places of all variables of a trace.

    Parameters
    ----------
    trace : Trace
    has_static_gradients : bool
        Whether contributions are added to arrays, and not passed to leaves.
    has_static_parameters : bool
        Whether parameters are the same arrays in each call.
    has_kept_arrays : bool
        Whether later sections read arrays of a slot; otherwise NumPy allocates them.

    Attributes
    ----------
    steps : list of list of Step
        By section, the lines on which results and effects depend.
    folded : set of str
        The variables that are constants, and views of these.
    cells : dict of str to Cell
        By the variable that owns the memory.
    scratch : dict of int to Cell
        By position, memory for a contribution that is then added.
    temporary_bytes : int
        The size of the memory of temporaries.
    """

    def __init__(
        self,
        trace: Trace,
        has_static_gradients: bool = True,
        has_static_parameters: bool = True,
        has_kept_arrays: bool = True,
    ) -> None:
        self.trace = trace
        # First letters of variables that are the same in each call, or arguments of it.
        self._lasting = "c"
        self._arguments = "xgp"
        if has_static_parameters:
            self._lasting = "pc"
            self._arguments = "xg"
        self.sections = list(trace.sections)
        self.ends: list[int] = []
        self.steps = self._numbered(with_biases(trace, needed_lines(trace)))
        self._is_static: dict[str, bool] = {}
        self._first: dict[int, Step] = {}
        self.makers = {n: step for step in self.all_steps for n in step.line.makes}
        self.constants = dict(trace.constants.values())
        self.uses = self._uses()
        self.scratch: dict[int, Cell] = {}
        if has_static_gradients:
            self._fuse_contributions()
        self.folded = self._folded()
        self.cells: dict[str, Cell] = {}
        self._make_cells(has_static_gradients)
        self._take_results()
        if not has_kept_arrays:
            self.cells = {n: c for n, c in self.cells.items() if not c.is_kept}
        temporaries = [c for c in self.unique_cells if c.is_temporary]
        temporaries += self.scratch.values()
        self.temporary_bytes = pack(temporaries)

    @property
    def all_steps(self) -> list[Step]:
        """The steps of all sections, in their order."""
        return [step for steps in self.steps for step in steps]

    @cached_property
    def unique_cells(self) -> list[Cell]:
        """Every cell once, in the order in which they are made."""
        return list(dict.fromkeys(self.cells.values()))

    def root(self, name: str) -> str:
        """Return the variable that owns the memory of another."""
        if name in self.trace.variables:
            return self.trace.variables[name].root
        return name

    def cell(self, name: str) -> Cell | None:
        """Return the cell of a variable; None if it has none."""
        return self.cells.get(self.root(name))

    def is_view(self, name: str) -> bool:
        """Return whether a variable is a view of another."""
        return self.root(name) != name

    def is_static(self, name: str) -> bool:
        """Return whether a variable is in the same memory in each call, or of a slot."""
        if name not in self._is_static:
            self._is_static[name] = self._find_static(name)
        return self._is_static[name]

    def _find_static(self, name: str) -> bool:
        if name in self.folded or name[0] in self._lasting:
            return True
        if self.is_view(name):
            return self.is_static(self.root(name)) and self._is_remade(name)
        cell = self.cells.get(name)
        return cell is not None and cell.result is None

    def is_of_inputs(self, name: str) -> bool:
        """Return whether it is a view of an argument of the call."""
        if not self.is_view(name):
            return False
        root = self.root(name)
        cell = self.cell(name)
        is_result = cell is not None and cell.result is not None
        is_argument = is_result or root[0] in self._arguments
        return is_argument and self._is_remade(name)

    def is_dynamic(self, name: str) -> bool:
        """Return whether NumPy allocates it in each call."""
        if name[0] != "v" or name in self.cells or self.makers[name].leaf is not None:
            return False
        return not self.is_static(name) and not self.is_of_inputs(name)

    def is_made_once(self, step: Step) -> bool:
        """Return whether a line is computed when the functions are bound."""
        if not step.line.makes_one:
            return False
        (name,) = step.line.makes
        return name in self.folded or (self.is_view(name) and self.is_static(name))

    def first_contribution(self, leaf: int) -> Step:
        """Return the first step that contributes to the gradient of a leaf."""
        if not self._first:
            for step in reversed(self.all_steps):
                for each in (step.leaf, step.line.leaf):
                    if each is not None:
                        self._first[each] = step
        return self._first[leaf]

    def _is_remade(self, name: str) -> bool:
        """Return whether a view depends on one array alone."""
        step = self.makers[name]
        if not step.line.makes_one or len(step.line.reads) != 1:
            return False
        (base,) = step.line.reads
        is_root = not self.is_view(base)
        return self.root(base) == self.root(name) and (is_root or self._is_remade(base))

    # -- analysis ----------------------------------------------------------------------

    def _numbered(self, lines: dict[str, list[Line]]) -> list[list[Step]]:
        numbered = []
        position = 0
        for number, section in enumerate(self.sections):
            steps = []
            # Lines on the host come first: they read only inputs.
            for line in sorted(lines[section], key=lambda line: not line.is_on_host):
                steps.append(Step(line, number, position))
                position += 1
            numbered.append(steps)
            self.ends.append(position)  # the position at which results are used
            position += 1
        return numbered

    def _uses(self) -> dict[str, Uses]:
        uses: dict[str, Uses] = {}

        def note(name: str, position: int, section: int) -> Uses:
            of_root = uses.setdefault(self.root(name), Uses())
            of_root.positions.append(position)
            of_root.sections.add(section)
            return of_root

        for step in self.all_steps:
            for name in (*step.line.makes, *step.line.reads, *step.line.changes):
                note(name, step.position, step.section)
            for name in step.line.changes:
                uses[self.root(name)].is_changed = True
        for number, section in enumerate(self.sections):
            for name in self.trace.results[section]:
                note(name, self.ends[number], number).is_result = True
        return uses

    def _fuse_contributions(self) -> None:
        """Let a line whose result is only a contribution add it to the gradient."""
        for steps in self.steps:
            before: dict[int, int] = {}  # by leaf, the last contribution
            for step in list(steps):
                leaf = step.line.leaf
                if leaf is None:
                    continue
                (name,) = step.line.reads
                maker = self.makers.get(name)
                last = before.get(leaf, -1)
                before[leaf] = step.position
                if maker is None or last > maker.position:
                    continue
                if self._is_alone(name, maker, step):
                    steps.remove(step)
                    self._fuse(name, maker, leaf)

    def _is_alone(self, name: str, maker: Step, step: Step) -> bool:
        """Return whether a variable is used for one contribution alone."""
        line = maker.line
        uses = self.uses[self.root(name)]
        variable = self.trace.variables[name]
        return (
            not self.is_view(name)
            and maker.section == step.section
            and line.form.into is not None
            and line.makes_one
            and variable.is_in_c_order
            and not uses.is_result
            and set(uses.positions) == {maker.position, step.position}
        )

    def _fuse(self, name: str, maker: Step, leaf: int) -> None:
        maker.leaf = leaf
        variable = self.trace.variables[name]
        position = maker.position
        number = maker.section
        cell = Cell([name], variable, number, position, position, number)
        self.scratch[position] = cell

    def _folded(self) -> set[str]:
        """Return the variables that depend on no value."""
        folded = {name for name in self.trace.variables if name[0] == "c"}
        for step in self.all_steps:
            line = step.line
            has_effect = line.has_effect or line.changes or step.leaf is not None
            if has_effect or not line.makes or not folded.issuperset(line.reads):
                continue
            if not any(self.uses[self.root(name)].is_changed for name in line.makes):
                folded.update(line.makes)
        return folded

    def _make_cells(self, has_static_gradients: bool) -> None:
        barred = set(self.folded)
        for step in self.all_steps:
            line = step.line
            if line.form.into is None:
                barred.update(map(self.root, line.changes))
            if line.leaf is not None and not has_static_gradients:  # it is passed on
                barred.add(self.root(line.reads[0]))
        for step in self.all_steps:
            line = step.line
            if line.form.into is None or not line.makes_one or step.leaf is not None:
                continue
            (name,) = line.makes
            variable = self.trace.variables[name]
            is_owner = variable.is_fresh and not variable.is_number
            if variable.shape == () and not self.trace.dialect.is_numpy:
                is_owner = not self.uses[name].is_result  # it is returned
            if is_owner and name not in barred:
                self._add_to_cell(name, variable, step)

    def _add_to_cell(self, name: str, variable: Variable, step: Step) -> None:
        """Put a variable into the cell of an operand with its last use, or a new one."""
        uses = self.uses[name]
        cell = None
        if step.line.form.is_exact:
            cell = self._cell_of_operand(variable, step)
        if cell is None:
            cell = Cell([], variable, step.section, step.position, 0, step.section)
        cell.members.append(name)
        cell.dies = max(uses.positions)
        cell.last_section = max(uses.sections)
        self.cells[name] = cell

    def _cell_of_operand(self, variable: Variable, step: Step) -> Cell | None:
        """Return the cell of an operand with its last use, which the line reads once."""
        cells = [self.cell(name) for name in step.line.reads]
        for name in step.line.reads:
            cell = self.cells.get(name)
            if cell is None or cells.count(cell) > 1:
                continue
            is_over = (cell.section, cell.dies) == (step.section, step.position)
            if is_over and cell.variable.layout == variable.layout:
                return cell
        return None

    def _take_results(self) -> None:
        """Compute results in the arrays of the caller, if that is possible."""
        for number, section in enumerate(self.sections):
            for i, name in enumerate(self.trace.results[section]):
                cell = self.cells.get(name)  # of the variable itself, not of a view
                if cell is None or cell.section != number or cell.result is not None:
                    continue
                if cell.variable.shape == ():
                    continue  # it is returned
                if number > 0 and cell.last_section > number:
                    continue  # only results of the first section are read later
                if cell.variable.is_in_c_order and not self._is_changed_later(cell):
                    cell.result = i

    def _is_changed_later(self, cell: Cell) -> bool:
        return any(
            self.cell(name) is cell
            for steps in self.steps[cell.section + 1 :]
            for step in steps
            for name in step.line.changes
        )


def needed_lines(trace: Trace) -> dict[str, list[Line]]:
    """Return the lines, by section, on which results and effects depend.

    Changes in place count for all views of the memory.
    """
    live = {name for results in trace.results.values() for name in results}
    roots = roots_of(live, trace.variables)
    needed: dict[str, list[Line]] = {}
    for section in reversed(trace.sections):
        lines = []
        for line in reversed(trace.sections[section]):
            changes = roots_of(line.changes, trace.variables)
            is_read = not live.isdisjoint(line.makes) or not roots.isdisjoint(changes)
            if line.has_effect or is_read:
                lines.append(line)
                live.update(line.reads)
                roots |= roots_of(line.reads, trace.variables)
        needed[section] = lines[::-1]
    return {section: needed[section] for section in trace.sections}


def pack(cells: list[Cell]) -> int:
    """Give cells offsets without overlaps in time, larger cells first.

    Returns the size of the memory in bytes.

    Examples
    --------
    The first and the last are never used at the same time.

    >>> one = Variable("v0", (16,), np.dtype("f4"), (4,), False, True)
    >>> cells = [Cell([], one, 0, i, i + 1, 0) for i in range(3)]
    >>> pack(cells), [cell.offset for cell in cells]
    (128, [0, 64, 0])
    """
    placed: list[Cell] = []
    for cell in sorted(cells, key=lambda cell: (-cell.num_bytes, cell.born)):
        alive = [o for o in placed if o.born <= cell.dies and cell.born <= o.dies]
        cell.offset = 0
        for other in sorted(alive, key=lambda other: other.offset):
            if other.offset >= cell.offset + cell.num_bytes:
                break
            cell.offset = max(cell.offset, _aligned(other.offset + other.num_bytes))
        placed.append(cell)
    return max((_aligned(cell.offset + cell.num_bytes) for cell in cells), default=0)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
