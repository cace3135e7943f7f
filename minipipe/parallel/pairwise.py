"""The order in which ranks, and blocks of microbatches, add their contributions.

Floating-point addition is not associative, so the order decides the bits. Here it
depends on the number of contributions alone: pairs are added, then pairs of pairs::

    ((0 + 1) + (2 + 3)) + (4 + 5)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minipipe.core.autograd.backend import Array, sum_of_gradients


def in_pairs(add: Callable[[Any, Any], Any], terms: Sequence[Any]) -> Any:
    """Combine terms in pairs, then the results in pairs.

    Any aligned power of two of the terms is a complete sum within the whole, so a rank
    may have added those terms before.

    Examples
    --------
    >>> in_pairs("({} {})".format, "abcde")
    '(((a b) (c d)) e)'
    """
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return add(in_pairs(add, terms[:half]), in_pairs(add, terms[half:]))


def sum_in_pairs(gradients: Sequence[Array | None]) -> Array | None:
    """Return the sum of gradients in pairs; None if there is no gradient.

    Examples
    --------
    >>> sum_in_pairs([1e16, 1.0, -1e16, 1.0])
    0.0
    >>> 1e16 + 1.0 - 1e16 + 1.0
    1.0
    """
    return in_pairs(lambda *pair: sum_of_gradients(pair), gradients)
