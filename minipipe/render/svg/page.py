"""The page of an SVG: the title, panels above each other, the axis, and the legend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from minipipe.io import escaped
from minipipe.render.descriptions import caption, figures, held_words
from minipipe.render.descriptions import title as title_of
from minipipe.render.layout import Axis, number, wrapped
from minipipe.render.panel import Panel
from minipipe.render.svg.labels import Labels
from minipipe.render.svg.lanes import (
    LaneSize,
    Strip,
    draw_boxes,
    draw_idle,
    draw_steps,
    draw_strip,
    is_drawn,
    runs,
    shown_idle,
    strip_of,
)
from minipipe.render.svg.legend import WAYS, Entry, Legend, draw_messages, way_of
from minipipe.render.svg.style import FONT_FAMILY, Letters, paint, style_sheet
from minipipe.schedules.simulation.span import IdleCause

_MARGIN = 18  # pixels on each side, at the default font size
_BASELINE = 0.72  # of the height of a line


class Options(NamedTuple):
    """The options of :func:`minipipe.render.svg.draw_svg` but for the font size."""

    messages: bool
    memory: bool
    width: int
    title: str | None
    notes: tuple[str, ...]
    legend: bool


class Page:
    """The page of a drawing.

    Parameters
    ----------
    panels : sequence of Panel
    options : Options
    letters : Letters
    """

    def __init__(self, panels: Sequence[Panel], options: Options, letters: Letters) -> None:
        self.panels, self.options, self.letters = panels, options, letters
        timelines = [panel.timeline for panel in panels]
        self.margin = letters.scaled(_MARGIN)
        self.size = LaneSize.of(sum(timeline.num_ranks for timeline in timelines), options.memory, letters)
        self.strips = [strip_of(panel) for panel in panels] if options.memory else []
        left, right = self._margins()
        duration, room = max(timeline.makespan for timeline in timelines), options.width - left - right
        self.axis = Axis(duration, timelines[0].unit, left, room, letters.size_of("tick"))
        self.rows = [(panel, rank) for panel in panels for rank in range(panel.timeline.num_ranks)]
        self.boxes = {
            (span.action.kind, panel.chunk_of(rank, span.action.stage))
            for panel, rank in self.rows
            for span in filter(is_drawn, panel.timeline.spans[rank])
        }
        # Panels of one name compare action by action, so their labels have one form.
        by_name = {name: [panel for panel in panels if panel.timeline.name == name] for name in self._names()}
        self.labels = {name: Labels(alike, self.axis, self.size.box, letters) for name, alike in by_name.items()}

    def drawn(self) -> str:
        """Return the whole document."""
        body, y = self._head()
        for index in range(len(self.panels)):
            parts, y = self._panel(index, y)
            body += parts
        body += self._ticks(y)
        if self.options.legend:
            legend, width = Legend(self.letters), self.options.width
            entries = list(self._entries(legend))
            parts, y = legend.draw(entries, self.margin, width - self.margin, y + self.letters.scaled(30))
            body += parts
        else:
            y += self.letters.line("tick")
        return self._document("".join(body), round(y + self.margin))

    def _names(self) -> list[str]:
        return [panel.timeline.name for panel in self.panels]

    def _margins(self) -> tuple[float, float]:
        """Return the room for names at the left, and for peaks at the right."""
        letters, gap = self.letters, self.letters.scaled(8)
        ranks = [f"rank {max(0, panel.timeline.num_ranks - 1)}" for panel in self.panels]
        peaks = [h.peak_label(rank) for h in self.strips for rank in range(len(h.curves))]
        left = max(letters.width("rank", text) for text in ranks) + gap
        right = max((letters.width("peak", text) + gap for text in peaks), default=0.0)
        return round(left) + self.margin, round(right) + self.margin

    # -- text above the lanes -----------------------------------------------------------------------------------

    def _head(self) -> tuple[list[str], float]:
        """Draw the title and the notes; return them and their lower edge."""
        lines = [("title", self.options.title)] if self.options.title else []
        lines += [("fact", line) for line in self.options.notes]
        parts, y = self._text(lines, float(self.margin))
        return parts, y + (self.letters.scaled(8) if lines else 0)

    def _caption(self, panel: Panel, y: float) -> tuple[list[str], float]:
        """Draw the caption of a panel, and its note."""
        lines = [("name", title_of(panel.timeline)), ("figures", figures(panel)), ("note", panel.timeline.note)]
        parts, y = self._text(lines, y)
        return parts, y + self.letters.scaled(8)

    def _text(self, lines: Iterable[tuple[str, str]], y: float) -> tuple[list[str], float]:
        """Draw lines of text, each with its role; long ones continue on the next line."""
        parts, room = [], self.options.width - 2 * self.margin
        for role, words in lines:
            height = self.letters.line(role)
            for line in filter(None, wrapped(words, self.letters.wrapping_size(role), room)):
                parts.append(self.letters.draw(role, self.margin, round(y + _BASELINE * height), line))
                y += height
        return parts, y

    # -- a panel ------------------------------------------------------------------------------------------------

    def _panel(self, index: int, y: float) -> tuple[list[str], float]:
        """Draw a panel from ``y`` downwards; return it and its lower edge."""
        panel, size = self.panels[index], self.size
        parts, top = self._caption(panel, y)
        tops = [top + rank * size.pitch for rank in range(panel.timeline.num_ranks)]
        bottom = top + len(tops) * size.pitch
        parts.append(self._grid(top - 4, bottom))
        parts += (self._lane(index, rank, lane) for rank, lane in enumerate(tops))
        if self.options.messages:
            head = min(self.letters.size / 2, size.pitch - size.box)
            parts += draw_messages(panel, self.axis, tops, size.box, head)
        labels = self.labels[panel.timeline.name]  # above the arrows, which would cross them out
        parts.append(f'<g font-size="{number(labels.size)}" text-anchor="middle" pointer-events="none">')
        parts += (_moved_down(lane, labels.draw(panel, rank)) for rank, lane in enumerate(tops))
        return [*parts, "</g>"], bottom + (self.letters.scaled(14) if panel is not self.panels[-1] else 0)

    def _lane(self, index: int, rank: int, top: float) -> str:
        """Draw a rank of a panel, all but its labels."""
        panel, size, letters = self.panels[index], self.size, self.letters
        baseline = size.box / 2 + 0.35 * letters.size_of("rank")
        parts = [letters.draw("rank", self.axis.left - letters.scaled(8), baseline, f"rank {rank}")]
        parts += draw_idle(panel, rank, self.axis, size)
        parts += draw_boxes(panel, rank, self.axis, size)
        parts += draw_steps(panel, rank, self.axis, size)
        if self.strips:
            strip = self.strips[index]
            parts += draw_strip(panel, rank, self.axis, size, strip, self._most(strip), letters)
        return _moved_down(top, parts)

    def _most(self, strip: Strip) -> float:
        """Return the full scale of a strip: the highest peak of all ranks, in all panels with the same quantity."""
        alike = (other for other in self.strips if other.is_memory == strip.is_memory)
        return max((other.peak(rank) for other in alike for rank in range(len(other.curves))), default=0.0)

    # -- axis, legend and document ------------------------------------------------------------------------------

    def _grid(self, top: float, bottom: float) -> str:
        lines = "".join(f"M{number(self.axis.x(time))} {number(top)}V{number(bottom)}" for time, _ in self.axis.ticks)
        return f'<path {paint("grid")} d="{lines}"/>'

    def _ticks(self, top: float) -> Iterator[str]:
        """Yield the times under the lowest lane, and their unit to the left of them."""
        y = top + self.letters.scaled(13)
        yield self.letters.draw("unit", self.axis.left - self.letters.scaled(12), y, self.axis.unit_label)
        for time, text in self.axis.ticks:
            yield self.letters.draw("tick", self.axis.x(time), y, text)

    def _entries(self, legend: Legend) -> Iterator[Entry]:
        """Yield an entry of the legend for everything that occurs."""
        yield from legend.kinds(self.boxes)
        if any(len(run) > 1 for panel, rank in self.rows for run in runs(panel.timeline.spans[rank], self.axis)):
            yield legend.runs()
        causes = {slot.cause for panel, rank in self.rows for slot in shown_idle(panel, rank, self.axis)}
        yield from legend.idle(cause for cause in IdleCause if cause in causes)
        if any(panel.timeline.num_steps > 1 for panel in self.panels):
            yield legend.step()
        for is_memory in sorted({strip.is_memory for strip in self.strips if any(strip.curves)}):
            yield legend.strip(held_words(is_memory, self.panels))
        if self.options.messages:
            ways = {way_of(message) for panel in self.panels for message in panel.timeline.messages}
            has_late_receipts = any(panel.has_late_receipts for panel in self.panels)
            yield from legend.arrows((way for way in WAYS if way in ways), has_late_receipts)

    def _document(self, body: str, height: int) -> str:
        """Return the whole file: its description for screen readers, its style sheet, and the drawing."""
        name, width = f"minipipe-{crc32(body.encode()):08x}", self.options.width
        captions = (f"{caption(panel)}. {panel.timeline.note}".strip() for panel in self.panels)
        described = " ".join([*captions, *self.options.notes])
        title = self.options.title or f"Timeline of {', above '.join(self._names())}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" role="img" '
            f'aria-labelledby="{name}-title {name}-description" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT_FAMILY}" font-size="{number(self.letters.size)}">'
            f'<title id="{name}-title">{escaped(title)}</title>'
            f'<desc id="{name}-description">{escaped(described)}</desc>'
            f"<style>{style_sheet(name, self.boxes)}</style>"
            f'<rect {paint("ground")} width="{width}" height="{height}" rx="4"/>{body}</svg>\n'
        )


def _moved_down(top: float, parts: Iterable[str]) -> str:
    return f'<g transform="translate(0 {number(top)})">{"".join(parts)}</g>'
