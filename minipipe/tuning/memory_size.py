"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from numbers import Real
from typing import Any

from minipipe.errors import ArgumentError, quoted

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


def memory_size(given: Any) -> float:
    """Return an amount of memory in bytes.

    Parameters
    ----------
    given : str or number
        Bytes, or text such as ``"500 MB"`` (of 1000 x 1000 bytes) or ``"2 GiB"`` (of 1024 x 1024 x 1024).

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> memory_size("500 MB"), memory_size("1.5KiB"), memory_size(10)
    (500000000.0, 1536.0, 10.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]*)\s*", given) if isinstance(given, str) else None
    if found and found[2].upper() in _UNITS:
        amount = float(found[1]) * _UNITS[found[2].upper()]
    else:
        amount = float(given) if isinstance(given, Real) and not isinstance(given, bool) else 0.0
    if not 0 < amount < float("inf"):
        message = f"memory_limit is {quoted(given)}; expected an amount above 0, such as '500 MB', '2 GiB' or bytes."
        raise ArgumentError("value", message)
    return amount
