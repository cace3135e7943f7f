"""Numbers on the command line: one that cannot be read is refused with an example."""

from __future__ import annotations

import argparse
from typing import Any

from minipipe.core.specs import Spec
from minipipe.errors import ScheduleError, quoted
from minipipe.io import parse_integer, parse_real

MOST_SECONDS = 7 * 24 * 3600.0
"""The longest time that a verb may be given: a week."""
SECONDS = Spec(
    float,
    above=0,
    maximum=MOST_SECONDS,
    expected=f"seconds, above 0 and at most {MOST_SECONDS:g}, a week",
    error=ScheduleError.of,
)
FACTOR = Spec(
    float, minimum=0, maximum=1, expected="a number from 0 to 1", error=ScheduleError.of
)


def add_number(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    *names: str,
    spec: Spec,
    **form: Any,
) -> argparse.Action:
    """Declare an option that is a number; :func:`check_numbers` refuses one that is out
    of range.
    """
    action = parser.add_argument(*names, type=spec.kind, **form)
    vars(action)["spec"] = spec
    return action


def check_numbers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse numbers out of the range of their option: after parsing, so that --json
    has the error.

    Raises
    ------
    ArgumentError, ScheduleError
        Code ``value``.
    """
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        if value is not None and "spec" in vars(action):
            vars(action)["spec"].check(action.option_strings[-1], value)


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
        problem = f"cannot read {quoted(text)}; expected a whole number"
        raise argparse.ArgumentTypeError(f"{problem}, such as 4") from None


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
        problem = f"cannot read {quoted(text)}; expected a number"
        raise argparse.ArgumentTypeError(f"{problem}, such as 0.5") from None
