"""The functions of a stage in a stand-alone file.

Arrays for a later function are kept by microbatch, in a dict for two sections::

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
from collections.abc import Iterator, Mapping, Sequence

from minipipe.compile.export.names import Names
from minipipe.compile.export.statements import Statement, Writer
from minipipe.compile.export.units import (
    Call,
    Item,
    Unit,
    UnitPlan,
    folded,
    shared_name,
)
from minipipe.compile.trace import Trace
from minipipe.compile.wrapping import WIDTH, wrapped

_KEPT = {
    ("forward", "backward"): "kept",
    ("forward", "backward_input"): "kept",
    ("forward", "backward_weight"): "kept_for_weights",
    ("backward_input", "backward_weight"): "work",
}


class Functions:
    """The functions of a rank, each once: repeated layers of all stages share theirs.

    Attributes
    ----------
    sources : dict of str to str
        By name.
    kept : dict of str to None
        The names of the dicts in which arrays are kept.
    """

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.kept: dict[str, None] = {}

    def add_unit(self, name: str, lines: Sequence[str]) -> str:
        """Add a function under this name or a similar one; return its name."""
        for number in range(1, len(self.sources) + 2):
            own = name if number == 1 else f"{name}_{number}"
            source = "\n".join([lines[0].replace("NAME", own, 1), *lines[1:]])
            if self.sources.setdefault(own, source) == source:
                return own
        raise AssertionError("a dict has fewer names than entries")

    def update(self, others: Functions) -> None:
        """Add all functions of others."""
        self.sources |= others.sources
        self.kept |= others.kept


class StageSource:
    """Prints the functions of a stage, for one kind of microbatch.

    Parameters
    ----------
    writer : Writer
        Of its statements.
    trace : Trace
    name : str
        Of the stage: "0", or "0a" for one of several kinds.
    layers : mapping of int to str
        The names of the classes of layers, in words.
    functions : Functions
        Gets the source.
    """

    def __init__(
        self,
        writer: Writer,
        trace: Trace,
        name: str,
        layers: Mapping[int, str],
        functions: Functions,
    ) -> None:
        self._trace, self.name, self._layers = trace, name, layers
        self._functions = functions
        self.sections = list(trace.sections)
        self._items: dict[str, list[Item]] = {
            section: folded(section, statements)
            for section, statements in writer.sections.items()
        }
        self._plans: dict[int, UnitPlan] = {}
        self._makers = self._find_makers()
        self._keeps: dict[tuple[str, str], dict[str, None]] = {}
        for items in self._items.values():
            for item in items:
                if isinstance(item, Call):
                    self._plans.setdefault(id(item.unit), UnitPlan(item.unit))
        self._unit_names: dict[int, Names] = {}
        self._stage_takes: dict[str, dict[int, tuple[Call, str]]] = {}
        self._plan_units()
        self._plan_stage()
        for plan in self._plans.values():
            self._print_unit(plan)
        self._names = self._name_variables()
        self.parameters: dict[str, list[str]] = {}
        for section in self.sections:
            self._print_section(section)

    # -- where variables come from -----------------------------------------------------

    def _find_makers(self) -> dict[str, tuple[str, Item | None]]:
        """Return, by variable, the section and the item that makes it."""
        found: dict[str, tuple[str, Item | None]] = {}
        for section, items in self._items.items():
            for name in self._trace.inputs[section]:
                found[name] = section, None
            for item in items:
                made = item.made if isinstance(item, Call) else item.makes
                for name in made:
                    found[name] = section, item
        return found

    def _plan_units(self) -> None:
        """Let a unit keep for the same layer of a later unit what that one needs."""
        for plan in list(self._plans.values()):
            unit = plan.unit
            for name in dict.fromkeys(unit.calls[0].given):
                local = unit.calls[0].names[name]
                section = self._makers[name][0]
                if section == unit.section:
                    continue
                for earlier in self._plans.values():
                    if earlier.unit.section != section:
                        continue
                    own = shared_name(earlier.unit, unit, local)
                    if own is None:
                        continue
                    plan.takes.setdefault(section, []).append(local)
                    earlier.keeps.setdefault(unit.section, []).append(own)
                    break

    def _plan_stage(self) -> None:
        """Find what calls return, and what the stage keeps for later sections."""
        for section, items in self._items.items():
            needed: dict[str, Item | None] = {}
            for item in items:
                for name in self._reads(item):
                    needed.setdefault(name, item)
            for name in self._trace.results[section]:
                if name != "None":
                    needed.setdefault(name, None)
            for name, reader in needed.items():
                made_in, maker = self._makers[name]
                if self._is_left_over(name, made_in, maker, section):
                    takes = self._stage_takes.setdefault(section, {})
                    assert isinstance(maker, Call)
                    takes[id(maker)] = maker, made_in
                    continue
                if isinstance(maker, Call) and maker is not reader:
                    outputs = self._plans[id(maker.unit)].outputs
                    local = maker.names[name]
                    outputs.extend([] if local in outputs else [local])
                if made_in != section and name not in self._of_left_over(section):
                    self._keeps.setdefault((made_in, section), {})[name] = None
        for (_, section), kept in self._keeps.items():
            for name in self._of_left_over(section):
                kept.pop(name, None)
        for plan in self._plans.values():
            plan.outputs.sort(key=lambda local: int(local[1:]))

    def _of_left_over(self, section: str) -> set[str]:
        """Return the variables that a section takes from units without a later one."""
        return {
            call.variable(local)
            for call, _ in self._stage_takes.get(section, {}).values()
            for local in self._plans[id(call.unit)].keeps[section]
        }

    def _is_left_over(
        self, name: str, made_in: str, maker: Item | None, section: str
    ) -> bool:
        """Return whether a unit has kept a variable, and there is no later unit.

        Of the first layer, for example, which has no gradient of its input.
        """
        if not isinstance(maker, Call) or made_in == section:
            return False
        plan = self._plans[id(maker.unit)]
        layers = {
            call.layer
            for later in self._plans.values()
            if later.unit.section == section and made_in in later.takes
            for call in later.unit.calls
        }
        is_kept = maker.names[name] in plan.keeps.get(section, ())
        return is_kept and maker.layer not in layers

    def _reads(self, item: Item) -> list[str]:
        if isinstance(item, Call):
            return self._plans[id(item.unit)].arguments(item)
        return list(item.reads)

    # -- units -------------------------------------------------------------------------

    def _print_unit(self, plan: UnitPlan) -> None:
        unit, first = plan.unit, plan.unit.calls[0]
        names = Names(first.layer)
        for variable, name in self._names_of_kept(plan):
            if name not in names.own.values():  # of two earlier units
                names.own[variable] = name

        def shown(locals_: Sequence[str]) -> list[str]:
            return [names.of(first.variable(local)) for local in locals_]

        given = shown([first.names[name] for name in plan.arguments(first)])
        lines = wrapped(f"def NAME({', '.join(['k', 'layer', *given])}):", 0)
        for section, locals_ in plan.takes.items():
            lines += self._unpacked(section, unit.section, "layer", shown(locals_))
        for statement in unit.body:
            lines += wrapped(names.written(statement), 4)
        for section, locals_ in plan.keeps.items():
            lines += self._packed(unit.section, section, "layer", shown(locals_))
        if plan.outputs:
            lines += wrapped(f"return {', '.join(shown(plan.outputs))}", 4)
        plan.name = self._functions.add_unit(self._name_of(unit), lines)
        self._unit_names[id(unit)] = names

    def _names_of_kept(self, plan: UnitPlan) -> Iterator[tuple[str, str]]:
        """Yield the variables that a unit takes, with names in the earlier unit."""
        for section, local in plan.all_taken:
            for earlier in self._plans.values():
                names = self._unit_names.get(id(earlier.unit))
                if earlier.unit.section != section or names is None:
                    continue
                own = shared_name(earlier.unit, plan.unit, local)
                if own is not None:
                    name = names.of(earlier.unit.calls[0].variable(own))
                    yield plan.unit.calls[0].variable(local), name

    def _name_of(self, unit: Unit) -> str:
        """Return a name for a unit, after its layers."""
        layers = _layers_of(unit)
        for earlier in self._plans.values():  # a backward is named after its forward
            own = {call.layer for call in earlier.unit.calls}
            if own & {call.layer for call in unit.calls}:
                layers = _layers_of(earlier.unit)
                break
        words = [_snake(self._layers.get(layer, "layer")) for layer in layers]
        base = "_".join(dict.fromkeys(words))
        return base if unit.section == "forward" else f"{base}_{unit.section}"

    # -- sections ----------------------------------------------------------------------

    def _name_variables(self) -> Names:
        names = Names(None)
        inputs = [n for found in self._trace.inputs.values() for n in found]
        for name in inputs:
            names.own[name] = {"x0": "x", "x1": "y", "g0": "g"}.get(name, name)
        return names

    def _print_section(self, section: str) -> None:
        names, stage = self._names, f'"stage {self.name}"'
        given = list(self._trace.inputs[section])
        self.parameters[section] = given
        results = [n for n in self._trace.results[section] if n != "None"]
        arguments = ", ".join(["k", *map(names.of, given)])
        lines = [f"def {section}_{self.name}({arguments}):"]
        lines += self._taken(section, stage)
        lines += self._body(section)
        for (earlier, later), variables in self._keeps.items():
            if earlier == section and variables:
                own = [names.of(name) for name in variables]
                lines += self._packed(section, later, stage, own)
        if results:
            returned = [self._names.of(name) for name in results]
            lines += wrapped(f"return {', '.join(returned)}", 4)
        if len(lines) == 1:
            lines.append("    pass")
        self._functions.sources[f"{section}_{self.name}"] = "\n".join(lines)

    def _taken(self, section: str, stage: str) -> Iterator[str]:
        """Yield the lines that unpack what was kept for a section."""
        names = self._names
        for (earlier, later), variables in self._keeps.items():
            if later == section and variables:
                own = [names.of(name) for name in variables]
                yield from self._unpacked(earlier, section, stage, own)
        for call, made_in in self._stage_takes.get(section, {}).values():
            locals_ = self._plans[id(call.unit)].keeps[section]
            own = [names.of(call.variable(local)) for local in locals_]
            yield from self._unpacked(made_in, section, str(call.layer), own)

    def num_results(self, section: str) -> int:
        """Return how many arrays a section returns."""
        return sum(name != "None" for name in self._trace.results[section])

    def _body(self, section: str) -> Iterator[str]:
        items, names = self._items[section], self._names
        layer: int | None = None
        i = 0
        while i < len(items):
            item = items[i]
            if isinstance(item, Statement):
                text = names.written(item)
                comment = ""
                if item.layer is not None and item.layer != layer:
                    layer = item.layer
                    comment = f"  # layer {layer}: {self._layers.get(layer, '')}"
                found = wrapped(text, 4)
                if len(found) == 1 and len(found[0] + comment) <= WIDTH:
                    found[0] += comment
                yield from found
                i += 1
                continue
            chain = self._chain(items[i:])
            yield from self._calls(chain)
            i += len(chain)

    def _chain(self, items: Sequence[Item]) -> list[Call]:
        """Return the first calls, each of which takes the result of the one before."""
        first = items[0]
        assert isinstance(first, Call)
        plan, chain = self._plans[id(first.unit)], [first]
        if len(plan.arguments(first)) != 1 or len(plan.outputs) != 1:
            return chain
        for item in items[1:]:
            if not isinstance(item, Call) or item.unit is not first.unit:
                break
            made = chain[-1].variable(plan.outputs[0])
            others = self._readers(made) - {id(item)}
            if plan.arguments(item) != [made] or others:
                break
            chain.append(item)
        steps = {b.layer - a.layer for a, b in zip(chain, chain[1:])}
        return chain if len(chain) > 2 and len(steps) == 1 else [first]

    def _readers(self, name: str) -> set[int]:
        found = {
            id(item)
            for section, items in self._items.items()
            if name not in self._of_left_over(section)
            for item in items
            if name in self._reads(item)
        }
        is_result = any(name in results for results in self._trace.results.values())
        return found | ({0} if is_result else set())

    def _calls(self, chain: Sequence[Call]) -> Iterator[str]:
        plan, names = self._plans[id(chain[0].unit)], self._names
        first, last = chain[0], chain[-1]
        if len(chain) == 1:
            arguments = ["k", str(first.layer), *map(names.of, plan.arguments(first))]
            made = [names.of(first.variable(local)) for local in plan.outputs]
            left = f"{', '.join(made)} = " if made else ""
            yield from wrapped(f"{left}{plan.name}({', '.join(arguments)})", 4)
            return
        step = chain[1].layer - first.layer
        end = last.layer + (1 if step > 0 else -1)
        (given,) = plan.arguments(first)
        result = last.variable(plan.outputs[0])
        is_input = given in self._trace.inputs[first.unit.section]
        if not is_input and self._readers(given) == {id(first)}:
            names.own[result] = names.of(given)
        name = names.of(result)
        if name != names.of(given):
            yield f"    {name} = {names.of(given)}"
        yield f"    for layer in range({first.layer}, {end}, {step}):"
        yield f"        {name} = {plan.name}(k, layer, {name})"

    # -- what is kept ------------------------------------------------------------------

    def _dict_of(self, earlier: str, later: str) -> str:
        name = _KEPT.get((earlier, later), f"kept_by_{earlier}_for_{later}")
        self._functions.kept[name] = None
        return name

    def _packed(self, section: str, later: str, key: str, own: list[str]) -> list[str]:
        text = f"{self._dict_of(section, later)}[{key}, k] = {', '.join(own)}"
        return wrapped(text + ("," if len(own) == 1 else ""), 4)

    def _unpacked(
        self, earlier: str, section: str, key: str, own: list[str]
    ) -> list[str]:
        left = ", ".join(own) + ("," if len(own) == 1 else "")
        text = f"{left} = {self._dict_of(earlier, section)}.pop(({key}, k))"
        return wrapped(text, 4)


def _layers_of(unit: Unit) -> list[int]:
    """Return the layers of the first call of a unit."""
    noted = {each.layer for each in unit.body if each.layer is not None}
    named = {layer for each in unit.body for layer in each.layers}
    return sorted(noted or named)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower()
