"""The answer of a command: exit status, a line of JSON or text, a file; and figures as
data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from minipipe.cli.streams import put
from minipipe.core.schedules.action_table import ActionTable
from minipipe.errors import ArgumentError, MinipipeError, ScheduleError, misuse, quoted
from minipipe.io import MARK, package_text, printable, printable_lines, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from minipipe.schedules.simulation.comparison import Gap
    from minipipe.schedules.simulation.timeline import Timeline

_FIGURES = (
    *("makespan", "bubble_fraction", "bubble_over_ideal"),
    *("span_bubble_rate", "peak_activations", "peak_memory"),
)


class ExitStatus(IntEnum):
    """The answer of a command, for the shell.

    Examples
    --------
    >>> from minipipe.errors import CourseworkError
    >>> ExitStatus.of(CourseworkError("no-source", "There are no exercises here."))
    <ExitStatus.MISUSE: 2>
    """

    YES = 0
    NO = 1
    MISUSE = 2
    INTERRUPTED = 130  # by Ctrl-C, as in shells

    @classmethod
    def of(cls, error: MinipipeError) -> ExitStatus:
        """Return ``NO`` if the schedule is wrong, ``MISUSE`` if the command is."""
        if isinstance(error, ScheduleError) and not error.problems[0].code.is_misuse:
            return cls.NO
        return cls.MISUSE


def answer(
    options: argparse.Namespace,
    data: object,
    text: object,
    status: ExitStatus = ExitStatus.YES,
) -> ExitStatus:
    """Print data as a line of JSON, with ``--json``, or else the text; return the
    status.
    """
    if options.json:
        text = as_json(data)
    put(text)
    return status


def as_json(data: object) -> str:
    """Return data as a line of JSON."""
    import json  # on demand: most answers are text

    return json.dumps(data)


def write_file(
    path: Path,
    content: str | bytes,
    options: argparse.Namespace,
    more: str = "",
    **facts: object,
) -> ExitStatus:
    """Write a file, and answer with its name and further results, as text and as
    data.
    """
    write_whole(path, content)
    return wrote(path, options, more, **facts)


def wrote(
    path: Path, options: argparse.Namespace, more: str = "", **facts: object
) -> ExitStatus:
    """Answer with the name of a file that was written, and further results."""
    text = f"wrote {printable(str(path))}{more}"
    return answer(options, {"wrote": str(path), **facts}, text)


def ending_of(path: Path, known: Iterable[str], otherwise: str = "") -> str:
    """Return the ending of a file name in lower case, or refuse it as misuse if it is
    unknown.
    """
    ending = path.suffix.lower()
    if ending not in known:
        problem = "has no ending"
        if ending:
            problem = f"ends in {printable(ending[:20])}"
        *others, last = known
        expected = last
        if others:
            expected = f"{', '.join(others)} or {last}"
        name = quoted(str(path), 200)
        raise misuse(f"{name} {problem}; expected {expected}{otherwise}.")
    return ending


def check_picture(path: str | Path) -> str:
    """Return the ending of a picture's file; refuse other endings, and PNG and PDF
    without CairoSVG, as misuse.
    """
    from minipipe.render.files import PICTURES, check_ending

    try:
        return check_ending(path, PICTURES)
    except ArgumentError as error:
        raise misuse(str(error)) from None


def help_text(name: str) -> str:
    """Return a text of the folder ``help``, such as the end of a verb's help.

    Examples
    --------
    >>> help_text("sweep").splitlines()[-3]
    'examples:'
    """
    return package_text(f"cli/help/{name}.txt").rstrip("\n")


def complain(message: str) -> None:
    """Print a message on standard error, if it is open."""
    if sys.stderr is not None:
        with suppress(OSError):  # a full disk: the exit status remains
            print(f"{MARK}{printable_lines(message)}", file=sys.stderr, flush=True)


def fields(source: object, *names: str) -> dict[str, Any]:
    """Return attributes as data, by their names."""
    return {name: getattr(source, name) for name in names}


def gaps_as_data(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Return the bounds on the makespan and the longest span of a rank, and the gaps;
    None for each without a bound.
    """
    names = ("bound", "gap", "bound_by", "bound_reason", "span_bound", "span_gap")
    if not gaps:
        return dict.fromkeys(names)
    makespan, span = gaps
    bound = makespan.bound
    of_makespan = (bound.value, makespan.relative, bound.name, bound.reason)
    return dict(zip(names, (*of_makespan, span.bound.value, span.relative)))


def sizes_as_data(schedule: ActionTable) -> dict[str, Any]:
    """Return name and sizes."""
    return {
        "schedule": schedule.name,
        **fields(schedule, "num_ranks", "num_stages", "num_microbatches", "num_slices"),
    }


def figures(schedule: ActionTable, timeline: Timeline) -> dict[str, Any]:
    """Return sizes and figures."""
    summary = timeline.summary()
    shown = {name: summary[name] for name in _FIGURES}
    is_reproducible = fields(schedule, "is_reproducible")
    return {**sizes_as_data(schedule), **shown, **is_reproducible}


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; the values by rank are lists, which JSON reads."""
    import csv  # on demand, as above
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
