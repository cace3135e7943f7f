"""Numbers on the command line: one that cannot be read is refused with an example."""

from __future__ import annotations

import argparse

from minipipe.errors import quoted
from minipipe.io import parse_integer, parse_real


def whole(text: str) -> int:
    """Parse a whole number.

    Examples
    --------
    >>> whole("4")
    4
    """
    try:
        return parse_integer(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"cannot read {quoted(text)}; expected a whole number, such as 4") from None


def real(text: str) -> float:
    """Parse a number.

    Examples
    --------
    >>> real("0.5")
    0.5
    """
    try:
        return parse_real(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"cannot read {quoted(text)}; expected a number, such as 0.5") from None
