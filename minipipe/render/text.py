"""Timelines as text: a row for each rank, time from left to right in columns of
characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.specs import TEXT_WIDTH
from minipipe.errors import ArgumentError
from minipipe.io import MOST_CHARACTERS
from minipipe.render.descriptions import entries_of, figures, title
from minipipe.render.panel import Panel, panels_of, side_by_side
from minipipe.render.terminal import IDLE, ground, paint
from minipipe.render.units import round_step, scale_of
from minipipe.schedules import Action, ActionKind, Span, Timeline

# The most bands: with space between labels, and before labels shrink to letters.
_FEW_BANDS = 4
_MANY_BANDS = 6
_MOST_COLUMNS = 5  # per unit: more would only stretch the drawing
# Columns for each action of the longest row of a strip that scrolls: one short action
# cannot stretch it without limit.
_MOST_OF_ACTION = 12
_LETTERS = {
    ActionKind.SEND_F: "S",
    ActionKind.SEND_B: "S",
    ActionKind.RECV_F: "R",
    ActionKind.RECV_B: "R",
}


class Columns(NamedTuple):
    """The layout of time in columns.

    Attributes
    ----------
    makespan : float
        The longest makespan of the drawing.
    total, band : int
        The columns of the whole makespan, and the columns of one band. Further bands
        are drawn below.
    names_stages : bool
        Whether labels name the stage on ranks with several stages. Otherwise lower case
        marks the second of two stages.
    """

    makespan: float
    total: int
    band: int
    names_stages: bool = True

    def column(self, time: float) -> float:
        """Return the column of a time since the first start."""
        if not self.makespan:
            return 0.0
        return time / self.makespan * self.total

    def time(self, column: int) -> float:
        """Return the time since the first start at which a column begins."""
        return column / self.total * self.makespan


def drawn_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of a rank without sends and receives of no duration; overlapped
    ones side by side.
    """
    visible = (
        span
        for span in spans
        if not span.action.kind.is_communication or span.end > span.start
    )
    return side_by_side(list(visible))


def labels(panel: Panel, rank: int, action: Action, names_stages: bool) -> list[str]:
    """Return the possible labels of an action, the longest first: ``2F3``, ``F3``,
    ``F``; ``f3``, ``f`` on chunk 1.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> panel = Panel(simulate(schedules.zb_v(2, 3)))
    >>> (
    ...     labels(panel, 0, Action.parse("3F1"), names_stages=True),
    ...     labels(panel, 0, Action.parse("3F1"), False),
    ... )
    (['3F1', 'f1', 'f'], ['f1', 'f'])
    """
    name = action.kind.value
    if action.kind.is_of_rank:
        return [name]
    letters = dict.fromkeys((name, name[0]))
    short = [f"{letter}{action.microbatch}" for letter in letters]
    short.append(name[0])
    if not panel.names_stage(rank):
        return short
    if len(panel.stages[rank]) == 2 and panel.chunk_of(rank, action) == 1:
        short = [label.lower() for label in short]
    if names_stages:
        return [f"{action.stage}{action.kind}{action.microbatch}", *short]
    return short


def fit_columns(panels: Sequence[Panel], width: int) -> Columns:
    """Choose the columns of the longest makespan and of one band.

    If all labels fit into one band, there is one band. Otherwise there are a few, with
    the longest labels that fit. If none fit, all but the shortest actions get at least
    one column. Integral times get a whole number of columns per unit.
    """
    makespan = max(panel.timeline.makespan for panel in panels)
    if not makespan:
        return Columns(makespan, width, width)
    # The action of a slice takes a fraction of a unit.
    per_unit = math.lcm(*(panel.num_slices for panel in panels))
    if not _are_whole(panels, per_unit) or makespan * per_unit > _MANY_BANDS * width:
        columns = _of_any_times(panels, makespan, width)
    else:
        columns = _of_whole_units(panels, makespan, width, per_unit)
    rows = (row for panel in panels for row in panel.timeline.spans)
    longest = max(len(drawn_spans(row)) for row in rows)
    # Not to scale: every action gets a column.
    if columns is None or columns.total < longest:
        bands = max(_FEW_BANDS, math.ceil(longest / width))
        return Columns(makespan, width * bands, width)
    return columns


def strip_columns(panel: Panel, width: int) -> Columns:
    """Choose the columns of a strip that scrolls: one screen for everything if that
    fits, otherwise columns for the label of every action.
    """
    fitting = fit_columns([panel], width)
    if fitting.total <= width:
        return fitting._replace(band=width)
    widest = label_width([panel], names_stages=True) + 1
    each = widest / shortest_time([panel])
    longest = max(len(drawn_spans(row)) for row in panel.timeline.spans)
    most = (_MOST_OF_ACTION * longest + width) / fitting.makespan
    # A whole number of columns per unit, unless that is less than one.
    if fitting.makespan.is_integer():
        each = math.ceil(each)
        most = math.floor(most) or most
    total = min(each, most) * fitting.makespan
    return Columns(fitting.makespan, max(math.ceil(total), fitting.total), width)


def places_of(
    spans: Sequence[Span], start: float, columns: Columns
) -> list[tuple[int, int]]:
    """Return the columns of each span: from its rounded start to its rounded end, at
    least one column if it fits.

    A span that would be invisible pushes its neighbours to the right or, at the edge,
    to the left.
    """
    if not columns.makespan or not spans:
        return [(0, 0)] * len(spans)
    places = []
    taken = 0
    for _, begin, end in spans:
        first = max(taken, round(columns.column(begin - start)))
        taken = max(first + 1, round(columns.column(end - start)))
        places.append((first, taken))
    end = math.ceil(columns.column(spans[-1].end - start))
    limit = min(columns.total, max(end, len(spans)))
    for i in range(len(places) - 1, -1, -1):
        first, last = places[i]
        last = min(last, limit)
        first = max(0, min(first, last - 1))
        places[i] = (first, max(first, last))
        limit = first
    return places


def are_near(spans: Sequence[Span], start: float, columns: Columns) -> bool:
    """Return whether the columns of spans are nearly to scale: positions and lengths
    within a thirtieth of the total.
    """
    places = places_of(spans, start, columns)
    tolerance = max(2, columns.total // 30)
    drifts = (
        abs(first - columns.column(span.start - start))
        for span, (first, _) in zip(spans, places)
    )
    drift = max(drifts, default=0)
    drawn = sum(last - first for first, last in places)
    length = columns.column(sum(span.end - span.start for span in spans))
    return drift <= tolerance and abs(drawn - length) <= tolerance


def label_width(panels: Sequence[Panel], names_stages: bool) -> int:
    """Return the width of the longest label of a computation, plus a space before a
    label that begins with a digit.
    """
    widest = 1
    for panel in panels:
        for rank, row in enumerate(panel.timeline.spans):
            space = names_stages and panel.names_stage(rank)
            for action, _, _ in row:
                if not (action.kind.is_communication or action.kind.is_of_rank):
                    label = labels(panel, rank, action, names_stages)[0]
                    widest = max(widest, len(label) + space)
    return widest


def shortest_time(panels: Sequence[Panel]) -> float:
    """Return the tenth percentile of the durations, so that a single short action does
    not stretch the drawing.
    """
    spans = (span for panel in panels for row in panel.timeline.spans for span in row)
    times = sorted(end - start for _, start, end in spans if end > start)
    if not times:
        return 1.0
    return times[len(times) // 10]


def _of_whole_units(
    panels: Sequence[Panel], makespan: float, width: int, per_unit: int
) -> Columns:
    """Lay out times that are multiples of a fraction of a unit, each fraction with a
    whole number of columns.

    Bands have nearly equal length.
    """
    units = int(makespan * per_unit)
    shortest = max(1, int(shortest_time(panels) * per_unit))
    most = min(_MOST_COLUMNS, width // units)
    names = label_width(panels, True)
    short = label_width(panels, False)
    if most * shortest >= names:
        return Columns(makespan, units * most, width)
    # Upper and lower case distinguish two stages, and no more.
    has_letters = max(len(stages) for panel in panels for stages in panel.stages) <= 2
    for most_bands, label, names_stages in (
        (_FEW_BANDS, max(names, short + 1), True),
        (_FEW_BANDS * has_letters, short, False),
        (_MANY_BANDS, names, True),
        (_MANY_BANDS, short + 1, False),
        (_MANY_BANDS, short, False),
    ):
        each = math.ceil(label / shortest)
        bands = math.ceil(units / (width // each))
        if bands <= most_bands:
            band = _even(units, bands, width // each) * each
            return Columns(makespan, units * each, band, names_stages)
    each = max(1, _FEW_BANDS * width // units)
    return Columns(makespan, units * each, width // each * each, names_stages=False)


def _even(units: int, bands: int, most: int) -> int:
    """Return the units of a band: as few as the number of bands allows, in multiples of
    five if they fit.
    """
    least = math.ceil(units / bands)
    fives = 5 * math.ceil(least / 5)
    return fives if fives <= most else least


def _of_any_times(
    panels: Sequence[Panel], makespan: float, width: int
) -> Columns | None:
    names = label_width(panels, True)
    short = label_width(panels, False)
    ratio = makespan / shortest_time(panels)  # may be infinite
    for label, names_stages, most_bands in (
        (names, True, 1),
        (short, False, 1),
        (names, True, _FEW_BANDS),
        (short, False, _MANY_BANDS),
        (1, False, _FEW_BANDS),
    ):
        bands = label * ratio / width
        if bands <= most_bands:
            total = width * max(1, math.ceil(bands))
            return Columns(makespan, total, width, names_stages)
    return None


def _are_whole(panels: Sequence[Panel], per_unit: int) -> bool:
    for panel in panels:
        begin = panel.timeline.start
        times = chain(*(span[1:] for span in chain(*panel.timeline.spans)))
        if not all(float((time - begin) * per_unit).is_integer() for time in times):
            return False
    return True


_IDLE = "·"
# The fill characters after an action's label, which distinguish the kinds at a glance.
FILL = {
    ActionKind.FORWARD: "-",
    ActionKind.BACKWARD: "=",
    ActionKind.BACKWARD_INPUT: "=",
    ActionKind.BACKWARD_WEIGHT: "~",
    ActionKind.UPDATE: "#",
    ActionKind.RECOMPUTE: ":",
    ActionKind.OFFLOAD: ">",
    ActionKind.LOAD: "<",
    ActionKind.REDUCE_GRAD: "%",
}
# The names of the lanes below a rank.
_BESIDE = {
    ActionKind.REDUCE_GRAD: "sum",
    ActionKind.OFFLOAD: "out",
    ActionKind.LOAD: "in",
}
Cell = tuple[str, str]  # a character and its colours
_EMPTY: Cell = (" ", "")


def draw_text(
    *drawn: ActionTable | Timeline, width: int = 80, colour: bool = False
) -> str:
    """Draw schedules (F, I and W one unit each) or timelines as text, above each other
    on a common time axis.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        Each is drawn from its own start, so that equal columns are equal times.
    width : int
        The largest width of a row, in columns; at least 40. Longer rows continue in a
        band below. Captions wrap at 80 columns, or at the width if that is larger.
    colour : bool
        Whether to add terminal colours, one for each kind of action, a shade darker for
        each further stage of a rank. :func:`minipipe.render.has_colour` checks that a
        terminal supports them. The characters stay the same.

    Returns
    -------
    str
        A row for each rank, then a legend and a caption. An action begins with as much
        of its label as fits: ``F3``, or ``2F3`` if its rank has several stages. If
        stages do not fit, lower case marks the second of two stages, ``f3``. ``-``
        fills a forward, ``=`` a backward, ``~`` a weight gradient, ``#`` an update,
        ``:`` an R, ``+`` a send that blocks, and ``·`` is idle time. ``F3-&B1=`` are an
        overlapped forward and backward, each in half of their time. Several bands, or
        several drawings, have an axis above them; its ``|`` marks the column at which
        the time next to it begins. Below a rank, ``%`` is a gradient all-reduce, while
        the rank continues.

    Raises
    ------
    ArgumentError
        Codes of :func:`minipipe.render.panel.panels_of`; code ``value`` if the width is
        less than 40, or if there would be more characters than ``MOST_CHARACTERS``.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(draw_text(schedules.gpipe(2, 2), width=60))
    rank 0 F0---F1---···············B0========B1========
    rank 1 ·····F0---F1---B0========B1========··········
    F- forward, B= backward, · idle, F3: microbatch 3
    gpipe: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    >>> print(draw_text(schedules.gpipe(2, 2), schedules.one_f_one_b(2, 1), width=60))
    units  |0        |2        |4        |6        |8
           gpipe, predicted
    rank 0 F0---F1---···············B0========B1========
    rank 1 ·····F0---F1---B0========B1========··········
           1f1b, predicted
    rank 0 F0---···············B0========
    rank 1 ·····F0---B0========··········
    F- forward, B= backward, · idle, F3: microbatch 3
    gpipe, predicted: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    1f1b, predicted: makespan 6 units, bubble 50.0 %, peak activations by rank 1, 1
    """
    panels = panels_of(drawn)
    TEXT_WIDTH.check("width", width)
    num_ranks = max(panel.timeline.num_ranks for panel in panels)
    margin = len(f"rank {num_ranks - 1} ")
    columns = fit_columns(panels, width - margin)
    characters = columns.total * sum(panel.timeline.num_ranks for panel in panels)
    if characters > MOST_CHARACTERS:
        drawing = f"The drawing would have {characters:,} characters"
        message = f"{drawing}; the limit is {MOST_CHARACTERS:,}."
        problem = f"{message} Choose the format svg, html or perfetto"
        raise ArgumentError(f"{problem}, which have no columns.")
    bands = _bands(panels, columns, margin, colour)
    captions = (_filled(line, max(width, 80)) for line in _captions(panels, columns))
    key = legend(panels, columns, max(width, 80), colour)
    return "\n".join(["\n\n".join(bands), *key, *captions])


def _filled(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    from textwrap import fill  # on demand: most captions are short

    return fill(line, width, subsequent_indent="  ")


def _named_rows(panel: Panel, columns: Columns) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the name and the cells of each rank, followed by its gradient all-reduces
    and its copies.
    """
    for rank in range(panel.timeline.num_ranks):
        yield f"rank {rank}", row_cells(panel, rank, columns)
        lanes: dict[ActionKind, list[Cell]] = {}
        for action, start, end, _ in panel.beside(rank):
            cells = lanes.setdefault(action.kind, [])
            first = round(columns.column(start - panel.timeline.start))
            last = round(columns.column(end - panel.timeline.start))
            cells += [_EMPTY] * (last - len(cells))
            cells[first:last] = action_cells(panel, rank, action, last - first, columns)
        for kind, cells in lanes.items():
            yield f"  {_BESIDE.get(kind, kind.lower()[:4])}", cells


def row_cells(panel: Panel, rank: int, columns: Columns) -> list[Cell]:
    """Return the cells of one rank, up to the end of its timeline."""
    timeline = panel.timeline
    length = columns.total
    if columns.makespan:
        length = math.ceil(columns.column(timeline.makespan))
    spans = drawn_spans(timeline.spans[rank])
    places = places_of(spans, timeline.start, columns)
    if places:
        length = max(length, places[-1][1])
    cells: list[Cell] = [(_IDLE, IDLE)] * length
    for span, (first, last) in zip(spans, places):
        cells[first:last] = action_cells(
            panel, rank, span.action, last - first, columns
        )
    return cells


def action_cells(
    panel: Panel,
    rank: int,
    action: Action,
    length: int,
    columns: Columns,
    has_begun: bool = True,
) -> list[Cell]:
    """Return the cells of an action: as much of its label as fits, and its fill; for a
    future action, only the label.

    The forward of an overlapped pair ends in ``&``. A gradient all-reduce has a lane
    with a name, and no label.
    """
    mark = ""
    if action.kind is ActionKind.FORWARD and action in panel.overlapped and length > 1:
        mark = "&"
    texts = labels(panel, rank, action, columns.names_stages)
    if action.kind is ActionKind.REDUCE_GRAD:
        texts = []
    label = next((text for text in texts if len(text + mark) <= length), "")
    rest = length - len(label + mark)
    if not has_begun:
        grey = [(letter, IDLE) for letter in label]
        grey += [_EMPTY] * rest
        return grey + [(letter, IDLE) for letter in mark]
    chunk = panel.chunk_of(rank, action)
    text = ground(action.kind, chunk)
    fill = ground(action.kind, chunk, is_label=False)
    filling = _filling(action.kind) * rest + mark
    return [(letter, text) for letter in label] + [(letter, fill) for letter in filling]


def _filling(kind: ActionKind) -> str:
    if kind in FILL:
        return FILL[kind]
    return "+" if kind.is_communication else "*"


def legend(
    panels: Sequence[Panel], columns: Columns, width: int, colour: bool
) -> list[str]:
    """Return the meanings of the letters, fills and numbers of a drawing, in lines of
    at most ``width`` columns.

    Examples
    --------
    >>> from minipipe import schedules
    >>> panels = panels_of([schedules.zb_h1(2, 2)])
    >>> legend(panels, fit_columns(panels, 60), 60, colour=False)
    ['F- forward, I= backward of the inputs,', 'W~ backward of the weights, · idle, F3: microbatch 3']
    """
    rows = (row for panel in panels for row in panel.timeline.spans)
    drawn = {span.action.kind for row in rows for span in drawn_spans(row)}
    drawn |= {kind for panel in panels for kind in panel.kinds_beside()}
    entries: list[tuple[list[Cell], str]] = []
    for (first, *others), text in entries_of(drawn):
        if first.is_of_rank:
            text += f": {first}"
        entries.append(([*_sample(first)], f" {text}"))
        entries += (([], str(kind)) for kind in others)
    entries += [([(_IDLE, IDLE)], " idle"), ([], _numbers(panels, columns))]
    lines: list[list[str]] = [[]]
    length = 0
    for cells, text in entries:
        size = len(cells) + len(text) + 2  # with a comma and a space
        if length + size > width:
            lines.append([])
            length = 0
        lines[-1].append(f"{paint_cells(cells, colour)}{text}")
        length += size
    return ",\n".join(map(", ".join, lines)).split("\n")


def _sample(kind: ActionKind) -> Iterator[Cell]:
    """Yield how an action of a kind is drawn: its letter and its fill, or the fill of
    its lane below the actions.
    """
    if kind is not ActionKind.REDUCE_GRAD and not kind.is_of_rank:
        yield _LETTERS.get(kind, kind.value), ground(kind, 0)
    yield _filling(kind), ground(kind, 0, is_label=False)


def _numbers(panels: Sequence[Panel], columns: Columns) -> str:
    """Return the meanings of the numbers of a label."""
    label = "F3"
    meaning = "microbatch 3"
    if columns.names_stages and any(panel.has_several_stages for panel in panels):
        label = f"2{label}"
        meaning = f"stage 2, {meaning}"
    if any(panel.num_slices > 1 for panel in panels):
        label = f"{label}.1"
        meaning = f"{meaning}, slice 1"
    return f"{label}: {meaning}"


def paint_cells(cells: Sequence[Cell], colour: bool) -> str:
    """Return cells as text, with their colours or without."""
    if not colour:
        return "".join(map(itemgetter(0), cells))
    painted = []
    for code, run in groupby(cells, itemgetter(1)):
        painted.append(paint("".join(map(itemgetter(0), run)), code))
    return "".join(painted)


def draw_axis(columns: Columns, first: int, unit: str, margin: int) -> str:
    """Return the axis above a band: ``|`` marks the column at which the time next to it
    begins.
    """
    scale, name = scale_of(unit)
    last = min(first + columns.band, columns.total)
    line = name[: margin - 1].ljust(margin)
    ends = (scale * columns.time(column) for column in (first, last, 10))
    for time in _ticks(*ends):
        at = margin + round(columns.column(time / scale)) - first
        label = f"|{time:g}"
        if len(line) <= at and at + len(label) <= margin + last - first:
            line = line.ljust(at) + label + " "
    return line.rstrip()


def _ticks(start: float, end: float, least_step: float) -> Iterator[float]:
    """Yield the multiples of 1, 2 or 5 times a power of ten from ``start`` on,
    ``least_step`` apart or more.
    """
    if not 1e-300 < least_step < 1e300:
        return
    step = round_step(least_step)
    first = math.ceil(start / step - 1e-9)
    last = math.ceil(end / step - 1e-9)
    for count in range(first, last):
        yield float(f"{count * step:.12g}")


def _bands(
    panels: Sequence[Panel], columns: Columns, margin: int, colour: bool
) -> Iterator[str]:
    """Draw the bands of columns: in each an axis, and below it all panels that extend
    into the band.
    """
    rows = [list(_named_rows(panel, columns)) for panel in panels]
    for first in range(0, columns.total, columns.band):
        lines = []
        last = first + columns.band
        if columns.makespan and (len(panels) > 1 or columns.total > columns.band):
            lines.append(draw_axis(columns, first, panels[0].timeline.unit, margin))
        for panel, named in zip(panels, rows):
            if first and not any(len(row) > first for _, row in named):
                continue
            if len(panels) > 1:
                lines.append(" " * margin + title(panel.timeline))
            for name, row in named:
                cells = row[first:last]
                if name.startswith("rank") or any(cell != _EMPTY for cell in cells):
                    lines.append(name.ljust(margin) + paint_cells(cells, colour))
        yield "\n".join(lines)


def _captions(panels: Sequence[Panel], columns: Columns) -> Iterator[str]:
    for panel in panels:
        name = panel.timeline.name
        if len(panels) > 1:
            name = title(panel.timeline)
        yield f"{name}: {figures(panel)}"
        if panel.timeline.note:
            yield f"({panel.timeline.note})"
    counts = {len(stages) for panel in panels for stages in panel.stages}
    if not columns.names_stages and 2 in counts:
        has_replicas = any(panel.has_replicas for panel in panels)
        replica = ", or its replica of later microbatches" * has_replicas
        yield f"(lower case: the second stage of its rank{replica})"
    if any(panel.overlapped for panel in panels):
        yield "(&: a forward and a backward overlap, each drawn in half of their time)"
    if not all(_is_to_scale(panel, columns) for panel in panels):
        yield "(not to scale: an action shorter than one column fills it)"


def _is_to_scale(panel: Panel, columns: Columns) -> bool:
    start = panel.timeline.start
    rows = map(drawn_spans, panel.timeline.spans)
    return all(are_near(spans, start, columns) for spans in rows)
