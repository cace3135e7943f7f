"""Grading: the instructor's tests run here, and each task in processes of its own, contained as the system allows.

Whatever a student's file does, there is a report: loops, crashes, ``sys.exit``, too much memory and output are ended; a
print is no result; tests of the student's directory are not used; his files are not changed. They are read as regular
files of bounded size, and no link is followed.

Results are compared here, in the grader's process. A student's process gets his file, the visible checks, and one call
after the other as plain data; it can only return values (:mod:`minipipe.coursework.task`). So nothing that it replaces,
prints or writes is a point, and neither hidden tests nor expected values are where it could read them. It may import of
minipipe what its stub imports; the report flags everything else (:mod:`minipipe.coursework.imports`).

Linux contains more, in layers. The report names those in force, and warns of what they leave open:

- ``namespaces``: a root directory with Python and its packages to read, and 64 MiB in memory to write; no solution,
  hidden test or other student, no process of the grader, no network. Whatever it starts ends with it, daemons too. The
  administrator may make namespaces; others, where the system lets them.
- ``Landlock``: the same files; no TCP (ABI 4, Linux 6.7), and no signal to the grader (ABI 6, Linux 6.12). Without
  namespaces, other protocols, sockets in files and disk space stay open.
- ``a user of its own``: where the grader is root, a user who owns nothing, if he can read Python.
- ``limits``: 4 GiB of addresses, files of 64 MiB, 256 open files, no core file; processor time; 128 processes, unless
  it runs as root.

All of it adds about 0.03 s to the 0.2 s of processor time that a task takes.

On macOS there are only limits, without a bound on processes, and what leaves its group of processes stays. On Windows
there is only the process.

What remains everywhere:

- Some results are observations: that an array was freed, how often a function was called, which rank a message went to,
  that an argument was not modified. They are made beside the student's code (``remote`` functions), which can replace
  what makes them.
- The library's source is public. Who copies it into his file imports nothing, and is found by reading. A determined
  student gets around the refusal of imports, too; most ways to do so are flagged.
- A call shows its arguments, and prints are in the report: hidden inputs become known to who grades often.
- Memory is limited for each process, not for all together. Other tasks can be slowed down.
- A hard link in a student's directory is a regular file: unpack submissions as a user who may not read the others.
- Python reads ``PYTHONPATH`` and ``sitecustomize`` before any of this. Do not let them name a student's directory, and
  grade by ``minipipe``, not ``python -m minipipe``, where a student's directory named ``minipipe`` is the current one.

Read a flagged or suspicious solution; grade in a virtual machine where the kernel itself must not be trusted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path

from minipipe.coursework.checking import Ended, Failed, Outcome, load, run_test
from minipipe.coursework.containment import weakest
from minipipe.coursework.exercise import Exercise, exercises_in, find_source, named
from minipipe.coursework.process import LONGEST_OUTPUT, StudentProcess
from minipipe.coursework.report import Report, TaskReport
from minipipe.coursework.task import Task
from minipipe.errors import CourseworkError, FileError
from minipipe.io import read_bytes

TIME_LIMIT = 30.0
"""Seconds that all tests of one task may take together."""

LONGEST_FILE = 1 << 20
"""Bytes of a student's file; the solutions have 5,000 at most."""

_LATE = "it was stopped after {:g} s; does a loop never end, or is there far too much to try?"
_NOT_REACHED = "not reached: an earlier test used up the time"


def grade(
    directory: str | Path,
    *,
    source: str | Path | None = None,
    only: str | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int = 2,
) -> Report:
    """Run the tests of a student's directory, the hidden ones too, and count points.

    Parameters
    ----------
    directory : str or Path
        As :func:`minipipe.coursework.write_coursework` made it. It is read and never written.
    source : str or Path, optional
        The directory with solutions and tests; by default ``tutorials/exercises`` of the clone.
    only : str, optional
        The name of one task.
    time_limit : float
        Seconds for each task.
    workers : int
        How many tasks run at once.

    Returns
    -------
    Report

    Raises
    ------
    CourseworkError
        Codes ``no-source``, ``wrong-directory``, ``unknown-task``, ``time-limit``.

    Examples
    --------
    >>> import tempfile
    >>> from minipipe.coursework import write_coursework
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = write_coursework(folder)
    ...     report = grade(folder, only="05_bubble")
    >>> report.points, report.passed, report.tasks[0].is_untouched
    (0, False, True)
    """
    if not 0 < time_limit < math.inf:
        raise CourseworkError("time-limit", f"The time limit is {time_limit}; expected seconds, more than 0.")
    exercises = exercises_in(find_source(source))
    chosen = exercises if only is None else [named(exercises, only)]
    directory = Path(directory)
    _check_directory(directory, exercises)
    with ThreadPoolExecutor(workers) as pool:
        tasks = tuple(pool.map(lambda exercise: _grade_task(directory, exercise, time_limit), chosen))
    return Report(str(directory), tasks)


def _check_directory(directory: Path, exercises: Sequence[Exercise]) -> None:
    """Refuse a directory without a copy of the coursework, and say where one is."""
    if not directory.is_dir():
        what = f"'{directory}' is a file" if directory.exists() else f"There is no directory '{directory}'"
        how = f"`minipipe coursework {directory}` writes one" if not directory.exists() else "name its directory"
        raise CourseworkError("wrong-directory", f"{what}; {how}.")
    files = [f"{exercise.name}.py" for exercise in exercises]
    around = [directory, *sorted(filter(Path.is_dir, directory.iterdir())), directory.absolute().parent]
    right = next((place for place in around if any(os.path.lexists(place / file) for file in files)), None)
    if right != directory:
        where = f"'{right}' does: grade that" if right else "`minipipe coursework DIR` writes a directory that does"
        raise CourseworkError("wrong-directory", f"'{directory}' holds none of {files[0]} … {files[-1]}; {where}.")


def _grade_task(directory: Path, exercise: Exercise, time_limit: float) -> TaskReport:
    path = directory / f"{exercise.name}.py"
    if not os.path.lexists(path):
        return _refused(exercise, f"{path.name} is missing{_renamed(path)}")
    try:
        # The student chose what stands there, and it is read with the rights of the one who grades.
        content = read_bytes(path, LONGEST_FILE, pipes=False, links=False)
    except FileError as error:
        return _refused(exercise, error.message)
    return _report(exercise, content, time_limit, directory)


def _report(exercise: Exercise, content: bytes, time_limit: float, directory: Path) -> TaskReport:
    """Run all tests of a task. A crash costs the test in which it happened; after the time limit none is tried."""
    checks = load(f"checks_of_{exercise.name}", exercise.checks)
    outcomes: dict[str, Outcome] = {}
    runs: list[StudentProcess] = []
    problem, deadline = "", time.monotonic() + time_limit
    while (left := [test.name for test in exercise.tests if test.name not in outcomes]) and not problem:
        runs.append(StudentProcess(exercise, content, max(0.0, deadline - time.monotonic()), directory))
        try:
            with runs[-1] as student:
                student.load()
                for name in left:
                    outcomes[name] = run_test(getattr(checks, name), Task(student.ask))
        except (Failed, Ended) as error:
            is_late = isinstance(error, Ended) and error.is_late
            reason = _LATE.format(time_limit) if is_late else str(error)
            if not (outcomes or runs[-1].is_loaded):
                problem = f"{exercise.name}.py does not load: {reason}"
                continue
            untold = [name for name in left if name not in outcomes]
            outcomes[untold[0]] = Outcome(False, reason)
            if is_late:
                outcomes |= {name: Outcome(False, _NOT_REACHED) for name in untold[1:]}
    return TaskReport(
        exercise,
        tuple((test, Outcome(False, problem) if problem else outcomes[test.name]) for test in exercise.tests),
        problem,
        "".join(run.output for run in runs)[:LONGEST_OUTPUT],
        content.decode("utf-8-sig", "replace").replace("\r\n", "\n") == exercise.stub,
        weakest(run.containment for run in runs if run.containment is not None),
        tuple(dict.fromkeys(flag for run in runs for flag in run.flags)),
    )


def _refused(exercise: Exercise, problem: str) -> TaskReport:
    """Return the report of a task whose file is not there."""
    return TaskReport(exercise, tuple((test, Outcome(False, problem)) for test in exercise.tests), problem)


def _renamed(path: Path) -> str:
    """Guess under which name a missing file is there."""
    files = [file.name for file in path.parent.glob("*.py") if not file.name.startswith("test_")]
    own = path.stem.partition("_")[2]
    near = [name for name in files if own in name] or get_close_matches(path.name, files, 1, cutoff=0.8)
    return f"; is it {near[0]}? Name it {path.name} again" if near else "; each task stays in the file it came in"
