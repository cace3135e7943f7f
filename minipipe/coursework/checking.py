"""A test of an exercise and its outcome; a call of the student's code, and its reply."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from minipipe.coursework.expectations import Unexpected, shown
from minipipe.coursework.task import Task, packed_result, unpacked

_LONGEST = 4000  # characters of each part of an outcome
_LONGEST_LINE = 200  # characters of a line that is quoted


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


class Failed(Exception):
    """A call of the student's code has failed, in whatever process; it carries the outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.reason} ({outcome.where})" if outcome.where else outcome.reason)
        self.outcome = outcome


class Ended(Exception):
    """The student's process has ended, or its time has."""

    def __init__(self, reason: str, is_late: bool = False) -> None:
        super().__init__(reason)
        self.is_late = is_late


def load(name: str, text: str, path: str | Path = "", names: Mapping[str, Any] | None = None) -> ModuleType:
    """Return a module made of text, as an import of a file would; it may raise whatever the text raises.

    It is entered in ``sys.modules`` first, where dataclasses look for the module that they stand in. ``names`` are
    there before its text runs.
    """
    sys.modules[name] = module = ModuleType(name)
    module.__file__ = str(path or f"{name}.py")
    module.__dict__.update(names or {})
    exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def run_test(test: Callable[[Task], object], task: Task) -> Outcome:
    """Run one test of a student's task: a function that raises where something is wrong; ``Ended`` is passed on."""
    try:
        test(task)
    except Failed as failed:
        return failed.outcome
    except Ended:
        raise
    except Exception as error:
        return outcome_of(error)
    return Outcome(True)


def reply_of(task: ModuleType, function: str | Callable[..., Any], given: Any, text: str) -> dict[str, Any]:
    """Return the reply to a call: its value, or the outcome of a test whose call raised what this one has raised."""
    try:
        return {"value": packed_result(task, function, unpacked(given))}
    except BaseException as error:
        return {"outcome": outcome_of(error, str(task.__file__), text)._asdict()}


def value_of(reply: Mapping[str, Any]) -> Any:
    """Return the value of a reply, from whomever it comes.

    Raises
    ------
    Failed
        With the outcome that it has in place of a value.
    """
    try:
        if "outcome" not in reply:
            return unpacked(reply["value"])
        outcome = Outcome(**{**reply["outcome"], "passed": False})
        if outcome.reason and all(isinstance(value, type(usual)) for value, usual in zip(outcome, Outcome(True))):
            cut: dict[str, Any] = {
                name: value[:_LONGEST] for name, value in outcome._asdict().items() if isinstance(value, str)
            }
            raise Failed(outcome._replace(**cut))
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError):
        pass
    raise Failed(Outcome(False, "its process returned what is no result"))


def outcome_of(error: BaseException, path: str = "", text: str = "") -> Outcome:
    """Explain an exception to the student; ``path`` and ``text`` are those of his file."""
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
    if isinstance(error, SyntaxError) and error.filename in (path, None):
        line = f"line {error.lineno}: {(error.text or '').strip()[:_LONGEST_LINE]}" if error.lineno else ""
        return Outcome(False, f"it is not valid Python: {error.msg}", where=line)
    return Outcome(False, f"it raised {type(error).__name__}: {_words(error)}", where=where)


def _words(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return "(an error that cannot be printed)"


def _where(error: BaseException, path: str, text: str) -> str:
    """Return the innermost line of the student's file that the error went through.

    Python's ``traceback`` would read the file again, by an encoding that its first line may name.
    """
    where, lines, passed = "", text.split("\n"), error.__traceback__
    while passed is not None:
        if passed.tb_frame.f_code.co_filename == path and passed.tb_lineno <= len(lines):
            where = f"line {passed.tb_lineno}: {lines[passed.tb_lineno - 1].strip()[:_LONGEST_LINE]}"
        passed = passed.tb_next
    return where
