"""Points into an existing gradebook: a CSV file with one row for each student, as
Canvas, Moodle and spreadsheets export it. One column changes, and no row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from minipipe.coursework.deadline import lines_in
from minipipe.errors import ArgumentError, FileError, counted, misuse, quoted
from minipipe.io import parse_csv, read_text

_LONGEST = 4 << 20  # bytes of a file
_COLUMNS = ["submission", "student"]  # of a roster
_SHOWN = 5  # names in a message
_BOM = "\ufeff"  # by which Excel knows that a file is UTF-8


class Roster:
    """The students of submissions, named as the gradebook names them.

    A group has one submission, which may have the name of any member's line, and its
    score counts for all members.

    Parameters
    ----------
    path : str or Path
        Lines ``submission,student``. Below a line ``submission,student,group``, each
        line also has a group, or an empty cell.

    Attributes
    ----------
    has_groups : bool

    Raises
    ------
    ArgumentError
        Code ``value``: a student has two lines or two groups, a submission has students
        who are no group, or a line has another form.
    FileError
        Code ``damaged``: it is not CSV.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "roster.csv")
    ...     text = "submission,student,group\\nada,a@x.edu,red\\nbob,b@x.edu,red\\n"
    ...     _ = path.write_text(text)
    ...     print(Roster(path).students_of(["bob"]))
    {'bob': ['a@x.edu', 'b@x.edu']}
    """

    def __init__(self, path: str | Path) -> None:
        self._members: dict[tuple[str, str], list[str]] = {}  # by group or student
        self._team: dict[str, tuple[str, str]] = {}  # by submission
        group_of: dict[str, str] = {}
        for submission, student, *cells in lines_in(path, _COLUMNS, "group"):
            group = "".join(cells)
            team = (group, student * (not group))
            problem = ""
            if student in group_of:
                problem = f"two lines for {quoted(student)}"
                if group_of[student] != group:
                    groups = f"{quoted(group_of[student])} and {quoted(group)}"
                    problem = f"{quoted(student)} in two groups, {groups}"
            elif submission and self._team.setdefault(submission, team) != team:
                problem = f"two students for {quoted(submission)}"
            if problem:
                how = "keep one line for each student, and one group for each team"
                problem = f"{quoted(str(path), 200)} has {problem}"
                raise ArgumentError(f"{problem}; {how}.")
            group_of[student] = group
            self._members.setdefault(team, []).append(student)
        self.has_groups = any(group_of.values())

    def students_of(self, submissions: Iterable[str]) -> dict[str, list[str]]:
        """Return the students of each submission: all members of a group.

        Raises
        ------
        ArgumentError
            Code ``value``: a submission has no line, or a group has two submissions.
        """
        students: dict[str, list[str]] = {}
        submission_of: dict[tuple[str, str], str] = {}
        for name in submissions:
            if name not in self._team:
                problem = f"The file of --roster has no line for {quoted(name)}"
                raise ArgumentError(f"{problem}; add one.")
            team = self._team[name]
            first = submission_of.setdefault(team, name)
            if first != name:
                both = f"{quoted(first)} and {quoted(name)}"
                problem = f"Group {quoted(team[0])} has two submissions, {both}"
                raise ArgumentError(f"{problem}; move one away.")
            students[name] = self._members[team]
        return students

    def missing(self, submissions: Iterable[str]) -> list[str]:
        """Return the students without a submission."""
        handed_in = {self._team[name] for name in submissions}
        teams = [team for team in self._members if team not in handed_in]
        return [*chain(*(self._members[team] for team in teams))]


class Gradebook:
    """The rows of a CSV file, found by the values of one column.

    Parameters
    ----------
    path : str or Path
    key : str, optional
        The column that names students; by default the first one.

    Raises
    ------
    ArgumentError
        Code ``value``: the column does not exist, or two columns have its name.
    FileError
        Code ``damaged``: it is not CSV, or a row is longer than the first one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "grades.csv")
    ...     _ = path.write_text("id,quiz\\nada,\\nbob,3\\n")
    ...     print(Gradebook(path).with_column("quiz", {"ada": 7.5}), end="")
    id,quiz
    ada,7.5
    bob,3
    """

    def __init__(self, path: str | Path, key: str | None = None) -> None:
        self._name = quoted(str(path), 200)
        text = read_text(path, _LONGEST)
        self._mark = _BOM * text.startswith(_BOM)
        try:
            self._rows = [cells for _, cells in parse_csv(text)]
        except ArgumentError as error:
            raise FileError.of(path, error.message, "damaged") from None
        if not self._rows:
            raise FileError.of(path, "it has no row with the columns' names", "damaged")
        self._columns = self._rows[0]
        for number, row in enumerate(self._rows, 1):
            if len(row) > len(self._columns):
                cells = counted(len(row), "cell")
                problem = f"row {number} has {cells}, the first {len(self._columns)}"
                raise FileError.of(path, problem, "damaged")
            row += [""] * (len(self._columns) - len(row))
        self._key = 0
        if key is not None:
            self._key = self._index(key)

    def _index(self, column: str) -> int:
        names = [name.strip() for name in self._columns]
        if names.count(column) == 1:
            return names.index(column)
        known = ", ".join(quoted(name) for name in names[:20])
        problem = f"{self._name} has {names.count(column)} columns {quoted(column)}"
        raise ArgumentError(f"{problem}, expected one; its columns are {known}.")

    def check(self, students: Iterable[str]) -> None:
        """Refuse students who have no row, or several.

        Raises
        ------
        ScheduleError
            Code ``value``.
        """
        keys = [row[self._key].strip() for row in self._rows[1:]]
        for count, problem in ((0, "no row"), (2, "several rows")):
            wrong = [each for each in students if min(keys.count(each), 2) == count]
            if wrong:
                column = quoted(self._columns[self._key])
                names = ", ".join(map(quoted, wrong[:_SHOWN]))
                names += ", …" * (len(wrong) > _SHOWN)
                how = "choose the column with --key, or map submissions with --roster"
                where = f"{self._name} has {problem} for {names} in column {column}"
                raise misuse(f"{where}; {how}.")

    def with_column(self, column: str, scores: Mapping[str, float]) -> str:
        """Return the file's text with scores by student in a column, which is added if
        it is new. Other students keep their cell.
        """
        if column in map(str.strip, self._columns):
            index = self._index(column)
        else:
            index = len(self._columns)
            for row in self._rows:
                row.append("")
            self._columns[index] = column
        for row in self._rows[1:]:
            if (student := row[self._key].strip()) in scores:
                row[index] = str(scores[student])
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows(self._rows)
        return self._mark + stream.getvalue()
