"""Merges the functions for microbatches of several sizes into one function.

With 4 and with 3 samples the same layer has the lines ::

    add_gradient("0.bias", np.ones(4, "float32").dot(g))
    add_gradient("0.bias", np.ones(3, "float32").dot(g))

which become one line with ``n`` for 4 and 3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TOKEN = re.compile(r'"[^"]*"|\d+\.\d+(?:e[-+]?\d+)?|\w+|\s+|.', re.DOTALL)


def merged(
    sources: Sequence[str], sizes: Sequence[int], formulas: Mapping[str, str]
) -> str | None:
    """Return one source for all sizes; None if the sources differ otherwise.

    Parameters
    ----------
    sources : sequence of str
    sizes : sequence of int
        The value of ``n`` in each source.
    formulas : mapping of str to str
        The formulas of constants, by name.

    Examples
    --------
    >>> merged(["x.reshape((4, 2))", "x.reshape((3, 2))"], [4, 3], {})
    'x.reshape((n, 2))'
    >>> merged(["x + 4", "x - 3"], [4, 3], {})
    """
    rows = [_TOKEN.findall(source) for source in sources]
    if len({len(row) for row in rows}) > 1:
        return None
    tokens = [_one(alternatives, sizes, formulas) for alternatives in zip(*rows)]
    if None in tokens:
        return None
    return "".join(map(str, tokens))


def _one(
    tokens: Sequence[str], sizes: Sequence[int], formulas: Mapping[str, str]
) -> str | None:
    """Return the token for tokens at the same place; None if there is none."""
    if len({*tokens}) == 1:
        return tokens[0]
    if all(token in formulas for token in tokens):
        return merged([formulas[token] for token in tokens], sizes, formulas)
    try:
        factors = {float(token) / size for token, size in zip(tokens, sizes)}
    except ValueError:
        return None
    factor = factors.pop()
    if factors or factor != int(factor):
        return None
    if factor == 1:
        return "n"
    return f"({int(factor)} * n)"
