"""Timelines as text: a row for each rank, time from left to right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from textwrap import fill

from minipipe.errors import ArgumentError
from minipipe.io import MOST_CHARACTERS
from minipipe.render.columns import Columns, are_near, drawn_spans, fit_columns, labels, places_of
from minipipe.render.descriptions import caption, title
from minipipe.render.panel import Panel, panels_of
from minipipe.render.terminal import IDLE, ground, paint
from minipipe.schedules.action import ActionKind
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.simulation.timeline import Timeline

_IDLE = "·"
# The fill characters after an action's label, which distinguish the kinds at a glance.
FILL = {
    ActionKind.FORWARD: "-",
    ActionKind.BACKWARD: "=",
    ActionKind.BACKWARD_INPUT: "=",
    ActionKind.BACKWARD_WEIGHT: "~",
}
Cell = tuple[str, str]  # a character and its colours
_EMPTY: Cell = (" ", "")


def draw_text(*drawn: ActionTable | Timeline, width: int = 80, colour: bool = False) -> str:
    """Draw schedules (F, I and W one unit each) or timelines as text, above each other on a common time axis.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        Each is drawn from its own start, so that equal columns are equal times.
    width : int
        The largest width of a row, in columns; at least 40. Longer rows continue in a band below. Captions wrap at 80
        columns, or at the width if that is larger.
    colour : bool
        Whether to add terminal colours, one for each kind of action, a shade darker for each further stage of a rank.
        :func:`minipipe.render.has_colour` tells whether a terminal supports them. The characters stay the same.

    Returns
    -------
    str
        A row for each rank, then a caption. An action begins with as much of its label as fits: ``F3``, or ``2F3`` if
        its rank has several stages. If stages do not fit, lower case marks the second of two stages, ``f3``.
        ``-`` fills a forward, ``=`` a backward, ``~`` a weight gradient, ``+`` a send that blocks, and ``·`` is idle
        time. Several bands, or several drawings, have an axis above them; its ``|`` marks the column where the time
        next to it begins.

    Raises
    ------
    ArgumentError
        Codes of :func:`minipipe.render.panel.panels_of`; code ``value`` if the width is less than 40, or if
        there would be more characters than ``limits.MOST_CHARACTERS``.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(draw_text(schedules.gpipe(2, 2), width=60))
    rank 0 F0---F1---···············B0========B1========
    rank 1 ·····F0---F1---B0========B1========··········
    gpipe: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    >>> print(draw_text(schedules.gpipe(2, 2), schedules.one_f_one_b(2, 1), width=60))
    units  |0        |2        |4        |6        |8
           gpipe, predicted
    rank 0 F0---F1---···············B0========B1========
    rank 1 ·····F0---F1---B0========B1========··········
           1f1b, predicted
    rank 0 F0---···············B0========
    rank 1 ·····F0---B0========··········
    gpipe, predicted: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    1f1b, predicted: makespan 6 units, bubble 50.0 %, peak activations by rank 1, 1
    """
    panels = panels_of(drawn)
    if width < 40:
        raise ArgumentError("value", f"width is {width}; expected at least 40 columns.")
    margin = len(f"rank {max(panel.timeline.num_ranks for panel in panels) - 1} ")
    columns = fit_columns(panels, width - margin)
    characters = columns.total * sum(panel.timeline.num_ranks for panel in panels)
    if characters > MOST_CHARACTERS:
        message = f"The drawing would have {characters:,} characters; the limit is {MOST_CHARACTERS:,}."
        raise ArgumentError("value", f"{message} Draw a picture: the formats svg, html and perfetto have no columns.")
    rows = [
        [row_cells(panel, rank, columns) for rank in range(panel.timeline.num_ranks)] for panel in panels
    ]  # [panel][rank]
    bands = [_band(panels, rows, first, columns, margin, colour) for first in range(0, columns.total, columns.band)]
    captions = (fill(line, max(width, 80), subsequent_indent="  ") for line in _captions(panels, columns))
    return "\n".join(["\n\n".join(bands), *captions])


def row_cells(panel: Panel, rank: int, columns: Columns) -> list[Cell]:
    """Return the cells of one rank, up to the end of its timeline."""
    timeline = panel.timeline
    length = math.ceil(columns.column(timeline.makespan)) if columns.makespan else columns.total
    spans = drawn_spans(timeline.spans[rank])
    places = places_of(spans, timeline.start, columns)
    cells: list[Cell] = [(_IDLE, IDLE)] * max(length, places[-1][1] if places else 0)
    for (action, _, _), (first, last) in zip(spans, places):
        names = labels(panel, rank, action, columns.names_stages)
        label = next((text for text in names if len(text) <= last - first), "")
        chunk = panel.chunk_of(rank, action.stage)
        text, rest = ground(action.kind, chunk), ground(action.kind, chunk, is_label=False)
        fill = FILL.get(action.kind, "+") * (last - first - len(label))
        cells[first:last] = [*((sign, text) for sign in label), *((sign, rest) for sign in fill)]
    return cells


def paint_cells(cells: Sequence[Cell], colour: bool) -> str:
    """Return cells as text, with their colours or without."""
    if not colour:
        return "".join(map(itemgetter(0), cells))
    runs = ((code, "".join(map(itemgetter(0), run))) for code, run in groupby(cells, itemgetter(1)))
    return "".join(paint(text, code) for code, text in runs)


def draw_axis(columns: Columns, first: int, unit: str, margin: int) -> str:
    """Return the axis above a band: ``|`` marks the column where the time next to it begins."""
    scale, name = (1000.0, "ms") if unit == "s" else (1.0, unit)
    last = min(first + columns.band, columns.total)
    line = name[: margin - 1].ljust(margin)
    for time in _ticks(scale * columns.time(first), scale * columns.time(last), scale * columns.time(10)):
        at, label = margin + round(columns.column(time / scale)) - first, f"|{time:g}"
        if len(line) <= at and at + len(label) <= margin + last - first:
            line = line.ljust(at) + label + " "
    return line.rstrip()


def _ticks(start: float, end: float, least_step: float) -> Iterator[float]:
    """Yield the multiples of 1, 2 or 5 times a power of ten from ``start`` on, ``least_step`` apart or more."""
    if not 1e-300 < least_step < 1e300:
        return
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_step * (1 - 1e-9))
    for count in range(math.ceil(start / step - 1e-9), math.ceil(end / step - 1e-9)):
        yield float(f"{count * step:.12g}")


def _band(
    panels: Sequence[Panel],
    rows: Sequence[Sequence[list[Cell]]],
    first: int,
    columns: Columns,
    margin: int,
    colour: bool,
) -> str:
    """Draw one band of columns: an axis, and below it all panels that extend into the band."""
    lines, last = [], first + columns.band
    if columns.makespan and (len(panels) > 1 or columns.total > columns.band):
        lines.append(draw_axis(columns, first, panels[0].timeline.unit, margin))
    for panel, cells in zip(panels, rows):
        if first and not any(len(row) > first for row in cells):
            continue
        if len(panels) > 1:
            lines.append(" " * margin + title(panel.timeline))
        lines += [f"rank {rank}".ljust(margin) + paint_cells(row[first:last], colour) for rank, row in enumerate(cells)]
    return "\n".join(lines)


def _captions(panels: Sequence[Panel], columns: Columns) -> Iterator[str]:
    for panel in panels:
        yield caption(panel) if len(panels) > 1 else str(panel.timeline)
        if panel.timeline.note:
            yield f"({panel.timeline.note})"
    if not columns.names_stages and any(len(stages) == 2 for panel in panels for stages in panel.stages):
        yield "(lower case: the second stage of its rank)"
    if not all(_is_to_scale(panel, columns) for panel in panels):
        yield "(not to scale: actions shorter than a column take a whole one)"


def _is_to_scale(panel: Panel, columns: Columns) -> bool:
    start = panel.timeline.start
    rows = map(drawn_spans, panel.timeline.spans)
    return all(are_near(spans, places_of(spans, start, columns), start, columns) for spans in rows)
