"""A test of an exercise and its result; a call of the student's code, and its reply."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, NamedTuple

from minipipe.coursework.expectations import Unexpected, shown
from minipipe.coursework.task import Task, packed_result, unpacked

_LONGEST = 4000  # characters of each part of a result
_LONGEST_LINE = 200  # characters of a line that is quoted


class CheckResult(NamedTuple):
    """The result of a test.

    Attributes
    ----------
    passed : bool
    reason : str
        One sentence; empty where it passed.
    expected, got : str
        Where two values were compared.
    where : str
        A line of the student's file.
    compared : str
        The call that gave the compared value.
    drawing : str
        Of a compared schedule, with its problem marked.
    is_unwritten : bool
        Whether the test reached a part that is not written yet.
    """

    passed: bool
    reason: str = ""
    expected: str = ""
    got: str = ""
    where: str = ""
    compared: str = ""
    drawing: str = ""
    is_unwritten: bool = False


class Failed(Exception):
    """A call of the student's code failed, in this process or another."""

    def __init__(self, outcome: CheckResult) -> None:
        super().__init__(f"{outcome.reason} ({outcome.where})" if outcome.where else outcome.reason)
        self.outcome = outcome


class Ended(Exception):
    """The student's process has exited, or is out of time."""

    def __init__(self, reason: str, is_late: bool = False) -> None:
        super().__init__(reason)
        self.is_late = is_late


def load(name: str, text: str, path: str | Path = "", names: Mapping[str, Any] | None = None) -> ModuleType:
    """Return a module with this source text and these initial names; raise the exceptions of the text."""
    sys.modules[name] = module = ModuleType(name)  # where dataclasses look up their module
    module.__file__ = str(path or f"{name}.py")
    module.__dict__.update(names or {})
    exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def run_test(test: Callable[[Task], object], task: Task) -> CheckResult:
    """Run one test of a student's task, a function that raises where something is wrong; ``Ended`` propagates."""
    try:
        test(task)
    except Failed as failed:
        return failed.outcome
    except Ended:
        raise
    except Exception as error:
        return outcome_of(error)
    return CheckResult(True)


def reply_of(task: ModuleType, function: str | Callable[..., Any], given: Any, text: str) -> dict[str, Any]:
    """Return the reply to a call: its value, or the result of a test whose call raised this exception."""
    try:
        return {"value": packed_result(task, function, unpacked(given))}
    except BaseException as error:
        return {"outcome": outcome_of(error, str(task.__file__), text)._asdict()}


def value_of(reply: Mapping[str, Any]) -> Any:
    """Return the value of a reply, which the student's code may have forged.

    Raises
    ------
    Failed
        With the result in place of a value.
    """
    try:
        if "outcome" not in reply:
            return unpacked(reply["value"])
        outcome = CheckResult(**{**reply["outcome"], "passed": False})
        if outcome.reason and all(isinstance(value, type(usual)) for value, usual in zip(outcome, CheckResult(True))):
            cut: list[Any] = [value[:_LONGEST] if isinstance(value, str) else value for value in outcome]
            raise Failed(CheckResult(*cut))
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError):
        pass
    raise Failed(CheckResult(False, "its process returned what is no result"))


def outcome_of(error: BaseException, path: str = "", text: str = "") -> CheckResult:
    """Explain an exception to the student, with the path and text of the file."""
    where = _where(error, path, text)
    if isinstance(error, Unexpected):
        return CheckResult(False, str(error), error.expected, error.got, compared=error.what, drawing=error.drawing)
    if isinstance(error, NotImplementedError):
        return CheckResult(False, f"not written yet: {_words(error)}", where=where, is_unwritten=True)
    if isinstance(error, SystemExit):
        return CheckResult(False, f"it called sys.exit({shown(error.code)}); return a result instead", where=where)
    if isinstance(error, MemoryError):
        return CheckResult(False, "it wanted more memory than a task may have", where=where)
    if isinstance(error, AssertionError):
        return CheckResult(False, _words(error) or "an assertion failed", where=where)
    if isinstance(error, SyntaxError) and error.filename in (path, None):
        line = f"line {error.lineno}: {(error.text or '').strip()[:_LONGEST_LINE]}" if error.lineno else ""
        return CheckResult(False, f"it is not valid Python: {error.msg}", where=line)
    return CheckResult(False, f"it raised {type(error).__name__}: {_words(error)}", where=where)


def _words(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return "(an error that cannot be printed)"


def _where(error: BaseException, path: str, text: str) -> str:
    """Return the innermost line of the student's file in a traceback."""
    where, lines = "", text.split("\n")  # traceback.extract_tb would read the file again, in an encoding that it names
    for frame, number in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == path and number <= len(lines):
            where = f"line {number}: {lines[number - 1].strip()[:_LONGEST_LINE]}"
    return where
