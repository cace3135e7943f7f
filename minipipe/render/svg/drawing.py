"""Timelines as a picture: one self-contained SVG file for papers, slides and notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minipipe.errors import ArgumentError, quoted
from minipipe.io import MOST_PIXELS, note_lines
from minipipe.render.panel import panels_of
from minipipe.render.svg.page import Options, Page
from minipipe.render.svg.style import DEFAULT_SIZE, Letters
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.simulation.timeline import Timeline

_LEAST_WIDTH = 20  # times the font size


def draw_svg(
    *drawn: ActionTable | Timeline,
    messages: bool = False,
    memory: bool = True,
    width: int = 960,
    title: str | None = None,
    notes: Sequence[str] = (),
    legend: bool = True,
    font_size: float = DEFAULT_SIZE,
) -> str:
    """Draw schedules (F, I and W one unit each) and timelines as SVG, above each other on one axis of time.

    Each begins at its own start: a predicted and a measured timeline compare by eye.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        All in one unit of time.
    messages : bool
        Whether to draw an arrow for each message, from its send to its arrival.
    memory : bool
        Whether to draw a strip under each rank: the bytes that it holds, where the timeline knows them, and otherwise
        the number of (stage, microbatch) pairs. Strips of the same quantity share one scale.
    width : int
        In pixels; at least 20 times the font size. A page may scale the picture.
    title : str, optional
        A line above everything. By default there is none, and screen readers announce the names of the timelines.
    notes : sequence of str
        Lines under the title, such as the machine and the date of a measurement.
    legend : bool
        Whether to explain colours, hatching and lines at the lower edge.
    font_size : float
        Of captions, in pixels. All other text, the heights of the lanes and the legend scale with it; the width does
        not.

    Returns
    -------
    str
        An SVG document without scripts or references, for light and dark grounds. Boxes have tooltips, and labels where
        there is room. Converters without style sheets show the light drawing.

    Raises
    ------
    ArgumentError
        Code ``type``: for anything but schedules and timelines, and for ``notes`` that are one string.
        Code ``value``: when there is nothing to draw, units differ, or the width or the font size is out of range.
    ScheduleError
        Code ``deadlock``, when a schedule cannot run to its end.

    Notes
    -----
    Details too small to be seen are merged, which keeps files small. Actions narrower than three pixels join their
    neighbours, twelve or more in a run, in which the height of each kind is its share of the time: areas are still
    times. Idle slots narrower than three pixels are left blank, and actions of length 0 are left out.

    All boxes of a kind have the same form of label, in all timelines of one name. A box too narrow for it has none.

    Examples
    --------
    >>> from minipipe import schedules
    >>> picture = draw_svg(schedules.one_f_one_b(4, 8), title="1F1B", legend=False)
    >>> picture[:4], picture.count("<title>0F0: forward of microbatch 0 on stage 0, 0 to 1 units</title>")
    ('<svg', 1)
    """
    panels = panels_of(drawn)
    if not 1 <= font_size < MOST_PIXELS:
        raise ArgumentError("value", f"font_size is {font_size}; expected a number of pixels, at least 1.")
    least = math.ceil(_LEAST_WIDTH * font_size)
    if width < least:
        raise ArgumentError(
            "value", f"width is {width}; expected at least {least} pixels with a font_size of {font_size:g}."
        )
    if width > MOST_PIXELS:
        raise ArgumentError("value", f"width is {quoted(width)}; expected at most {MOST_PIXELS} pixels.")
    options = Options(messages, memory, width, title, note_lines(notes), legend)
    return Page(panels, options, Letters(font_size)).drawn()
