"""The memory that a rank holds while each instruction of its row runs, and after it.

A value is held from the instruction that gives it until the one that takes it::

    F           I          W                 F   O        L   B
    |-- graph --|-- rest --|                 |-- graph    |-- back

A pair of stage and microbatch is held as long as one of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from minipipe.core.flow import Flow, Rule
from minipipe.core.values import KINDS, NOUNS, Value

Level = tuple[float, float]  # what is held: the most while it runs, and after it
Pair = tuple[int, Any]  # stage and microbatch
Sizes = Sequence[float] | Mapping[int, float]  # by stage


class Change(NamedTuple):
    """How an instruction changes what its rank holds.

    Attributes
    ----------
    temporary : float
        The size of what exists only while it runs.
    lost, gained : float
        The sizes of the values that it takes and gives.
    begins, ends : bool
        Whether its pair is held from it on, and until it.
    gives : frozenset of str
        The names of the values that it gives, also of those without a size.
    amounts : tuple of float
        What it adds to the memory, in this order: sums of floats depend on the order. A
        part that it takes and gives is not among them.
    """

    temporary: float = 0
    lost: float = 0
    gained: float = 0
    begins: bool = False
    ends: bool = False
    gives: frozenset[str] = frozenset()
    amounts: tuple[float, ...] = ()


class Changes:
    """How the instructions of a table change what their ranks hold.

    The change of a rule of the flow is found once.

    Parameters
    ----------
    flow : Flow
    sizes : mapping
        By name of a value, its size on each stage. Others have the sizes of their parts
        (:class:`minipipe.core.values.Noun`), or take nothing.
    """

    def __init__(self, flow: Flow, sizes: Mapping[str, Sizes]) -> None:
        self.flow = flow
        self.sizes = sizes
        parts = {name: {name, *noun.parts} for name, noun in NOUNS.items()}
        self._sized = {name for name in parts if not parts[name].isdisjoint(sizes)}
        self._states = {name for name in self._sized if NOUNS[name].keeps_weights}
        self._known: dict[int, Change] = {}  # by code of a rule

    def of_row(self, rank: int) -> Iterator[Change]:
        """Yield the change of each instruction of a rank."""
        codes = self.flow.codes[rank]
        known = self._known
        for code in set(codes) - known.keys():
            known[code] = self._change(self.flow.rules[code])
        return map(known.__getitem__, codes)

    def levels(self, rank: int) -> Iterator[Level]:
        """Yield what is held while each instruction of a rank runs, and after it."""
        held: float = 0
        for temporary, _, _, _, _, _, amounts in self.of_row(rank):
            during = held + temporary
            for amount in amounts:
                held += amount
            yield (during if during > held else held), held

    def _change(self, rule: Rule) -> Change:
        site = rule.site
        uses = KINDS[rule.kind].uses(rule.site)
        if uses is None:
            return Change()  # no legal table has such an instruction
        states = self._states
        takes = [value for value in uses.takes if value.name in self._sized]
        gives = [value for value in uses.gives if value.name in self._sized]
        takes_state = any(value.name in states for value in takes)
        gives_state = any(value.name in states for value in gives)
        is_temporary = uses.temporary in states
        return Change(
            self._size(site.value(uses.temporary)),
            sum(map(self._size, takes)),
            sum(map(self._size, gives)),
            is_temporary or (gives_state and not takes_state),
            is_temporary or (takes_state and not gives_state),
            frozenset(value.name for value in uses.gives),
            tuple(self._amounts(takes, gives)),
        )

    def _amounts(
        self, takes: Iterable[Value], gives: Iterable[Value]
    ) -> Iterator[float]:
        """Yield what the first value taken frees, what all gives need, and the rest."""
        taken = [part for value in takes for part in self._parts(value)]
        given = [part for value in gives for part in self._parts(value)]
        both = {*taken} & {*given}
        taken = [part for part in taken if part not in both]
        given = [part for part in given if part not in both]
        yield from (-self._size(part) for part in taken[:1])
        yield from map(self._size, given)
        yield from (-self._size(part) for part in taken[1:])

    def _parts(self, value: Value) -> list[Value]:
        """Return the values with a size that a value consists of."""
        sizes = self.sizes
        if value.name in sizes:
            return [value]
        parts = NOUNS[value.name].parts if value.name else ()
        return [value._replace(name=name) for name in parts if name in sizes]

    def _size(self, value: Value) -> float:
        if value.name not in self.sizes:
            return sum(map(self._size, self._parts(value)))
        size = self.sizes[value.name][value.stage]
        if NOUNS[value.name].adds_up:
            return size * (1 + value.microbatch % self.flow.num_slices)
        return size


def pairs_of(flow: Flow, with_away: bool = False) -> Changes:
    """Return the changes of the number of pairs that ranks hold.

    A pair whose graph is offloaded counts only with `with_away`.
    """
    held = {name: noun for name, noun in NOUNS.items() if noun.keeps_weights}
    names = [name for name, noun in held.items() if with_away or not noun.is_away]
    return Changes(flow, dict.fromkeys(names, [1] * flow.num_stages))
