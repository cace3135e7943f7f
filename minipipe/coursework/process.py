"""A process of its own for one student's file: start it, listen, end it and all that it started."""

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
from minipipe.coursework.exercise import Exercise

MEMORY_LIMIT = 4 << 30
"""Bytes of addresses that a task may use; threads and libraries reserve far more than they touch."""
LONGEST_OUTPUT = 2000
"""Characters that are kept of a student's printed output."""

_MOST_RESULTS = 1 << 20  # bytes
# Whatever else stands in the environment of the one who grades is none of the student's business.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP")


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
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    is_loaded: bool = False
    problem: str = ""
    is_late: bool = False
    ending: str = ""
    output: str = ""


def run_tests(exercise: Exercise, text: str, tests: Sequence[str], seconds: float) -> Run:
    """Run tests of a student's text in a process of their own, until it ends or the time is over.

    Parameters
    ----------
    exercise : Exercise
        Whose tests.
    text : str
        The student's file.
    tests : sequence of str
        Their names, in order.
    seconds : float
    """
    nonce = secrets.token_hex(16)
    job = {
        "task": exercise.name,
        "checks": exercise.checks,
        "checks_path": str(exercise.checks_path),
        "tests": list(tests),
        "nonce": nonce,
        "memory_limit": MEMORY_LIMIT,
    }
    # What the student's code leaves there may be hard to delete; that is no reason to fail.
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
        Path(folder, f"{exercise.name}.py").write_text(text, "utf-8")
        process = _started(folder)
        results, printed = _Reader(process.stdout, _MOST_RESULTS), _Reader(process.stderr, 4 * LONGEST_OUTPUT)
        run = Run()
        try:
            _give(process.stdin, json.dumps(job).encode())
            run.ending = _ending(process.wait(seconds))
        except subprocess.TimeoutExpired:
            run.is_late = True
        finally:
            _end(process)
        run.output = printed.text()[:LONGEST_OUTPUT]
        for line in results.text().splitlines():
            _note(run, line, nonce)
    return run


def _started(folder: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "minipipe.coursework.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=_environment(folder),
        start_new_session=True,
    )


def _environment(folder: str) -> dict[str, str]:
    """Return a small environment in which minipipe is found, and BLAS starts no threads."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    package = str(Path(__file__).resolve().parent.parent.parent)
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"HOME": folder, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    return {**kept, **own, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


def _give(stream: IO[bytes] | None, job: bytes) -> None:
    assert stream is not None
    with contextlib.suppress(BrokenPipeError), stream:  # one that has ended already says so by its exit status
        stream.write(job)


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
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    else:
        process.kill()
    process.wait()


def _ending(code: int) -> str:
    if code < 0:
        return f"it crashed ({signal.strsignal(-code)})"
    return f"it ended the whole process, with exit status {code}; return a result instead"


def _note(run: Run, line: str, nonce: str) -> None:
    """Read one line; without the secret word it is no result."""
    try:
        event: Any = json.loads(line)
    except ValueError:
        return
    if not isinstance(event, dict) or event.get("nonce") != nonce:
        return
    if "test" in event:
        run.outcomes[event["test"]] = Outcome(**event["outcome"])
    elif "loaded" in event:
        run.is_loaded = True
    else:
        failure = Outcome(**event["not_loaded"])
        run.problem = f"{failure.reason} ({failure.where})" if failure.where else failure.reason
