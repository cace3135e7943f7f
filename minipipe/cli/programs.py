"""A training program that a verb runs unchanged, while it watches the pipelines."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minipipe.errors import ArgumentError, LaunchError, counted, quoted
from minipipe.pipeline import Pipeline


def check_program(program: str) -> None:
    """Raise a ``LaunchError`` with the code ``not-found`` unless there is such a
    file.
    """
    if not os.path.isfile(program):
        reason = f"There is no program {quoted(program, 200)}"
        raise LaunchError("not-found", f"{reason}; expected a Python file.")


def run_program(program: str, arguments: Sequence[str], watcher: Any) -> None:
    """Run a program as ``python program arguments`` does.

    Parameters
    ----------
    program : str
        A file with Python.
    arguments : sequence of str
    watcher : object
        ``Pipeline.watcher`` while the program runs.

    Raises
    ------
    LaunchError
        Code ``not-found``.
    """
    check_program(program)
    argv = sys.argv
    path = list(sys.path)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).resolve().parent))
    Pipeline.watcher = watcher
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        sys.argv = argv
        sys.path[:] = path
        Pipeline.watcher = None


def ended_early(
    program: str, error: BaseException, before: str, hint: str
) -> ArgumentError:
    """Return the error of a program that exited or failed before it should.

    Parameters
    ----------
    program : str
    error : SystemExit or Exception
    before : str
        What it did not reach, after ``"before"``.
    hint : str
        A sentence for a program that exits, often because of its arguments.

    Examples
    --------
    >>> print(ended_early("train.py", OSError("full"), "before its first step", ""))
    train.py failed before its first step, with OSError: full
    """
    if isinstance(error, SystemExit):
        code = "exit code 0" if error.code in (None, 0) else quoted(error.code)
        return ArgumentError(f"{program} exited with {code} {before}. {hint}")
    reason = f"{type(error).__name__}: {error}"
    return ArgumentError(f"{program} failed {before}, with {reason}")


def check_num_ranks(program: str, used: int, expected: int, which: str) -> None:
    """Refuse a program that trains on another number of ranks than were started."""
    if used != expected:
        problem = f"{program} uses {counted(used, 'rank')} of the {expected} {which}"
        how = "expected a program that calls init_process_group()"
        raise ArgumentError(f"{problem}; {how}.")
