"""``minipipe show``: a drawing, or a file that can be read again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from minipipe.render import draw_html, draw_svg, draw_text, has_colour, perfetto_trace
from minipipe.schedules import Schedule, Timeline, lower, simulate, verify
from minipipe.verbs.asked import costs_of, schedule_of, wrong
from minipipe.verbs.told import sizes_as_data

__all__ = ["FORMATS", "run_show"]

_WRITTEN: dict[str, Callable[[Schedule], str]] = {"rows": Schedule.to_text, "csv": Schedule.to_csv}
_DRAWN: dict[str, Callable[[Timeline, argparse.Namespace], str]] = {
    "text": lambda timeline, options: (
        draw_text(timeline, width=options.width, colour=options.output is None and has_colour()) + "\n"
    ),
    "svg": lambda timeline, options: draw_svg(timeline, messages=options.messages),
    "html": lambda timeline, _: draw_html(timeline),
    "perfetto": lambda timeline, _: perfetto_trace(timeline),
}
FORMATS = (*_DRAWN, *_WRITTEN)
_BY_ENDING = {".svg": "svg", ".html": "html", ".json": "perfetto", ".csv": "csv"}


def run_show(options: argparse.Namespace) -> int:
    """Draw a schedule, or write it in a format that can be read again."""
    schedule, costs = schedule_of(options), costs_of(options)
    options.format = _format(options)
    _check_show(options)
    if options.json:
        rows = [[str(action) for action in row] for row in _written(schedule, options).actions]
        text = json.dumps({**sizes_as_data(schedule), "placement": schedule.placement, "actions": rows}) + "\n"
    elif options.format in _WRITTEN:
        text = _WRITTEN[options.format](_written(schedule, options))
    else:
        verify(schedule)
        text = _drawing(simulate(schedule, costs), options)
    if options.output is None:
        print(text, end="")
    else:
        _write(text, options.output)
        print(json.dumps({"wrote": str(options.output)}) if options.json else f"wrote {options.output}")
    return 0


def _format(options: argparse.Namespace) -> str:
    """Return the format that was asked for, or the one that the file's ending names."""
    if options.format is not None or options.output is None or options.json:
        return options.format or "text"
    return _BY_ENDING.get(options.output.suffix.lower(), "text")


def _drawing(timeline: Timeline, options: argparse.Namespace) -> str:
    try:
        return _DRAWN[options.format](timeline, options)
    except ValueError as error:  # times that a format cannot hold
        raise wrong("costs", str(error)) from None


def _write(text: str, path: Path) -> None:
    try:
        # A file's name need not be text, and a schedule has the name of its file.
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise wrong("file", f"{path} cannot be written: {error.strerror}.") from None


def _check_show(options: argparse.Namespace) -> None:
    if options.json and options.format != "text":
        raise wrong("parameters", f"--json and --format {options.format} are two formats; choose one.")
    if options.messages and options.format == "text" and not options.json:
        raise wrong("parameters", "--messages is for another --format, or --json; text shows computations.")
    if options.width < 40:
        raise wrong("parameters", f"--width is {options.width}; expected at least 40 columns.")


def _written(schedule: Schedule, options: argparse.Namespace) -> Schedule:
    return lower(schedule) if options.messages else schedule
