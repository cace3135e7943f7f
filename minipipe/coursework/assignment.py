"""An assignment: some tasks with points of their own, in a file beside them.

A directory of exercises with a file ``assignment.json`` counts the points of that file
instead of one for each test, so each command that takes ``--source`` follows it. Files
``assignments/NAME.json`` of a directory have the same form; ``minipipe assignment
NAME`` copies their tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import floor
from pathlib import Path
from typing import NamedTuple

from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, CourseworkError, FileError, quoted
from minipipe.io import json_value, parse_json, parse_real, read_text, reading

FILE = "assignment.json"
"""The name of the file in a directory of exercises."""

POINTS = Spec(
    float,
    minimum=0,
    maximum=10**6,
    expected="points, from 0 to 1000000",
    error=CourseworkError,
)
_LONGEST = 1 << 20  # bytes of a file
_UNITS = 100  # points are multiples of a hundredth


class Assignment(NamedTuple):
    """Tasks and their points.

    Attributes
    ----------
    name : str
        Also the default column of a gradebook.
    points : dict
        Points by name of the task; a task with 0 points is not graded.
    title : str

    Examples
    --------
    >>> Assignment("week 1", {"05_bubble": 10}).as_json()
    '{"title": "", "points": {"05_bubble": 10}, "name": "week 1"}\\n'
    """

    name: str
    points: Mapping[str, float]
    title: str = ""

    def as_json(self) -> str:
        """Return the text of the file."""
        data = {"title": self.title, "points": dict(self.points), "name": self.name}
        return json.dumps(data) + "\n"


def read_assignment(path: Path) -> Assignment:
    """Read a file of an assignment.

    Raises
    ------
    FileError
        Code ``damaged``: it is not JSON of this form.
    CourseworkError
        Code ``value``: points are negative, or more than a million.
    """
    text = read_text(path, _LONGEST)
    with reading(partial(_not_an_assignment, path)):
        data = json_value(parse_json(text), dict, "it")
        name = json_value(data.get("name", path.stem), str, "name")
        title = json_value(data.get("title", ""), str, "title")
        points = json_value(data["points"], dict, "points")
    for task, number in points.items():
        POINTS.check(f"{quoted(str(path), 200)}: {quoted(task)}", number)
    return Assignment(name, points, title)


def _not_an_assignment(path: Path, reason: str) -> FileError:
    return FileError.of(path, f"it is not an assignment ({reason})", "damaged")


def assignment_of(source: Path) -> Assignment | None:
    """Return the assignment of a directory of exercises, if it has one."""
    if (source / FILE).exists():
        return read_assignment(source / FILE)
    return None


def prepared(source: Path, name: str) -> Assignment:
    """Return an assignment of ``assignments/`` in a directory of exercises.

    Raises
    ------
    CourseworkError
        Code ``name``.
    """
    known = {path.stem: path for path in sorted(source.glob("assignments/*.json"))}
    if name not in known:
        names = ", ".join(known) or "none here"
        problem = f"There is no prepared assignment {quoted(name)} ({names})"
        how = "name one of them, or compose your own with --task, such as 05_bubble=10"
        raise CourseworkError("name", f"{problem}; {how}.")
    return read_assignment(known[name])


def parse_tasks(texts: Iterable[str]) -> dict[str, float | None]:
    """Return points by task from texts such as ``05_bubble=10``; None without points.

    Raises
    ------
    CourseworkError
        Codes ``value`` and ``duplicate``.

    Examples
    --------
    >>> parse_tasks(["05_bubble=10", "06_warmup"])
    {'05_bubble': 10.0, '06_warmup': None}
    """
    points: dict[str, float | None] = {}
    for text in texts:
        name, sign, number = text.partition("=")
        if name in points:
            problem = f"--task names {quoted(name)} twice"
            raise CourseworkError("duplicate", f"{problem}; name each task once.")
        points[name] = None
        if sign:
            try:
                points[name] = parse_real(number)
            except ArgumentError:
                problem = f"--task is {quoted(text)}"
                how = "expected TASK or TASK=POINTS, such as 05_bubble=10"
                raise CourseworkError("value", f"{problem}; {how}.") from None
            POINTS.check(f"--task {quoted(name)}", points[name])
    return points


def apportioned(weights: Sequence[float], total: float) -> list[float]:
    """Divide points in proportion to weights, in hundredths that add up to the total.

    The largest remainders are rounded up (the method of Hamilton).

    Examples
    --------
    >>> apportioned([1, 1, 1], 10)
    [3.34, 3.33, 3.33]
    >>> apportioned([0, 2], 5)
    [0.0, 5.0]
    """
    units = round(total * _UNITS)
    whole = sum(weights) or 1.0
    exact = [units * weight / whole for weight in weights]
    rounded = [floor(each) for each in exact]
    left = units - sum(rounded)
    by_remainder = sorted(
        (index for index, weight in enumerate(weights) if weight > 0),
        key=lambda index: rounded[index] - exact[index],
    )
    for index in by_remainder[:left]:
        rounded[index] += 1
    return [each / _UNITS for each in rounded]
