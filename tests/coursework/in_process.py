"""A student's file in the grader's own process, for tests of reports: an innocent file
needs no process of its own.

The other process, its containment and its limits are the subject of test_isolation,
test_containment, test_forged and test_folder. What is loaded, inspected, called and
packed is the same here.
"""

import ast
import contextlib
import io
import json
import threading
from importlib.util import decode_source
from pathlib import Path

from minipipe.coursework.checking import load, outcome_of, packed, reply_of, value_of
from minipipe.coursework.imports import findings, given_names, guarded_builtins
from minipipe.coursework.several import _report

# Submissions and their tasks are graded by threads. Threads share standard output, and
# Python 3.11 confuses the depths of two calls of ast.parse at a time
# (github.com/python/cpython/issues/106905).
ONE_AT_A_TIME = threading.Lock()
ONE_REPORT_AT_A_TIME = threading.Lock()


class InProcess:
    """Stands for ``minipipe.coursework.process.StudentProcess``."""

    containment = None

    def __init__(self, exercise, content, seconds, directory, students):
        self._exercise, self._content, self._printed = exercise, content, io.StringIO()
        self.flags, self.output, self.is_loaded = [], "", False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.output = self._printed.getvalue()

    def load(self):
        file, given = (
            Path(f"{self._exercise.name}.py"),
            given_names(self._exercise.stub),
        )
        self._text = decode_source(self._content)
        self._checks = load(
            f"checks_of_{self._exercise.name}", self._exercise.visible_checks
        )
        try:
            with ONE_AT_A_TIME, contextlib.redirect_stdout(self._printed):
                self.flags += findings(ast.parse(self._text, str(file)), given)
                names = {"__builtins__": guarded_builtins(given, self.flags)}
                self._module = load(self._exercise.name, self._text, file, names)
        except BaseException as error:
            value_of({"outcome": outcome_of(error, str(file), self._text)._asdict()})
        self.is_loaded = True

    def ask(self, function, given):
        call = (
            getattr(self._checks, function.__name__) if callable(function) else function
        )
        with ONE_AT_A_TIME, contextlib.redirect_stdout(self._printed):
            reply = reply_of(
                self._module, call, json.loads(json.dumps(packed(given))), self._text
            )
        return value_of(json.loads(json.dumps(reply)))


def graded_here(job, _):
    """Stand for ``minipipe.coursework.several._graded``."""
    with ONE_REPORT_AT_A_TIME:
        report = _report(json.loads(json.dumps(job, default=str)))
    return json.loads(json.dumps(report))
