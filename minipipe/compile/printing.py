"""The source of the sections of a stage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minipipe.compile.layout import SMALL, Layout, Names
from minipipe.compile.lines import Line
from minipipe.compile.outlining import conditional, merged, outlined
from minipipe.compile.places import Step, num_bytes
from minipipe.compile.statements import Statement, joined, listed, renamed, written
from minipipe.compile.wrapping import function
from minipipe.core.autograd.backend import is_half

_QUIETLY = '@errstate(over="ignore", invalid="ignore")'


class Printer:
    """Prints the function of a section.

    Parameters
    ----------
    layout : Layout
    number : int
        The number of the section.
    is_static : bool
        Whether gradients are arrays, and not attributes of leaves.

    Attributes
    ----------
    block, block_name : str
        The source and the name of a function of repeated lines; the source is empty
        if no lines repeat.
    source : str
    parameters : tuple of str
        The names of the parameters of the function.
    preparation : str
        The source of a function of the work on the host; empty if there is none. The
        section gets its result as the parameter ``prepared``.
    parameters_of_preparation : tuple of str
    """

    def __init__(self, layout: Layout, number: int, is_static: bool) -> None:
        self._layout = layout
        self._places = layout.places
        self._has_out = layout.places.trace.dialect.has_out
        self._number = number
        self._is_static = is_static
        self._names = Names(layout, number)
        self._slots: set[int] = set()
        self._parts: list[Statement] = []
        self._freed = self._last_reads()
        section = self._places.sections[number]
        views = dict.fromkeys(self._views_of_inputs())
        head = [*self._prepared(), *self._unpacked(), *self._parameters_read()]
        head += [Statement(text) for text in views]
        for step in self._places.steps[number]:
            self._write(step)
            if step.position in self._freed:
                self._add(f"del {joined(self._freed[step.position])}")
        self._parts += [*self._stashed(), *self._results()]
        self.parameters = self._parameters()
        name = layout.function(section)
        local = {*self.parameters, *(n for each in head for n in each.names)}
        self.block_name = f"{name}_block"
        self.block, body = outlined(self._parts, local, self.block_name)
        texts = merged([written(each.text) for each in [*head, *body]])
        self.source = f"{function(name, self.parameters, texts)}\n"
        if self._is_half():
            self.source = f"{_QUIETLY}\n{self.source}"
        self.parameters_of_preparation = self._parameters_of_preparation()
        self.preparation = self._preparation()

    @property
    def _is_on_device(self) -> bool:
        """Whether the section may be captured as a graph and launched again: then all
        arrays that it reads have to stay.
        """
        return self._has_out and not self._places.trace.dialect.is_numpy

    def _is_half(self) -> bool:
        """Return whether gradients are halves, whose overflow a loss scale handles."""
        names = self._layout.needs[self._number]
        variables = self._places.trace.variables
        is_backward = self._number > 0
        return is_backward and any(
            is_half(variables[name].dtype) for name in names if name in variables
        )

    def _parameters(self) -> tuple[str, ...]:
        needed = self._layout.needs[self._number]
        places = self._places
        roots = {places.root(name) for name in needed}
        arrays = [self._names[name] for name in roots if self._is_argument(name)]
        arrays.sort(key=lambda name: ("xgy".index(name[0]), int(name[1:])))
        results = places.trace.results[places.sections[self._number]]
        outs = [f"out{i}" for i, name in enumerate(results) if self._is_array(name)]
        has_conditions = any("first" in part.names for part in self._parts)
        return (
            *(f"slot{i}" for i in sorted(self._slots)),
            *["first"] * has_conditions,
            *["prepared"] * bool(self._host_lines()),
            *["key"] * ("key" in needed),
            *arrays,
            *outs,
        )

    def _is_argument(self, root: str) -> bool:
        """Return whether the caller passes an array: an input, or an earlier result."""
        cell = self._places.cells.get(root)
        if cell is not None:
            return cell.result is not None and cell.section < self._number
        return root[0] in "xg"

    def _is_array(self, name: str) -> bool:
        """Return whether a result has axes: it is written to an output, not returned."""
        return name != "None" and self._places.trace.variables[name].shape != ()

    # -- work on the host --------------------------------------------------------------

    def _host_lines(self) -> list[Line]:
        steps = self._places.steps[self._number]
        return [step.line for step in steps if step.line.is_on_host]

    def _names_of_preparation(self) -> list[str]:
        makes = (name for line in self._host_lines() for name in line.makes)
        return [self._names[name] for name in makes]

    def _prepared(self) -> Iterator[Statement]:
        """Yield the statement that unpacks the result of the host."""
        names = self._names_of_preparation()
        if names:
            yield Statement(f"{listed(names)} = prepared", tuple(names))

    def _parameters_of_preparation(self) -> tuple[str, ...]:
        reads = {name for line in self._host_lines() for name in line.reads}
        return tuple(sorted(reads, key=lambda name: ("kxg".index(name[0]), name)))

    def _preparation(self) -> str:
        lines = self._host_lines()
        names = self._names_of_preparation()
        if not lines:
            return ""
        texts = [written(renamed(line.text, self._names)) for line in lines]
        texts += [written(f"return {listed(names)}")] * bool(names)
        name = self._layout.function(preparation_of(self._section))
        return f"{function(name, self.parameters_of_preparation, texts)}\n"

    @property
    def _section(self) -> str:
        return self._places.sections[self._number]

    # -- head and end ------------------------------------------------------------------

    def _unpacked(self) -> Iterator[Statement]:
        """Yield the statements that unpack kept arrays."""
        layout = self._layout
        number = self._number
        for i, kept in enumerate(layout.kept):
            if number in kept:
                self._slots.add(i)
                kept_list = f"{layout.list_of_kept(i, number)}[slot{i}]"
                yield Statement(f"{listed(kept[number])} = {kept_list}")
        needed = {self._names[name] for name in layout.needs[number]}
        for i, names in enumerate(layout.stashes):
            first, last = layout.lifetimes[i]
            if not names or not first < number <= last:
                continue
            stash = f"{layout.list_of_stashes(i)}[slot{i}]"
            if not needed.isdisjoint(names):
                self._slots.add(i)
                targets = [name if name in needed else "_" for name in names]
                yield Statement(f"{listed(targets)} = {stash}")
            if number == last and not self._is_on_device:
                yield Statement(f"{stash} = None")

    def _parameters_read(self) -> Iterator[Statement]:
        """Yield the statements that read parameters, if their arrays may change."""
        if self._places.is_static("p0"):
            return
        for name in self._layout.needs[self._number]:
            if name[0] == "p":
                yield Statement(f"{{{self._names[name]}}} = owner{name[1:]}.data")

    def _views_of_inputs(self) -> Iterator[str]:
        """Yield views of arguments, which each section makes anew."""
        needed = self._layout.needs[self._number]
        for step in self._places.all_steps:
            if step.section > self._number:
                return
            makes = step.line.makes
            if makes and makes[0] in needed and self._places.is_of_inputs(makes[0]):
                yield renamed(step.line.text, self._names)

    def _stashed(self) -> Iterator[Statement]:
        """Yield the statements that keep dynamic variables for later sections."""
        layout = self._layout
        for i, names in enumerate(layout.stashes):
            if names and layout.lifetimes[i][0] == self._number:
                self._slots.add(i)
                stash = f"{layout.list_of_stashes(i)}[slot{i}]"
                yield Statement(f"{stash} = {listed(names)}")

    def _results(self) -> Iterator[Statement]:
        """Yield the statements that copy results, and return those without axes."""
        places = self._places
        returned = []
        for i, name in enumerate(places.trace.results[places.sections[self._number]]):
            if name == "None":
                continue
            cell = places.cells.get(name)
            if not self._is_array(name):
                returned.append(self._names[name])
            elif cell is None or (cell.section, cell.result) != (self._number, i):
                yield Statement(f"{{out{i}}}[...] = {{{self._names[name]}}}")
        if returned:
            yield Statement(f"return {joined(returned)}")

    def _last_reads(self) -> dict[int, list[str]]:
        """Return the large dynamic arrays, by the position of their last use."""
        places = self._places
        last = dict[str, int]()
        for step in places.steps[self._number]:
            line = step.line
            for name in (*line.makes, *line.reads, *line.changes):
                last[places.root(name)] = step.position
        freed: dict[int, list[str]] = {}
        added = {name for cell in places.scratch.values() for name in cell.members}
        for name in self._layout.needs[self._number]:
            root = places.root(name)
            variable = places.trace.variables.get(root)
            if variable is None or num_bytes(variable) <= SMALL or root in added:
                continue
            uses = places.uses[root]
            is_over = max(uses.sections) == self._number and not uses.is_result
            if is_over and places.is_dynamic(root) and places.is_dynamic(name):
                freed.setdefault(last[root], []).append(self._names[name])
        return freed

    # -- lines -------------------------------------------------------------------------

    def _write(self, step: Step) -> None:
        line = step.line
        places = self._places
        if line.leaf is not None:
            self._write_contribution(line.leaf, step)
        elif step.leaf is not None:
            self._write_fused(step.leaf, step)
        elif line.is_on_host:
            return  # the preparation does it
        elif places.is_made_once(step) or any(map(places.is_of_inputs, line.makes)):
            return  # a view, or made once
        elif line.makes_one and line.makes[0] in places.cells:
            self._add(self._into(step, self._names[line.makes[0]]))
        elif line.changes and line.form.into and self._is_global(line.changes[0]):
            self._add(renamed(line.form.into, self._names))
        else:
            text = renamed(line.text, self._names)
            self._add(text, tuple(self._names[name] for name in line.makes))

    def _into(self, step: Step, target: str) -> str:
        """Return the call that writes a result into an array."""
        form = step.line.form
        assert form.into is not None
        names = Names(self._layout, self._number, out=target)
        if form.is_exact:
            self._repeat_constants(step, names)
        return renamed(form.into, names)

    def _repeat_constants(self, step: Step, names: Names) -> None:
        made = self._places.trace.variables[step.line.makes[0]]
        if num_bytes(made) > SMALL:
            return
        for name in step.line.form.constants:
            value = self._places.constants[name]
            is_array = isinstance(value, np.ndarray)
            if is_array and value.shape not in ((), made.shape):
                names[name] = self._layout.constant(name, made.shape)

    def _is_global(self, name: str) -> bool:
        cell = self._places.cell(name)
        return cell is not None and cell.is_temporary

    def _write_fused(self, leaf: int, step: Step) -> None:
        """Write a line that adds its result to a gradient."""
        gradient = self._names[f"d{leaf}"]
        scratch = self._layout.scratch(step)
        first = self._into(step, gradient)
        more = self._into(step, scratch)
        later = addition(f"{{{gradient}}}", more)
        if "[...] = " in more or more.startswith("copyto"):  # these return nothing
            later = addition(f"{{{gradient}}}", f"{{{scratch}}}")
            later = f"{more}\n{later}"
        self._contribute(leaf, first, later, step)

    def _write_contribution(self, leaf: int, step: Step) -> None:
        (variable,) = step.line.reads
        name = f"{{{self._names[variable]}}}"
        if self._is_static:
            gradient = f"{{{self._names[f'd{leaf}']}}}"
            first = f"{gradient}[...] = {name}"
            self._contribute(leaf, first, addition(gradient, name, self._has_out), step)
            return
        gradient = f"{{{self._names[f'l{leaf}']}}}.grad"
        first = f"{name}.copy()"
        total = f"add({gradient}, {name}, {gradient})"
        if not self._has_out:
            first = f"copied({name})"
            total = f"{gradient} + {name}"
        if self._places.trace.variables[variable].is_number:
            first = f"asarray({name})"
            total = f"asarray({gradient} + {name})"
        self._add(f"{gradient} = {first} if {gradient} is None else {total}")

    def _contribute(self, leaf: int, first: str, later: str, step: Step) -> None:
        """Write the first contribution of a step, and add the others."""
        if self._places.first_contribution(leaf) is not step:
            self._add(later)
            return
        text = conditional(first.splitlines(), later.splitlines())
        self._parts.append(Statement(text))

    def _add(self, text: str, makes: tuple[str, ...] = ()) -> None:
        self._parts += [Statement(line, makes) for line in text.splitlines()]


def addition(total: str, part: str, has_out: bool = True) -> str:
    """Return the line that adds an array to another one."""
    if has_out:
        return f"add({total}, {part}, {total})"
    return f"{total}[...] += {part}"


def preparation_of(section: str) -> str:
    """Return the name of the work on the host before a section."""
    return f"prepare_{section}"
