"""Names beside points: none covers another, or a point, and each is as near to its own as there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import dist
from typing import NamedTuple

_MOST_ROWS = 12  # lines of text from a point up or down to its name
_CROSSED, _MISTAKEN = 2.5, 3.5  # a name on a line, or nearer to another point, is as bad as one so many rows away


class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Tell whether two rectangles have an area in common."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not (is_beside or self.bottom <= other.top or other.bottom <= self.top)

    def is_inside(self, other: Box) -> bool:
        """Tell whether a rectangle does not leave another one."""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


class Callout(NamedTuple):
    """The place of a name.

    Attributes
    ----------
    box : Box
        The rectangle that the name takes.
    is_left : bool
        Whether it is to the left of its point.
    rows : int
        The lines of text by which it is above or below its point.
    """

    box: Box
    is_left: bool
    rows: int

    @property
    def near_end(self) -> tuple[float, float]:
        """The end of the name that faces its point."""
        return self.box.right if self.is_left else self.box.left, (self.box.top + self.box.bottom) / 2


def place_names(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    height: float,
    gap: float,
    page: Box,
    lines: Sequence[Box] = (),
) -> list[Callout | None]:
    """Return a place for the name of each point, or None where there is no room.

    Parameters
    ----------
    points : sequence of (float, float)
        In pixels.
    widths : sequence of float
        Of the names, in pixels.
    height : float
        Of a line of text.
    gap : float
        From the middle of a point to its name, which is also half the width of a point.
    page : Box
        What no name may leave.
    lines : sequence of Box
        What names cover only where there is no other room near their points.

    Examples
    --------
    >>> first, second = place_names([(10, 50), (80, 50)], [40, 40], height=12, gap=6, page=Box(0, 0, 100, 100))
    >>> first.box, second.box, second.is_left
    (Box(left=16, top=44.0, right=56, bottom=56.0), Box(left=34, top=56.0, right=74, bottom=68.0), True)
    """
    taken = [Box(x - gap, y - gap, x + gap, y + gap) for x, y in points]
    found: list[Callout | None] = []
    for point, width in zip(points, widths):
        places = [place for place in _places(*point, width, height, gap) if _is_free(place.box, page, taken)]
        place = min(places, key=lambda place: _cost(place, point, points, lines), default=None)
        found.append(place)
        taken += [] if place is None else [place.box]
    return found


def _is_free(box: Box, page: Box, taken: Sequence[Box]) -> bool:
    return box.is_inside(page) and not any(map(box.overlaps, taken))


def _cost(
    place: Callout, own: tuple[float, float], points: Sequence[tuple[float, float]], lines: Sequence[Box]
) -> float:
    """Return how bad a place is, in rows away from its point."""
    is_crossed = any(map(place.box.overlaps, lines))
    is_mistaken = any(dist(place.near_end, point) < dist(place.near_end, own) for point in points)
    return place.rows + _CROSSED * is_crossed + _MISTAKEN * is_mistaken


def _places(x: float, y: float, width: float, height: float, gap: float) -> Iterator[Callout]:
    """Yield places for a name, the nearest first: right and left of its point, then below and above these."""
    for rows in range(_MOST_ROWS + 1):
        for away in (1, -1) if rows else (1,):
            top = y - height / 2 + away * rows * height
            yield Callout(Box(x + gap, top, x + gap + width, top + height), False, rows)
            yield Callout(Box(x - gap - width, top, x - gap, top + height), True, rows)
