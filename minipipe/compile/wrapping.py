"""The source of functions, with long statements wrapped over several lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WIDTH = 88
"""Columns of a line."""

_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.""", re.DOTALL)


def function(name: str, parameters: Iterable[str], statements: Iterable[str]) -> str:
    """Return the source of a function.

    Examples
    --------
    >>> print(function("f", ["x"], ["if x:\\n    x = 1", "return x"]))
    def f(x):
        if x:
            x = 1
        return x
    """
    lines = wrapped(f"def {name}({', '.join(parameters)}):", 0)
    for statement in statements:
        for line in statement.splitlines():
            text = line.lstrip()
            lines += wrapped(text, 4 + len(line) - len(text))
    if len(lines) == 1:
        lines.append("    pass")
    return "\n".join(lines)


def wrapped(text: str, indent: int) -> list[str]:
    """Return the lines of a statement, wrapped if it is too long.

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
        longer = f"{line} {part}".lstrip()
        if line and len(longer) + indent + 4 > WIDTH:
            yield " " * (indent + 4) + line
            longer = part
        line = longer
    yield " " * (indent + 4) + line
    yield " " * indent + tail


def _parts(text: str) -> list[str]:
    """Return the items between commas outside of brackets, with their commas."""
    parts = []
    depth = 0
    start = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if token[0] == "," and depth == 0:
            parts.append(text[start : token.end()].strip())
            start = token.end()
    if rest := text[start:].strip():
        parts.append(rest)
    return parts
