"""The motion of an animated SVG: a curtain over future actions, a line at the current
time, and running figures.

Each loop shows the finished drawing, plays it from the start, and holds the end: a page
that has just been opened never shows empty lanes.

The presentation attributes hold the finished drawing: converters and printers ignore
the motion, and so do readers who prefer reduced motion. The style sheet alone starts
it, as CSS animations that loop together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from minipipe.render.layout import Axis, number
from minipipe.render.panel import Panel
from minipipe.render.svg.captions import time_of
from minipipe.render.svg.elements import group, path, path_data, rect
from minipipe.render.svg.legend import arrow_head
from minipipe.render.svg.style import Letters, paint
from minipipe.render.units import round_step
from minipipe.schedules.simulation.timeline import format_number, format_time

# seconds: of the finished drawing, until the last action ends, and after it
_LEAD = 2.0
_PLAY = 6.5
_HOLD = 3.5
_MOST_FRAMES = 60  # of running figures
_TIMING = {"curtain": "linear", "now": "linear"}  # all others jump


class Motion:
    """The animation of panels on one axis.

    Parameters
    ----------
    axis : Axis
    letters : Letters
    """

    def __init__(self, axis: Axis, letters: Letters) -> None:
        self._axis = axis
        self._letters = letters
        duration = axis.duration or 1.0
        self._step = round_step(duration / _MOST_FRAMES)
        self._seconds = _PLAY / duration  # of the animation, for each unit of time
        self._ends: list[float] = []  # by panel

    def draw(
        self,
        panel: Panel,
        tops: Sequence[float],
        bottom: float,
        height: float,
        baseline: float,
        finished: str,
    ) -> Iterator[str]:
        """Yield the moving parts of a panel, to be drawn above all others.

        Parameters
        ----------
        panel : Panel
        tops : sequence of float
            By rank, the upper edge of its boxes.
        bottom : float
            The lower edge of the panel.
        height : float
            Of the boxes, in pixels.
        baseline : float
            Of the running figures of the panel.
        finished : str
            Further parts of the drawing that are shown at the end.
        """
        top = tops[0] - 5
        middles = [each + height / 2 for each in tops]
        yield from self._curtain(top, bottom)
        line = path_data("M", self._axis.left, top, "V", bottom)
        yield group('class="now" display="none"', [path(paint("step"), line)])
        end = panel.timeline.makespan
        for index in range(math.ceil(end / self._step)):
            time = index * self._step
            delay = f'style="animation-delay:{_LEAD + time * self._seconds:.3f}s"'
            figures = self._figures(panel, time, middles, baseline)
            yield group(f'class="frame" display="none" {delay}', figures)
        figures = self._figures(panel, end, middles, baseline)
        gap = list(self._gap(panel, (top + bottom) / 2))
        yield group(f'class="end end-{len(self._ends)}"', [*figures, finished])
        if gap:  # after the line of the current time has crossed it
            yield group('class="saved"', gap)
        self._ends.append(end)

    def width_beside(self, panel: Panel) -> float:
        """Return the width that the running figures of a panel leave to its name."""
        end = panel.timeline.makespan
        texts = (_running(panel, part * end / 9) for part in range(9))
        longest = max(self._letters.width("total", text) for text in texts)
        return self._axis.right - 2 * self._letters.scaled(18) - longest

    def _curtain(self, top: float, bottom: float) -> Iterator[str]:
        """Yield the curtain: mirrored, so that it shrinks towards its right edge."""
        right = self._axis.right + 1
        look = paint("ground")
        width = right - self._axis.left
        ground = rect(look, width, bottom - top, y=top)
        curtain = group('class="curtain" display="none"', [ground])
        mirrored = f'transform="translate({number(right)} 0) scale(-1 1)"'
        yield group(mirrored, [curtain])

    def _gap(self, panel: Panel, middle: float) -> Iterator[str]:
        """Yield a double arrow from the end of a panel to the end of the longest one,
        with the time between them.
        """
        saved = self._axis.duration - panel.timeline.makespan
        first = self._axis.x(panel.timeline.makespan)
        last = self._axis.right
        text = f"{time_of(saved, panel.timeline.unit)} less"
        if self._letters.width("node", text) < last - first:
            head = self._letters.scaled(8)
            y = middle - self._letters.scaled(7)
            yield self._letters.draw("node", (first + last) / 2, y, text)
            line = path_data("M", first + head, middle, "H", last - head)
            yield path(paint("step"), line)
            heads = [arrow_head(first + 1, middle, -head, 0)]
            heads.append(arrow_head(last - 1, middle, head, 0))
            yield path(paint("choice"), "".join(heads))

    def _figures(
        self, panel: Panel, time: float, middles: Sequence[float], baseline: float
    ) -> list[str]:
        """Return the time beside the name of a panel, with the bubble at the end, and
        the idle time of each rank, at the middle of its boxes.
        """
        letters = self._letters
        right = self._axis.right
        role = "total"
        if time < panel.timeline.makespan:
            role = "running"
        texts = [letters.draw(role, right, baseline, _running(panel, time))]
        down = 0.35 * letters.size_of("peak")
        x = right + letters.scaled(8)
        for rank, middle in enumerate(middles):
            idle = idle_label(panel.idle_until(rank, time), panel.timeline.unit)
            texts.append(letters.draw("peak", x, middle + down, idle))
        return texts

    def style(self, name: str) -> str:
        """Return the rules that move the drawing whose id is ``name``. Frames differ
        only in their delays.
        """
        total = _LEAD + _PLAY + _HOLD
        start = 100 * _LEAD / total
        stop = 100 * (_LEAD + _PLAY) / total
        begins = f"{number(start)}%"
        ends = f"{number(stop)}%"
        after = f"{number(stop + 0.1)}%"
        frame = 100 * self._step * self._seconds / total
        across = f"translateX({number(self._axis.duration * self._axis.scale)}px)"
        jump = "animation-timing-function:step-end"
        frames = {
            "curtain": f"0%{{transform:scaleX(0);{jump}}}{begins}{{transform:scaleX(1)}}"
            f"{ends},100%{{transform:scaleX(0)}}",
            "now": f"0%{{opacity:0;{jump}}}{begins}{{opacity:1;transform:none}}"
            f"{ends}{{opacity:1;transform:{across}}}{after},100%{{opacity:0;transform:{across}}}",
            "frame": f"0%{{opacity:1}}{frame:.4f}%,100%{{opacity:0}}",
        }
        back = {f"end-{index}": end for index, end in enumerate(self._ends)}
        if max(self._ends) > min(self._ends):
            back["saved"] = max(self._ends)
        away = f"0%{{opacity:1}}{begins}{{opacity:0}}"
        for each, end in back.items():
            at = number(100 * (_LEAD + end * self._seconds) / total)
            frames[each] = f"{away}{at}%,100%{{opacity:1}}"
        hidden = ",".join(f"#{name} .{each}" for each in ("frame", "end", "saved"))
        moving = ",".join(f"#{name} .{each}" for each in ("curtain", "now", "frame"))
        shown = f"{moving}{{display:inline}}{hidden}{{opacity:0}}"
        rules = []
        for each, steps in frames.items():
            timing = _TIMING.get(each, "step-end")
            motion = f"{name}-{each} {number(total)}s {timing} infinite"
            rules.append(f"#{name} .{each}{{animation:{motion}}}")
            rules.append(f"@keyframes {name}-{each}{{{steps}}}")
        query = "@media screen and (prefers-reduced-motion:no-preference)"
        return f"{query}{{{shown}{''.join(rules)}}}"


def _running(panel: Panel, time: float) -> str:
    """Return a time, and the bubble at the end of the timeline."""
    timeline = panel.timeline
    if time < timeline.makespan:
        return f"after {time_of(time, timeline.unit)}"
    idle = sum(panel.idle_until(rank, time) for rank in range(timeline.num_ranks))
    bubble = idle / (timeline.num_ranks * time or 1.0)
    return f"{time_of(time, timeline.unit)}, bubble {100 * bubble:.1f} %"


def idle_label(idle: float, unit: str) -> str:
    """Return the text beside a rank.

    Examples
    --------
    >>> idle_label(9.0, "units"), idle_label(0.0125, "s")
    ('idle 9', 'idle 12.5 ms')
    """
    write = format_time if unit == "s" else format_number
    return f"idle {write(idle, unit)}"
