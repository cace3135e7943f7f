"""Repeated lines of a section as one function: blocks of a model that are alike.

Lines are alike if they differ in names and whole numbers alone. What differs becomes a
parameter, and so do local variables; what is the same in all blocks stays a global::

    def forward_0_block(v1, v2, p1):
        v1.dot(p1, t0)
        tanh(t0, v2)


    forward_0_block(v0, v1, p0)
    forward_0_block(v1, v2, p1)
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from textwrap import fill, indent
from typing import NamedTuple

LEAST = 20
"""Lines of a block that is worth a call, which takes as long as a small operation."""
_WIDTH = 80


# Strings and numbers with a fraction; whole numbers; names, also behind a dot or of an
# argument.
_TOKEN = re.compile(
    r"""'[^']*'|"[^"]*"|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+"""
    r"""|(?P<number>\d+)|(?P<name>\.?[A-Za-z_]\w*)(?P<argument>=(?!=))?"""
)
_MADE = re.compile(r"^ *((?:\w+, )*\w+),? = ", re.MULTILINE)
_WORDS = {*keyword.kwlist, "first:", "numpy"}


class Slot(NamedTuple):
    """A name or a whole number in a statement, and its offset in the text."""

    value: str
    start: int
    is_number: bool


class Statement(NamedTuple):
    """A statement, perhaps of several lines.

    Attributes
    ----------
    text : str
    form : str
        Equal for statements that differ in their slots alone.
    slots : list of Slot
    made : set of str
        The variables that it makes.
    """

    text: str
    form: str
    slots: list[Slot]
    made: set[str]

    @classmethod
    def of(cls, text: str) -> Statement:
        """Return the statement of a text.

        Examples
        --------
        >>> statement = Statement.of("v1 = v0.sum(axis=1)")
        >>> statement.form, [slot.value for slot in statement.slots], statement.made
        ('_ = _.sum(axis=0)', ['v1', 'v0', '1'], {'v1'})
        """
        slots: list[Slot] = []

        def blank(match: re.Match[str]) -> str:
            if match["number"]:
                slots.append(Slot(match["number"], match.start(), True))
                return "0"
            name = match["name"]
            is_attribute = name is None or match["argument"] or name[0] == "."
            if is_attribute or name in _WORDS:
                return match[0]
            slots.append(Slot(name, match.start(), False))
            return "_"

        form = _TOKEN.sub(blank, text)
        made = {name for names in _MADE.findall(text) for name in names.split(", ")}
        return cls(text, form, slots, made)


class Block(NamedTuple):
    """Where statements repeat: from a first one on, so many times so many."""

    first: int
    length: int
    times: int


def outlined(texts: Sequence[str], local: set[str], name: str) -> tuple[str, list[str]]:
    """Return the function of the block that saves most lines, and the other statements.

    Parameters
    ----------
    texts : sequence of str
        The statements of a function.
    local : set of str
        Its local variables, besides those that the statements make.
    name : str
        Of the new function.

    Returns
    -------
    source : str
        Empty if nothing is repeated.
    statements : list of str

    Examples
    --------
    >>> texts = [f"v{i}.step_{j}(v{i + 1})" for i in range(2) for j in range(20)]
    >>> source, statements = outlined(texts, {"v0", "v1", "v2"}, "block")
    >>> source.splitlines()[:2], statements
    (['def block(v0, v1):', '    v0.step_0(v1)'], ['block(v0, v1)', 'block(v1, v2)'])
    """
    statements = [Statement.of(text) for text in texts]
    block = repeated([statement.form for statement in statements])
    if block is None:
        return "", list(texts)
    made = {name for statement in statements for name in statement.made}
    for part in _parts_of(block):
        for shift in range(block.length):
            moved = part._replace(first=part.first + shift)
            if not _repeats(statements, moved):
                break
            function = _Function(statements, moved, local | made)
            if function.is_possible:
                return function.source(name), function.statements(name)
    return "", list(texts)


def _parts_of(block: Block) -> Iterator[Block]:
    """Yield the repetition, and it without the first or the last ones."""
    for left_out in range(block.times - 1):
        times = block.times - left_out
        for first in range(left_out + 1):
            yield Block(block.first + first * block.length, block.length, times)


def repeated(forms: Sequence[str]) -> Block | None:
    """Return the repetition that saves most; None if there is none.

    Examples
    --------
    >>> repeated(["start", *"abcdefghijklmnopqrstuvwxyz" * 3, "end"])
    Block(first=1, length=26, times=3)
    """
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(form, len(numbers)) for form in forms]
    best, saved = None, 0
    for length in range(LEAST, len(codes) // 2 + 1):
        run = 0
        for i in range(len(codes) - length):
            run = run + 1 if codes[i] == codes[i + length] else 0
            gain = run // length * length
            if gain > saved:
                saved = gain
                best = Block(i - run + 1, length, run // length + 1)
    return best


def _repeats(statements: Sequence[Statement], block: Block) -> bool:
    end = block.first + block.length * block.times
    forms = [statement.form for statement in statements[block.first : end]]
    is_inside = end <= len(statements)
    return is_inside and forms == forms[: block.length] * block.times


class _Function:
    """A block as a function, with what differs between its repetitions."""

    def __init__(
        self, statements: list[Statement], block: Block, local: set[str]
    ) -> None:
        self._statements, self._block = statements, block
        starts = range(
            block.first, block.first + block.length * block.times, block.length
        )
        self._parts = [statements[i : i + block.length] for i in starts]
        self._behind = statements[starts.stop :]
        self._slots = [[s for one in part for s in one.slots] for part in self._parts]
        self.is_possible = True
        self._names = self._mapped()  # by name in the first part, the one in each part
        self._numbers = {
            i: f"n{i}"
            for i, of_parts in enumerate(zip(*self._slots))
            if of_parts[0].is_number and len({slot.value for slot in of_parts}) > 1
        }
        made = {name for one in self._parts[0] for name in one.made}
        reads = self._reads_behind()
        self._returned = [
            name
            for name, others in self._names.items()
            if name in made and any(map(set.__contains__, reads, others))
        ]
        self._parameters = [
            name
            for name, others in self._names.items()
            if name not in made and (name in local or len(set(others)) > 1)
        ]
        for name in self._parameters:  # it must be there before the part
            for other, part in zip(self._names[name], self._parts):
                if any(other in one.made for one in part):
                    self.is_possible = False

    def _mapped(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for of_parts in zip(*self._slots):
            if not of_parts[0].is_number:
                others = [slot.value for slot in of_parts]
                if names.setdefault(others[0], others) != others:
                    self.is_possible = False
        return names

    def _reads_behind(self) -> list[set[str]]:
        """Return, by part, the names that are read behind it."""
        found = [_read_in(self._behind)]
        for part in self._parts[:0:-1]:
            found.append(found[-1] | _read_in(part))
        return found[::-1]

    def source(self, name: str) -> str:
        """Return the source of the function: the first part, with its names."""
        texts, i = [], 0
        for statement in self._parts[0]:
            text, moved = statement.text, 0
            for slot in statement.slots:
                if i in self._numbers:
                    start, end = (
                        moved + slot.start,
                        moved + slot.start + len(slot.value),
                    )
                    text = f"{text[:start]}{self._numbers[i]}{text[end:]}"
                    moved += len(self._numbers[i]) - len(slot.value)
                i += 1
            texts.append(text)
        if self._returned:
            texts.append(f"return {', '.join(self._returned)}")
        lines = [line for text in merged(texts) for line in text.splitlines()]
        head = _wrapped(
            f"def {name}(", [*self._parameters, *self._numbers.values()], "):"
        )
        return f"{head}\n{indent(chr(10).join(lines), '    ')}\n"

    def statements(self, name: str) -> list[str]:
        """Return all statements, with calls of the function."""
        calls = []
        for number, slots in enumerate(self._slots):
            given = [self._names[parameter][number] for parameter in self._parameters]
            given += [slots[i].value for i in self._numbers]
            results = [self._names[made][number] for made in self._returned]
            left = f"{', '.join(results)} = " if results else ""
            calls.append(_wrapped(f"{left}{name}(", given, ")"))
        block = self._block
        before = [statement.text for statement in self._statements[: block.first]]
        return [*before, *calls, *(statement.text for statement in self._behind)]


def _read_in(statements: Sequence[Statement]) -> set[str]:
    """Return the names that statements read, of which they make none."""
    found: set[str] = set()
    for one in statements:
        found |= {slot.value for slot in one.slots if not slot.is_number} - one.made
    return found


def conditional(first: Sequence[str], later: Sequence[str]) -> str:
    """Return the statement for the first contribution of a step, and for later ones."""
    lines = ["if first:", *(f"    {line}" for line in first)]
    return "\n".join([*lines, "else:", *(f"    {line}" for line in later)])


def merged(texts: Sequence[str]) -> list[str]:
    """Merge neighbours under one condition.

    Examples
    --------
    >>> one, other = conditional(["a"], ["b"]), conditional(["c"], ["d"])
    >>> merged([one, other]) == [conditional(["a", "c"], ["b", "d"])]
    True
    """
    found: list[str] = []
    pending: tuple[list[str], list[str]] = [], []
    for text in [*texts, ""]:
        if text.startswith("if first:"):
            lines = [line.removeprefix("    ") for line in text.splitlines()]
            middle = lines.index("else:")
            pending[0].extend(lines[1:middle])
            pending[1].extend(lines[middle + 1 :])
            continue
        if pending[0]:
            found.append(conditional(*pending))
            pending = [], []
        found += [text] if text else []
    return found


def _wrapped(before: str, names: Sequence[str], after: str) -> str:
    inner = ", ".join(names)
    if len(before) + len(inner) <= _WIDTH:
        return f"{before}{inner}{after}"
    return f"{before}\n{indent(fill(inner, _WIDTH), '    ')}\n{after}"
