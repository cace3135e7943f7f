"""Loops for the regular parts of a row.

The steady state of 1F1B with 16 microbatches is a loop with a body of two lines::

    for k in range(1, 16):
        send(1, X1 + k, forward_0(k, x[k]))
        backward_0(k - 1, receive(1, G1 + k - 1, (4, 192)))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

STRAIGHT = 8
"""The most microbatches whose row has no loop."""

_LEAST_TURNS = 4  # iterations of a loop
_LONGEST_TURN = 8  # lines of a body
_NUMBER = re.compile("\x00(\\d+)\x00")


def number(k: int) -> str:
    """Return the number of a microbatch, with marks by which a loop replaces it."""
    return f"\x00{k}\x00"


def with_loops(rows: Sequence[str], has_loops: bool) -> Iterator[str]:
    """Yield statements: lines, and loops of repeated lines.

    Parameters
    ----------
    rows : sequence of str
        With marked numbers.
    has_loops : bool
        Whether to write loops at all.

    Examples
    --------
    >>> rows = [f"forward({number(k)})" for k in range(4)]
    >>> print(*with_loops(rows, True))
    for k in range(0, 4):
        forward(k)
    """
    i = 0
    while i < len(rows):
        size = turns = 1
        if has_loops:
            size, turns = _loop_at(rows, i)
        turn = rows[i : i + size]
        numbers = _NUMBER.findall("".join(turn))
        if turns < _LEAST_TURNS or not numbers:
            yield rows[i].replace("\x00", "")
            i += 1
            continue
        first = int(numbers[0])
        lines = [f"for k in range({first}, {first + turns}):"]
        lines += [f"    {_relative_to(first, row)}" for row in turn]
        yield "\n".join(lines)
        i += size * turns


def _loop_at(rows: Sequence[str], i: int) -> tuple[int, int]:
    """Return the size of the body and the turns of the best loop at a position."""
    best = 1, 1
    for size in range(1, _LONGEST_TURN + 1):
        turns = 1
        while _is_turn(rows, i, size, turns):
            turns += 1
        if turns > 1 and size * turns > best[0] * best[1]:
            best = size, turns
    return best


def _is_turn(rows: Sequence[str], i: int, size: int, turns: int) -> bool:
    """Return whether a loop at a position has another turn."""
    start = i + size * turns
    if start + size > len(rows):
        return False
    pairs = zip(rows[i : i + size], rows[start : start + size])
    return all(_shifted(first, turns) == later for first, later in pairs)


def _shifted(row: str, by: int) -> str:
    return _NUMBER.sub(lambda match: number(int(match[1]) + by), row)


def _relative_to(first: int, row: str) -> str:
    """Return a line of a body whose first turn has microbatch ``first``."""
    return _NUMBER.sub(lambda match: relative("k", int(match[1]) - first), row)


def relative(name: str, offset: int) -> str:
    """Return the sum of a variable and a number as an expression."""
    if offset > 0:
        return f"{name} + {offset}"
    if offset < 0:
        return f"{name} - {-offset}"
    return name
