"""Grading: each task runs in processes of its own, with the instructor's tests, contained as the system allows.

Whatever a student's file does, there is a report: it ends loops, crashes, ``sys.exit``, too much memory and output; a
print is no result; tests of the student's directory are not used; his files are not changed.

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

What remains everywhere: a student's file sits in one interpreter with the tests. It can read the compiled hidden tests,
replace what they call, and so pass them; the word that results carry is hidden from frames and the garbage collector,
not from ctypes. Memory is limited for each process, not for all together. Other tasks can be slowed down. Read a
suspicious solution; grade in a virtual machine where the kernel itself must not be trusted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path

from minipipe.coursework.checking import Outcome
from minipipe.coursework.containment import Containment, weakest
from minipipe.coursework.exercise import Exercise, exercises_in, find_source, named
from minipipe.coursework.process import LONGEST_OUTPUT, run_tests
from minipipe.coursework.report import Report, TaskReport
from minipipe.errors import CourseworkError, FileError
from minipipe.files import read_text

TIME_LIMIT = 30.0
"""Seconds that all tests of one task may take together."""

LONGEST_FILE = 1 << 20
"""Bytes of a student's file; the solutions have 5,000 at most."""

_LATE = "it was stopped after {:g} s; does a loop never end, or is there far too much to try?"


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
        text = read_text(path, LONGEST_FILE, pipes=False, links=False)
    except FileError as error:
        return _refused(exercise, error.message)
    # Some editors begin a file with a mark, and end lines in two characters.
    return _report(exercise, text.removeprefix("\ufeff").replace("\r\n", "\n"), time_limit, directory)


def _report(exercise: Exercise, text: str, time_limit: float, directory: Path) -> TaskReport:
    """Run all tests of a task. A crash costs the test in which it happened; after the time limit none is tried."""
    outcomes: dict[str, Outcome] = {}
    output, deadline = "", time.monotonic() + time_limit
    contained: list[Containment] = []
    while left := [test.name for test in exercise.tests if test.name not in outcomes]:
        run = run_tests(exercise, text, left, max(0.0, deadline - time.monotonic()), directory)
        outcomes |= run.outcomes
        contained += filter(None, [run.containment])
        output = (output + run.output)[:LONGEST_OUTPUT]
        untold = [name for name in left if name not in outcomes]
        ending = _LATE.format(time_limit) if run.is_late else run.ending
        if not run.is_loaded and not outcomes:
            problem = f"{exercise.name}.py does not load: {run.problem or ending}"
            return _refused(exercise, problem, output, weakest(contained))
        if untold:
            outcomes[untold[0]] = Outcome(False, ending)
        if run.is_late:
            outcomes |= {name: Outcome(False, "not reached: an earlier test used up the time") for name in untold[1:]}
    ended = tuple((test, outcomes[test.name]) for test in exercise.tests)
    return TaskReport(exercise, ended, "", output, text == exercise.stub, weakest(contained))


def _refused(exercise: Exercise, problem: str, output: str = "", contained: Containment | None = None) -> TaskReport:
    """Return the report of a task none of whose tests could run."""
    failed = tuple((test, Outcome(False, problem)) for test in exercise.tests)
    return TaskReport(exercise, failed, problem, output, containment=contained)


def _renamed(path: Path) -> str:
    """Guess under which name a missing file is there."""
    files = [file.name for file in path.parent.glob("*.py") if not file.name.startswith("test_")]
    own = path.stem.partition("_")[2]
    near = [name for name in files if own in name] or get_close_matches(path.name, files, 1, cutoff=0.8)
    return f"; is it {near[0]}? Name it {path.name} again" if near else "; each task stays in the file it came in"
