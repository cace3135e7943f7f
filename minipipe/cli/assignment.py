"""``minipipe assignment``: some tasks with points of their own, as a directory that the
other commands take as ``--source``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.output import ExitStatus, answer
from minipipe.coursework.assignment import (
    POINTS,
    Assignment,
    apportioned,
    parse_tasks,
    prepared,
)
from minipipe.coursework.exercise import (
    Exercise,
    exercises_in,
    find_source,
    named,
    total,
    worth,
)
from minipipe.coursework.student_copy import write_assignment
from minipipe.errors import counted
from minipipe.io import printable

_TOTAL = POINTS._replace(above=0, minimum=None, expected="points, above 0")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "assignment")
    add("name")
    add("--task", action="append")
    add("--total", spec=_TOTAL)
    add("--source", type=file_path)
    add("-o", "--output", type=file_path)


def run(options: argparse.Namespace) -> ExitStatus:
    """Write the directory of the assignment, and say how to hand it out."""
    source = find_source(options.source)
    exercises = exercises_in(source)
    if options.task:
        points = _points(exercises, options.task)
        assignment = Assignment(options.name, points)
    else:
        assignment = prepared(source, options.name)
    if options.total is not None:
        shares = apportioned([*assignment.points.values()], options.total)
        assignment = assignment._replace(points=dict(zip(assignment.points, shares)))
    chosen = worth(exercises, assignment.points)
    directory = options.output or Path(options.name)
    write_assignment(directory, chosen, assignment)
    possible = total(exercise.points for exercise in chosen)
    tasks = counted(len(chosen), "task")
    where = printable(str(directory))
    text = f"wrote {tasks} with {counted(possible, 'point')} to {where}"
    rows = [f"    {each.name}  {each.points}" for each in chosen]
    text = "\n".join([text, *rows, f"hand it out and grade it with --source {where}"])
    data = {"directory": str(directory), "possible": possible}
    by_task = {exercise.name: exercise.points for exercise in chosen}
    return answer(options, {**data, "tasks": by_task}, text)


def _points(exercises: list[Exercise], texts: list[str]) -> dict[str, float]:
    """Return the points of each task, by default one for each test; a puzzle has
    none.
    """
    points = {}
    for name, number in parse_tasks(texts).items():
        exercise = named(exercises, name)
        if number is None:
            number = exercise.points * (not exercise.is_puzzle)
        points[name] = number
    return points
