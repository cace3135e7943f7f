"""Repeated lines of a compiled section as one function.

Names that differ between the parts become parameters, and so do local variables;
those that are the same in all parts stay globals::

    def forward_0_block(v1, v2, p1):
        v1.dot(p1, t0)
        tanh(t0, v2)


    forward_0_block(v0, v1, p0)
    forward_0_block(v1, v2, p1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipipe.compile.repeats import Repeat, best_repeat
from minipipe.compile.statements import Statement, as_it_is, written
from minipipe.compile.wrapping import function

LEAST = 20
"""Lines of a block that is worth a call, which takes as long as a small operation."""


def outlined(
    statements: Sequence[Statement], local: set[str], name: str
) -> tuple[str, list[Statement]]:
    """Return the function of the block that saves most lines, and the other statements.

    Parameters
    ----------
    statements : sequence of Statement
        Those of a function.
    local : set of str
        Its local variables, besides those that the statements make.
    name : str
        Of the new function.

    Returns
    -------
    source : str
        Empty if nothing is repeated.
    statements : list of Statement

    Examples
    --------
    >>> texts = [
    ...     f"{{v{i}}}.step_{j}({{v{i + 1}}})" for i in range(2) for j in range(20)
    ... ]
    >>> own = [Statement(text) for text in texts]
    >>> source, statements = outlined(own, {"v0", "v1", "v2"}, "block")
    >>> source.splitlines()[:2], [each.text for each in statements]
    (['def block(v0, v1):', '    v0.step_0(v1)'], ['block({v0}, {v1})', 'block({v1}, {v2})'])
    """
    local = local | {made for each in statements for made in each.makes}

    repeat = best_repeat(statements, _saved, _always, _cost)
    if repeat is None:
        return "", list(statements)
    parameters = _parameters(repeat, local)
    returned = _returned(repeat, statements)
    calls = []
    for call in repeat.calls:
        given = ", ".join(f"{{{call[each]}}}" for each in parameters)
        made = tuple(call[each] for each in returned)
        left = f"{', '.join(f'{{{each}}}' for each in made)} = " if made else ""
        calls.append(Statement(f"{left}{name}({given})", made))
    source = _source(name, repeat, parameters, returned)
    return source, [*statements[: repeat.start], *calls, *statements[repeat.end :]]


def _saved(size: int, count: int) -> int:
    return (count - 1) * size if size >= LEAST else 0


def _always(repeat: Repeat, call: Mapping[str, str]) -> bool:
    return True


def _cost(repeat: Repeat) -> tuple[int, int]:
    return -len(repeat.calls), repeat.start


def _parameters(repeat: Repeat, local: set[str]) -> list[str]:
    """Return the names that differ between the parts, or are local variables."""
    return [
        name
        for name in repeat.given
        if name in local or len({call[name] for call in repeat.calls}) > 1
    ]


def _returned(repeat: Repeat, statements: Sequence[Statement]) -> list[str]:
    """Return the variables of a part that are read behind it."""
    found = set[str]()
    read = {name for each in statements[repeat.end :] for name in each.names}
    size = len(repeat.body)
    for number in reversed(range(len(repeat.calls))):
        found |= {name for name in repeat.made if repeat.calls[number][name] in read}
        start = repeat.start + number * size
        read |= {n for each in statements[start : start + size] for n in each.names}
    return [name for name in repeat.made if name in found]


def _source(
    name: str, repeat: Repeat, parameters: Sequence[str], returned: Sequence[str]
) -> str:
    """Return the source of the function: the first part, with its names."""
    shown = {each: each.replace("layer:", "layer") for each in parameters}
    texts = [
        written(each.text, lambda own: shown.get(own, as_it_is(own)))
        for each in repeat.body
    ]
    if returned:
        texts.append(f"return {', '.join(returned)}")
    return function(name, shown.values(), merged(texts)) + "\n"


def conditional(first: Sequence[str], later: Sequence[str]) -> str:
    """Return the statement for the first contribution of a step, and for later ones."""
    lines = ["if {first}:", *(f"    {line}" for line in first)]
    return "\n".join([*lines, "else:", *(f"    {line}" for line in later)])


def merged(texts: Sequence[str]) -> list[str]:
    """Merge neighbours under one condition.

    Examples
    --------
    >>> one, other = conditional(["a"], ["b"]), conditional(["c"], ["d"])
    >>> both = merged([written(one), written(other)])
    >>> both == [written(conditional(["a", "c"], ["b", "d"]))]
    True
    """
    found: list[str] = []
    for text in texts:
        condition, _, lines = text.partition("\n")
        is_alike = found and found[-1].startswith(f"{condition}\n")
        if not (condition.startswith("if ") and is_alike):
            found.append(text)
            continue
        first, _, later = found[-1].partition("\nelse:\n")
        more, _, last = lines.partition("\nelse:\n")
        found[-1] = f"{first}\n{more}\nelse:\n{later}\n{last}"
    return found
