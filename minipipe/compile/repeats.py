"""Repeated statements of a section: blocks of a model with the same statements.

Two parts match if they differ only in names, and each name of the first part always has
the same counterpart in the other. So a function of the first part, called with other
names, computes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minipipe.compile.statements import Statement


class Repeat:
    """Statements that repeat, in parts that follow each other.

    Attributes
    ----------
    start : int
        The position of the first part.
    body : list of Statement
        The first part.
    arguments, made : list of str
        The names that it reads from outside, and the variables that it makes.
    calls : list of dict of str to str
        For each part, by name in the first part, the counterpart of the name.
    """

    def __init__(self, start: int, body: Sequence[Statement]) -> None:
        self.start = start
        self.body = list(body)
        names = dict.fromkeys(name for each in body for name in each.names)
        made = {name for each in body for name in each.makes}
        self.made = [name for name in names if name in made]
        self.arguments = [name for name in names if name not in made]
        self.calls: list[dict[str, str]] = [dict(zip(names, names))]

    @property
    def end(self) -> int:
        """The position after the last part."""
        return self.start + len(self.body) * len(self.calls)

    def call_of(self, part: Sequence[Statement]) -> dict[str, str] | None:
        """Return the names of another part; None if it does not match."""
        call: dict[str, str] = {}
        for first, other in zip(self.body, part):
            for name, counterpart in zip(first.names, other.names):
                if call.setdefault(name, counterpart) != counterpart:
                    return None
        made = {name for each in part for name in each.makes}
        # An argument has to exist before the call.
        if any(call[name] in made for name in self.arguments):
            return None
        return call


Accepts = Callable[[Repeat, Mapping[str, str]], bool]


def best_repeat(
    statements: Sequence[Statement],
    saved: Callable[[int, int], int],
    accepts: Accepts,
    cost: Callable[[Repeat], Any],
) -> Repeat | None:
    """Return the repetition that saves most lines; None if none saves a line.

    Parameters
    ----------
    statements : sequence of Statement
    saved : function
        ``(size, count) ->`` the number of lines that a function for the parts saves.
    accepts : function
        ``(repeat, call) ->`` whether a part may be a call of the function.
    cost : function
        ``(repeat) ->`` a key; the smallest one decides where a repetition begins.

    Examples
    --------
    >>> statements = [Statement(f"{{v{i}}}.step_{i % 3}()") for i in range(7)]
    >>> rules = lambda size, count: size, lambda *_: True, lambda repeat: repeat.start
    >>> repeat = best_repeat(statements, *rules)
    >>> len(repeat.body), repeat.calls[1]
    (3, {'v0': 'v3', 'v1': 'v4', 'v2': 'v5'})
    """
    codes: dict[str, int] = {}
    shapes = [codes.setdefault(each.shape, len(codes)) for each in statements]
    for start, end, size in _candidates(shapes, saved):
        repeats = list(_repeats(statements[:end], start, size, accepts))
        if repeats:
            return min(repeats, key=cost)
    return None


def _candidates(
    shapes: Sequence[int], saved: Callable[[int, int], int]
) -> list[tuple[int, int, int]]:
    """Return starts, ends and sizes of repeated shapes that save lines, best first."""
    candidates = []
    for size in range(2, len(shapes) // 2 + 1):
        start = 0
        while start + 2 * size <= len(shapes):
            end = start
            while end + size < len(shapes) and shapes[end] == shapes[end + size]:
                end += 1
            count = (end - start) // size + 1
            if count > 1 and (lines := saved(size, count)) > 0:
                candidates.append((-lines, size, start, end + size))
            start = end + 1
    return [(start, end, size) for _, size, start, end in sorted(candidates)]


def _repeats(
    statements: Sequence[Statement], start: int, size: int, accepts: Accepts
) -> Iterator[Repeat]:
    """Yield the repetitions of parts that begin at any statement."""
    for first in range(start, start + size):
        while first + 2 * size <= len(statements):
            repeat = Repeat(first, statements[first : first + size])
            while repeat.end + size <= len(statements):
                call = repeat.call_of(statements[repeat.end : repeat.end + size])
                if call is None or not accepts(repeat, call):
                    break
                repeat.calls.append(call)
            if len(repeat.calls) > 1:
                yield repeat
            if repeat.end + size > len(statements):
                break  # a later first part gives fewer calls
            first = max(first + size, repeat.end - size)
