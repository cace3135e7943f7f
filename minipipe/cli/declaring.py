"""Options of common forms: flags, texts, files and the ranks of a job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from minipipe.cli.numbers import add_number
from minipipe.core.specs import COUNT
from minipipe.io import MOST_STAGES

if TYPE_CHECKING:
    from pathlib import Path

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
RANKS = COUNT._replace(maximum=MOST_STAGES)
NUM_RANKS = 4  # by default


def file_path(text: str) -> Path:
    """Return the path of an option."""
    from pathlib import Path  # on demand: most commands print their answer

    return Path(text)


def add_flag(parser: Parser, name: str, description: str, **more: Any) -> None:
    """Declare an option without a value."""
    parser.add_argument(name, action="store_true", help=description, **more)


def add_text(parser: Parser, name: str, metavar: str, description: str) -> None:
    """Declare an option or argument whose value is text."""
    parser.add_argument(name, metavar=metavar, help=description)


def add_file(
    parser: Parser, name: str, description: str, metavar: str = "FILE"
) -> None:
    """Declare an option or argument whose value is a path."""
    parser.add_argument(name, type=file_path, metavar=metavar, help=description)


def add_ranks(parser: Parser) -> None:
    """Declare the number of ranks that a verb starts."""
    usual = "number of ranks (default: %(default)s)"
    add_number(parser, "--ranks", RANKS, "P", usual, default=NUM_RANKS)


def add_program(parser: Parser, name: str, description: str) -> None:
    """Declare a program to run; :func:`add_arguments` declares its arguments."""
    parser.add_argument(name, nargs="?", metavar=name.upper(), help=description)


def add_arguments(parser: Parser, program: str) -> None:
    """Declare the arguments of a program: all that follow it."""
    description = f"arguments of the {program}"
    rest = argparse.REMAINDER
    parser.add_argument("arguments", nargs=rest, metavar="ARGUMENTS", help=description)
