"""``minipipe show``: a drawing, or a file that can be read again."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.options import (
    add_costs,
    add_schedule,
    add_sizes,
    add_wait,
    all_steps,
    costs_of,
    misuse,
    schedules_of,
)
from minipipe.cli.output import sizes_as_data
from minipipe.errors import ScheduleCode
from minipipe.io import printable, write_whole
from minipipe.render.panel import shares
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline

EPILOG = """in a drawing:
  F3    forward of microbatch 3; 2F3 on stage 2, where a rank holds several, or,
        for want of room, f3 on the second of two
  B3    backward; or in two halves, I for the inputs and W for the weights
  - = ~ go on with F, with B or I, with W;  + a send that blocks;  · idle

examples:
  minipipe show 1f1b
  minipipe show gpipe 1f1b zb-h1 -o compared.svg
  minipipe show zb-v --ranks 2 --microbatches 6 -o mine.csv
  minipipe show zb-v -o zb-v.html"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser, several=True)
    add_sizes(parser)
    add_costs(parser)
    add_wait(parser)
    parser.add_argument(
        "--format",
        choices=(*_DRAWN, *_WRITTEN),
        help="a drawing: text, svg, pdf, png, html (a player), perfetto (a trace); or rows or csv, to read again "
        "(default: as FILE ends: .txt, .svg, .pdf, .png, .html, .json or .csv)",
    )
    parser.add_argument("--messages", action="store_true", help="with SEND and RECV, in rows and CSV; as arrows in SVG")
    parser.add_argument(
        "--width", type=int, metavar="N", help="columns of text (default: as the terminal has), pixels of a picture"
    )
    parser.add_argument("--title", metavar="TEXT", help="of a drawing, above the schedules")
    parser.add_argument("--font-size", type=float, metavar="N", help="of a picture, in pixels")
    parser.add_argument("--no-legend", action="store_true", help="a picture without its legend")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead")


def run(options: argparse.Namespace) -> ExitStatus:
    """Draw schedules above each other on one axis of time, or write one in a format that can be read again."""
    schedules, costs = schedules_of(options.schedule, options), costs_of(options)
    options.format = _format(options)
    _check(options)
    content: str | bytes
    if options.json or options.format in _WRITTEN:
        whole = [all_steps(schedule, options) for schedule in schedules]
        tables = [lower(schedule) if options.messages else schedule for schedule in whole]
        content = _as_json(tables) if options.json else _WRITTEN[options.format](tables[0])
    else:
        for schedule in schedules:
            verify(all_steps(schedule, options))
        timelines = [
            simulate(schedule, costs.cut(share), options.steps, options.wait)
            for schedule, share in zip(schedules, shares(schedules))
        ]
        content = _drawing(timelines, options)
    if options.output is None:
        print(content, end="")
        return ExitStatus.YES
    write_whole(options.output, content)
    wrote = str(options.output)
    print(json.dumps({"wrote": wrote}) if options.json else f"wrote {printable(wrote)}")
    return ExitStatus.YES


# -- the formats ------------------------------------------------------------------------------------------------


def _text(timelines: Sequence[Timeline], options: argparse.Namespace) -> str:
    from minipipe.render.terminal import has_colour
    from minipipe.render.text import draw_text

    width = _columns() if options.width is None else options.width
    return draw_text(*timelines, width=width, colour=options.output is None and has_colour()) + "\n"


def _drawing(timelines: Sequence[Timeline], options: argparse.Namespace) -> str | bytes:
    try:
        return _text(timelines, options) if options.format == "text" else _of_file(timelines, options)
    except ValueError as error:  # times that a format cannot hold
        code = ScheduleCode.PARAMETERS if options.format in _PICTURES else ScheduleCode.COSTS
        raise misuse(code, str(error)) from None


def _of_file(timelines: Sequence[Timeline], options: argparse.Namespace) -> str | bytes:
    from minipipe.render.files import drawing  # text does not wait for the other formats

    given: dict[str, Any] = {"title": options.title}
    if options.format in _PICTURES:
        given |= {"messages": options.messages, "width": options.width, "font_size": options.font_size}
        given["legend"] = not options.no_legend
    given = {name: value for name, value in given.items() if value is not None}
    return drawing(_DRAWN[options.format], *timelines, **given)


# Each format of a drawing with the ending of its file.
_DRAWN = {"text": ".txt", "svg": ".svg", "pdf": ".pdf", "png": ".png", "html": ".html", "perfetto": ".json"}
_WRITTEN: dict[str, Callable[[ActionTable], str]] = {"rows": ActionTable.to_text, "csv": ActionTable.to_csv}
_FORMAT_OF_ENDING = {".csv": "csv", **{ending: name for name, ending in _DRAWN.items()}}
_PICTURES = ("svg", "pdf", "png")


def _as_json(tables: Sequence[ActionTable]) -> str:
    found = [
        {
            **sizes_as_data(table),
            "placement": table.placement,
            "actions": [[str(action) for action in row] for row in table.actions],
        }
        for table in tables
    ]
    return json.dumps(found[0] if len(found) == 1 else found) + "\n"


def _format(options: argparse.Namespace) -> str:
    """Return the given format, or the one that the file's ending names."""
    if options.format is not None or options.output is None or options.json:
        return options.format or "text"
    ending = options.output.suffix.lower()
    if ending not in _FORMAT_OF_ENDING:
        message = (
            f"{options.output} ends in {ending or 'nothing'}; expected {', '.join(_FORMAT_OF_ENDING)}, or a --format."
        )
        raise misuse(ScheduleCode.PARAMETERS, message)
    return _FORMAT_OF_ENDING[ending]


def _check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    is_picture = options.format in _PICTURES and not options.json
    if options.json and options.format != "text":
        _refuse(f"--json and --format {options.format} are two formats; choose one.")
    if options.messages and options.format == "text" and not options.json:
        _refuse("--messages is for --format rows, csv, svg, pdf or png, or for --json; text shows computations alone.")
    if options.width is not None and not is_picture and (options.json or options.format != "text"):
        _refuse("--width is for text and pictures: --format text, svg, pdf or png.")
    if options.width is not None and options.format == "text" and options.width < 40:
        _refuse(f"--width is {options.width}; expected at least 40 columns.")
    if len(options.schedule) > 1 and options.format in _WRITTEN:
        _refuse(f"--format {options.format} writes one schedule; {len(options.schedule)} were given.")
    if options.format in ("pdf", "png") and options.output is None:
        _refuse(f"--format {options.format} needs a file to write to: -o FILE.")
    if options.format in ("pdf", "png"):
        _check_converter(options.output)
    if options.title is not None and options.format not in (*_PICTURES, "html", "perfetto"):
        _refuse("--title is for drawings other than text: --format svg, pdf, png, html or perfetto.")
    if (options.font_size is not None or options.no_legend) and not is_picture:
        _refuse("--font-size and --no-legend are for pictures: --format svg, pdf or png.")


def _check_converter(path: Path) -> None:
    from minipipe.render.files import check_ending

    try:
        check_ending(path)
    except ValueError as error:
        _refuse(str(error))


def _refuse(message: str) -> None:
    raise misuse(ScheduleCode.PARAMETERS, message)


def _columns() -> int:
    return max(40, shutil.get_terminal_size((80, 24)).columns)
