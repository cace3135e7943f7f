"""A timeline as a picture: one self-contained SVG file, for papers, slides and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from minipipe.render.axis import Axis
from minipipe.render.descriptions import caption
from minipipe.render.lettering import escaped, number, text_width, wrapped
from minipipe.render.panel import Panel, panels_of
from minipipe.render.svg.labels import Labels
from minipipe.render.svg.lanes import LaneSize, draw_boxes, draw_idle, draw_strip, is_drawn, runs, shown_idle
from minipipe.render.svg.legend import (
    Entry,
    arrow_entries,
    draw_legend,
    idle_entries,
    kind_entries,
    run_entry,
    strip_entry,
)
from minipipe.render.svg.messages import draw_messages, way_of
from minipipe.render.svg.strip import Holding, holding_of
from minipipe.render.svg.style import definitions, style_sheet
from minipipe.schedules.action_table import ActionTable
from minipipe.simulation.span import IdleCause
from minipipe.simulation.timeline import Timeline

__all__ = ["draw_svg"]

_MARGIN = 18  # pixels around everything
_LINE = 18  # pixels from one line of text to the next
_NAME_SIZE, _TEXT_SIZE = 14, 12


def draw_svg(*drawn: ActionTable | Timeline, messages: bool = False, memory: bool = True, width: int = 960) -> str:
    """Draw schedules (F, I and W one unit each) and timelines as SVG, above each other on one axis of time.

    Each begins at its own start, so that a predicted and a measured timeline compare by eye.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        All in one unit of time.
    messages : bool
        Whether to draw an arrow for each message, from where the value is sent to where it arrives.
    memory : bool
        Whether to draw under each rank what it holds: bytes, where the timeline knows them, and otherwise (stage,
        microbatch) pairs. All strips have one scale, if they show the same.
    width : int
        In pixels; at least 240. It is also the shape of the picture, which a page may scale.

    Returns
    -------
    str
        An SVG document that needs nothing from outside, without scripts, for light and dark grounds. Its boxes carry
        labels where there is room for them, and say as tooltips what they are.

    Raises
    ------
    TypeError
        For what is neither a schedule nor a timeline.
    ValueError
        When there is nothing to draw, units differ, or the width is too small.
    ScheduleError
        Code ``deadlock``, when a schedule cannot run to its end.

    Notes
    -----
    What cannot be seen is not drawn one by one, so that files stay small. Actions narrower than a pixel are merged with
    their neighbours into runs about five pixels long, where each kind is a band as high as its share of the time, so
    that areas still are times. Idle slots narrower than a pixel are left blank, and actions without length left out.

    Examples
    --------
    >>> from minipipe import schedules
    >>> picture = draw_svg(schedules.one_f_one_b(4, 8))
    >>> picture[:4], picture.count("<title>0F0: forward of microbatch 0 on stage 0, 0 to 1 units</title>")
    ('<svg', 1)
    """
    panels = panels_of(drawn)
    if width < 240:
        raise ValueError(f"width is {width}; expected at least 240 pixels.")
    return _Page(panels, width, messages, memory).drawn()


class _Page:
    """Several panels above each other, then the axis, then the legend."""

    def __init__(self, panels: Sequence[Panel], width: int, messages: bool, memory: bool) -> None:
        self.panels, self.width, self.messages = panels, width, messages
        timelines = [panel.timeline for panel in panels]
        self.size = LaneSize.of(sum(timeline.num_ranks for timeline in timelines), memory)
        self.holdings = [holding_of(timeline) for timeline in timelines] if memory else []
        left, right = self.margins()
        duration = max(timeline.makespan for timeline in timelines)
        self.axis = Axis(duration, timelines[0].unit, left, width - left - right)
        rows = [(panel, rank) for panel in panels for rank in range(panel.timeline.num_ranks)]
        spans = [
            (panel, rank, span.action) for panel, rank in rows for span in panel.timeline.spans[rank] if is_drawn(span)
        ]
        self.boxes = {(action.kind, panel.chunk_of(rank, action.stage)) for panel, rank, action in spans}
        self.has_runs = any(len(run) > 1 for panel, rank in rows for run in runs(panel.timeline.spans[rank], self.axis))
        slots = (slot for panel, rank in rows for slot in shown_idle(panel, rank, self.axis))
        causes = {slot.cause for slot in slots}
        self.causes = [cause for cause in IdleCause if cause in causes]
        sent = (message for timeline in timelines if messages for message in timeline.messages)
        self.ways = sorted({way_of(message) for message in sent}, reverse=True)

    def margins(self) -> tuple[float, float]:
        """Return what ranks and peaks need at the left and at the right."""
        ranks = [f"rank {max(0, panel.timeline.num_ranks - 1)}" for panel in self.panels]
        peaks = [h.peak_label(rank) for h in self.holdings for rank in range(len(h.values))]
        left = max(text_width(text, _TEXT_SIZE) for text in ranks) + _MARGIN + 8
        return round(left), round(max((text_width(text, 11) + 8 for text in peaks), default=0.0)) + _MARGIN

    def drawn(self) -> str:
        """Return the whole document."""
        body, y = [], float(_MARGIN)
        for index in range(len(self.panels)):
            parts, y = self.panel(index, y)
            body += parts
        body += self.ticks(y)
        legend, y = draw_legend(list(self.entries()), _MARGIN, self.width - _MARGIN, y + 30)
        return self.document("".join([*body, *legend]), round(y + _MARGIN))

    # -- a panel ------------------------------------------------------------------------------------------------

    def panel(self, index: int, y: float) -> tuple[list[str], float]:
        """Draw a panel from ``y`` downwards; return it and where it ends."""
        panel, size = self.panels[index], self.size
        parts, top = self.heading(panel.timeline, y)
        tops = [top + rank * size.pitch for rank in range(panel.timeline.num_ranks)]
        bottom = top + len(tops) * size.pitch
        parts.append(self.grid(top - 4, bottom))
        parts += (self.lane(index, rank, lane) for rank, lane in enumerate(tops))
        if self.messages:
            parts += draw_messages(panel, self.axis, tops, size.box)
        labels = Labels(panel, self.axis, size.box)  # above the arrows, so that none crosses them out
        parts.append(f'<g font-size="{labels.size:g}">')
        parts += (_moved_down(lane, labels.draw(rank)) for rank, lane in enumerate(tops))
        return [*parts, "</g>"], bottom + (14 if panel is not self.panels[-1] else 0)

    def lane(self, index: int, rank: int, top: float) -> str:
        """Draw a rank of a panel, all but its labels."""
        panel, size = self.panels[index], self.size
        x, y = number(self.axis.left - 8), number(size.box / 2 + 4)
        parts = [f'<text class="rank" x="{x}" y="{y}">rank {rank}</text>']
        parts += draw_idle(panel, rank, self.axis, size)
        parts += draw_boxes(panel, rank, self.axis, size)
        if self.holdings:
            holding = self.holdings[index]
            parts += draw_strip(panel, rank, self.axis, size, holding, self.most(holding))
        return _moved_down(top, parts)

    def heading(self, timeline: Timeline, y: float) -> tuple[list[str], float]:
        """Draw what stands above a panel: its caption, the name set off, and its note."""
        name, room = " ".join(timeline.name.split()), self.width - 2 * _MARGIN
        lines = wrapped(caption(timeline), _TEXT_SIZE, room - 0.4 * min(room, text_width(name, _TEXT_SIZE)))
        marked = [escaped(line) for line in lines]
        if name and lines[0].startswith(f"{name},"):
            marked[0] = f'<tspan class="name">{escaped(name)}</tspan>{escaped(lines[0].removeprefix(name))}'
        texts = [("muted", line) for line in marked]
        texts += [("note muted", escaped(line)) for line in wrapped(timeline.note, _TEXT_SIZE, room) if line]
        ends = [y + _LINE * (i + 1) for i in range(len(texts))]
        parts = (
            f'<text class="{classes}" x="{_MARGIN}" y="{number(end - 5)}">{text}</text>'
            for end, (classes, text) in zip(ends, texts)
        )
        return list(parts), ends[-1] + 8

    def most(self, holding: Holding) -> float:
        """Return what fills a strip: the most that any rank holds, of all panels that show the same."""
        alike = (other for other in self.holdings if other.is_memory == holding.is_memory)
        return max((other.peak(rank) for other in alike for rank in range(len(other.values))), default=0.0)

    # -- what they share ----------------------------------------------------------------------------------------

    def grid(self, top: float, bottom: float) -> str:
        lines = "".join(f"M{number(self.axis.x(time))} {number(top)}V{number(bottom)}" for time, _ in self.axis.ticks)
        return f'<path class="grid" d="{lines}"/>'

    def ticks(self, top: float) -> Iterator[str]:
        """Yield the times under the lowest lane, and their unit to the left of them."""
        y, unit = number(top + 13), escaped(self.axis.unit_label)
        yield f'<text class="unit muted" x="{number(self.axis.left - 12)}" y="{y}">{unit}</text>'
        for time, text in self.axis.ticks:
            yield f'<text class="tick muted" x="{number(self.axis.x(time))}" y="{y}">{text}</text>'

    def entries(self) -> Iterator[Entry]:
        """Yield what the legend explains."""
        yield from kind_entries(self.boxes)
        if self.has_runs:
            yield run_entry()
        yield from idle_entries(self.causes)
        for is_memory in sorted({holding.is_memory for holding in self.holdings if any(holding.values)}):
            yield strip_entry(is_memory)
        yield from arrow_entries(self.ways, self.messages and any(panel.has_late_receipts for panel in self.panels))

    def document(self, body: str, height: int) -> str:
        """Return the whole file: what it says without being seen, its style, its patterns, and what is drawn."""
        name = f"minipipe-{crc32(body.encode()):08x}"
        timelines = [panel.timeline for panel in self.panels]
        captions = " ".join(f"{caption(timeline)}. {timeline.note}".strip() for timeline in timelines)
        title = "Timeline of " + ", above ".join(timeline.name for timeline in timelines)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" role="img" '
            f'aria-labelledby="{name}-title {name}-description" viewBox="0 0 {self.width} {height}" '
            f'width="{self.width}" height="{height}">'
            f'<title id="{name}-title">{escaped(title)}</title><desc id="{name}-description">{escaped(captions)}</desc>'
            f"<style>{style_sheet(name, self.boxes)}</style>"
            f"{definitions(name, self.causes, self.ways)}"
            f'<rect class="ground" width="{self.width}" height="{height}" rx="4"/>{body}</svg>\n'
        )


def _moved_down(top: float, parts: Iterable[str]) -> str:
    return f'<g transform="translate(0 {number(top)})">{"".join(parts)}</g>'
