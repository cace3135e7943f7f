"""Parts of a stage that are repeated for several layers, such as transformer blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from minipipe.compile.export.names import Names
from minipipe.compile.repeats import Repeat, best_repeat
from minipipe.compile.statements import Statement

_OF_A_FUNCTION = 12  # lines: head, kept variables, result, two empty lines, …


class Part:
    """A function of a stage, and the variables that others share with it.

    Attributes
    ----------
    section : str
    takes : dict of str to list of str
        By earlier section, the variables that it reads from there.
    keeps : dict of str to list of str
        By later section, the variables that it keeps.
    outputs : list of str
        The variables that it returns.
    """

    def __init__(self, section: str) -> None:
        self.section = section
        self.forget_plan()

    def forget_plan(self) -> None:
        """Take, keep and return nothing."""
        self.takes: dict[str, list[str]] = {}
        self.keeps: dict[str, list[str]] = {}
        self.outputs: list[str] = []

    def take(self, name: str, earlier: Part, kept: str) -> None:
        """Take a variable that an earlier part keeps as ``kept``."""
        self.takes.setdefault(earlier.section, []).append(name)
        earlier.keeps.setdefault(self.section, []).append(kept)


class Unit(Part):
    """Statements that are repeated for several layers: a function of them.

    Attributes
    ----------
    body : list of Statement
        The statements of the first layer, with the names of the function.
    layer : int
        The first layer.
    outside : list of str
        The variables that it reads from outside.
    calls : list of Call
    partners : dict of str to Unit
        By section, the unit that shares variables.
    name : str
    names : Names
        The names of its variables in the function.
    """

    def __init__(
        self, section: str, repeat: Repeat, statements: Sequence[Statement]
    ) -> None:
        super().__init__(section)
        self.body = repeat.body
        self.name = ""
        self.outside = [name for name in repeat.arguments if ":" not in name]
        self.made = repeat.made
        self.layer = _first_layer(repeat.calls[0])
        self.names = Names(self.layer)
        size = len(self.body)
        starts = range(repeat.start, repeat.end, size)
        self.calls = [
            Call(self, names, statements[start : start + size])
            for start, names in zip(starts, repeat.calls)
        ]

    def forget_plan(self) -> None:
        """Take, keep and return nothing, without partners."""
        super().forget_plan()
        self.partners: dict[str, Unit] = {}

    def is_partner(self, earlier: Unit) -> bool:
        """Return whether it may join this unit."""
        partner = self.partners.get(earlier.section, earlier)
        return partner is earlier and earlier.partners.get(self.section, self) is self

    def join(self, earlier: Unit) -> None:
        """Share variables with an earlier unit, and with no other of its section."""
        self.partners[earlier.section] = earlier
        earlier.partners[self.section] = self

    @property
    def arguments(self) -> list[str]:
        """The variables that its calls pass, besides those that were kept."""
        taken = {name for names in self.takes.values() for name in names}
        return [name for name in self.outside if name not in taken]


class Call:
    """One of the repetitions of a unit.

    Attributes
    ----------
    unit : Unit
    names : dict of str to str
        By name in the unit's body, the name here.
    statements : list of Statement
    layer : int
        The first layer that has parameters in it.
    """

    def __init__(
        self, unit: Unit, names: dict[str, str], statements: Sequence[Statement]
    ) -> None:
        self.unit = unit
        self.names = names
        self.statements = list(statements)
        self.layer = _first_layer(names)

    @property
    def makes(self) -> list[str]:
        """The variables that it makes."""
        return self.of(self.unit.made)

    @property
    def reads(self) -> list[str]:
        """The variables that it is called with."""
        return self.of(self.unit.arguments)

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the counterparts of names in the unit's body."""
        return [self.names[name] for name in names]


Item = Statement | Call


def folded(section: str, statements: Sequence[Statement]) -> Iterator[Item]:
    """Yield the items of a section: statements, and calls of repeated parts."""
    made = {name for each in statements for name in each.makes}

    def cost(repeat: Repeat) -> Any:
        """Prefer parts that share few variables, are many, and have few layers."""
        crossing = sum(name in made for name in repeat.arguments)
        layers = len({*_layers(repeat.calls[0])})
        return crossing > 1, -len(repeat.calls), crossing, layers, repeat.start

    repeat = best_repeat(statements, _saved, _is_of_another_layer, cost)
    if repeat is None:
        yield from statements
        return
    yield from folded(section, statements[: repeat.start])
    yield from Unit(section, repeat, statements).calls
    yield from folded(section, statements[repeat.end :])


def _saved(size: int, count: int) -> int:
    return (count - 1) * size - min(count, 3) - _OF_A_FUNCTION


def _is_of_another_layer(repeat: Repeat, call: Mapping[str, str]) -> bool:
    """Return whether all layers of a call are at one distance from the first part."""
    distances = set()
    for name, counterpart in call.items():
        if ":" in name:
            prefix, layer, rest = _parts(name)
            other_prefix, other, other_rest = _parts(counterpart)
            if (prefix, rest) != (other_prefix, other_rest):
                return False
            distances.add(other - layer)
    changed = {name for each in repeat.body for name in each.changes}
    layers = {_first_layer(other) for other in repeat.calls}
    is_other = len(distances) == 1 and _first_layer(call) not in {-1, *layers}
    return is_other and changed.isdisjoint(repeat.arguments)


def _parts(name: str) -> tuple[str, int, str]:
    """Return the prefix, the layer and the rest of a name such as ``w:2.bias``."""
    prefix, _, parameter = name.partition(":")
    layer, _, rest = parameter.partition(".")
    return prefix, int(layer), rest


def _layers(names: Mapping[str, str]) -> list[int]:
    """Return the layers of the parameters in a part."""
    return [_parts(name)[1] for name in names.values() if name[:2] in ("w:", "d:")]


def _first_layer(names: Mapping[str, str]) -> int:
    return min(_layers(names), default=-1)


def shared_name(earlier: Unit, later: Unit, local: str) -> str | None:
    """Return the name in a unit of a variable of another; None if calls disagree."""
    by_layer = {
        call.layer: {actual: name for name, actual in call.names.items()}
        for call in earlier.calls
    }
    names = {
        by_layer.get(call.layer, {}).get(call.names[local]) for call in later.calls
    }
    if len(names) > 1:
        return None
    return names.pop()
