"""Ranks that a verb starts by mpirun to answer a question; their rank 0 writes the answer to a file.

The question is in an environment variable, because mpirun cannot pass braces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from minipipe import errors
from minipipe.comm import ProcessGroup
from minipipe.errors import LaunchError, MinipipeError, ScheduleCode, ScheduleError
from minipipe.tuning.race import MARK

_QUESTION = "MINIPIPE_QUESTION"  # the environment variable


def answer_of_ranks(launcher: str, num_ranks: int, module: Sequence[str], asked: Mapping[str, Any], failed: str) -> Any:
    """Run a module on ranks; return what its rank 0 left with :func:`leave_answer`.

    Local; starts processes, and returns when they have exited.

    Parameters
    ----------
    launcher : str
    num_ranks : int
    module : sequence of str
        Its name, and its arguments.
    asked : mapping
        What :func:`asked_of_ranks` returns there, with ``progress``: whether standard error is a terminal.
    failed : str
        What to say if there is no answer.

    Raises
    ------
    LaunchError
        Code ``no-launcher``.
    MinipipeError
        That of rank 0.
    """
    with tempfile.TemporaryDirectory(prefix="minipipe-ranks-") as folder:
        file = Path(folder) / "answer"
        question = json.dumps({**asked, "file": str(file), "progress": sys.stderr.isatty()})
        command = [launcher, "-n", str(num_ranks), sys.executable, "-m", *module]
        output = _output_of(command, {**os.environ, _QUESTION: question})
        if not file.exists():
            last = (output or "no error message").splitlines()[-1]
            raise LaunchError("no-launcher", f"{failed} under mpirun -n {num_ranks}: {last}")
        found = json.loads(file.read_text())
    if "error" in found:
        _raise(*found["error"])
    return found["answer"]


def asked_of_ranks() -> dict[str, Any]:
    """Return the question, on a rank."""
    return json.loads(os.environ[_QUESTION])


def leave_answer(answer: Any) -> None:
    """Write the answer, on rank 0."""
    _write({"answer": answer})


def leave_error(group: ProcessGroup, error: Exception) -> None:
    """Print an error of this rank; on rank 0, leave one of minipipe instead of an answer."""
    if group.rank == 0 and isinstance(error, MinipipeError):
        message = error.problems[0].message if isinstance(error, ScheduleError) else str(error)
        _write({"error": [type(error).__name__, str(error.code), message]})
    traceback.print_exception(error)


def _write(found: dict[str, Any]) -> None:
    Path(asked_of_ranks()["file"]).write_text(json.dumps(found))


def _output_of(command: Sequence[str], environment: dict[str, str]) -> str:
    """Run a command; return its standard error or, if that is empty, its output. Lines of progress are passed on."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as printed:
        job = subprocess.Popen(command, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment)
        with job:
            for line in job.stderr or ():
                lines.append(line)
                if line.startswith(MARK):
                    print(line, end="", file=sys.stderr, flush=True)
        printed.seek(0)
        return "".join(lines).strip() or printed.read().strip()


def _raise(name: str, code: str, message: str) -> NoReturn:
    """Raise an error of another process.

    Raises
    ------
    MinipipeError
    """
    if name == "ScheduleError":
        raise ScheduleError.of(ScheduleCode(code), message)
    kind: type[MinipipeError] = getattr(errors, name)
    raise kind(code, message)
