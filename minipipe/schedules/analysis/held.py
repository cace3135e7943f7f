"""Which pairs of stage and microbatch a rank holds, by name, and from when until when.

``core/memory.py`` says how each instruction changes what its rank holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from minipipe.core.memory import Changes, Pair


class Held(NamedTuple):
    """Pairs, in the order in which they began, and the memory that they take."""

    pairs: tuple[Pair, ...]
    memory: float


def held_pairs(changes: Changes, rank: int) -> Iterator[tuple[Held, Held]]:
    """Yield the pairs held while each instruction of a rank runs, and after it.

    The table may be illegal: a pair that no instruction begins takes nothing.
    """
    sizes: dict[Pair, float] = {}
    row = changes.flow.table.actions[rank]
    for (stage, _, k), change in zip(row, changes.of_row(rank)):
        pair = stage, k
        if change.begins:
            sizes[pair] = 0
        pairs = tuple(sizes)
        most = sum(sizes.values()) + change.temporary
        if change.ends:
            sizes.pop(pair, None)
        elif pair in sizes:
            sizes[pair] = sizes[pair] - change.lost + change.gained
        after = Held(tuple(sizes), sum(sizes.values()))
        yield Held(pairs, max(most, after.memory)), after


class Life(NamedTuple):
    """A time for which a pair is held, from one position of its row until another.

    `last` is None if nothing ends it.
    """

    stage: int
    microbatch: int
    first: int
    last: int | None = None


def lifetimes(changes: Changes, rank: int) -> list[Life]:
    """Return the times for which pairs of a rank are held, in the order of beginnings.

    A pair that is offloaded has one time before that, and another after it is loaded.
    """
    lives: list[Life] = []
    begun: dict[Pair, int] = {}
    row = changes.flow.table.actions[rank]
    for position, change in enumerate(changes.of_row(rank)):
        pair = row[position][0], row[position][2]
        if change.begins:
            begun[pair] = position
        if change.ends and pair in begun:
            lives.append(Life(*pair, begun.pop(pair), position))
    lives += [Life(*pair, first) for pair, first in begun.items()]
    return sorted(lives, key=attrgetter("first"))
