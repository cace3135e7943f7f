"""Timelines as a picture: one self-contained SVG file for papers, slides and
notebooks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, starmap

from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.specs import Spec
from minipipe.io import MOST_PIXELS, note_lines
from minipipe.render.descriptions import (
    box_entries,
    caption,
    figures,
    held_label,
    message_entries,
)
from minipipe.render.descriptions import title as title_of
from minipipe.render.layout import Axis, number
from minipipe.render.panel import Panel, panels_of
from minipipe.render.svg.captions import cause, heading, panel_title, unit_note
from minipipe.render.svg.elements import group, moved, path, path_data
from minipipe.render.svg.labels import Labels
from minipipe.render.svg.lanes import Lane, LaneSize, Strip, strip_of, versions_of
from minipipe.render.svg.legend import Entry, Legend, draw_messages
from minipipe.render.svg.motion import Motion, idle_label
from minipipe.render.svg.style import BASELINE, DEFAULT_SIZE, Letters, Page, paint
from minipipe.render.units import scale_of
from minipipe.schedules import IdleCause, Timeline

_LEAST_WIDTH = 20  # times the font size
_PIXELS = "a number of pixels, at least 1"
_FONT_SIZE = Spec(float, minimum=1, below=MOST_PIXELS, expected=_PIXELS)


def draw_svg(
    *drawn: ActionTable | Timeline,
    messages: bool = False,
    memory: bool = True,
    width: int = 960,
    title: str | None = None,
    notes: Sequence[str] = (),
    legend: bool = True,
    font_size: float = DEFAULT_SIZE,
    animated: bool = False,
) -> str:
    """Draw schedules (F, I and W one unit each) and timelines as SVG, above each other
    on one axis of time.

    Each begins at its own start, so that a predicted and a measured timeline can be
    compared by eye.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        All in one unit of time.
    messages : bool
        Whether to draw an arrow for each message, from its send to its arrival.
    memory : bool
        Whether to draw a strip under each rank: the bytes that it holds, if the
        timeline has them, and otherwise the number of (stage, microbatch) pairs. Strips
        of the same quantity share one scale.
    width : int
        In pixels; at least 20 times the font size. A page may scale the picture.
    title : str, optional
        A line above everything. By default there is none, and screen readers announce
        the names of the timelines.
    notes : sequence of str
        Lines under the title, such as the machine and the date of a measurement.
    legend : bool
        Whether to explain colours, hatching and lines at the lower edge.
    font_size : float
        The font size of captions, in pixels. All other text, the heights of the lanes
        and the legend scale with it; the width does not.
    animated : bool
        Whether the actions appear one after another, in a loop of 12 seconds that
        begins with the finished drawing; beside each rank is its idle time until then.
        A title and captions explain the units and the backward. Viewers that do not
        animate, and readers who prefer reduced motion, see the end.

    Returns
    -------
    str
        An SVG document without scripts or references, for light and dark backgrounds.
        Boxes have tooltips, and labels if these fit. Converters without style sheets
        show the light drawing.

    Raises
    ------
    ArgumentError
        Code ``type``: for anything but schedules and timelines, and for ``notes`` that
        are one string. Code ``value``: if there is nothing to draw, units differ, or
        the width or the font size is out of range.
    ScheduleError
        Code ``deadlock``, if a schedule cannot run to its end.

    Notes
    -----
    Details too small to be seen are merged, which keeps files small. Actions narrower
    than three pixels join their neighbours, twelve or more in a run, in which the
    height of each kind is its fraction of the time: areas still show times. Idle slots
    narrower than three pixels are left blank, and actions of length 0 are left out.

    All boxes of a kind have the same form of label, in all timelines of one name. A box
    too narrow for it has none.

    Examples
    --------
    >>> from minipipe import schedules
    >>> picture = draw_svg(schedules.one_f_one_b(4, 8), title="1F1B", legend=False)
    >>> (
    ...     picture[:4],
    ...     picture.count(
    ...         "<title>0F0: forward of microbatch 0 on stage 0, 0 to 1 units</title>"
    ...     ),
    ... )
    ('<svg', 1)
    """
    panels = panels_of(drawn)
    _FONT_SIZE.check("font_size", font_size)
    least = math.ceil(_LEAST_WIDTH * font_size)
    Page.check_width(width, least, f" with a font_size of {font_size:g}")
    if animated:
        title = title or heading(panels)
        notes = [*note_lines(notes), *filter(None, [unit_note(panels)])]
    page = Page(width, title, notes, Letters(font_size))
    return _TimelinePage(page, panels, memory, messages, animated).drawn(legend)


def _strips_of(panels: Sequence[Panel]) -> list[list[Strip]]:
    """Return the strips of each panel: memory, and versions of weights if any."""
    strips = [[strip_of(panel)] for panel in panels]
    versions = list(map(versions_of, panels))
    if any(chain(*(strip.curves for strip in versions))):
        return [[*held, strip] for held, strip in zip(strips, versions)]
    return strips


class _TimelinePage:
    """The page of timelines: panels above each other on one axis of time."""

    def __init__(
        self,
        page: Page,
        panels: Sequence[Panel],
        has_memory: bool,
        has_messages: bool,
        is_animated: bool,
    ) -> None:
        self.page = page
        self.letters = letters = page.letters
        self.panels = panels
        self.has_messages = has_messages
        self.is_animated = is_animated
        timelines = [panel.timeline for panel in panels]
        self.strips: list[list[Strip]] = [[] for _ in panels]
        if has_memory:
            self.strips = _strips_of(panels)
        beside = list(dict.fromkeys(chain(*(each.kinds_beside() for each in panels))))
        num_lanes = sum(timeline.num_ranks for timeline in timelines)
        num_strips = max(map(len, self.strips), default=0)
        self.size = LaneSize.of(num_lanes, num_strips, beside, letters)
        left, right = self._margins()
        duration = max(timeline.makespan for timeline in timelines)
        tick = letters.size_of("tick")
        inner = page.width - left - right
        self.axis = Axis(duration, timelines[0].unit, left, inner, tick)
        self.motion: Motion | None = None
        if is_animated:
            self.motion = Motion(self.axis, letters)
        self.lanes = list(map(self._lanes_of, panels))
        self.rows = list(chain(*self.lanes))
        self.boxes = set(chain(*(lane.looks() for lane in self.rows)))
        # Panels of one name are compared action by action, so their labels have one
        # form.
        self.labels = {}
        for name in self._names():
            lanes = [lane for lane in self.rows if lane.panel.timeline.name == name]
            self.labels[name] = Labels(lanes, self.axis, self.size.box, letters)

    def _lanes_of(self, panel: Panel) -> list[Lane]:
        ranks = range(panel.timeline.num_ranks)
        return [Lane(panel, rank, self.axis, self.size) for rank in ranks]

    def drawn(self, has_legend: bool) -> str:
        """Return the whole document."""
        parts, y = self.page.head()
        for index in range(len(self.panels)):
            drawn, y = self._panel(index, y)
            parts += drawn
        parts += self._ticks(y)
        if has_legend:
            legend = Legend(self.page)
            top = y + self.letters.scaled(30)
            drawn, y = legend.draw(self._entries(legend), self.page.margin, top)
            parts += drawn
        else:
            y += self.letters.line("tick")
        panels = self.panels
        captions = (f"{caption(it)}. {it.timeline.note}".strip() for it in panels)
        name = f"Timeline of {', above '.join(self._names())}"
        described = " ".join([*captions, *self.page.notes])
        if self.motion:
            return self.page.document(parts, y, name, described, self.motion.style)
        return self.page.document(parts, y, name, described)

    def _names(self) -> list[str]:
        return [panel.timeline.name for panel in self.panels]

    def _margins(self) -> tuple[float, float]:
        """Return the space for names at the left, and for peaks at the right."""
        letters = self.letters
        gap = self.letters.scaled(8)
        most = [panel.timeline.num_ranks for panel in self.panels]
        ranks = [f"rank {max(0, number - 1)}" for number in most]
        peaks: list[str] = []
        for strip in chain(*self.strips):
            peaks += map(strip.peak_label, range(len(strip.curves)))
        if self.is_animated:
            timelines = (panel.timeline for panel in self.panels)
            peaks += (idle_label(it.makespan, it.unit) for it in timelines)
        left = max(letters.width("rank", text) for text in ranks) + gap
        right = max((letters.width("peak", text) + gap for text in peaks), default=0.0)
        return round(left) + self.page.margin, round(right) + self.page.margin

    # -- a panel -----------------------------------------------------------------------

    def _panel(self, index: int, y: float) -> tuple[list[str], float]:
        """Draw a panel from ``y`` downwards; return it and its lower edge."""
        panel = self.panels[index]
        size = self.size
        lanes = self.lanes[index]
        name = title_of(panel.timeline)
        caption = figures(panel)
        if self.motion:
            name = panel_title(panel)
            caption = cause(panel)
        lines = [("name", name), ("figures", caption), ("note", panel.timeline.note)]
        head = y
        parts, y = self.page.text(lines, y)
        width = self.letters.width("name", name)
        # Running figures stand on the line of the name, if it has space for them.
        if self.motion and width > self.motion.width_beside(panel):
            head = y
            y = y + self.letters.line("name")
        baseline = head + BASELINE * self.letters.line("name")
        top = y + self.letters.scaled(8)
        tops = [top + rank * size.pitch for rank in range(len(lanes))]
        bottom = top + len(tops) * size.pitch
        parts.append(self._grid(top - 4, bottom))
        rows = list(zip(tops, lanes))
        parts += (moved(0, y, self._lane(index, lane)) for y, lane in rows)
        if self.has_messages:
            head = min(self.letters.size / 2, size.pitch - size.box)
            parts += draw_messages(panel, self.axis, tops, size.box, head)
        # Labels are drawn last, because arrows would cross them out.
        labels = self.labels[panel.timeline.name]
        drawn = (moved(0, y, labels.draw(lane)) for y, lane in rows)
        look = f'font-size="{number(labels.size)}" text-anchor="middle"'
        parts.append(group(f'{look} pointer-events="none"', drawn))
        if self.motion:
            peaks = "".join(moved(0, y, self._peaks(index, lane)) for y, lane in rows)
            parts += self.motion.draw(
                panel, tops, bottom, size.box, round(baseline), peaks
            )
        if panel is not self.panels[-1]:
            bottom += self.letters.scaled(14)
        return parts, bottom

    def _lane(self, index: int, lane: Lane) -> Iterator[str]:
        """Yield the parts of a lane, all but its labels."""
        baseline = self.size.box / 2 + 0.35 * self.letters.size_of("rank")
        right = self.axis.left - self.letters.scaled(8)
        yield self.letters.draw("rank", right, baseline, f"rank {lane.rank}")
        yield from chain(lane.idle(), lane.boxes(), lane.steps(), lane.thin())
        for number_of, strip in enumerate(self.strips[index]):
            yield from lane.strip(strip, self._most(strip), number_of)
        if not self.motion:
            yield from self._peaks(index, lane)

    def _peaks(self, index: int, lane: Lane) -> Iterator[str]:
        """Yield the peaks beside the strips of a lane."""
        for number_of, strip in enumerate(self.strips[index]):
            yield lane.peak(strip, self.letters, number_of)

    def _most(self, strip: Strip) -> float:
        """Return the full scale of a strip: the highest peak of all ranks, in all
        panels with the same quantity.
        """
        alike = (other for other in chain(*self.strips) if other.noun == strip.noun)
        peaks = (each.peak(i) for each in alike for i in range(len(each.curves)))
        return max(peaks, default=0.0)

    # -- axis and legend ---------------------------------------------------------------

    def _grid(self, top: float, bottom: float) -> str:
        places = [self.axis.x(time) for time, _ in self.axis.ticks]
        lines = (path_data("M", x, top, "V", bottom) for x in places)
        return path(paint("grid"), "".join(lines))

    def _ticks(self, top: float) -> Iterator[str]:
        """Yield the times under the lowest lane, and their unit to the left of them."""
        y = top + self.letters.scaled(13)
        _, unit = scale_of(self.axis.unit)
        left = self.axis.left - self.letters.scaled(12)
        yield self.letters.draw("unit", left, y, unit)
        for time, text in self.axis.ticks:
            yield self.letters.draw("tick", self.axis.x(time), y, text)

    def _entries(self, legend: Legend) -> Iterator[Entry]:
        """Yield an entry of the legend for everything that occurs."""
        yield from starmap(legend.shades, box_entries(self.boxes, self.panels))
        if any(len(run) > 1 for lane in self.rows for run in lane.runs):
            yield legend.runs()
        if any(panel.overlapped for panel in self.panels):
            yield legend.overlapped()
        causes = {slot.cause for lane in self.rows for slot in lane.slots}
        yield from legend.idle(cause for cause in IdleCause if cause in causes)
        if any(panel.timeline.num_steps > 1 for panel in self.panels):
            yield legend.step()
        strips = (strip for strip in chain(*self.strips) if any(strip.curves))
        for noun in sorted({strip.noun for strip in strips}):
            label = "versions of weights held"
            if noun != "versions":
                label = held_label(noun != "activations", self.panels)
            yield legend.strip(label)
        if self.has_messages:
            yield from starmap(legend.arrow, message_entries(self.panels))
