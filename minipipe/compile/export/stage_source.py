"""The functions of a stage in a stand-alone file.

Arrays for a later function are kept by microbatch, in a dict for each two sections::

    def forward_0(k, x):
        v0 = x.dot(w["0.weight"])
        v0 += w["0.bias"]
        v1 = np.tanh(v0)
        kept["stage 0", k] = x, v1
        return v1


    def backward_0(k, g):
        x, v1 = kept.pop(("stage 0", k))
        ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from minipipe.compile.export.expressions import Writer
from minipipe.compile.export.names import Names
from minipipe.compile.export.units import Call, Item, Part, Unit, folded, shared_name
from minipipe.compile.lines import add_under
from minipipe.compile.stage_program import StageProgram
from minipipe.compile.statements import listed, written
from minipipe.compile.wrapping import WIDTH, function

_KEPT = {
    ("forward", "backward"): "kept",
    ("forward", "backward_input"): "kept",
    ("forward", "backward_weight"): "kept_for_weights",
    ("backward_input", "backward_weight"): "work",
}


class Functions:
    """The functions of a rank. Repeated layers of all stages share functions.

    Attributes
    ----------
    parts : dict of str to (list of str, list of str)
        By name, the parameters and the statements.
    kept : dict of str to None
        The names of the dicts in which arrays are kept.
    """

    def __init__(self) -> None:
        self.parts: dict[str, tuple[list[str], list[str]]] = {}
        self.kept: dict[str, None] = {}

    @property
    def sources(self) -> list[str]:
        """The source of each function."""
        return [function(name, *part) for name, part in self.parts.items()]

    def add_unit(self, name: str, parameters: list[str], statements: list[str]) -> str:
        """Add a function under this name or a similar one; return its name."""
        return add_under(self.parts, name, (parameters, statements))

    def update(self, others: Functions) -> None:
        """Add all functions of others."""
        self.parts |= others.parts
        self.kept |= others.kept


class StageSource:
    """Prints the functions of a stage, for one form of microbatches.

    Parameters
    ----------
    writer : Writer
        Has its statements.
    program : StageProgram
    name : str
        The name of the stage: "0", or "0b" for a second form.
    functions : Functions
        Gets the source.

    Attributes
    ----------
    parameters, results : dict of str to list of str
        By section, the names of the inputs and results of its function.
    """

    def __init__(
        self, writer: Writer, program: StageProgram, name: str, functions: Functions
    ) -> None:
        self.program = program
        self._inputs = program.recorded.trace.inputs
        self.results = writer.results
        self.name = name
        self._layers = program.recorded.trace.layers
        self._functions = functions
        self._items: dict[str, list[Item]] = {
            section: list(folded(section, statements))
            for section, statements in writer.sections.items()
        }
        while (call := self._planned()) is not None:
            self._unfold(call)
        for unit in self._units:
            self._print_unit(unit)
        self._names = self._name_variables()
        self.parameters: dict[str, list[str]] = {}
        for section in self._items:
            self._print_section(section)

    # -- makers of variables -----------------------------------------------------------

    @property
    def _units(self) -> list[Unit]:
        """The units of all sections, in their order."""
        calls = (item for item in self._all_items if isinstance(item, Call))
        return list(dict.fromkeys(call.unit for call in calls))

    @property
    def _all_items(self) -> list[Item]:
        return [item for items in self._items.values() for item in items]

    def _find_makers(self) -> dict[str, tuple[str, Item | None]]:
        """Return, by variable, the section and the item that makes it."""
        makers: dict[str, tuple[str, Item | None]] = {}
        for section, items in self._items.items():
            for name in self._inputs[section]:
                makers[name] = section, None
            for item in items:
                for name in item.makes:
                    makers[name] = section, item
        return makers

    def _planned(self) -> Call | None:
        """Plan the kept and returned variables; or return a call to unfold.

        A unit keeps variables for a unit of a later section, in each layer. If the later
        unit leaves a layer out, such as the first one, which has no gradient of its
        input, then the call of this layer is unfolded.
        """
        self._makers = self._find_makers()
        self._parts = {section: Part(section) for section in self._items}
        for unit in self._units:
            unit.forget_plan()
        for unit in self._units:
            self._plan_unit(unit)
        for section, items in self._items.items():
            part = self._parts[section]
            part.outputs = self.results[section]
            read = [name for item in items for name in item.reads]
            for name in dict.fromkeys([*read, *part.outputs]):
                made_in, maker = self._makers[name]
                if isinstance(maker, Call):
                    kept = maker.of(maker.unit.keeps.get(section, ()))
                    if name in kept and made_in != section:
                        return maker
                    self._return(maker, name)
                if made_in != section:
                    part.take(name, self._parts[made_in], name)
        return None

    def _plan_unit(self, unit: Unit) -> None:
        """Let a unit take variables of an earlier one for the same layer."""
        for local in unit.outside:
            section = self._makers[unit.calls[0].names[local]][0]
            if section == unit.section:
                continue
            for earlier in self._units:
                kept = shared_name(earlier, unit, local)
                if earlier.section == section and kept and unit.is_partner(earlier):
                    unit.join(earlier)
                    unit.take(local, earlier, kept)
                    break

    def _return(self, call: Call, name: str) -> None:
        """Let a unit return a variable."""
        unit = call.unit
        local = next(each for each in unit.made if call.names[each] == name)
        if local not in unit.outputs:
            unit.outputs.append(local)
            unit.outputs.sort(key=unit.made.index)

    def _unfold(self, call: Call) -> None:
        """Replace a call by its statements; a single other call as well."""
        unit = call.unit
        plain = [call]
        if len(unit.calls) == 2:
            plain = list(unit.calls)
        unit.calls = [each for each in unit.calls if each not in plain]
        items: list[Item] = []
        for item in self._items[unit.section]:
            if isinstance(item, Call) and item in plain:
                items += item.statements
            else:
                items.append(item)
        self._items[unit.section] = items

    # -- units -------------------------------------------------------------------------

    def _print_unit(self, unit: Unit) -> None:
        names = unit.names
        for section, taken in unit.takes.items():
            earlier = unit.partners[section]
            for local, kept in zip(taken, earlier.keeps[unit.section]):
                name = earlier.names.of(kept)
                if name not in names.local.values():  # unless two units use it
                    names.local[local] = name
        parameters = ["k", "layer", *map(names.of, unit.arguments)]
        body = map(names.written, unit.body)
        lines = list(self._lines(unit, "layer", names, body))
        unit.name = self._functions.add_unit(self._name_of(unit), parameters, lines)

    def _name_of(self, unit: Unit) -> str:
        """Return a name for a unit, after its layers."""
        layers = _layers_of(unit)
        for earlier in self._units:  # a backward is named after its forward
            of_earlier = {call.layer for call in earlier.calls}
            if of_earlier & {call.layer for call in unit.calls}:
                layers = _layers_of(earlier)
                break
        names = [_snake(self._layers.get(layer, "layer")) for layer in layers]
        base = "_".join(dict.fromkeys(names))
        if unit.section == "forward":
            return base
        return f"{base}_{unit.section}"

    # -- sections ----------------------------------------------------------------------

    def _name_variables(self) -> Names:
        names = Names(None)
        for inputs in self._inputs.values():
            for name in inputs:
                names.local[name] = {"x0": "x", "x1": "y", "g0": "g"}.get(name, name)
        return names

    def _print_section(self, section: str) -> None:
        names = self._names
        inputs = self.parameters[section] = list(self._inputs[section])
        parameters = ["k", *map(names.of, inputs)]
        key = f'"stage {self.name}"'
        body = self._body(section)
        lines = list(self._lines(self._parts[section], key, names, body))
        self._functions.parts[f"{section}_{self.name}"] = parameters, lines

    def _body(self, section: str) -> Iterator[str]:
        """Yield the statements of a section, and calls of units."""
        items = self._items[section]
        names = self._names
        layer: int | None = None
        i = 0
        while i < len(items):
            item = items[i]
            if isinstance(item, Call):
                chain = self._chain(items[i:])
                yield self._called(chain)
                i += len(chain)
                continue
            text = names.written(item)
            if item.layer is not None and item.layer != layer:
                layer = item.layer
                comment = f"  # layer {layer}: {self._layers.get(layer, '')}"
                text += comment * (len(text + comment) <= WIDTH - 4)
            yield text
            i += 1

    def _chain(self, items: Sequence[Item]) -> list[Call]:
        """Return the first calls, each of which takes the result of the previous one."""
        first = items[0]
        assert isinstance(first, Call)
        chain = [first]
        outputs = first.unit.outputs
        if len(first.reads) != 1 or len(outputs) != 1:
            return chain
        for item in items[1:]:
            if not isinstance(item, Call) or item.unit is not first.unit:
                break
            made = chain[-1].of(outputs)
            if item.reads != made or self._readers(*made) != [item]:
                break
            chain.append(item)
        steps = {b.layer - a.layer for a, b in zip(chain, chain[1:])}
        if len(chain) < 3 or len(steps) > 1:
            return [first]
        return chain

    def _readers(self, name: str) -> list[Item | None]:
        """Return the readers of a variable; None is the caller of a section."""
        readers = list[Item | None]()
        readers += [item for item in self._all_items if name in item.reads]
        readers += [None for results in self.results.values() if name in results]
        return readers

    def _called(self, chain: Sequence[Call]) -> str:
        """Return the call of a unit, or a loop of calls."""
        names = self._names
        first = chain[0]
        last = chain[-1]
        unit = first.unit
        outputs = first.unit.outputs
        if len(chain) == 1:
            arguments = ["k", str(first.layer), *map(names.of, first.reads)]
            text = f"{unit.name}({', '.join(arguments)})"
            if made := [names.of(name) for name in first.of(outputs)]:
                text = f"{', '.join(made)} = {text}"
            return text
        step = chain[1].layer - first.layer
        end = last.layer + step // abs(step)
        (argument,) = first.reads
        (result,) = last.of(outputs)
        is_input = argument in self._inputs[unit.section]
        if not is_input and self._readers(argument) == [first]:
            names.local[result] = names.of(argument)
        name = names.of(result)
        begin = ""
        if name != names.of(argument):
            begin = f"{name} = {names.of(argument)}\n"
        loop = f"for layer in range({first.layer}, {end}, {step}):"
        return f"{begin}{loop}\n    {name} = {unit.name}(k, layer, {name})"

    # -- kept variables ----------------------------------------------------------------

    def _lines(
        self, part: Part, key: str, names: Names, body: Iterable[str]
    ) -> Iterator[str]:
        """Yield the statements of a function: a body between kept variables."""
        for earlier, taken in part.takes.items():
            kept = self._dict_of(earlier, part.section)
            yield f"{written(listed(taken), names.of)} = {kept}.pop(({key}, k))"
        yield from body
        for later, variables in part.keeps.items():
            kept = self._dict_of(part.section, later)
            yield f"{kept}[{key}, k] = {written(listed(variables), names.of)}"
        if part.outputs:
            yield f"return {', '.join(map(names.of, part.outputs))}"

    def _dict_of(self, earlier: str, later: str) -> str:
        name = _KEPT.get((earlier, later), f"kept_by_{earlier}_for_{later}")
        self._functions.kept[name] = None
        return name


def _layers_of(unit: Unit) -> list[int]:
    """Return the layers of the first call of a unit."""
    noted = {each.layer for each in unit.body if each.layer is not None}
    return sorted(noted or {call.layer for call in unit.calls[:1]})


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower()
