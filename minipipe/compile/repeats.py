"""Repeated statements of a section: blocks of a model that are alike.

Parts are alike if they differ in names alone, and a name of the first one stands for
the same name everywhere in another part. So a function of the first part, called with
other names, computes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minipipe.compile.statements import Statement


class Repeat:
    """Statements that repeat, one part behind the other.

    Attributes
    ----------
    start : int
        The position of the first part.
    body : list of Statement
        The first part.
    given, made : list of str
        The names that it has from outside, and the variables that it makes.
    calls : list of dict of str to str
        For each part, by name in the first part, the name that stands there.
    """

    def __init__(self, start: int, body: Sequence[Statement]) -> None:
        self.start = start
        self.body = list(body)
        names = dict.fromkeys(name for each in body for name in each.names)
        made = {name for each in body for name in each.makes}
        self.made = [name for name in names if name in made]
        self.given = [name for name in names if name not in made]
        self.calls: list[dict[str, str]] = [dict(zip(names, names))]

    @property
    def end(self) -> int:
        """The position behind the last part."""
        return self.start + len(self.body) * len(self.calls)

    def call_of(self, part: Sequence[Statement]) -> dict[str, str] | None:
        """Return the names of another part; None if it is not alike."""
        found: dict[str, str] = {}
        for first, other in zip(self.body, part):
            for name, own in zip(first.names, other.names):
                if found.setdefault(name, own) != own:
                    return None
        made = {name for each in part for name in each.makes}
        is_late = any(found[name] in made for name in self.given)
        return None if is_late else found


Accepts = Callable[[Repeat, Mapping[str, str]], bool]


def best_repeat(
    statements: Sequence[Statement],
    saved: Callable[[int, int], int],
    accepts: Accepts,
    cost: Callable[[Repeat], Any],
) -> Repeat | None:
    """Return the repetition that saves most lines; None if none saves any.

    Parameters
    ----------
    statements : sequence of Statement
    saved : function
        ``(size, count) ->`` how many lines a function for so many parts saves.
    accepts : function
        ``(repeat, call) ->`` whether a part may be a call of the function.
    cost : function
        Where a repetition may begin at several statements, the one of least cost does.

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
        found = list(_repeats(statements[:end], start, size, accepts))
        if found:
            return min(found, key=cost)
    return None


def _candidates(
    shapes: Sequence[int], saved: Callable[[int, int], int]
) -> list[tuple[int, int, int]]:
    """Return starts, ends and sizes of repeated shapes that save lines, best first."""
    found = []
    for size in range(2, len(shapes) // 2 + 1):
        start = 0
        while start + 2 * size <= len(shapes):
            end = start
            while end + size < len(shapes) and shapes[end] == shapes[end + size]:
                end += 1
            count = (end - start) // size + 1
            lines = saved(size, count) if count > 1 else 0
            if lines > 0:
                found.append((-lines, size, start, end + size))
            start = end + 1
    return [(start, end, size) for _, size, start, end in sorted(found)]


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
