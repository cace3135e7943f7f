"""Options of common forms: flags, texts, files and the ranks of a job."""

from __future__ import annotations

import argparse

from minipipe.cli.numbers import add_number
from minipipe.cli.options import NUM_RANKS, file_path
from minipipe.io import MOST_STAGES
from minipipe.specs import COUNT

RANKS = COUNT._replace(maximum=MOST_STAGES)


def add_flag(parser: argparse.ArgumentParser, name: str, words: str) -> None:
    """Declare an option without a value."""
    parser.add_argument(name, action="store_true", help=words)


def add_text(
    parser: argparse.ArgumentParser, name: str, metavar: str, words: str
) -> None:
    """Declare an option or argument whose value is text."""
    parser.add_argument(name, metavar=metavar, help=words)


def add_file(
    parser: argparse.ArgumentParser, name: str, words: str, metavar: str = "FILE"
) -> None:
    """Declare an option or argument whose value is a path."""
    parser.add_argument(name, type=file_path, metavar=metavar, help=words)


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Declare the number of ranks that a verb starts."""
    usual = "number of ranks (default: %(default)s)"
    add_number(parser, "--ranks", RANKS, "P", usual, default=NUM_RANKS)


def add_program(parser: argparse.ArgumentParser, name: str, words: str) -> None:
    """Declare a program to run; :func:`add_arguments` declares its arguments."""
    parser.add_argument(name, nargs="?", metavar=name.upper(), help=words)


def add_arguments(parser: argparse.ArgumentParser, program: str) -> None:
    """Declare the arguments of a program: all that follow it."""
    words = f"arguments of the {program}"
    rest = argparse.REMAINDER
    parser.add_argument("arguments", nargs=rest, metavar="ARGUMENTS", help=words)
