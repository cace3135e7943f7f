"""Points into an existing gradebook: a CSV file with one row for each student, as
Canvas, Moodle and spreadsheets export it. One column changes, and no row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from minipipe.coursework.deadline import pairs_in
from minipipe.errors import ArgumentError, FileError, counted, misuse, quoted
from minipipe.io import parse_csv, read_text

_LONGEST = 4 << 20  # bytes of a file
_SHOWN = 5  # names in a message
_BOM = "\ufeff"  # by which Excel knows that a file is UTF-8


def read_roster(path: str | Path) -> dict[str, str]:
    """Read lines ``submission,student``, which name the student of each submission as
    the gradebook does.

    Raises
    ------
    ArgumentError
        Code ``value``: two lines have the same submission or the same student, or a
        line has another form.
    FileError
        Code ``damaged``: it is not CSV.
    """
    roster: dict[str, str] = {}
    for submission, student in pairs_in(path, "student"):
        student = student.strip()
        if student in roster.values():
            problem = f"{quoted(str(path), 200)} has two lines for {quoted(student)}"
            raise ArgumentError(f"{problem}; each student has one submission.")
        roster[submission] = student
    return roster


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
