"""Processes for one student's file, seen from the grader: start them, call functions,
end all descendants.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
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

from minipipe.coursework.checking import Ended, Late, packed, value_of
from minipipe.coursework.exercise import Exercise
from minipipe.coursework.imports import given_names
from minipipe.coursework.running import Running
from minipipe.coursework.sandbox import LAYERS, Containment

LONGEST_OUTPUT = 2000
"""Characters of a student's printed output that are kept."""

_LONGEST_REPLY = 8 << 20  # bytes, including unsolicited ones
_MOST_FLAGS = 20
_LONGEST_FLAG = 200
_STREAMS = ("stdin", "stdout", "stderr")
# Exceptions of replies that student code may have forged.
_FORGED = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
_ATOMIC = getattr(select, "PIPE_BUF", 1 << 30)
_LAYERS = LAYERS  # to try; a test removes some
# Seconds for the supervisor to end all processes of a task. It needs milliseconds.
_DEADLINE = 5.0
# The rest of the grader's environment may hold secrets.
_KEPT = "PATH LANG LC_ALL LD_LIBRARY_PATH DYLD_LIBRARY_PATH SYSTEMROOT TEMP"
# These select the code of products and sums, and so the last bits, which tests compare
# with the grader's.
_KERNELS = """
    OPENBLAS_CORETYPE MKL_CBWR BLIS_ARCH_TYPE
    NPY_DISABLE_CPU_FEATURES NPY_ENABLE_CPU_FEATURES
"""


def students(workers: int | None = None) -> Running:
    """Return a context manager for student's processes that an exception ends."""
    return Running(StudentProcess.give_up, workers)


class StudentProcess:
    """Processes with one student's file, as a context manager that ends them and all
    their descendants.

    Parameters
    ----------
    exercise : Exercise
        The student's processes get only its visible checks.
    content : bytes
        The student's file.
    seconds : float
        The time limit of all calls together.
    directory : Path
        The student's directory, to hide.
    running : Running
        The processes that an exception ends together.

    Attributes
    ----------
    containment : Containment, optional
        None if the process did not start.
    flags : dict of str
        Names that the task does not allow: the keys, in order.
    output : str
        The output of the student's code; complete after the block.
    is_loaded : bool
    """

    def __init__(
        self,
        exercise: Exercise,
        content: bytes,
        seconds: float,
        directory: Path,
        running: Running,
    ) -> None:
        self._running = running
        self.containment: Containment | None = None
        self.flags: dict[str, None] = {}
        self.output = ""
        self.is_loaded = False
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
        # Files of the student may be impossible to delete; grading goes on without.
        self._folder = tempfile.TemporaryDirectory(
            prefix="grade-", ignore_cleanup_errors=True
        )
        folder = self._folder.name
        self._process = started(
            "minipipe.coursework.child",
            _environment(folder, self._directory),
            cwd=folder,
            start_new_session=True,
        )
        self._replies = _Reader(self._process.stdout, _LONGEST_REPLY)
        self._printed = _Reader(self._process.stderr, 4 * LONGEST_OUTPUT)
        self._running.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)
        self._running.remove(self)
        self.output = self._printed.text()[:LONGEST_OUTPUT]
        self._folder.cleanup()

    def give_up(self) -> None:
        """Let the thread that waits for a reply raise ``Late`` at once, and so end the
        processes.
        """
        self._deadline = -math.inf
        self._replies.close()

    def load(self) -> None:
        """Load the student's file; raise ``Failed`` with its exception, or
        ``Ended``.
        """
        self._give(self._job)
        value_of({"value": None, **self._reply("loaded")})
        self.is_loaded = True

    def ask(
        self, function: str | Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Call a function of the student, or a remote function of the checks; raise as
        :meth:`load`.
        """
        name = getattr(function, "__name__", function)
        call = {"function": name, "is_remote": callable(function)}
        self._give({**call, "given": packed(arguments)})
        return value_of(self._reply("value"))

    def _give(self, message: dict[str, Any]) -> None:
        """Write a line to the process, which may never read it."""
        assert self._process.stdin is not None
        stream = self._process.stdin.fileno()
        line = json.dumps(message).encode() + b"\n"
        # If the pipe is broken, the process has exited, and _reply finds its status.
        with contextlib.suppress(BrokenPipeError):
            while line:
                if sys.platform != "win32":
                    seconds = self._seconds_left()
                    if not select.select([], [stream], [], seconds)[1]:
                        raise Late
                # A write of at most PIPE_BUF bytes does not block after select().
                line = line[os.write(stream, line[:_ATOMIC]) :]

    def _seconds_left(self) -> float:
        seconds = max(0.0, self._deadline - time.monotonic())
        return min(seconds, threading.TIMEOUT_MAX)  # 290 years: select() takes no more

    def _reply(self, awaited: str) -> dict[str, Any]:
        """Return the next event with this key, or with a result instead."""
        while True:
            line = self._replies.line(self._seconds_left())
            if line is None:
                raise Ended(self._ending or _ending(self._exit_code()))
            with contextlib.suppress(*_FORGED):
                event: Any = json.loads(line)
                self._note(event)
                if awaited in event or "outcome" in event:
                    return event

    def _exit_code(self) -> int:
        try:
            return self._process.wait(self._seconds_left())
        except subprocess.TimeoutExpired:
            raise Late from None

    def _note(self, event: dict[str, Any]) -> None:
        """Store the data that accompany replies. The first containment counts: the
        student's code has not yet run.
        """
        if self.containment is None and "contained" in event:
            self.containment = Containment(*map(tuple, event["contained"]))
        for flag in event.get("flags", ())[: _MOST_FLAGS - len(self.flags)]:
            self.flags[str(flag)[:_LONGEST_FLAG]] = None
        if "ended" in event:
            self._ending = _ending(event["ended"])


def _environment(folder: str, directory: Path) -> dict[str, str]:
    """Return a small environment that finds minipipe but no module of the student, with
    one BLAS thread.
    """
    names = f"{_KEPT} {_KERNELS}".split()
    kept = {name: os.environ[name] for name in names if name in os.environ}
    package = str(Path(__file__).resolve().parent.parent.parent)
    paths = [package]
    hidden = directory.resolve()
    for path in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        # An entry within the student's folder would be imported from before the process
        # is contained.
        if not Path(path).resolve().is_relative_to(hidden):
            paths.append(path)
    places = {"HOME": folder, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(paths)}
    python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**kept, **places, **python, **threads}


def started(module: str, environment: dict[str, str], **more: Any) -> subprocess.Popen:
    """Start a module in a process of its own, with pipes."""
    streams: dict[str, Any] = dict.fromkeys(_STREAMS, subprocess.PIPE)
    # -P: import nothing from the current directory, which may be a student's.
    command = [sys.executable, "-P", "-m", module]
    return subprocess.Popen(command, **streams, env=environment, **more)


class _Reader:
    """Reads a stream to its end, so that its writer never blocks, and keeps up to
    ``limit`` bytes not yet taken.
    """

    def __init__(self, stream: IO[bytes] | None, limit: int) -> None:
        assert stream is not None
        self._kept = bytearray()
        self._is_open = True
        self._changed = threading.Condition()
        source = (stream, limit)
        self._thread = threading.Thread(target=self._read, args=source, daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes], limit: int) -> None:
        with stream:
            while part := os.read(stream.fileno(), 1 << 16):
                with self._changed:
                    self._kept += part[: max(0, limit - len(self._kept))]
                    self._changed.notify()
        self.close()

    def close(self) -> None:
        """Wait for no further line."""
        with self._changed:
            self._is_open = False
            self._changed.notify()

    def line(self, seconds: float) -> bytes | None:
        """Take the next line, or None at the end of the stream; raise ``Late`` if none
        arrives in time.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_line_or_ended, seconds):
                raise Late
            end = self._kept.find(b"\n") + 1
            taken = bytes(self._kept[:end])
            del self._kept[:end]
        return taken or None

    def _has_line_or_ended(self) -> bool:
        return b"\n" in self._kept or not self._is_open

    def text(self) -> str:
        """Return the kept bytes, without waiting for a process that left its group and
        holds the other end.
        """
        self._thread.join(2.0)
        return bytes(self._kept).decode("utf-8", "replace")


def _end(process: subprocess.Popen) -> None:
    """End the process and all its descendants."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()  # the supervisor then ends everything
    if sys.platform == "linux":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEADLINE)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    else:
        process.kill()
    process.wait()


def _ending(code: int) -> str:
    if code == -getattr(signal, "SIGXCPU", 0):
        return "it used more processor time than a task may; is there an endless loop?"
    if code < 0:
        return f"it crashed ({signal.strsignal(-code)})"
    ended = f"it ended the whole process, with exit status {code}"
    return f"{ended}; return a result instead"
