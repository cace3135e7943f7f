"""Repeated lines of a compiled section as one function.

Local variables and names that differ between the parts become parameters; other names
stay globals::

    def forward_0_block(v1, v2, p1):
        v1.dot(p1, t0)
        tanh(t0, v2)


    forward_0_block(v0, v1, p0)
    forward_0_block(v1, v2, p1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipipe.compile.repeats import Repeat, best_repeat
from minipipe.compile.statements import Statement, as_it_is, joined, written
from minipipe.compile.wrapping import function

LEAST = 20
"""The fewest lines of a block: a call takes as long as a small operation."""


def outlined(
    statements: Sequence[Statement], local: set[str], name: str
) -> tuple[str, list[Statement]]:
    """Return the function of the block that saves most lines, and the other statements.

    Parameters
    ----------
    statements : sequence of Statement
        The statements of a function.
    local : set of str
        Its local variables, besides those that the statements make.
    name : str
        The name of the new function.

    Returns
    -------
    source : str
        Empty if nothing repeats.
    statements : list of Statement

    Examples
    --------
    >>> texts = [
    ...     f"{{v{i}}}.step_{j}({{v{i + 1}}})" for i in range(2) for j in range(20)
    ... ]
    >>> statements = [Statement(text) for text in texts]
    >>> source, statements = outlined(statements, {"v0", "v1", "v2"}, "block")
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
        arguments = joined(call[each] for each in parameters)
        text = f"{name}({arguments})"
        made = tuple(call[each] for each in returned)
        if made:
            text = f"{joined(made)} = {text}"
        calls.append(Statement(text, made))
    source = _source(name, repeat, parameters, returned)
    return source, [*statements[: repeat.start], *calls, *statements[repeat.end :]]


def _saved(size: int, count: int) -> int:
    if size < LEAST:
        return 0
    return (count - 1) * size


def _always(repeat: Repeat, call: Mapping[str, str]) -> bool:
    return True


def _cost(repeat: Repeat) -> tuple[int, int]:
    return -len(repeat.calls), repeat.start


def _parameters(repeat: Repeat, local: set[str]) -> list[str]:
    """Return the names that differ between the parts, or are local variables."""
    return [
        name
        for name in repeat.arguments
        if name in local or len({call[name] for call in repeat.calls}) > 1
    ]


def _returned(repeat: Repeat, statements: Sequence[Statement]) -> list[str]:
    """Return the variables of a part that are read after it."""
    returned = set[str]()
    read = {name for each in statements[repeat.end :] for name in each.names}
    size = len(repeat.body)
    for number in reversed(range(len(repeat.calls))):
        returned |= {n for n in repeat.made if repeat.calls[number][n] in read}
        start = repeat.start + number * size
        read |= {n for each in statements[start : start + size] for n in each.names}
    return [name for name in repeat.made if name in returned]


def _source(
    name: str, repeat: Repeat, parameters: Sequence[str], returned: Sequence[str]
) -> str:
    """Return the source of the function: the first part, with its names."""
    names = {each: each.replace("layer:", "layer") for each in parameters}
    texts = [
        written(each.text, lambda key: names.get(key, as_it_is(key)))
        for each in repeat.body
    ]
    if returned:
        texts.append(f"return {', '.join(returned)}")
    return function(name, names.values(), merged(texts)) + "\n"


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
    results: list[str] = []
    for text in texts:
        condition, _, lines = text.partition("\n")
        is_same = results and results[-1].startswith(f"{condition}\n")
        if not (condition.startswith("if ") and is_same):
            results.append(text)
            continue
        first, _, later = results[-1].partition("\nelse:\n")
        more, _, last = lines.partition("\nelse:\n")
        results[-1] = f"{first}\n{more}\nelse:\n{later}\n{last}"
    return results
