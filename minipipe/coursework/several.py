"""Several submissions, each graded by a separate process, ``python -m
minipipe.coursework.several``, started here.

A student's code can then at worst end the grading of that student. A report is returned
as the plain data of :meth:`Report.as_json <minipipe.coursework.Report.as_json>`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from minipipe.comm.job.system_calls import end_with
from minipipe.coursework.checking import load_checks
from minipipe.coursework.exercise import chosen_of, exercises_in, find_source
from minipipe.coursework.grading import files_of, grade, not_graded
from minipipe.coursework.process import started
from minipipe.coursework.running import Running
from minipipe.coursework.submission import name_of, submissions_in
from minipipe.errors import CourseworkError, FileError
from minipipe.io import printable

_ROOT = Path(__file__).resolve().parent.parent.parent


def grade_all(
    paths: Iterable[str | Path],
    *,
    jobs: int | None = None,
    of_each: Callable[[str], dict[str, Any]] = lambda name: {},
    hide_hidden: bool = False,
    feedback: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Grade submissions in parallel, and return their reports as data, in the order
    given.

    Parameters
    ----------
    paths : iterable of str or Path
        Directories and zip archives; a folder without tasks stands for the submissions
        in it, by name.
    jobs : int, optional
        How many are graded at once; by default the number of processors.
    of_each : function, optional
        Maps the name of a submission to its further options. It is called for all
        before any is graded.
    hide_hidden : bool
        Whether the reports leave out the details of hidden tests.
    feedback : bool
        Whether each report has a further text ``feedback`` for the student, without
        these details.
    **options
        The options of :func:`grade`, for all submissions.

    Raises
    ------
    CourseworkError
        Codes ``not-found``, ``damaged`` and ``name`` if two submissions have one name.
    """
    exercises = exercises_in(find_source(options.get("source")))
    for exercise in chosen_of(exercises, options.get("only")):
        # An error in the checks must not count against a submission.
        load_checks(exercise.name, exercise.checks)
    named = list(map(Path, paths))
    submissions = submissions_in(named, files_of(exercises))
    names = list(map(name_of, submissions))
    for name in names:
        if names.count(name) > 1:
            pairs = zip(submissions, names)
            both = " and ".join(f"'{path}'" for path, each in pairs if each == name)
            reason = f"{both} have the same name, {name}"
            raise CourseworkError("not-found", f"{reason}; points are listed by name.")
    options |= {"hide_hidden": hide_hidden, "feedback": feedback}
    options["workers"] = 2 if len(submissions) == 1 else 1
    tasks = []
    for path, name in zip(submissions, names):
        source = {"directory": str(path), "name": name, "links": path in named}
        tasks.append({**options, **of_each(name), **source})
    with Running(subprocess.Popen.kill, jobs) as running:
        return running.map(lambda job: _graded(job, running), tasks)


def _graded(job: dict[str, Any], running: Running) -> dict[str, Any]:
    """Grade one submission in a separate process; a crash costs the points of this
    submission only.
    """
    message = json.dumps({**job, "parent": os.getpid()}, default=str).encode()
    paths = filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with started(__name__, environment) as process:
        running.add(process)
        out, err = process.communicate(message)
    running.remove(process)
    if process.returncode == 0:
        return json.loads(out)
    last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    ended = f"the grader ended with exit status {process.returncode}"
    return _report(job, f"{ended}: {printable(last[:500])}")


def _report(job: dict[str, Any], problem: str = "") -> dict[str, Any]:
    """Grade one submission in this process, or report its problem."""
    options = job.copy()
    name = options.pop("name")
    hide_hidden = options.pop("hide_hidden")
    feedback = options.pop("feedback")
    try:
        if problem:
            raise CourseworkError("not-found", problem)
        report = grade(**options)
    except (CourseworkError, FileError) as error:
        exercises = exercises_in(find_source(job.get("source")))
        chosen = chosen_of(exercises, job.get("only"))
        report = not_graded(job["directory"], name, chosen, error.message)
    for_student = report.without_hidden()
    if hide_hidden:
        report = for_student
    data = report.as_json()
    if feedback:
        data["feedback"] = f"{for_student}\n"
    return data


def main() -> None:
    """Grade the submission that standard input describes, and end with the process that
    asks.
    """
    job = json.load(sys.stdin)
    end_with(job.pop("parent"))  # the student's process then ends by itself
    print(json.dumps(_report(job)))


if __name__ == "__main__":
    main()
