"""A snapshot of a walk as a screen: a strip of time around the cursor, a table of the
ranks, and the messages.
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import chain

from minipipe.render.panel import Panel
from minipipe.render.stepper.description import (
    describe_diagnosis,
    describe_event,
    describe_held,
    describe_progress,
    describe_state,
    describe_transit,
)
from minipipe.render.stepper.walkthrough import (
    Activity,
    RankState,
    Snapshot,
    Walkthrough,
)
from minipipe.render.terminal import ALARM, IDLE, ground, paint
from minipipe.render.text import (
    Cell,
    action_cells,
    draw_axis,
    drawn_spans,
    legend,
    paint_cells,
    places_of,
    strip_columns,
)

_BEYOND = 14  # columns after the end, for the labels of stuck actions


class Strip:
    """Draws the part of the timeline around a snapshot: past actions are filled, future
    ones are labels alone.

    Parameters
    ----------
    walkthrough : Walkthrough
    """

    def __init__(self, walkthrough: Walkthrough) -> None:
        self.walkthrough = walkthrough
        self.panel = Panel(walkthrough.timeline)
        self.spans = [drawn_spans(row) for row in walkthrough.timeline.spans]
        # The numbers of the snapshots in which these spans begin, by rank.
        self.numbers: list[list[int]] = [[] for _ in self.spans]
        for number, event in enumerate(walkthrough.events, 1):
            if not event.action.kind.is_communication or event.end > event.start:
                self.numbers[event.rank].append(number)
        self.width = 0

    def draw(
        self, snapshot: Snapshot, width: int, ranks: range, margin: int, colour: bool
    ) -> list[str]:
        """Return the axis, the line of the cursor, and a row for each rank; the rows
        have no margin.

        Parameters
        ----------
        snapshot : Snapshot
        width : int
            Columns without the margin.
        ranks : range
            The ranks to draw.
        margin : int
            Columns before the axis and the cursor.
        colour : bool
        """
        if width != self.width:
            self.width = width
            self.columns = columns = strip_columns(self.panel, width)
            start = self.walkthrough.timeline.start
            self.places = [places_of(spans, start, columns) for spans in self.spans]
        cursor = round(self.columns.column(snapshot.time))
        length = self.columns.total
        if not self.walkthrough.is_timed:
            length += _BEYOND
        first = 0
        if length > width:
            jump = max(1, width // 2)  # the strip scrolls by half a screen at a time
            first = max(0, (cursor - width // 4) // jump * jump)
        axis = draw_axis(self.columns, first, self.walkthrough.timeline.unit, margin)
        indent = margin + min(cursor, max(0, length - 1)) - first
        lines = [axis, " " * indent + paint_cells([("v", "1")], colour)]
        for rank in ranks:
            cells = self._cells(snapshot, rank, cursor, first)
            lines.append(paint_cells(cells, colour).rstrip())
        return lines

    def _cells(
        self, snapshot: Snapshot, rank: int, cursor: int, first: int
    ) -> list[Cell]:
        num_past = min(max(0, cursor - first), self.width)
        cells: list[Cell] = [("·", IDLE)] * num_past
        cells += [(" ", "")] * (self.width - num_past)
        places = self.places[rank]
        first_visible = max(0, bisect_left(places, (first, 0)) - 1)
        for at in range(first_visible, len(places)):
            begin, end = places[at]
            if begin >= first + self.width:
                break
            action = self.spans[rank][at].action
            has_begun = self.numbers[rank][at] <= snapshot.number
            length = end - begin
            drawn = action_cells(
                self.panel, rank, action, length, self.columns, has_begun
            )
            visible = drawn[max(0, first - begin) :]
            left = max(0, begin - first)
            cells[left : left + len(visible)] = visible
        state = snapshot.ranks[rank]
        if state.action is not None and state.until is None:  # it waits forever
            sign = [(letter, ALARM) for letter in f"{state.action}!"]
            cells[cursor - first : cursor - first + len(sign)] = sign
        return cells[: self.width]


_BOLD = "1"
_WIDEST_ENTRY = 48  # of the legend, in columns
LEAST_SIZE = (39, 12)  # columns and lines


class Frame:
    """Draws the snapshots of one walk for a terminal of any size.

    Parameters
    ----------
    walkthrough : Walkthrough
    colour : bool

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> print("\\n".join(Frame(walkthrough).draw(walkthrough[3], 70, 13)))
    gpipe: 2 ranks, 2 stages, 1 microbatch  step 3 of 4, time 2 of 6 units
    rank 1 begins 1B0: backward of microbatch 0 on stage 1
    <BLANKLINE>
    units  |0        |2        |4
                     v
    rank 0 F0---·····          B0
    rank 1>·····F0---B0========
    <BLANKLINE>
           now                              next         holds
    rank 0 waits for 1B0 on rank 1 until 4  0B0          1 (0)
    rank 1>1B0 until 4                                   1 (0)
    <BLANKLINE>
    no message in flight
    """

    def __init__(self, walkthrough: Walkthrough, colour: bool = False) -> None:
        self.walkthrough = walkthrough
        self.colour = colour
        self.name = walkthrough.schedule.describe()
        self.strip = Strip(walkthrough)
        self.num_ranks = walkthrough.program.num_ranks
        self.margin = len(f"rank {self.num_ranks - 1} ")
        actions = chain(*walkthrough.program.actions)
        self.label_width = max((len(str(action)) for action in actions), default=0)

    def draw(
        self, snapshot: Snapshot, width: int, height: int, focus: int | None = None
    ) -> list[str]:
        """Return the lines of the screen.

        Parameters
        ----------
        snapshot : Snapshot
        width, height : int
            In columns and lines, at least ``LEAST_SIZE``. If not everything fits, the
            ranks far from the focus are left out first.
        focus : int, optional
            The rank that stays visible if not all fit; by default the rank of the
            action that has just begun.
        """
        is_last = snapshot.number == len(self.walkthrough) - 1
        head = self._head(snapshot, width)
        # Besides two lines for each rank: the axis, the cursor, the table's head, and
        # at least two lines of notes.
        visible = min(self.num_ranks, max(1, (height - len(head) - 5) // 2))
        blanks: list[str] = []
        if height >= len(head) + 2 * visible + 7:
            blanks = [""]
        ranks = self._visible(snapshot, visible, focus)
        strip = self._strip(snapshot, ranks, width)
        table = self._table(snapshot, ranks, width)
        lines = [*head, *blanks, *strip, *blanks, *table, *blanks]
        if is_last:
            lines += self._diagnosis(width)
        else:
            lines += self._messages(snapshot, width, height - len(lines))
        key = ["", *legend([self.strip.panel], self.strip.columns, width, self.colour)]
        if len(lines) + len(key) <= height and width >= _WIDEST_ENTRY:
            lines += key
        return lines[:height]

    # -- head and notes ----------------------------------------------------------------

    def _head(self, snapshot: Snapshot, width: int) -> list[str]:
        place = describe_progress(self.walkthrough, snapshot)
        names = [self.name, self.walkthrough.schedule.name]
        name = fitted(names, width - len(place) - 2)
        event = fitted([describe_event(self.walkthrough, snapshot)], width)
        title = fitted([name.ljust(width - len(place)) + place, place], width)
        lines = [title, self._painted(event, _BOLD)]
        is_last = snapshot.number == len(self.walkthrough) - 1
        if not (self.walkthrough.is_legal or is_last):
            problem = self.walkthrough.problems[0]
            text = fitted([f"[{problem.code}] {problem.message}"], width)
            lines.append(self._painted(text, ALARM))
        return lines

    def _messages(self, snapshot: Snapshot, width: int, height: int) -> list[str]:
        describe = partial(describe_transit, self.walkthrough, snapshot)
        lines = list(map(describe, snapshot.messages))
        if not lines:
            return ["no message in flight"]
        if len(lines) > height:
            kept = max(0, height - 1)
            lines[kept:] = [f"and {len(lines) - kept} more messages"]
        return [fitted([line], width) for line in lines]

    def _diagnosis(self, width: int) -> list[str]:
        code = _BOLD if self.walkthrough.is_legal else ALARM
        first, *others = describe_diagnosis(self.walkthrough)
        parts = [self._painted(part, code) for part in textwrap.wrap(first, width)]
        for line in others:
            parts += textwrap.wrap(line, width)
        return parts

    def _painted(self, text: str, code: str) -> str:
        if not self.colour:
            return text
        return paint(text, code)

    def _visible(self, snapshot: Snapshot, count: int, focus: int | None) -> range:
        """Return the visible ranks, if possible with the focus in their middle."""
        if focus is None and snapshot.event:
            focus = snapshot.event.rank
        first = max(0, min((focus or 0) - count // 2, self.num_ranks - count))
        return range(first, first + count)

    def _label(self, rank: int, snapshot: Snapshot) -> str:
        is_event = snapshot.event is not None and snapshot.event.rank == rank
        label = f"rank {rank}".ljust(self.margin - 1)
        if is_event:
            return self._painted(f"{label}>", _BOLD)
        return f"{label} "

    def _strip(self, snapshot: Snapshot, ranks: range, width: int) -> list[str]:
        axis, marker, *rows = self.strip.draw(
            snapshot, width - self.margin, ranks, self.margin, self.colour
        )
        labels = (self._label(rank, snapshot) for rank in ranks)
        return [axis, marker, *map("".join, zip(labels, rows))]

    # -- the table ---------------------------------------------------------------------

    def _table(self, snapshot: Snapshot, ranks: range, width: int) -> list[str]:
        width -= self.margin
        coming = min(3 * (self.label_width + 1), width // 4)
        held = width // 3 - 4
        now = width - coming - held - 3
        head = "now"
        if len(ranks) < self.num_ranks:
            head = f"ranks {ranks[0]} to {ranks[-1]} of {self.num_ranks}: now"
        head = head.ljust(now) + "  " + "next".ljust(coming) + " holds"
        lines = [" " * self.margin + fitted([head], width)]
        for rank in ranks:
            state = snapshot.ranks[rank]
            about = fitted(describe_state(self.walkthrough, snapshot, rank), now)
            following = fitted(self._coming(rank, state), coming)
            holding = ""
            if state.held:
                text = describe_held(self.walkthrough, rank, state)
                holding = fitted([text], held)
            gap = " " * (now - len(about) + 2)
            cells = self._coloured(rank, state, about) + gap
            cells += following.ljust(coming + 1)
            lines.append((self._label(rank, snapshot) + cells + holding).rstrip())
        return lines

    def _coming(self, rank: int, state: RankState) -> list[str]:
        """Return the next actions of a rank in several lengths: three, two and one."""
        first = state.position + (state.activity is Activity.RUNS)
        row = self.walkthrough.program.actions[rank]
        coming = list(map(str, row[first : first + 3]))
        return [" ".join(coming[:count]) for count in (3, 2, 1)]

    def _coloured(self, rank: int, state: RankState, text: str) -> str:
        if state.activity is Activity.STUCK:
            return self._painted(text, ALARM)
        if state.activity is Activity.RUNS and state.action is not None:
            length = len(str(state.action))
            chunk = self.strip.panel.chunk_of(rank, state.action)
            colours = ground(state.action.kind, chunk)
            return self._painted(text[:length], colours) + text[length:]
        return text


def fitted(texts: Sequence[str], width: int) -> str:
    """Return the first text that fits, or the last one truncated."""
    for text in texts:
        if len(text) <= width:
            return text
    return texts[-1][: max(0, width - 1)] + "…"
