"""Ranks that a verb starts with mpirun to answer a question; their rank 0 writes the
answer to a file.

The question is in an environment variable, because mpirun cannot pass braces.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from minipipe import errors
from minipipe.cli.output import complain
from minipipe.cli.progress import Progress
from minipipe.comm import ProcessGroup
from minipipe.comm.job.guard import run_job
from minipipe.comm.job.host import (
    BYTES_OF_A_RANK,
    busy_cores,
    memory_of_this_host,
    num_cores,
)
from minipipe.errors import (
    Code,
    LaunchError,
    MinipipeError,
    ScheduleError,
    counted,
    misuse,
)
from minipipe.io import MARK, terminal_width
from minipipe.render.descriptions import format_memory

_QUESTION = "MINIPIPE_QUESTION"  # the environment variable
_ANSWER = "answer"  # a file
_ERROR = "error"  # a file
_BUSY = 0.2  # the fraction of all cores that may be busy


def answer_of_ranks(
    launcher: str,
    num_ranks: int,
    module: Sequence[str],
    question: Mapping[str, Any],
    failed: str,
    progress: Progress,
) -> Any:
    """Run a module on ranks; return the answer that its rank 0 wrote with
    :func:`leave_answer`.

    Local; starts processes, and returns when they have exited. They also exit when this
    process is ended.

    Parameters
    ----------
    launcher : str
    num_ranks : int
    module : sequence of str
        Its name, and its arguments.
    question : mapping
        Data, which :func:`question_of_ranks` returns on the ranks.
    failed : str
        The message if there is no answer.
    progress : Progress
        It shows the lines of :func:`minipipe.tuning.race.teller`.

    Raises
    ------
    LaunchError
        Code ``unavailable``, with the error of the rank that failed.
    MinipipeError
        The error of the first rank that failed.
    """

    def hear(line: str) -> None:
        if line.startswith(MARK):
            progress.tell(line.removeprefix(MARK).rstrip())

    with tempfile.TemporaryDirectory(prefix="minipipe-ranks-") as folder:
        text = json.dumps({**question, "folder": folder})
        command = [launcher, "-n", str(num_ranks), sys.executable, "-m", *module]
        variables = {_QUESTION: text, "COLUMNS": str(terminal_width())}
        job = run_job(command, hear, {**os.environ, **variables})
        error = Path(folder, _ERROR)
        answer = Path(folder, _ANSWER)
        problem = f"{failed} under mpirun -n {num_ranks}"
        if error.exists():
            _raise(json.loads(error.read_text()), problem)
        if job.code or not answer.exists():
            raise LaunchError("unavailable", f"{problem}: {job.cause}")
        return json.loads(answer.read_text())


def warn_if_busy() -> None:
    """Warn before a measurement if other processes keep cores busy, because they change
    its results.
    """
    busy = busy_cores()
    here = num_cores()
    if busy > _BUSY * here:
        used = f"other processes use {busy:.1f} of {counted(here, 'core')}"
        how = "Measurements depend on this load; repeat them on an idle machine"
        complain(f"This machine is busy: {used}. {how}.")


def check_memory(num_ranks: int) -> None:
    """Refuse more ranks than the memory of this machine can hold.

    Raises
    ------
    ScheduleError
        Code ``value``.
    """
    sizes = (BYTES_OF_A_RANK, num_ranks * BYTES_OF_A_RANK, memory_of_this_host())
    if sizes[1] > sizes[2]:
        one, all_ranks, here = (format_memory(size, "bytes") for size in sizes)
        held = f"each is a process of at least {one}, together {all_ranks}"
        problem = f"--ranks is {num_ranks}: {held}, and this machine has {here}"
        raise misuse(f"{problem}; choose fewer ranks.")


def question_of_ranks() -> dict[str, Any]:
    """Return the question, on a rank."""
    return json.loads(os.environ[_QUESTION])


def leave_answer(answer: Any) -> None:
    """Write the answer, on rank 0."""
    _path(_ANSWER).write_text(json.dumps(answer))


def leave_error(group: ProcessGroup, error: Exception) -> None:
    """Write an error of this rank instead of an answer, and print it. The first error
    counts: others follow from it.
    """
    data: dict[str, Any] = {"rank": group.rank, "kind": type(error).__name__}
    data["message"] = str(error)
    if isinstance(error, MinipipeError):
        data["code"] = str(error.code)
    if isinstance(error, ScheduleError):
        data["message"] = error.problems[0].message
    file = _path(f"{_ERROR}-{group.rank}")
    file.write_text(json.dumps(data))
    with suppress(FileExistsError):
        os.link(file, _path(_ERROR))  # complete, and only if no rank has written one
    traceback.print_exception(error)


@contextmanager
def errors_left(group: ProcessGroup) -> Iterator[None]:
    """Leave the error of a block with :func:`leave_error`, and exit."""
    try:
        yield
    except Exception as error:
        leave_error(group, error)
        sys.exit(1)


def _path(name: str) -> Path:
    return Path(question_of_ranks()["folder"], name)


def _raise(data: Mapping[str, Any], failed: str) -> NoReturn:
    """Raise an error of another process.

    Raises
    ------
    MinipipeError
    """
    kind = data["kind"]
    code = data.get("code")
    message = data["message"]
    if code is None:
        problem = f"{failed}: rank {data['rank']}"
        raise LaunchError("unavailable", f"{problem}: {kind}: {message}")
    if kind == "ScheduleError":
        raise ScheduleError.of(Code(code), message)
    raise getattr(errors, kind)(code, message)
