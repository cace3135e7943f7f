"""``minipipe show``: draw schedules, or write a schedule to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.options import (
    add_schedule,
    all_steps,
    costs_of,
    schedules_of,
    text_width,
)
from minipipe.cli.output import (
    ExitStatus,
    as_json,
    check_picture,
    ending_of,
    fields,
    sizes_as_data,
    write_file,
)
from minipipe.cli.streams import put
from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.specs import TEXT_WIDTH
from minipipe.errors import ScheduleError, misuse
from minipipe.io import columns_of_terminal, is_terminal
from minipipe.render.panel import chunks_of, pairs_per_unit
from minipipe.schedules import Timeline, simulate, verify

_PICTURES = ("svg", "pdf", "png")
_WRITTEN: dict[str, Callable[[ActionTable], str]] = {
    "rows": ActionTable.to_text,
    "csv": ActionTable.to_csv,
}
# Each format of a drawing with the ending of its file.
_DRAWN = {"text": ".txt", **{name: f".{name}" for name in (*_PICTURES, "html")}}
_DRAWN["perfetto"] = ".json"
_FORMAT_OF_ENDING = {".csv": "csv", **{ending: name for name, ending in _DRAWN.items()}}
# The formats on which an option has an effect.
_FORMATS_OF_OPTION = {
    "messages": ("rows", "csv", *_PICTURES, "html", "perfetto", "json"),
    "width": ("text", *_PICTURES),
    "title": (*_PICTURES, "html", "perfetto"),
    "font_size": _PICTURES,
    "no_legend": _PICTURES,
    "animated": ("svg",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser, several=True)
    add = adder(parser, "show")
    add("--wait")
    add("--format", choices=(*_DRAWN, *_WRITTEN))
    add("--messages")
    add("--width", type=int)
    add("--title")
    add("--font-size", type=float)
    add("--animated")
    add("--no-legend")
    add("-o", "--output", type=file_path)


def run(options: argparse.Namespace) -> ExitStatus:
    """Draw schedules above each other on one time axis, or write one schedule in a
    format that can be read again.
    """
    schedules = schedules_of(options.schedule, options)
    costs = costs_of(options)
    options.format = _format(options)
    _check(options)
    tables = [all_steps(schedule, options) for schedule in schedules]
    content: str | bytes
    if options.json or options.format in _WRITTEN:
        content = _written(tables, options)
    else:
        for table in tables:
            verify(table)
        cuts = map(costs.cut, map(chunks_of, schedules, pairs_per_unit(schedules)))
        timelines = [
            simulate(*each, options.steps, options.wait)
            for each in zip(schedules, cuts)
        ]
        draw = _text if options.format == "text" else _drawing
        content = draw(timelines, options)
    if options.output is not None:
        return write_file(options.output, content, options)
    put(content, end="")
    return ExitStatus.YES


def _written(tables: Sequence[ActionTable], options: argparse.Namespace) -> str:
    """Return tables as JSON, or one table as text or CSV; for a reader at a terminal,
    long rows continue in lines below.
    """
    if options.messages:
        tables = _with_messages(tables)
    if options.json:
        return _as_json(tables)
    text = _WRITTEN[options.format](tables[0])
    is_printed = options.output is None and is_terminal(sys.stdout)
    if options.rows and options.format == "rows" and is_printed:
        return wrapped(text, columns_of_terminal(80))
    return text


def wrapped(text: str, width: int) -> str:
    """Return the text of a table in lines of at most a width; all rows begin below each
    other.

    Examples
    --------
    >>> print(
    ...     wrapped("# mine\\nrank 0: 0F0 0F1 0B0 0B1\\nrank 1:\\n", width=20), end=""
    ... )
    # mine
    rank 0: 0F0 0F1 0B0
            0B1
    rank 1:
    """
    from textwrap import TextWrapper  # on demand: only for a reader at a terminal

    head, *rows = text.splitlines()
    margin = max(row.index(":") + 2 for row in rows)
    lines = [head]
    for row in rows:
        name, _, cells = row.partition(":")
        begin = f"{name}:".ljust(margin)
        wrapper = TextWrapper(width, begin, " " * margin, break_on_hyphens=False)
        wrapper.break_long_words = False
        lines += wrapper.wrap(cells.strip()) or [begin.rstrip()]
    return "\n".join([*lines, ""])


def _with_messages(tables: Sequence[ActionTable]) -> list[ActionTable]:
    from minipipe.schedules import lower  # on demand: most drawings have no messages

    return [lower(table) for table in tables]


def _format(options: argparse.Namespace) -> str:
    """Return the format: the option, or the ending of the file."""
    if options.format is not None:
        return options.format
    if options.json or options.output is None:
        if options.rows and not options.json:
            return "rows"
        return "text"
    ending = ending_of(options.output, _FORMAT_OF_ENDING, ", or a --format")
    return _FORMAT_OF_ENDING[ending]


def _check(options: argparse.Namespace) -> None:
    """Refuse options that have no effect together."""
    form = options.format
    chosen = f"--format {form}"
    if options.json:
        if form != "text":
            problem = f"--json and {chosen} are different formats"
            raise misuse(f"{problem}; choose one.")
        form = "json"
        chosen = "--json"
    for option, formats in _FORMATS_OF_OPTION.items():
        if getattr(options, option) not in (None, False) and form not in formats:
            name = option.replace("_", "-")
            expected = ", ".join(formats).replace(", json", ", or --json")
            problem = f"--{name} has no effect with {chosen}"
            raise misuse(f"{problem}; expected --format {expected}.")
    if options.width is not None and form == "text":
        TEXT_WIDTH._replace(error=ScheduleError.of).check("--width", options.width)
    if len(options.schedule) > 1 and form in _WRITTEN:
        problem = f"{chosen} writes one schedule"
        raise misuse(f"{problem}; {len(options.schedule)} were given.")
    if form in ("pdf", "png"):
        if options.output is None:
            raise misuse(f"{chosen} needs a file to write to: -o FILE.")
        check_picture(f"{options.output.stem}.{form}")


# -- the formats: each is imported at its first use, so that text does not load the
# others


def _text(timelines: Sequence[Timeline], options: argparse.Namespace) -> str:
    from minipipe.render.terminal import has_colour
    from minipipe.render.text import draw_text

    width = text_width(options)
    colour = options.output is None and has_colour()
    return f"{draw_text(*timelines, width=width, colour=colour)}\n"


def _drawing(timelines: Sequence[Timeline], options: argparse.Namespace) -> str | bytes:
    from minipipe.render.files import drawing

    look = fields(options, "title")
    if options.format in _PICTURES:
        look |= fields(options, "width", "font_size", "messages", "animated")
        look["legend"] = not options.no_legend
    look = {name: value for name, value in look.items() if value is not None}
    try:
        return drawing(_DRAWN[options.format], *timelines, **look)
    except ValueError as error:  # times that a format cannot hold
        raise misuse(str(error)) from None


def _as_json(tables: Sequence[ActionTable]) -> str:
    data = []
    for table in tables:
        rows = [list(map(str, row)) for row in table.actions]
        content = {"placement": table.placement, "actions": rows}
        data.append({**sizes_as_data(table), **content})
    if len(data) == 1:
        return as_json(data[0]) + "\n"
    return as_json(data) + "\n"
