"""The student's copy: for each task its stub and the tests that students have, and a README with the list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minipipe.coursework.exercise import Exercise, exercises_in, find_source
from minipipe.errors import CourseworkError

_README = """# Coursework

Each task is one file, such as `{first}.py`. Its first lines say what to do and why, with an example. In some you finish
a function where it raises NotImplementedError, in some you find a bug, and one is a puzzle. Write in that file alone,
and keep its name. Of minipipe, use what the file imports already: the library can do what the tasks ask for, so
`minipipe grade` refuses other imports from it. Beside it stands its tests' file, `test_{first}.py`; read it, it is part
of the statement. Begin where you like; the table below names the lesson that each task belongs to, in `tutorials/` of
minipipe.

    python -m pytest .                        the tests that you have
    python -m pytest test_{first}.py      those of one task
    minipipe grade .                          all tests, hidden ones too, and points
    minipipe grade . --only {first}       those of one task

`minipipe grade` stops a task that does not end, and changes none of your files. It needs a clone of minipipe, where the
hidden tests are; without one, pytest is enough to work with.

Every test is one point, so half a solution counts. Hidden tests ask the same with other numbers. A test that fails says
what was expected and what came; what it means and a hint stand in its docstring.

| task | points | of these hidden | lesson | what it is about |
|---|---|---|---|---|
{rows}

{points} points in all.
"""

_CONFTEST = '''"""Gives each test its task: `test_05_bubble.py` gets `05_bubble.py`, which `import` cannot name."""

from importlib import import_module

import pytest

from minipipe.coursework import local_task


@pytest.fixture
def task(request):
    return local_task(import_module(request.path.stem.removeprefix("test_")))
'''

# With a file of its own, pytest takes this directory for the root wherever it is called from.
_PYTEST_INI = """[pytest]
pythonpath = .
addopts = --tb=short
"""


def write_coursework(directory: str | Path, *, source: str | Path | None = None) -> list[Path]:
    """Write the student's copy of the exercises. The same exercises give the same bytes.

    Parameters
    ----------
    directory : str or Path
        A new or empty one.
    source : str or Path, optional
        The directory with solutions and tests; by default ``tutorials/exercises`` of the clone.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    CourseworkError
        Codes ``no-source``, ``not-empty``, ``not-written``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_coursework(folder)][:4]
    ['README.md', 'conftest.py', 'pytest.ini', '01_multiply.py']
    """
    files = _files(exercises_in(find_source(source)))
    directory = Path(directory)
    try:
        _check_is_empty(directory)
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for name, text in files.items():
            path = directory / name
            path.write_bytes(text.encode())
            written.append(path)
    except OSError as error:
        raise CourseworkError("not-written", f"'{directory}' cannot be written: {error.strerror}.") from None
    return written


def _check_is_empty(directory: Path) -> None:
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if found:
        raise CourseworkError(
            "not-empty",
            f"'{directory}' is not empty ({', '.join(found[:3])}{', …' if len(found) > 3 else ''}), and nobody's work "
            "is overwritten. Give a new directory; to begin one task again, take its file from there.",
        )


def _files(exercises: Sequence[Exercise]) -> dict[str, str]:
    files = {"README.md": _readme(exercises), "conftest.py": _CONFTEST, "pytest.ini": _PYTEST_INI}
    for exercise in exercises:
        files[f"{exercise.name}.py"] = exercise.stub
        files[f"test_{exercise.name}.py"] = exercise.visible_checks
    return files


def _readme(exercises: Sequence[Exercise]) -> str:
    rows = []
    for exercise in exercises:
        hidden = sum(test.is_hidden for test in exercise.tests)
        rows.append(f"| {exercise.name} | {len(exercise.tests)} | {hidden} | {exercise.lesson} | {exercise.subject} |")
    first = exercises[0].name
    points = sum(len(exercise.tests) for exercise in exercises)
    return _README.format(first=first, rows="\n".join(rows), points=points)
