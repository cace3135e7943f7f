"""The lateness of a submission, from recorded times, never from a clock or the date of
a file.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from minipipe.errors import ArgumentError, FileError, quoted
from minipipe.io import json_value, parse_csv, parse_json, read_text, reading

_LONGEST = 4 << 20  # bytes of a file with times; Gradescope's holds all earlier results
_DAY = timedelta(days=1)


class SubmissionTimes(NamedTuple):
    """The times of submissions and their deadline.

    Attributes
    ----------
    times : dict
        Time by name of the submission; an empty name stands for the only one.
    due : datetime, optional
    student : str, optional
        The e-mail address of the student, or the alphabetically first one of a group.
    """

    times: dict[str, datetime]
    due: datetime | None = None
    student: str | None = None

    def days_late(self, name: str, deadline: datetime | None) -> int:
        """Return the days from the deadline to a submission; a started day counts
        whole.
        """
        due = deadline or self.due
        if due is None:
            problem = "--late-factor needs a deadline"
            raise ArgumentError(f"{problem}: add --deadline TIME.")
        if (time := self.times.get(name, self.times.get(""))) is None:
            problem = f"The file of --times has no line for {quoted(name)}"
            raise ArgumentError(f"{problem}; add one.")
        return max(0, -((due - time) // _DAY))


def moment(text: str) -> datetime:
    """Return a time of ISO 8601 with its zone.

    Examples
    --------
    >>> moment("2026-11-30T23:59:00+01:00") < moment("2026-11-30T23:00:00Z")
    True
    """
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        problem = f"{quoted(text)} is not a time; expected a time with its zone"
        raise ArgumentError(f"{problem}, such as 2026-11-30T23:59:00+01:00.")
    return time


def read_times(path: str | Path) -> SubmissionTimes:
    """Read the times of submissions: CSV lines ``submission,time``, or Gradescope's
    ``submission_metadata.json``.

    Raises
    ------
    ArgumentError
        Codes ``value`` and ``type``.
    FileError
    """
    if Path(path).suffix.lower() == ".json":
        return _of_gradescope(read_text(path, _LONGEST), path)
    times = {name: moment(time) for name, time in pairs_in(path, "time")}
    return SubmissionTimes(times)


def pairs_in(path: str | Path, value: str) -> list[tuple[str, str]]:
    """Read CSV lines ``submission,VALUE``, perhaps below a line with these words.

    Raises
    ------
    ArgumentError
        Code ``value``: a line has another form, or two have the same submission.
    FileError
        Codes of :func:`minipipe.io.read_text`, and ``damaged``: it is not CSV.
    """
    pairs: dict[str, str] = {}
    for name, text in lines_in(path, ["submission", value]):
        if name in pairs:
            problem = f"{quoted(str(path), 200)} has two {value}s for {quoted(name)}"
            raise ArgumentError(f"{problem}; keep one line for each.")
        pairs[name] = text
    return [*pairs.items()]


def lines_in(
    path: str | Path, columns: list[str], optional: str = ""
) -> list[list[str]]:
    """Read CSV lines of two columns, perhaps below a line with their names; and of a
    further column, if that line names it.

    Raises
    ------
    ArgumentError
        Code ``value``: a line has another form.
    FileError
        Codes of :func:`minipipe.io.read_text`, and ``damaged``: it is not CSV.
    """
    text = read_text(path, _LONGEST)
    try:
        rows = [[*map(str.strip, cells)] for _, cells in parse_csv(text)]
    except ArgumentError as error:
        raise FileError.of(path, error.message, "damaged") from None
    if optional and rows and rows[0] == [*columns, optional]:
        columns = rows[0]
    wrong = next((row for row in rows if len(row) != len(columns)), None)
    if wrong is not None:
        problem = f"A line of {quoted(str(path), 200)} is {quoted(','.join(wrong))}"
        more = f", and `{optional}` if the first line names it" * bool(optional)
        raise ArgumentError(f"{problem}; expected `{','.join(columns)}`{more}.")
    if rows and rows[0][1] == columns[1]:
        del rows[0]
    return rows


def _not_of_gradescope(path: str | Path, reason: str) -> FileError:
    return FileError.of(path, f"it is not Gradescope's metadata ({reason})", "damaged")


def _of_gradescope(text: str, path: str | Path) -> SubmissionTimes:
    with reading(partial(_not_of_gradescope, path)):
        data = json_value(parse_json(text), dict, "it")
        due = json_value(data["assignment"], dict, "assignment").get("due_date")
        users = sorted(
            json_value(user["email"], str, "email")
            for user in json_value(data["users"], list, "users")
        )
        created = moment(json_value(data["created_at"], str, "created_at"))
    deadline: datetime | None = None
    if due is not None:
        deadline = moment(str(due))
    return SubmissionTimes({"": created}, deadline, next(iter(users), None))
