"""Processes of their own for one student's file: start them, ask, and end them and all that they started."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self

from minipipe.coursework.checking import Ended, value_of
from minipipe.coursework.containment import LAYERS, Containment
from minipipe.coursework.exercise import Exercise
from minipipe.coursework.imports import given_names
from minipipe.coursework.task import packed

LONGEST_OUTPUT = 2000
"""Characters that are kept of a student's printed output."""

_LONGEST_REPLY = 8 << 20  # bytes, of all that was not asked for, too
_MOST_FLAGS, _LONGEST_FLAG = 20, 200
_ATOMIC = getattr(select, "PIPE_BUF", 1 << 30)
_LAYERS = LAYERS  # to try; a test takes some away
_PATIENCE = 5.0  # seconds for the supervisor to end all processes of a task, which takes milliseconds
# Whatever else stands in the environment of the one who grades is none of the student's business.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP")


class StudentProcess:
    """Processes with one student's file, to be used in a ``with`` statement: whatever they started ends with it.

    Parameters
    ----------
    exercise : Exercise
        Of which the student's processes get the visible checks alone.
    content : bytes
        The student's file.
    seconds : float
        Until when calls are answered.
    directory : Path
        The student's, to hide.

    Attributes
    ----------
    containment : Containment, optional
        What kept the student's code apart; None where it was not even started.
    flags : dict of str
        What the file uses beyond what its task gives; the keys, in order.
    output : str
        What the student's code printed; complete at the end.
    is_loaded : bool
    """

    def __init__(self, exercise: Exercise, content: bytes, seconds: float, directory: Path) -> None:
        self.containment: Containment | None = None
        self.flags: dict[str, None] = {}
        self.output, self.is_loaded = "", False
        self._deadline = time.monotonic() + seconds
        self._ending: str | None = None
        self._directory = directory.absolute()
        self._job = {
            "task": exercise.name,
            "content": base64.b64encode(content).decode(),
            "checks": exercise.visible_checks,
            "given": given_names(exercise.stub),
            "seconds": seconds,
            "layers": _LAYERS,
            "source": str(exercise.checks_path.absolute().parent.parent),
            "directory": str(self._directory),
        }

    def __enter__(self) -> Self:
        # What the student's code leaves there may be hard to delete; that is no reason to fail.
        self._folder = tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
        self._process = _started(self._folder.name, self._directory)
        self._replies = _Reader(self._process.stdout, _LONGEST_REPLY)
        self._printed = _Reader(self._process.stderr, 4 * LONGEST_OUTPUT)
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)
        self.output = self._printed.text()[:LONGEST_OUTPUT]
        self._folder.cleanup()

    def load(self) -> None:
        """Load the student's file.

        Raises
        ------
        Failed
            With what it raised.
        Ended
        """
        self._give(self._job)
        value_of({"value": None, **self._reply("loaded")})
        self.is_loaded = True

    def ask(self, function: str | Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Call a function of the student's, or a remote one of the checks.

        Raises
        ------
        Failed
            With what it raised.
        Ended
        """
        name = function if isinstance(function, str) else function.__name__
        self._give({"function": name, "is_remote": callable(function), "given": packed(given)})
        return value_of(self._reply("value"))

    def _give(self, message: dict[str, Any]) -> None:
        """Write a line for the process, which may never read it."""
        assert self._process.stdin is not None
        stream, line = self._process.stdin.fileno(), json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # one that has ended already says so by its exit status
            while line:
                if sys.platform != "win32" and not select.select([], [stream], [], self._seconds_left())[1]:
                    raise Ended("", is_late=True)
                line = line[os.write(stream, line[:_ATOMIC]) :]  # what has room at once blocks nobody

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _reply(self, awaited: str) -> dict[str, Any]:
        """Return the next event that has what is awaited, or an outcome in its place."""
        while True:
            line = self._replies.line(self._seconds_left())
            if line is None:
                raise Ended(self._ending or _ending(self._exit_code()))
            with contextlib.suppress(ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
                event: Any = json.loads(line)
                self._note(event)
                if awaited in event or "outcome" in event:
                    return event

    def _exit_code(self) -> int:
        try:
            return self._process.wait(self._seconds_left())
        except subprocess.TimeoutExpired:
            raise Ended("", is_late=True) from None

    def _note(self, event: dict[str, Any]) -> None:
        """Take what goes along with replies. Containment is told before the student's file is loaded, and only once."""
        if self.containment is None and "contained" in event:
            self.containment = Containment(*map(tuple, event["contained"]))
        for flag in event.get("flags", ())[: _MOST_FLAGS - len(self.flags)]:
            self.flags[str(flag)[:_LONGEST_FLAG]] = None
        if "ended" in event:
            self._ending = _ending(event["ended"])


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


class _Reader:
    """Reads a stream to its end, so that nobody waits to write, and keeps so much of it as nobody has taken."""

    def __init__(self, stream: IO[bytes] | None, limit: int) -> None:
        assert stream is not None
        self._kept, self._is_open = bytearray(), True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(stream, limit), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes], limit: int) -> None:
        with stream:
            while part := os.read(stream.fileno(), 1 << 16):
                with self._changed:
                    self._kept += part[: max(0, limit - len(self._kept))]
                    self._changed.notify()
        with self._changed:
            self._is_open = False
            self._changed.notify()

    def line(self, seconds: float) -> bytes | None:
        """Take the next line; None at the end of the stream.

        Raises
        ------
        Ended
            When none comes in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: b"\n" in self._kept or not self._is_open, seconds):
                raise Ended("", is_late=True)
            end = self._kept.find(b"\n") + 1
            taken = bytes(self._kept[:end])
            del self._kept[:end]
        return taken or None

    def text(self) -> str:
        """Return what is kept; only a process that left its group still holds the other end, and is not waited for."""
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
