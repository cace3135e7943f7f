"""Running the tests of one exercise in this process."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from minipipe.coursework.expectations import Unexpected, shown


class Outcome(NamedTuple):
    """How a test ended.

    Attributes
    ----------
    passed : bool
    reason : str
        One sentence; empty where it passed.
    expected, got : str
        The two values, where two were compared.
    where : str
        A line of the student's file.
    compared : str
        The call or thing whose values were compared.
    drawing : str
        Of a schedule that was compared, with its problem marked.
    is_unwritten : bool
        Whether the test met a part that the student has not written yet.
    """

    passed: bool
    reason: str = ""
    expected: str = ""
    got: str = ""
    where: str = ""
    compared: str = ""
    drawing: str = ""
    is_unwritten: bool = False


def load(name: str, text: str, path: str | Path = "") -> ModuleType:
    """Return a module made of text, as an import of a file would; it may raise whatever the text raises.

    It is entered in ``sys.modules`` first, where dataclasses look for the module that they stand in.
    """
    sys.modules[name] = module = ModuleType(name)
    module.__file__ = str(path or f"{name}.py")
    exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def run_test(test: Callable[[Any], object], task: ModuleType, text: str) -> Outcome:
    """Run one test of a student's module.

    Parameters
    ----------
    test : function
        Takes the module; raises where something is wrong.
    task : module
    text : str
        The module's source, to quote the line that raised.
    """
    try:
        test(task)
    except BaseException as error:
        return outcome_of(error, str(task.__file__), text)
    return Outcome(True)


def outcome_of(error: BaseException, path: str, text: str) -> Outcome:
    """Explain an exception to the student."""
    where = _where(error, path, text)
    if isinstance(error, Unexpected):
        return Outcome(False, str(error), error.expected, error.got, compared=error.what, drawing=error.drawing)
    if isinstance(error, NotImplementedError):
        return Outcome(False, f"not written yet: {_words(error)}", where=where, is_unwritten=True)
    if isinstance(error, SystemExit):
        return Outcome(False, f"it called sys.exit({shown(error.code)}); return a result instead", where=where)
    if isinstance(error, MemoryError):
        return Outcome(False, "it wanted more memory than a task may have", where=where)
    if isinstance(error, AssertionError):
        return Outcome(False, _words(error) or "an assertion failed", where=where)
    if isinstance(error, SyntaxError) and error.filename == path:
        line = (error.text or "").strip()
        return Outcome(False, f"it is not valid Python: {error.msg}", where=f"line {error.lineno}: {line}")
    return Outcome(False, f"it raised {type(error).__name__}: {_words(error)}", where=where)


def _words(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return "(an error that cannot be printed)"


def _where(error: BaseException, path: str, text: str) -> str:
    """Return the innermost line of the student's file that the error went through."""
    frames = traceback.extract_tb(error.__traceback__, limit=-50)
    lines = text.splitlines()
    for frame in reversed(frames):
        if frame.filename == path and frame.lineno and frame.lineno <= len(lines):
            return f"line {frame.lineno}: {lines[frame.lineno - 1].strip()}"
    return ""
