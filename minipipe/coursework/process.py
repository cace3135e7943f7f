"""Processes of their own for one student's file: start them, listen, and end them and all that they started."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from minipipe.coursework.checking import Outcome
from minipipe.coursework.containment import LAYERS, Containment
from minipipe.coursework.exercise import Exercise

LONGEST_OUTPUT = 2000
"""Characters that are kept of a student's printed output."""

_MOST_RESULTS = 1 << 20  # bytes
_LAYERS = LAYERS  # to try; a test takes some away
_PATIENCE = 5.0  # seconds for the supervisor to end all processes of a task, which takes milliseconds
# Whatever else stands in the environment of the one who grades is none of the student's business.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP")


@dataclass
class Run:
    """The results of one process.

    Attributes
    ----------
    outcomes : dict of Outcome
        By test; tests that did not end are missing.
    is_loaded : bool
        Whether the student's file could be loaded.
    problem : str
        What it raised when it was loaded.
    is_late : bool
        Whether the time was over.
    ending : str
        How the process ended, where it did not do so by itself.
    output : str
        What the student's code printed.
    containment : Containment, optional
        What kept the student's code apart; None where it was not even started.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    is_loaded: bool = False
    problem: str = ""
    is_late: bool = False
    ending: str = ""
    output: str = ""
    containment: Containment | None = None


def run_tests(exercise: Exercise, text: str, tests: Sequence[str], seconds: float, directory: Path) -> Run:
    """Run tests of a student's text in processes of their own, until they end or the time is over.

    Parameters
    ----------
    exercise : Exercise
        Whose tests.
    text : str
        The student's file.
    tests : sequence of str
        Their names, in order.
    seconds : float
    directory : Path
        The student's, to hide.
    """
    word = secrets.token_hex(16)
    job = {
        "task": exercise.name,
        "text": text,
        "checks": exercise.checks,
        "tests": list(tests),
        "seconds": seconds,
        "word": word,
        "layers": _LAYERS,
        "source": str(exercise.checks_path.absolute().parent.parent),
        "directory": str(directory.absolute()),
    }
    # What the student's code leaves there may be hard to delete; that is no reason to fail.
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
        process = _started(folder, directory)
        results, printed = _Reader(process.stdout, _MOST_RESULTS), _Reader(process.stderr, 4 * LONGEST_OUTPUT)
        run = Run()
        try:
            _give(process.stdin, json.dumps(job).encode() + b"\n")
            run.ending = _ending(process.wait(seconds))
        except subprocess.TimeoutExpired:
            run.is_late = True
        finally:
            _end(process)
        run.output = printed.text()[:LONGEST_OUTPUT]
        for line in results.text().splitlines():
            if line.startswith(word):
                _note(run, line.removeprefix(word), tests)
    return run


def _started(folder: str, directory: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "minipipe.coursework.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=_environment(folder, directory),
        start_new_session=True,
    )


def _environment(folder: str, directory: Path) -> dict[str, str]:
    """Return a small environment in which minipipe is found, no module of the student's is, and BLAS has one thread."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    package = str(Path(__file__).resolve().parent.parent.parent)
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # An entry within the student's folder would be imported from before the process is contained.
    paths = [package, *(path for path in given if not Path(path).resolve().is_relative_to(directory.resolve()))]
    own = {"HOME": folder, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(paths)}
    python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    return {**kept, **own, **python, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _give(stream: IO[bytes] | None, job: bytes) -> None:
    assert stream is not None
    with contextlib.suppress(BrokenPipeError):  # one that has ended already says so by its exit status
        stream.write(job)
        stream.flush()


class _Reader:
    """Reads a stream to its end, so that nobody waits to write, and keeps its beginning."""

    def __init__(self, stream: IO[bytes] | None, limit: int) -> None:
        assert stream is not None
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, args=(stream, limit), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes], limit: int) -> None:
        with stream:
            while part := os.read(stream.fileno(), 1 << 16):
                self._kept += part[: max(0, limit - len(self._kept))]

    def text(self) -> str:
        """Return what came; only a process that left its group still holds the other end, and is not waited for."""
        self._thread.join(2.0)
        return bytes(self._kept).decode("utf-8", "replace")


def _end(process: subprocess.Popen) -> None:
    """End the process and all that it started."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()  # by which a supervisor knows that the time is over
    if sys.platform == "linux":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    else:
        process.kill()
    process.wait()


def _ending(code: int) -> str:
    if code == -getattr(signal, "SIGXCPU", 0):
        return "it used more processor time than a task may; does a loop never end?"
    if code < 0:
        return f"it crashed ({signal.strsignal(-code)})"
    return f"it ended the whole process, with exit status {code}; return a result instead"


def _note(run: Run, line: str, tests: Sequence[str]) -> None:
    """Take one event; what is none, whatever wrote it, is passed over."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        event: Any = json.loads(line)
        outcome = Outcome(**event.get("outcome", {"passed": False}))
        if not all(isinstance(value, type(usual)) for value, usual in zip(outcome, Outcome(True))):
            return
        if event.get("test") in tests:
            run.outcomes[event["test"]] = outcome
        elif "loaded" in event:
            run.is_loaded = True
        elif "contained" in event:
            run.containment = Containment(*map(tuple, event["contained"]))
        elif "ended" in event:
            run.ending = _ending(event["ended"])
        elif "outcome" in event:
            run.problem = f"{outcome.reason} ({outcome.where})" if outcome.where else outcome.reason
