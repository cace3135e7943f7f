"""A leaderboard: for each student and level of a puzzle the best schedule, and how far
it is above the proved bound.

Results of a student's process, and files, are not trusted: each schedule that is read
or written here is checked, simulated and bounded again, for the level that the exercise
has for this student. The name of the student cannot be checked, so keep the file in a
place that students cannot write to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from minipipe.core.schedules.action_table import Schedule, describe_sizes
from minipipe.coursework.checking import load_checks
from minipipe.coursework.exercise import Exercise
from minipipe.errors import (
    ArgumentError,
    CourseworkError,
    FileError,
    ScheduleError,
    counted,
    quoted,
)
from minipipe.io import (
    MOST_JSON,
    json_value,
    parse_json,
    printable,
    read_text,
    reading,
    text_table,
    write_whole,
)
from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.evaluation import check_answer
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.transforms import split_backward
from minipipe.search.certificate import gap
from minipipe.search.gallery import GALLERY, known_bound

_FORMAT = "minipipe leaderboard"


class Level(NamedTuple):
    """A level of a puzzle, with a stage on each rank. The checks of a puzzle list them
    in ``LEVELS``, by number.

    Attributes
    ----------
    num_ranks, num_microbatches : int
    costs : Costs
    memory_limit : int
        The most (stage, microbatch) pairs that a rank may hold.
    par : float
        The shortest makespan, as given in the statement. A leaderboard uses the largest
        bound known to the package.

    Examples
    --------
    >>> print(Level(2, 4, Costs([1, 2], 1, 1, latency=1), 2, 19))
    2 ranks, 2 stages, 4 microbatches, F 1:2, I 1:1, W 1:1, messages 1, at most 2 pairs
    """

    num_ranks: int
    num_microbatches: int
    costs: Costs
    memory_limit: int
    par: float

    @property
    def workload(self) -> Workload:
        """The work of the level."""
        placement = range(self.num_ranks)
        return self.costs.workload(placement, self.num_microbatches, self.memory_limit)

    def __str__(self) -> str:
        work = self.workload
        times = {
            "F": work.forward,
            "I": work.backward_input,
            "W": work.backward_weight,
            "messages": work.message[:-1],
        }
        figures = [
            f"{name} {':'.join(map('{:g}'.format, each))}"
            for name, each in times.items()
        ]
        sizes = describe_sizes(self.num_ranks, self.num_ranks, self.num_microbatches)
        limit = f"at most {counted(self.memory_limit, 'pair')}"
        return ", ".join([sizes, *figures, limit])


class Entry(NamedTuple):
    """A schedule for a level, checked, with its makespan and the largest bound that is
    known.

    Attributes
    ----------
    student, level : str
        The level is the name of the function that returned the schedule.
    asked : str
        A description of the level.
    schedule : str
    makespan, bound : float
    bound_by : str
    """

    student: str
    level: str
    asked: str
    schedule: str
    makespan: float
    bound: float
    bound_by: str

    @classmethod
    def of(cls, student: str, name: str, level: Level, text: str) -> Entry:
        """Return the entry for a schedule, or raise ``ScheduleError`` if it does not
        solve the level.
        """
        schedule = Schedule.from_text(text, name=name)
        # In the same order: a workload has no whole backwards.
        check_answer(split_backward(schedule), level.workload)
        makespan = simulate(schedule, level.costs).makespan
        bound = known_bound(level.workload, Objective.MAKESPAN)
        return cls(
            student,
            name,
            str(level),
            schedule.to_text(),
            makespan,
            bound.value,
            bound.name,
        )

    @property
    def gap(self) -> float:
        """How far the makespan is above the bound, relative to the bound."""
        return gap(self.makespan, self.bound)

    def as_json(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        return {**self._asdict(), "gap": self.gap}


def levels_in(checks: ModuleType) -> dict[str, Level]:
    """Return the levels of a puzzle by the names of the functions that return their
    schedules; else an empty dict.
    """
    levels = getattr(checks, "LEVELS", {})
    return {f"level_{number}": level for number, level in levels.items()}


def entries_of(
    student: str, levels: Mapping[str, Level], answers: Mapping[str, str]
) -> Iterator[Entry]:
    """Yield the entries of a student for schedules that solve their levels; the tests
    report the other ones.
    """
    for name in filter(answers.__contains__, levels):
        with suppress(ScheduleError):
            yield Entry.of(student, name, levels[name], answers[name])


def schedules_in(tasks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the schedules by level in the tasks of a report,
    :meth:`minipipe.coursework.Report.as_json`.
    """
    entries = chain(*(task["leaderboard"] for task in tasks))
    return {entry["level"]: entry["schedule"] for entry in entries}


def best_of(entries: Iterable[Entry]) -> list[Entry]:
    """Return the best entry of each student for each level, the first of equal ones, by
    student and level.
    """
    best: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        key = entry.student, entry.level
        if key not in best or entry.makespan < best[key].makespan:
            best[key] = entry
    return [best[key] for key in sorted(best)]


# -- files -----------------------------------------------------------------------------


class Leaderboard:
    """A file of entries for one puzzle.

    Parameters
    ----------
    path : Path
    exercises : sequence of Exercise
        One of them is the puzzle.
    variants : bool
        Whether the name of a student draws the numbers of the levels.

    Raises
    ------
    CourseworkError
        Code ``name``: if there is no puzzle, or more than one.
    """

    def __init__(
        self, path: Path, exercises: Iterable[Exercise], variants: bool
    ) -> None:
        puzzles = [exercise for exercise in exercises if _levels_of(exercise, None)]
        if len(puzzles) != 1:
            names = "none of the tasks"
            how = "The checks of a puzzle have LEVELS"
            if puzzles:
                names = " and ".join(exercise.name for exercise in puzzles)
                how = "Choose one with --only"
            problem = "A leaderboard is for one puzzle"
            raise CourseworkError("name", f"{problem}; {names} has levels. {how}.")
        self._path = path
        self._exercise = puzzles[0]
        self._variants = variants
        self._named = quoted(str(path), 200)

    def levels(self, student: str) -> dict[str, Level]:
        """Return the levels that a student has."""
        if self._variants:
            return _levels_of(self._exercise, student)
        return _levels_of(self._exercise, None)

    def read(self) -> list[Entry]:
        """Return the entries of the file, each checked.

        Raises
        ------
        CourseworkError
            Code ``name``: the file belongs to another puzzle, or to other levels.
        FileError
            Code ``damaged``, also if its values do not fit a schedule.
        """
        with reading(self._not_read):
            text = read_text(self._path, MOST_JSON, pipes=False)
            data = json_value(parse_json(text), dict, "it")
            if data["format"] != _FORMAT:
                problem = f"its format is {quoted(data['format'])}"
                raise ArgumentError(f"{problem}, expected {_FORMAT!r}")
            entries = json_value(data["entries"], list, "entries")
            for each in entries:
                json_value(each, dict, "an entry")
            for each in entries:
                for name in ("student", "level", "asked", "schedule"):
                    json_value(each[name], str, name)
            other = json_value(data["puzzle"], str, "puzzle")
        if other != self._exercise.name:
            problem = f"{self._named} belongs to {quoted(other)}"
            graded = f"but {self._exercise.name} is graded"
            how = "Use one file for each puzzle"
            raise CourseworkError("name", f"{problem}, {graded}. {how}.")
        return [self._checked(each) for each in entries]

    def _not_read(self, reason: str) -> FileError:
        message = f"{self._named} cannot be read as a leaderboard: {reason}. {_REMEDY}."
        return FileError("damaged", message)

    def _checked(self, data: Mapping[str, Any]) -> Entry:
        """Return an entry with the figures computed here, if they agree with the
        file.
        """
        level = self.levels(data["student"]).get(data["level"])
        who = f"{quoted(data['student'])} for {quoted(data['level'])}"
        which = f"{self._named} has an entry of {who}"
        if level is None or str(level) != data["asked"]:
            how = (
                "Give the --source and the --variants with which it was written, or "
                "another file"
            )
            here = "there is no such level"
            if level is not None:
                here = f"that is {level}"
            problem = f"{which}: {quoted(data['asked'], 200)}"
            raise CourseworkError("name", f"{problem}. Here {here}. {how}.")
        try:
            entry = Entry.of(data["student"], data["level"], level, data["schedule"])
        except ScheduleError as error:
            reason = error.problems[0].message
            problem = f"{which}, whose schedule is not a solution"
            raise FileError("damaged", f"{problem}: {reason} {_REMEDY}.") from None
        for name, value in entry.as_json().items():
            if data.get(name) != value:
                values = f"is {quoted(data.get(name))}; here it is {value}"
                problem = f"{which}, whose {name} {values}"
                raise FileError("damaged", f"{problem}. {_REMEDY}.")
        return entry

    def add(self, answers: Iterable[tuple[str, Mapping[str, str]]]) -> list[Entry]:
        """Add the schedules of students by level, and return the best of all. Raises
        the errors of reading.

        The file is replaced as a whole. Processes that add to files of one folder wait
        for each other, so that no entry is lost; on Windows they do not wait.
        """
        new: list[Entry] = []
        for student, schedules in answers:
            new += entries_of(student, self.levels(student), schedules)
        with _alone_in(self._path.absolute().parent):
            if os.path.lexists(self._path):
                new = self.read() + new
            entries = best_of(new)
            data: dict[str, Any] = {"format": _FORMAT, "puzzle": self._exercise.name}
            data["entries"] = [entry.as_json() for entry in entries]
            write_whole(self._path, json.dumps(data, indent=1) + "\n")
        return entries


_REMEDY = "Restore the file from a copy, or delete it and grade the submissions again"


@cache
def _levels_of(exercise: Exercise, student: str | None) -> dict[str, Level]:
    if student is not None:
        exercise = exercise.for_student(student)
    return levels_in(load_checks(exercise.name, exercise.checks))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, because a lock on a file would be lost when the file is
    replaced.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        problem = f"{quoted(str(folder))} cannot be opened"
        raise FileError("unwritable", f"{problem}: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# -- the table -------------------------------------------------------------------------


class Standing(NamedTuple):
    """A student's place. Equal students share a place."""

    place: int
    student: str
    entries: dict[str, Entry]

    @property
    def gap(self) -> float:
        """The mean over the levels that the student has."""
        return sum(entry.gap for entry in self.entries.values()) / len(self.entries)

    @property
    def worth(self) -> tuple[int, float]:
        """The sort key: more levels before fewer, then the smaller gap."""
        return -len(self.entries), round(self.gap, 9)


def standings(entries: Iterable[Entry]) -> list[Standing]:
    """Return the students in order.

    Examples
    --------
    >>> level = Level(1, 1, Costs(), 1, 3)
    >>> entries = [
    ...     Entry.of(student, "level_1", level, "0F0 0B0") for student in ("ada", "bob")
    ... ]
    >>> [standing[:2] for standing in standings(entries)]
    [(1, 'ada'), (1, 'bob')]
    """
    by_student: dict[str, dict[str, Entry]] = {}
    for entry in best_of(entries):
        by_student.setdefault(entry.student, {})[entry.level] = entry
    unplaced = [Standing(0, *each) for each in by_student.items()]
    worths = sorted(each.worth for each in unplaced)
    places = (worths.index(each.worth) + 1 for each in unplaced)
    return sorted(each._replace(place=place) for each, place in zip(unplaced, places))


def standings_as_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the students in order, as plain data."""
    data = []
    for each in standings(entries):
        best = [entry.as_json() for entry in each.entries.values()]
        data.append({**each._asdict(), "mean_gap": each.gap, "entries": best})
    return data


def as_text(entries: Iterable[Entry]) -> str:
    """Return a line for each student, and the bounds.

    Examples
    --------
    >>> level = Level(2, 2, Costs(), 2, 7)
    >>> print(
    ...     as_text(
    ...         [
    ...             Entry.of(
    ...                 "ada", "level_1", level, "0F0 0F1 0B0 0B1 \\n 1F0 1B0 1F1 1B1"
    ...             )
    ...         ]
    ...     )
    ... )
    place  student  level_1  mean gap
        1  ada          9/7    28.6 %
    makespan/bound; bounds by work (level_1)
    """
    entries = sorted(entries, key=lambda entry: (len(entry.level), entry.level))
    levels = list(dict.fromkeys(entry.level for entry in entries))
    rows = [("place", "student", *levels, "mean gap")]
    for standing in standings(entries):
        ratios = {
            level: f"{entry.makespan:g}/{entry.bound:g}"
            for level, entry in standing.entries.items()
        }
        cells = [ratios.get(level, "") for level in levels]
        mean_gap = f"{100 * standing.gap:.1f} %"
        student = printable(standing.student)
        rows.append((str(standing.place), student, *cells, mean_gap))
    proofs: dict[str, dict[str, None]] = {}
    for entry in entries:
        proofs.setdefault(entry.bound_by, {})[entry.level] = None
    known = {GALLERY: "the gallery, which records that they were proved"}
    bounds = [
        f"{known.get(name, name)} ({', '.join(proved)})"
        for name, proved in proofs.items()
    ]
    table = text_table(rows, set(range(len(rows[0]))) - {1})
    return f"{table}\nmakespan/bound; bounds by {', '.join(bounds) or 'none yet'}"
