"""The hatching of idle slots as lines: patterns and clip paths are missing from several converters."""

from __future__ import annotations

import math

from minipipe.render.lettering import number
from minipipe.render.palette import HATCH
from minipipe.schedules.simulation.timeline import IdleCause


def hatch_path(left: float, right: float, height: float, cause: IdleCause) -> str:
    """Return the hatch lines of a slot as path data, clipped to the slot; its upper edge is at 0.

    One line passes through the middle, so that the narrowest slot has a line too.

    Parameters
    ----------
    left, right, height : float
        In pixels; at least 1 pixel wide.
    cause : IdleCause
        Its entry in :data:`minipipe.render.palette.HATCH` sets the angle and the spacing.

    Examples
    --------
    >>> hatch_path(0, 10, 9, IdleCause.WAITING)
    'M0 0.5H10M0 4.5H10M0 8.5H10'
    """
    angle, gap = HATCH[cause]
    along_x, along_y = round(math.cos(math.radians(angle)), 12), round(math.sin(math.radians(angle)), 12)
    # Lines of one pixel are crisp in the middle of pixels.
    middle_x, middle_y = math.floor((left + right) / 2) + 0.5, math.floor(height / 2) + 0.5
    count = math.ceil(math.hypot(right - left, height) / 2 / gap)
    path = []
    for i in range(-count, count + 1):
        x, y = middle_x - i * gap * along_y, middle_y + i * gap * along_x
        first_x, last_x = _range(x, along_x, left, right)
        first_y, last_y = _range(y, along_y, 0.0, height)
        first, last = max(first_x, first_y), min(last_x, last_y)
        if first < last:
            path.append(_segment(x + first * along_x, y + first * along_y, x + last * along_x, y + last * along_y))
    return "".join(path)


def _range(start: float, step: float, low: float, high: float) -> tuple[float, float]:
    """Return the range of t in which ``start + t * step`` lies between ``low`` and ``high``."""
    if step:
        first, last = sorted(((low - start) / step, (high - start) / step))
        return first, last
    return (-math.inf, math.inf) if low < start < high else (math.inf, -math.inf)


def _segment(x: float, y: float, end_x: float, end_y: float) -> str:
    start, end = (number(x), number(y)), (number(end_x), number(end_y))
    if start[1] == end[1]:
        return f"M{start[0]} {start[1]}H{end[0]}"
    if start[0] == end[0]:
        return f"M{start[0]} {start[1]}V{end[1]}"
    return f"M{start[0]} {start[1]}L{end[0]} {end[1]}"
