"""The grid of a walk: one long strip of time, scrolled to the part around the cursor."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, floor

from minipipe.render.columns import Columns, drawn_spans, fit_columns, label_width, labels, places_of, shortest_time
from minipipe.render.panel import Panel
from minipipe.render.stepper.snapshot import Snapshot
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.render.terminal import ALARM, IDLE, ground
from minipipe.render.text import FILL, Cell, draw_axis, paint_cells

_BEYOND = 14  # columns after the end, for the labels of stuck actions
_MOST_COLUMNS = (
    12  # for each action of the longest row, so that one short action cannot stretch the strip without limit
)


class Grid:
    """Draws the part of the grid around a snapshot: past actions are filled, future ones are labels alone.

    Parameters
    ----------
    walkthrough : Walkthrough
    """

    def __init__(self, walkthrough: Walkthrough) -> None:
        self.walkthrough = walkthrough
        self.panel = Panel(walkthrough.timeline)
        self.spans = [drawn_spans(row) for row in walkthrough.timeline.spans]
        self.numbers: list[list[int]] = [[] for _ in self.spans]  # the snapshot in which each of them begins
        for number, event in enumerate(walkthrough.events, 1):
            if not event.action.kind.is_communication or event.end > event.start:
                self.numbers[event.rank].append(number)
        self.room = 0

    def draw(self, snapshot: Snapshot, room: int, ranks: range, margin: int, colour: bool) -> list[str]:
        """Return the axis, the line of the cursor, and a row for each rank; the rows have no margin.

        Parameters
        ----------
        snapshot : Snapshot
        room : int
            Columns without the margin.
        ranks : range
            The ranks to draw.
        margin : int
            Columns before the axis and the cursor.
        colour : bool
        """
        if room != self.room:
            self.room, self.columns = room, self._lay_out(room)
            start = self.walkthrough.timeline.start
            self.places = [places_of(spans, start, self.columns) for spans in self.spans]
        cursor = round(self.columns.column(snapshot.time))
        length = self.columns.total + (0 if self.walkthrough.is_timed else _BEYOND)
        jump = max(1, room // 2)  # the strip scrolls by half a screen at a time
        first = 0 if length <= room else max(0, (cursor - room // 4) // jump * jump)
        axis = draw_axis(self.columns, first, self.walkthrough.timeline.unit, margin)
        marker = " " * (margin + min(cursor, max(0, length - 1)) - first) + paint_cells([("v", "1")], colour)
        rows = [paint_cells(self._cells(snapshot, rank, cursor, first), colour).rstrip() for rank in ranks]
        return [axis, marker, *rows]

    def _lay_out(self, room: int) -> Columns:
        """Choose one screen for everything if that fits, otherwise columns for the label of every action."""
        fitting = fit_columns([self.panel], room)
        if fitting.total <= room:
            return fitting._replace(band=room)
        each = (label_width([self.panel], names_stages=True) + 1) / shortest_time([self.panel])
        most = (_MOST_COLUMNS * max(map(len, self.spans)) + room) / fitting.makespan
        if fitting.makespan.is_integer():  # whole columns per unit, unless there is less than one
            each, most = ceil(each), floor(most) or most
        total = min(each, most) * fitting.makespan
        return Columns(fitting.makespan, max(ceil(total), fitting.total), room)

    def _cells(self, snapshot: Snapshot, rank: int, cursor: int, first: int) -> list[Cell]:
        cells: list[Cell] = [("·", IDLE) if first + at < cursor else (" ", "") for at in range(self.room)]
        places = self.places[rank]
        for at in range(max(0, bisect_left(places, (first, 0)) - 1), len(places)):
            begin, end = places[at]
            if begin >= first + self.room:
                break
            drawn = self._action(rank, at, end - begin, self.numbers[rank][at] <= snapshot.number)
            visible = drawn[max(0, first - begin) :]
            left = max(0, begin - first)
            cells[left : left + len(visible)] = visible
        state = snapshot.ranks[rank]
        if state.action is not None and state.until is None:  # it waits for ever
            sign = [(letter, ALARM) for letter in f"{state.action}!"]
            cells[cursor - first : cursor - first + len(sign)] = sign
        return cells[: self.room]

    def _action(self, rank: int, at: int, length: int, has_begun: bool) -> list[Cell]:
        action = self.spans[rank][at].action
        names = labels(self.panel, rank, action, self.columns.names_stages)
        label = next((text for text in names if len(text) <= length), "")
        if not has_begun:
            return [(letter, IDLE) for letter in label] + [(" ", "")] * (length - len(label))
        chunk = self.panel.chunk_of(rank, action.stage)
        text, rest = ground(action.kind, chunk), ground(action.kind, chunk, is_label=False)
        return [(letter, text) for letter in label] + [(FILL.get(action.kind, "+"), rest)] * (length - len(label))
