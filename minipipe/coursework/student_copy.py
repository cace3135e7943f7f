"""The student's copy of the exercises: stubs, visible tests, and how to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from minipipe.coursework.assignment import FILE, Assignment
from minipipe.coursework.exercise import Exercise, exercises_in, find_source, total
from minipipe.coursework.templating import template
from minipipe.errors import CourseworkError, quoted

_WITH_SOURCE = "Your instructor runs the hidden tests and counts the points."
_WITHOUT = (
    "`minipipe grade` stops endless loops, and does not change your files. "
    "Its hidden tests come with minipipe;\nyour instructor may have others."
)


def write_coursework(
    directory: str | Path,
    *,
    source: str | Path | None = None,
    student: str | None = None,
) -> list[Path]:
    """Write the student's copy of the exercises; the same exercises give the same
    bytes.

    Parameters
    ----------
    directory : str or Path
        A new or empty directory.
    source : str or Path, optional
        The directory with solutions and tests; by default minipipe's own.
    student : str, optional
        A name that draws the numbers of exercises with ``VARIANTS``.

    Returns
    -------
    list of Path
        The written files.

    Raises
    ------
    CourseworkError
        Codes ``not-found`` and ``unwritable``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_coursework(folder)][:4]
    ['README.md', 'conftest.py', 'pytest.ini', '01_multiply.py']
    """
    copies = _copies(
        exercises_in(find_source(source), student), student, is_own=source is not None
    )
    return write_directory(Path(directory), copies)


def write_assignment(
    directory: Path, exercises: Sequence[Exercise], assignment: Assignment
) -> list[Path]:
    """Write an assignment as a directory of exercises, for ``--source``.

    Parameters
    ----------
    directory : Path
        A new or empty directory.
    exercises : sequence of Exercise
        The tasks of the assignment.
    assignment : Assignment

    Raises
    ------
    CourseworkError
        Codes ``not-found`` and ``unwritable``.
    """
    files = {FILE: assignment.as_json()}
    for exercise in exercises:
        files[f"{exercise.name}.py"] = exercise.solution
        files[f"checks/{exercise.name}.py"] = exercise.checks
    return write_directory(directory, files)


def write_directory(directory: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts by name into a new or empty directory, and return their paths.

    Raises
    ------
    CourseworkError
        Codes ``not-found`` and ``unwritable``.
    """
    try:
        _check_is_empty(directory)
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    except CourseworkError:
        raise
    except (OSError, ValueError) as error:  # such as a name with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{quoted(str(directory), 200)} cannot be written: {reason}."
        raise CourseworkError("not-found", message) from None
    return [directory / name for name in files]


def _check_is_empty(directory: Path) -> None:
    if not directory.is_dir():
        return
    names = sorted(path.name for path in directory.iterdir())
    if names:
        if len(names) > 3:
            names[3:] = ["…"]
        problem = f"'{directory}' is not empty ({', '.join(names)})"
        how = "Give a new directory; to restart one task, copy its file from there"
        message = f"{problem}, and no file is overwritten. {how}."
        raise CourseworkError("unwritable", message)


def _copies(
    exercises: Sequence[Exercise], student: str | None, is_own: bool
) -> dict[str, str]:
    """Return the text of each file of the student's copy, by its name."""
    copies = {
        "README.md": _readme(exercises, student, is_own),
        "conftest.py": template("conftest.txt"),
        # With a configuration file, pytest takes this directory as the root,
        # independent of the current directory.
        "pytest.ini": template("pytest.ini"),
    }
    for exercise in exercises:
        copies[f"{exercise.name}.py"] = exercise.stub
        copies[f"test_{exercise.name}.py"] = exercise.visible_checks
    return copies


def _readme(exercises: Sequence[Exercise], student: str | None, is_own: bool) -> str:
    rows = []
    for exercise in exercises:
        hidden = total(test.weight for test in exercise.tests if test.is_hidden)
        points = f"{exercise.points} | {hidden}"
        about = f"{exercise.lesson} | {exercise.subject}"
        rows.append(f"| {exercise.name} | {points} | {about} |")
    first = exercises[0].name
    commands = {
        "pip install pytest": "once, in an environment with minipipe",
        "python -m pytest .": "all visible tests",
        f"python -m pytest test_{first}.py": "visible tests of one task",
    }
    graded = _WITH_SOURCE
    if not is_own:  # students have minipipe's solutions, but no others
        graded = _WITHOUT
        grade = "minipipe grade ."
        if student is not None:
            grade += f" --student {quote(student)}"
            graded = f"With `--student`, some tasks have their own numbers. {graded}"
        commands[grade] = "all tests, also hidden ones, and points"
        commands[f"{grade} --only {first}"] = "all tests of one task"
    width = max(map(len, commands))
    return template(
        "student.md",
        first=first,
        commands="\n".join(f"    {c:{width}}    {why}" for c, why in commands.items()),
        graded=graded,
        rows="\n".join(rows),
        points=str(total(exercise.points for exercise in exercises)),
    )
