"""The functions of a stage in a stand-alone file.

What a later function needs is kept by microbatch, in a dict for each pair of sections::

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minipipe.compile.statements import (
    PLACEHOLDER,
    Call,
    Item,
    Statement,
    Unit,
    Writer,
    folded,
)
from minipipe.compile.trace import Trace

WIDTH = 88
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
    kept : set of str
        The names of the dicts for what is kept.
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


@dataclass
class UnitPlan:
    """How a unit is printed.

    Attributes
    ----------
    unit : Unit
    takes : dict of int to list of str
        By earlier section, the names in the body that were kept for it.
    keeps : dict of int to list of str
        By later section, the names in the body that it keeps.
    outputs : list of str
        The names in the body that it returns.
    name : str
    """

    unit: Unit
    takes: dict[str, list[str]] = field(default_factory=dict)
    keeps: dict[str, list[str]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    name: str = ""

    @property
    def taken(self) -> set[str]:
        """All names that were kept for it."""
        return {name for names in self.takes.values() for name in names}

    def arguments(self, call: Call) -> list[str]:
        """Return the variables that a call is given, besides what was kept."""
        return [name for name in call.given if call.names[name] not in self.taken]


class StageSource:
    """Prints the functions of a stage, for one kind of microbatch.

    Parameters
    ----------
    writer : Writer
        Of its statements.
    trace : Trace
    name : str
        Of the stage: "0", or "0a" for one of several kinds.
    num_inputs : int
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
        self._unit_names: dict[int, _Names] = {}
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
                    own = _shared_name(earlier.unit, unit, local)
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
        """Return whether a unit has kept a variable for a later one that does not exist.

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

    # -- units ---------------------------------------------------------------------------

    def _print_unit(self, plan: UnitPlan) -> None:
        unit = plan.unit
        first = unit.calls[0]
        names = _Names(first.layer)
        partner = self._partner(plan)
        if partner is not None:
            for local, own in partner:
                if own not in names.own.values():  # of two earlier units
                    names.own[first.variable(local)] = own
        given = [first.variable(first.names[n]) for n in plan.arguments(first)]
        arguments = [names.of(name) for name in given]
        lines = wrapped(f"def NAME({', '.join(['k', 'layer', *arguments])}):", 0)
        for section, locals_ in plan.takes.items():
            own = [names.of(first.variable(local)) for local in locals_]
            lines += self._unpacked(section, unit.section, "layer", own)
        for statement in unit.body:
            lines += wrapped(names.written(statement), 4)
        for section, locals_ in plan.keeps.items():
            own = [names.of(first.variable(local)) for local in locals_]
            lines += self._packed(unit.section, section, "layer", own)
        if plan.outputs:
            own = [names.of(first.variable(local)) for local in plan.outputs]
            lines += wrapped(f"return {', '.join(own)}", 4)
        plan.name = self._functions.add_unit(self._name_of(unit), lines)
        self._unit_names[id(unit)] = names

    def _partner(self, plan: UnitPlan) -> list[tuple[str, str]] | None:
        """Return the names that an earlier unit has given to what it has kept."""
        found = []
        for section, locals_ in plan.takes.items():
            for local in locals_:
                for earlier in self._plans.values():
                    if earlier.unit.section != section:
                        continue
                    own = _shared_name(earlier.unit, plan.unit, local)
                    names = self._unit_names.get(id(earlier.unit))
                    if own is not None and names is not None:
                        variable = earlier.unit.calls[0].variable(own)
                        found.append((local, names.of(variable)))
        return found

    def _name_of(self, unit: Unit) -> str:
        """Return a name for a unit, after its layers."""
        layer = unit.calls[0].layer
        layers = {each.layer for each in unit.body} - {None}
        for earlier in self._plans.values():
            if not layers and earlier.unit.calls[0].unit.section == self.sections[0]:
                own = {call.layer for call in earlier.unit.calls}
                if own & {call.layer for call in unit.calls}:
                    layers = {each.layer for each in earlier.unit.body} - {None}
                    layer = min(layers)  # type: ignore[type-var]
        layers = layers or {layer, *(n for each in unit.body for n in each.layers)}
        words = [self._layers.get(each, "layer") for each in sorted(layers)]  # type: ignore[type-var]
        base = "_".join(dict.fromkeys(_snake(word) for word in words))
        return base if unit.section == "forward" else f"{base}_{unit.section}"

    # -- sections ------------------------------------------------------------------------

    def _name_variables(self) -> _Names:
        names = _Names(None)
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
        for (earlier, later), kept in self._keeps.items():
            if later == section:
                own = [names.of(name) for name in kept]
                lines += self._unpacked(earlier, section, stage, own)
        for call, earlier in self._stage_takes.get(section, {}).values():
            kept = self._plans[id(call.unit)].keeps[section]
            own = [names.of(call.variable(local)) for local in kept]
            lines += self._unpacked(earlier, section, str(call.layer), own)
        lines += self._body(section)
        for (earlier, later), kept in self._keeps.items():
            if earlier == section:
                own = [names.of(name) for name in kept]
                lines += self._packed(section, later, stage, own)
        if results:
            returned = [self._names.of(name) for name in results]
            lines += wrapped(f"return {', '.join(returned)}", 4)
        if len(lines) == 1:
            lines.append("    pass")
        self._functions.sources[f"{section}_{self.name}"] = "\n".join(lines)

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
        """Return the calls from here on of which each takes what the one before returns."""
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
        if (
            self._readers(given) == {id(first)}
            and given not in self._trace.inputs[first.unit.section]
        ):
            names.own[result] = names.of(given)
        made = names.of(result)
        if made != names.of(given):
            yield f"    {made} = {names.of(given)}"
        yield f"    for layer in range({first.layer}, {end}, {step}):"
        yield f"        {made} = {plan.name}(k, layer, {made})"

    # -- what is kept --------------------------------------------------------------------

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


def _shared_name(earlier: Unit, later: Unit, local: str) -> str | None:
    """Return the name in one unit of what another one reads, if it is so for all layers."""
    by_layer = {call.layer: call for call in earlier.calls}
    if any(call.layer not in by_layer for call in later.calls):
        return None
    names = {
        by_layer[call.layer].names.get(call.variable(local)) for call in later.calls
    }
    return names.pop() if len(names) == 1 else None


class _Names:
    """The names of variables in a function.

    Parameters
    ----------
    layer : int or None
        In the function of a repeated part, the layer of its first call.
    """

    def __init__(self, layer: int | None) -> None:
        self.own: dict[str, str] = {}
        self._layer = layer

    def of(self, name: str) -> str:
        """Return the name of a variable; a new one for a new variable."""
        if name not in self.own:
            used = set(self.own.values())
            number = next(n for n in range(len(used) + 1) if f"v{n}" not in used)
            self.own[name] = f"v{number}"
        return self.own[name]

    def written(self, statement: Statement) -> str:
        """Return a statement with the names of this function."""
        for name in statement.makes:
            self.of(name)
        return PLACEHOLDER.sub(lambda found: self._written(found[1]), statement.text)

    def _written(self, name: str) -> str:
        kind, _, rest = name.partition(":")
        if kind == "layer":
            return str(rest) if self._layer is None else self._relative(int(rest))
        if kind not in ("w", "d"):
            return self.of(name)
        text = f'"{rest}"'
        if self._layer is not None:
            layer, _, own = rest.partition(".")
            text = f'f"{{{self._relative(int(layer))}}}.{own}"'
        return f"w[{text}]" if kind == "w" else text

    def _relative(self, layer: int) -> str:
        assert self._layer is not None
        offset = layer - self._layer
        return (
            "layer"
            if not offset
            else f"layer {'+' if offset > 0 else '-'} {abs(offset)}"
        )


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower()


# -- long lines ------------------------------------------------------------------------------


def wrapped(text: str, indent: int) -> list[str]:
    """Return a statement, on several lines if it is too long.

    Examples
    --------
    >>> wrapped("x = f(1, 2)", 4)
    ['    x = f(1, 2)']
    """
    line = " " * indent + text
    if len(line) <= WIDTH:
        return [line]
    left, equals, right = text.partition(" = ")
    if equals and len(left) > 40 and "(" not in left:
        return [*_in_brackets("(", left, ") = " + right, indent)]
    if "(" in right and right.endswith(")"):
        start = right.index("(") + 1
        return [
            *_in_brackets(f"{left} = {right[:start]}", right[start:-1], ")", indent)
        ]
    if text.startswith("return "):
        return [*_in_brackets("return (", text.removeprefix("return "), ")", indent)]
    if text.startswith("def "):
        start = text.index("(") + 1
        return [*_in_brackets(text[:start], text[start:-2], "):", indent)]
    if equals:
        return [*_in_brackets(f"{left} = (", right, ")", indent)]
    start = text.index("(") + 1
    end = text.rindex(")")
    return [*_in_brackets(text[:start], text[start:end], text[end:], indent)]


def _in_brackets(head: str, inside: str, tail: str, indent: int) -> Iterator[str]:
    yield " " * indent + head
    line = ""
    for part in _parts(inside):
        more = f"{line} {part}" if line else part
        if line and len(more) + indent + 4 > WIDTH:
            yield " " * (indent + 4) + line
            more = part
        line = more
    yield " " * (indent + 4) + line
    yield " " * indent + tail


def _parts(text: str) -> Iterable[str]:
    """Return what stands between commas outside of brackets, with the commas."""
    found, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(text[start : i + 1].strip())
            start = i + 1
    rest = text[start:].strip()
    return [*found, rest] if rest else found
