"""One function for microbatches of several sizes, from functions of one size each.

With 4 and with 3 samples the same layer has the lines ::

    add_gradient("0.bias", np.ones(4, "float32").dot(g))
    add_gradient("0.bias", np.ones(3, "float32").dot(g))

and they become one, in which 4 and 3 are ``n``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TOKEN = re.compile(r'"[^"]*"|\d+\.\d+(?:e[-+]?\d+)?|\w+|\s+|.', re.DOTALL)


def merged(
    sources: Sequence[str], sizes: Sequence[int], formulas: Mapping[str, str]
) -> str | None:
    """Return one source for all; None if they differ in more than the size.

    Parameters
    ----------
    sources : sequence of str
    sizes : sequence of int
        What ``n`` is in each.
    formulas : mapping of str to str
        Of constants, by their names.

    Examples
    --------
    >>> merged(["x.reshape((4, 2))", "x.reshape((3, 2))"], [4, 3], {})
    'x.reshape((n, 2))'
    >>> merged(["x + 4", "x - 3"], [4, 3], {})
    """
    rows = [_TOKEN.findall(source) for source in sources]
    if len({len(row) for row in rows}) > 1:
        return None
    found = [_one(tokens, sizes, formulas) for tokens in zip(*rows)]
    return None if None in found else "".join(map(str, found))


def _one(
    tokens: Sequence[str], sizes: Sequence[int], formulas: Mapping[str, str]
) -> str | None:
    """Return what stands for tokens at the same place."""
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
    return "n" if factor == 1 else f"({int(factor)} * n)"
