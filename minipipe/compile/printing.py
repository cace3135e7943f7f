"""The source of the sections of a stage, from the places of its variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import fill

from minipipe.compile.places import Cell, Places, Step

_WIDTH = 88
_SMALL = (
    1 << 16
)  # bytes: an array of NumPy's that is larger is freed after its last use


class _Names(dict[str, str]):
    """Names of variables as a function writes them."""

    def __init__(self, printer: Printer, section: int) -> None:
        super().__init__()
        self._printer, self._section = printer, section

    def __missing__(self, name: str) -> str:
        return self._printer.display(name, self._section)


class Printer:
    """Prints functions, and says what they need.

    Parameters
    ----------
    places : Places
    stage : int or str
    is_static : bool
        Whether gradients are arrays.
    names : mapping of str to str
        Of parameters and gradients.

    Attributes
    ----------
    source : str
    parameters : dict of str to tuple of str
    lifetimes : list of (str, str)
    temporaries : dict of str to Cell
        The temporaries, by their names.
    views : list of (str, str)
        Names and expressions of constants, and of views of parameters and temporaries.
    kept : list of dict of str to list of str
        By class and section, the names that the section unpacks.
    stashes : dict of str to int
        Names of the lists for dynamic variables, each with its class.
    """

    def __init__(
        self,
        places: Places,
        stage: int | str,
        is_static: bool,
        names: Mapping[str, str],
    ) -> None:
        self._places, self._stage, self._given_names = places, stage, names
        self.letter = "d" if is_static else "l"
        self._is_static = is_static
        self.source = ""
        self.parameters: dict[str, tuple[str, ...]] = {}
        self.lifetimes: list[tuple[str, str]] = []
        self._classes: dict[tuple[int, int], int] = {}
        self.temporaries: dict[str, Cell] = {}
        self.views: list[tuple[str, str]] = []
        self.kept: list[dict[str, list[str]]] = []
        self.stashes: dict[str, int] = {}
        self._needed: dict[int, dict[str, None]] = {}
        self._names: dict[str, str] = {}
        self._cell_names: dict[int, str] = {}
        self._scratch_names: dict[int, str] = {}

    # -- names -------------------------------------------------------------------------

    def function_name(self, section: str) -> str:
        """Return the name of the function of a section."""
        return f"{section}_{self._stage}"

    def kept_name(self, lifetime: int, section: str) -> str:
        """Return the name of the list, by slot, of what a section unpacks."""
        return f"kept{lifetime}_{section}_{self._stage}"

    def cell_name(self, cell: Cell) -> str:
        """Return the name of a cell that is no result."""
        return self._cell_names[id(cell)]

    def display(self, name: str, section: int = 0) -> str:
        """Return the name of a variable in a section of the program."""
        cell = self._places.cell(name)
        if cell is not None and not self._places.is_view(name):
            if cell.result is not None:
                letter = "out" if section == cell.section else "y"
                return f"{letter}{cell.result}"
            return self._cell_names[id(cell)]
        return self._given_names.get(name) or self._names.get(name) or name

    def _name_all(self) -> None:
        """Number the variables in the order in which the program makes them."""
        places, number = self._places, 0
        for steps in places.steps:
            for step in steps:
                for name in step.line.makes:
                    cell = places.cells.get(name)
                    is_result = cell is not None and cell.result is not None
                    if step.leaf is not None or is_result:
                        continue
                    if id(cell) in self._cell_names:
                        continue
                    if cell is not None:
                        self._cell_names[id(cell)] = f"v{number}"
                        number += 1
                    elif not self._is_transpose(step):
                        self._names[name] = f"v{number}"
                        number += 1
        layouts: dict[object, str] = {}
        for position, cell in places.scratch.items():
            layout = cell.variable.shape, cell.variable.dtype, cell.offset
            self._scratch_names[position] = layouts.setdefault(
                layout, f"t{len(layouts)}"
            )
        for steps in places.steps:
            for step in steps:
                if self._is_transpose(step):
                    (base,) = step.line.reads
                    shown = self.display(base, step.section)
                    self._names[step.line.makes[0]] = f"{shown}_T"

    def _is_transpose(self, step: Step) -> bool:
        form, reads = step.line.form, step.line.reads
        is_one = len(step.line.makes) == 1 == len(reads)
        return is_one and form.text == f"{{{reads[0]}}}.T"

    # -- the program -------------------------------------------------------------------

    def print_all(self) -> None:
        """Print the functions, in the order of the sections."""
        self._name_all()
        self._collect_statics()
        needs = [self._needs(number) for number in range(len(self._places.sections))]
        for number, needed in enumerate(needs):
            for name in needed:
                if self._is_kept(name) or self._is_stashed(name, number):
                    self._class_of(name)
        self._sort_classes()
        self.kept = [{} for _ in self.lifetimes]
        texts = [self._function(number, needed) for number, needed in enumerate(needs)]
        self.source = "\n\n".join(texts)

    def _collect_statics(self) -> None:
        places = self._places
        for cell in places.unique_cells:
            if cell.is_temporary:
                self.temporaries[self.cell_name(cell)] = cell
        for position, cell in places.scratch.items():
            self.temporaries[self._scratch_names[position]] = cell
        for steps in places.steps:
            for step in steps:
                if self._is_made_once(step) and not any(
                    map(self._is_kept, step.line.makes)
                ):
                    text = step.line.form.text.format_map(_Names(self, step.section))
                    names = [
                        self.display(name, step.section) for name in step.line.makes
                    ]
                    self.views.append((names[0], text))

    def _is_made_once(self, step: Step) -> bool:
        """Return whether a line is computed when the functions are bound."""
        places, makes = self._places, step.line.makes
        return len(makes) == 1 and (
            makes[0] in places.folded
            or (places.is_view(makes[0]) and places.is_static(makes[0]))
        )

    def _is_kept(self, name: str) -> bool:
        cell = self._places.cell(name)
        return cell is not None and cell.is_kept and self._places.is_static(name)

    def _is_dynamic(self, name: str) -> bool:
        places = self._places
        if name[0] != "v" or places.is_static(name) or places.is_of_inputs(name):
            return False
        return places.cells.get(name) is None

    def _is_stashed(self, name: str, section: int) -> bool:
        """Return whether a section takes a variable that an earlier one allocates."""
        return self._is_dynamic(name) and self._places.makers[name].section < section

    def _needs(self, number: int) -> dict[str, None]:
        """Return what the lines of a section name, without what is made at once."""
        if number in self._needed:
            return self._needed[number]
        found: dict[str, None] = {}
        places = self._places
        for step in places.steps[number]:
            if self._is_made_once(step):
                continue
            for name in (*step.line.makes, *step.line.reads, *step.line.changes):
                found[name] = None
        for name in places.trace.results[places.sections[number]]:
            if name != "None":
                found[name] = None
        for name in list(found):
            for each in self._bases(name):
                found.setdefault(each)
        self._needed[number] = found
        return found

    def _bases(self, name: str) -> Iterator[str]:
        """Yield what a view of an input is made from, again in this section."""
        while self._places.is_of_inputs(name):
            (name,) = self._places.makers[name].line.reads
            yield name

    # -- classes of kept arrays --------------------------------------------------------

    def _span(self, name: str) -> tuple[int, int]:
        cell = self._places.cell(name)
        if cell is not None and self._places.is_static(name):
            return cell.section, cell.last_section
        made = self._places.makers[name].section
        return made, self._last_section_of(name)

    def _last_section_of(self, name: str) -> int:
        sections = range(len(self._places.sections))
        return max(number for number in sections if name in self._needs(number))

    def _class_of(self, name: str) -> int:
        return self._classes.setdefault(self._span(name), len(self._classes))

    def _sort_classes(self) -> None:
        self._classes = {span: i for i, span in enumerate(sorted(self._classes))}
        sections = self._places.sections
        self.lifetimes = [(sections[a], sections[b]) for a, b in self._classes]

    def kept_cells(self, lifetime: int) -> list[Cell]:
        """Return the arrays of a class."""
        span = list(self._classes)[lifetime]
        cells = self._places.unique_cells
        return [c for c in cells if c.is_kept and (c.section, c.last_section) == span]

    def kept_views(self, lifetime: int) -> Iterator[tuple[str, str]]:
        """Yield names and expressions of the views of the arrays of a class."""
        places, cells = self._places, {id(cell) for cell in self.kept_cells(lifetime)}
        for steps in places.steps:
            for step in steps:
                if not self._is_made_once(step) or step.line.makes[0] in places.folded:
                    continue
                if id(places.cell(step.line.makes[0])) in cells:
                    names = _Names(self, step.section)
                    yield (
                        names[step.line.makes[0]],
                        step.line.form.text.format_map(names),
                    )

    # -- one function ------------------------------------------------------------------

    def _function(self, number: int, needed: Iterable[str]) -> str:
        section = self._places.sections[number]
        names = _Names(self, number)
        slots: set[int] = set()
        head = [
            *self._unpacked(number, needed, slots),
            *self._made_again(number, needed),
        ]
        body = _Body()
        for step in self._places.steps[number]:
            self._write(step, names, body)
        stash = self._stashed(number, slots)
        end, returned = self._results(number, names)
        lines = [*head, *body.lines(), *stash, *end]
        if returned:
            lines.append(f"return {', '.join(returned)}")
        self.parameters[section] = self._parameters(number, needed, slots, body)
        arguments = ", ".join(self.parameters[section])
        text = [f"def {self.function_name(section)}({arguments}):"]
        text += [f"    {line}" for line in lines or ["pass"]]
        return "".join(f"{line}\n" for line in text)

    def _parameters(
        self, number: int, needed: Iterable[str], slots: set[int], body: _Body
    ) -> tuple[str, ...]:
        places = self._places
        found = [f"slot{i}" for i in sorted(slots)]
        found += ["first"] if body.has_conditions else []
        found += ["key"] if "key" in needed else []
        inputs = [
            name for name in needed if name[0] in "xg" and name not in places.folded
        ]
        found += sorted(inputs, key=_letter_and_number)
        shown = {
            self.display(self._places.root(name), number)
            for name in needed
            if (cell := places.cell(name)) is not None and cell.result is not None
        }
        found += sorted((n for n in shown if n[0] == "y"), key=_letter_and_number)
        results = places.trace.results[places.sections[number]]
        found += [f"out{i}" for i, name in enumerate(results) if self._is_written(name)]
        return tuple(found)

    def _is_written(self, name: str) -> bool:
        return name != "None" and self._places.trace.variables[name].shape != ()

    def _unpacked(
        self, number: int, needed: Iterable[str], slots: set[int]
    ) -> list[str]:
        """Return the lines that take kept arrays out of their lists."""
        section, lines = self._places.sections[number], []
        by_class: dict[int, dict[str, None]] = {}
        stashed: dict[int, dict[str, None]] = {}
        for name in needed:
            if self._is_kept(name):
                taken = by_class.setdefault(self._class_of(name), {})
                taken[self.display(name, number)] = None
            elif self._is_stashed(name, number):
                stashed.setdefault(self._class_of(name), {})[self.display(name)] = None
        for i in sorted(by_class):
            self.kept[i][section] = list(by_class[i])
            kept = f"{self.kept_name(i, section)}[slot{i}]"
            lines += _unpack(by_class[i], kept)
            slots.add(i)
        for i, (_, last) in enumerate(self._classes):
            stash, names = self._stash_name(i), self._stash_names(i)
            if i in stashed:
                lines += _unpack(
                    [n if n in stashed[i] else "_" for n in names], f"{stash}[slot{i}]"
                )
                slots.add(i)
            if last == number and names:
                lines.append(f"{stash}[slot{i}] = None")
                slots.add(i)
        return lines

    def _stash_name(self, lifetime: int) -> str:
        return f"stash{lifetime}_{self._stage}"

    def _stash_names(self, lifetime: int) -> list[str]:
        """Return the dynamic variables of a class."""
        span = list(self._classes)[lifetime]
        names = [
            name
            for steps in self._places.steps[: span[1]]
            for step in steps
            for name in step.line.makes
            if self._is_dynamic(name) and not self._is_made_once(step)
        ]
        return [self.display(name) for name in names if self._span(name) == span]

    def _stashed(self, number: int, slots: set[int]) -> list[str]:
        """Return the lines that keep dynamic variables for later sections."""
        lines = []
        for i, (first, last) in enumerate(self._classes):
            names = self._stash_names(i)
            if first == number and last > number and names:
                self.stashes[self._stash_name(i)] = i
                lines.append(f"{self._stash_name(i)}[slot{i}] = {', '.join(names)},")
                slots.add(i)
        return lines

    def _made_again(self, number: int, needed: Iterable[str]) -> list[str]:
        """Return the lines of views of inputs, in each section that reads them."""
        lines = []
        wanted = set(needed)
        for steps in self._places.steps[: number + 1]:
            for step in steps:
                (name, *_) = step.line.makes or ("",)
                if name in wanted and self._places.is_of_inputs(name):
                    lines.append(step.line.written(_Names(self, number)))
        return lines

    def _results(
        self, number: int, names: Mapping[str, str]
    ) -> tuple[list[str], list[str]]:
        """Return the lines that copy results to where they go, and what is returned."""
        places, lines, returned = self._places, [], []
        for i, name in enumerate(places.trace.results[places.sections[number]]):
            if name == "None":
                continue
            if not self._is_written(name):
                returned.append(names[name])
                continue
            cell = places.cells.get(name)
            if cell is None or (cell.section, cell.result) != (number, i):
                lines.append(f"copyto(out{i}, {names[name]})")
        return lines, returned

    # -- one line ----------------------------------------------------------------------

    def _write(self, step: Step, names: Mapping[str, str], body: _Body) -> None:
        line, places = step.line, self._places
        if line.leaf is not None:
            self._write_contribution(line.leaf, names[line.reads[0]], step, body)
        elif step.leaf is not None:
            self._write_fused(step.leaf, step, names, body)
        elif self._is_made_once(step) or any(map(places.is_of_inputs, line.makes)):
            return
        elif len(line.makes) == 1 and line.makes[0] in places.cells:
            body.add(_into(step, names, names[line.makes[0]]))
        elif (
            line.changes
            and line.form.into is not None
            and self._is_global(line.changes[0])
        ):
            body.add(line.form.into.format_map(names))
        else:
            body.add(line.written(names))

    def _is_global(self, name: str) -> bool:
        cell = self._places.cell(name)
        return cell is not None and cell.is_temporary

    def _write_fused(
        self, leaf: int, step: Step, names: Mapping[str, str], body: _Body
    ) -> None:
        own, scratch = self.display(f"d{leaf}"), self._scratch_names[step.position]
        first, more = _into(step, names, own), _into(step, names, scratch)
        if more.startswith("copyto"):
            later = f"{more}\nadd({own}, {scratch}, {own})"
        else:
            later = f"add({own}, {more}, {own})"
        self._add_contribution(leaf, first, later, step, body)

    def _write_contribution(
        self, leaf: int, name: str, step: Step, body: _Body
    ) -> None:
        if self._is_static:
            own = self.display(f"d{leaf}")
            first, later = f"copyto({own}, {name})", f"add({own}, {name}, {own})"
            self._add_contribution(leaf, first, later, step, body)
            return
        own = f"{self.display(f'l{leaf}')}.grad"
        (read,) = step.line.reads
        first, more = f"{name}.copy()", f"add({own}, {name}, {own})"
        if self._places.trace.variables[read].is_number:
            first, more = f"asarray({name})", f"asarray({own} + {name})"
        body.add(f"{own} = {first} if {own} is None else {more}")

    def _add_contribution(
        self, leaf: int, first: str, later: str, step: Step, body: _Body
    ) -> None:
        if self._has_contributed(leaf, step):
            body.add(later)
        else:
            body.add_condition(first, later)

    def _has_contributed(self, leaf: int, step: Step) -> bool:
        return any(
            leaf in (each.leaf, each.line.leaf) and each.position < step.position
            for steps in self._places.steps[: step.section + 1]
            for each in steps
        )


def _into(step: Step, names: Mapping[str, str], target: str) -> str:
    assert step.line.form.into is not None
    return step.line.form.into.format_map(_With(names, target))


class _With(dict[str, str]):
    """Names of variables, and of the array to write into."""

    def __init__(self, names: Mapping[str, str], target: str) -> None:
        super().__init__(out=target)
        self._names = names

    def __missing__(self, name: str) -> str:
        return self._names[name]


class _Body:
    """The lines of a function; neighbours under one condition are merged."""

    def __init__(self) -> None:
        self._parts: list[tuple[list[str], list[str]] | str] = []
        self.has_conditions = False

    def add(self, text: str) -> None:
        """Add one or more lines."""
        self._parts += text.splitlines()

    def add_condition(self, first: str, later: str) -> None:
        """Add what is done for the first contribution of a step, and for later ones."""
        self.has_conditions = True
        if not self._parts or isinstance(self._parts[-1], str):
            self._parts.append(([], []))
        merged = self._parts[-1]
        assert not isinstance(merged, str)
        merged[0].extend(first.splitlines())
        merged[1].extend(later.splitlines())

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        for part in self._parts:
            if isinstance(part, str):
                yield part
                continue
            yield "if first:"
            yield from (f"    {line}" for line in part[0])
            yield "else:"
            yield from (f"    {line}" for line in part[1])


def _unpack(names: Iterable[str], value: str) -> list[str]:
    names = list(names)
    if len(names) == 1:
        return [f"({names[0]},) = {value}"]
    text = f"{', '.join(names)} = {value}"
    if len(text) <= _WIDTH - 4:
        return [text]
    inner = fill(", ".join(names), _WIDTH - 8)
    return ["(", *(f"    {line}" for line in inner.splitlines()), f") = {value}"]


def _letter_and_number(name: str) -> tuple[str, int]:
    letters = name.rstrip("0123456789")
    return {"x": "a", "g": "b"}.get(letters, letters), int(name[len(letters) :])
