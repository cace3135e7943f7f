"""Parts of a stage that are repeated for several layers, such as transformer blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from minipipe.compile.export.statements import PLACEHOLDER, Statement

_LEAST_SAVED = 6  # lines, by a function for a repeated part
_OF_A_FUNCTION = 7  # lines: its head, what is kept, its result, two empty ones, …


@dataclass
class Unit:
    """Statements that are repeated for several layers.

    Attributes
    ----------
    section : str
    body : list of Statement
        Those of the first call.
    calls : list of Call
    """

    section: str
    body: list[Statement]
    calls: list[Call] = field(default_factory=list)


@dataclass
class Call:
    """One of the repetitions of a unit.

    Attributes
    ----------
    unit : Unit
    layer : int
        The first layer that has parameters in it.
    names : dict of str to str
        By variable, its name in the unit's body.
    given : list of str
        Variables from outside, in the order of their first use.
    made : list of str
    """

    unit: Unit
    layer: int
    names: dict[str, str]
    given: list[str]
    made: list[str]

    def variable(self, name: str) -> str:
        """Return the variable of this call that has a name in the unit's body."""
        return next(own for own, other in self.names.items() if other == name)


Item = Statement | Call


class _Part:
    """A part of a section, in a form without its names and layers."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        layers = [layer for each in statements for layer in each.layers]
        self.layer = min(layers, default=-1)
        self.num_layers = len(set(layers))
        self.given: list[str] = []
        self.made: list[str] = []
        self._numbers: dict[str, str] = {}
        self.changes_given = False
        texts = []
        for each in statements:
            texts.append(PLACEHOLDER.sub(partial(self._named, each), each.text))
            self.changes_given |= any(name in self.given for name in each.changes)
        self.text = "\n".join(texts)

    def _named(self, statement: Statement, found: re.Match[str]) -> str:
        return self._name(found[1], statement)

    def _name(self, name: str, statement: Statement) -> str:
        kind, _, rest = name.partition(":")
        if kind in ("w", "d"):
            layer, _, own = rest.partition(".")
            return f"{kind}:{int(layer) - self.layer}.{own}"
        if kind == "layer":
            return f"layer:{int(rest) - self.layer}"
        if name not in self._numbers:
            is_made = name in statement.makes
            (self.made if is_made else self.given).append(name)
            self._numbers[name] = f"{'m' if is_made else 'e'}{len(self._numbers)}"
        return self._numbers[name]


def folded(section: str, statements: Sequence[Statement]) -> list[Item]:
    """Return the items of a section: statements, and calls of repeated parts."""
    best = _best_repetition(statements)
    if best is None:
        return list(statements)
    start, size, count = best
    bodies = [
        list(statements[i : i + size]) for i in range(start, start + count * size, size)
    ]
    unit = Unit(section, bodies[0])
    first = _Part(bodies[0])
    for body in bodies:
        part = _Part(body)
        own = [*zip(part.given, first.given), *zip(part.made, first.made)]
        unit.calls.append(Call(unit, part.layer, dict(own), part.given, part.made))
    before, after = statements[:start], statements[start + count * size :]
    return [*folded(section, before), *unit.calls, *folded(section, after)]


def _best_repetition(statements: Sequence[Statement]) -> tuple[int, int, int] | None:
    """Return the start, size and number of the repetitions that save most lines."""
    shapes = [re.sub(r"\{[^{}]+\}", "{}", each.text) for each in statements]
    candidates = []
    for size in range(2, len(shapes) // 2 + 1):
        start = 0
        while start + 2 * size <= len(shapes):
            end = start
            while end + size < len(shapes) and shapes[end] == shapes[end + size]:
                end += 1
            length = end - start + size
            if (count := length // size) >= 2:
                saved = (count - 1) * size - min(count, 3) - _OF_A_FUNCTION
                if saved >= _LEAST_SAVED:
                    candidates.append((saved, -size, start, end + size))
            start = end + 1
    for _, negative, start, end in sorted(candidates, reverse=True):
        found = _with_least_traffic(statements, start, end, -negative)
        if found is not None:
            return found
    return None


def _with_least_traffic(
    statements: Sequence[Statement], start: int, end: int, size: int
) -> tuple[int, int, int] | None:
    """Return the rotation of a repetition whose parts share the fewest variables."""
    made = {name for each in statements for name in each.makes}
    found = []
    for first in range(start, start + size):
        parts = _parts(statements, first, end, size)
        if len(parts) >= 2:
            crossing = sum(name in made for name in parts[0].given)
            place = len(parts), first
            found.append(
                (crossing > 1, -len(parts), crossing, parts[0].num_layers, place)
            )
    if not found:
        return None
    count, first = min(found)[-1]
    return first, size, count


def _parts(
    statements: Sequence[Statement], first: int, end: int, size: int
) -> list[_Part]:
    """Return the parts from a place on that are equal, each for another layer."""
    parts: list[_Part] = []
    for i in range(first, end - size + 1, size):
        part = _Part(statements[i : i + size])
        is_alike = not parts or part.text == parts[0].text
        is_other = part.layer not in {-1, *(other.layer for other in parts)}
        if not is_alike or not is_other or part.changes_given:
            break
        parts.append(part)
    return parts


def shared_name(earlier: Unit, later: Unit, local: str) -> str | None:
    """Return the name in one unit of a variable of another; None without one name."""
    by_layer = {call.layer: call for call in earlier.calls}
    if any(call.layer not in by_layer for call in later.calls):
        return None
    names = {
        by_layer[call.layer].names.get(call.variable(local)) for call in later.calls
    }
    return names.pop() if len(names) == 1 else None


@dataclass
class UnitPlan:
    """How a unit is printed.

    Attributes
    ----------
    unit : Unit
    takes : dict of str to list of str
        By earlier section, the names in the body that were kept for it.
    keeps : dict of str to list of str
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
    def all_taken(self) -> list[tuple[str, str]]:
        """The sections and names of all that was kept for it."""
        pairs = self.takes.items()
        return [(section, name) for section, names in pairs for name in names]

    def arguments(self, call: Call) -> list[str]:
        """Return the variables that a call is given, besides what was kept."""
        taken = {name for _, name in self.all_taken}
        return [name for name in call.given if call.names[name] not in taken]
