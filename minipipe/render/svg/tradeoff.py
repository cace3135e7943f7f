"""Bubble over peak memory as a picture: schedules as points, the best of them, and
bounds that none can beat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise, starmap
from typing import NamedTuple

from minipipe.errors import ArgumentError, counted
from minipipe.io import escaped
from minipipe.render.layout import LogAxis, number
from minipipe.render.svg.elements import group, moved, path, path_data, polyline, rect
from minipipe.render.svg.legend import Entry, Legend
from minipipe.render.svg.style import DEFAULT_SIZE, Letters, Page, paint
from minipipe.schedules.simulation.comparison import (
    Tradeoff,
    TradeoffPoint,
    pareto_front,
)

_MOST_ROWS = 12  # the most lines of text between a point and its name
# A name on a line, or nearer to another point, counts as this many rows away.
_CROSSED = 2.5
_MISTAKEN = 3.5


Point = tuple[float, float]  # x and y


class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Return whether two rectangles have an area in common."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not (is_beside or self.bottom <= other.top or other.bottom <= self.top)

    def is_inside(self, other: Box) -> bool:
        """Return whether a rectangle does not leave another one."""
        is_within_width = other.left <= self.left and self.right <= other.right
        return is_within_width and other.top <= self.top and self.bottom <= other.bottom


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
    def near_end(self) -> Point:
        """The end of the name that faces its point."""
        side = self.box.right if self.is_left else self.box.left
        return side, (self.box.top + self.box.bottom) / 2


def place_names(
    points: Sequence[Point],
    widths: Sequence[float],
    height: float,
    gap: float,
    page: Box,
    lines: Sequence[Box] = (),
) -> list[Callout | None]:
    """Return a place for the name of each point, or None if there is no space.

    Parameters
    ----------
    points : sequence of (float, float)
        In pixels.
    widths : sequence of float
        The widths of the names, in pixels.
    height : float
        The height of a line of text.
    gap : float
        From the middle of a point to its name, which is also half the width of a point.
    page : Box
        The rectangle that no name may leave.
    lines : sequence of Box
        Rectangles that names cover only if there is no other space near their points.

    Examples
    --------
    >>> first, second = place_names(
    ...     [(10, 50), (80, 50)], [40, 40], height=12, gap=6, page=Box(0, 0, 100, 100)
    ... )
    >>> first.box, second.box, second.is_left
    (Box(left=16, top=44.0, right=56, bottom=56.0), Box(left=34, top=56.0, right=74, bottom=68.0), True)
    """
    taken = [Box(x - gap, y - gap, x + gap, y + gap) for x, y in points]
    chosen: list[Callout | None] = []
    for point, width in zip(points, widths):
        every = _places(*point, width, height, gap)
        places = (place for place in every if place.box.is_inside(page))
        free = (place for place in places if not any(map(place.box.overlaps, taken)))
        place = min(
            free, key=lambda place: _cost(place, point, points, lines), default=None
        )
        chosen.append(place)
        if place is not None:
            taken.append(place.box)
    return chosen


def _cost(
    place: Callout, point: Point, points: Sequence[Point], lines: Sequence[Box]
) -> float:
    """Return how bad a place is, in rows away from its point."""
    is_crossed = any(map(place.box.overlaps, lines))
    distance = math.dist(place.near_end, point)
    is_mistaken = any(math.dist(place.near_end, it) < distance for it in points)
    return place.rows + _CROSSED * is_crossed + _MISTAKEN * is_mistaken


def _places(
    x: float, y: float, width: float, height: float, gap: float
) -> Iterator[Callout]:
    """Yield places for a name, the nearest first: right and left of its point, then
    below and above these.
    """
    for rows in range(_MOST_ROWS + 1):
        for offset in dict.fromkeys((rows, -rows)):
            top = y - height / 2 + offset * height
            bottom = top + height
            right = Box(x + gap, top, x + gap + width, bottom)
            left = Box(x - gap - width, top, x - gap, bottom)
            yield Callout(right, False, rows)
            yield Callout(left, True, rows)


_LEAST_WIDTH = 480  # pixels
_HEIGHT = 300  # of a panel
_LEAST_BUBBLE = 1e-3  # a smaller one is drawn there: a logarithmic axis has no 0
_RADIUS = 4.5  # of a mark
_CROSS = polyline([(-_RADIUS, -_RADIUS), (_RADIUS, _RADIUS)])
_CROSS += polyline([(-_RADIUS, _RADIUS), (_RADIUS, -_RADIUS)])
_SQUARE = f"M{-_RADIUS} {-_RADIUS}H{_RADIUS}V{_RADIUS}H{-_RADIUS}Z"
_ARC = f"A{_RADIUS} {_RADIUS} 0 1 1"  # half of a circle
_MARKS = {
    "V": f"M{-_RADIUS - 0.5} {-_RADIUS}H{_RADIUS + 0.5}L0 {_RADIUS + 0.5}Z",
    "straight": f"M{-_RADIUS} 0{_ARC} {_RADIUS} 0{_ARC} {-_RADIUS} 0Z",
}
_GAP = 8  # from the middle of a mark to its name
_DASHES = {"straight": "6 3", "V": "2 2.5"}
_SHAPES = {
    "straight": "straight placement",
    "looped": "looped placement",
    "V": "a V",
    "other": "another placement",
}


def draw_tradeoff(
    *drawn: Tradeoff,
    width: int = 960,
    title: str | None = "Bubble over peak memory",
    notes: Sequence[str] = (),
) -> str:
    """Draw bubble over peak memory as SVG, a panel above the other for each number of
    microbatches, on common axes.

    Parameters
    ----------
    *drawn : Tradeoff
    width : int
        In pixels, at least 480.
    title : str, optional
    notes : sequence of str
        Lines under the title, such as the costs.

    Returns
    -------
    str
        An SVG document without scripts or references, for light and dark backgrounds.
        Points have tooltips. Both axes are logarithmic; a bubble below 0.1 % is drawn
        at 0.1 %.

    Raises
    ------
    ArgumentError
        Code ``type``: for ``notes`` that are one string. Code ``value``: if there is
        nothing to draw, or the width is out of range.

    Examples
    --------
    >>> from minipipe.schedules.simulation.comparison import TradeoffPoint, Tradeoff
    >>> choices = (
    ...     TradeoffPoint("1f1b", "straight", 4.0, 0.27, 33.0),
    ...     TradeoffPoint("zb-v", "V", 4.0, 0.06, 25.5),
    ... )
    >>> picture = draw_tradeoff(
    ...     Tradeoff(4, 8, choices, {"straight": ((1.0, 0.67), (4.0, 0.11))})
    ... )
    >>> (
    ...     picture[:4],
    ...     picture.count(
    ...         "<title>zb-v: bubble 6.0 %, peak 4 microbatches, makespan 25.5</title>"
    ...     ),
    ... )
    ('<svg', 1)
    """
    if not drawn:
        raise ArgumentError("Nothing to draw; expected at least one Tradeoff.")
    Page.check_width(width, _LEAST_WIDTH)
    page = Page(width, title, notes, Letters(DEFAULT_SIZE))
    return _TradeoffPage(page, drawn).drawn()


class _TradeoffPage:
    """The page of trade-offs: panels above each other on common axes, between ``left``
    and ``right``.
    """

    def __init__(self, page: Page, drawn: Sequence[Tradeoff]) -> None:
        self.page = page
        self.letters = page.letters
        self.batches = drawn
        self.choices = [choice for of_batch in drawn for choice in of_batch.choices]
        self.left = page.margin + 52
        self.right = page.right
        points = [(choice.memory, choice.bubble) for choice in self.choices]
        for of_batch in drawn:
            points += chain(*of_batch.bounds.values())
        memory, bubbles = zip(*points)
        self.x = LogAxis.over(memory, self.left, self.right)
        self.y = LogAxis.over(bubbles, _HEIGHT, 0, minimum=_LEAST_BUBBLE)

    def drawn(self) -> str:
        """Return the whole document."""
        parts, y = self.page.head()
        for of_batch in self.batches:
            lines, y = self.page.text([("name", _name(of_batch))], y)
            parts += [*lines, moved(0, y + 8, self._panel(of_batch))]
            y += _HEIGHT + 42
        unit = "the memory unit of the costs"
        if all(t.counts_microbatches for t in self.batches):
            unit = "microbatches"
        label = f"peak of the fullest rank, in {unit}"
        middle = (self.left + self.right) / 2
        parts.append(self.letters.draw("tick", middle, y + 4, label))
        legend = Legend(self.page)
        entries, bottom = legend.draw(self._entries(legend), self.left, y + 22)
        described = " ".join([*map(_sentence, self.batches), *self.page.notes])
        parts += entries
        name = "Bubble over peak memory"
        return self.page.document(parts, bottom, name, described)

    # -- a panel -----------------------------------------------------------------------

    def _panel(self, of_batch: Tradeoff) -> Iterator[str]:
        """Yield a panel whose upper edge is at 0, from the lowest layer to the
        highest.
        """
        yield from self._grid()
        best = pareto_front(of_batch.choices)
        front = [(choice.memory, choice.bubble) for choice in best]
        lines: list[Box] = []
        for name, corners in (*of_batch.bounds.items(), ("front", front)):
            steps = self._steps(corners)
            yield _line(name, polyline(steps))
            lines += starmap(_around, pairwise(steps))
        yield from self._names(of_batch.choices, lines)
        for choice in of_batch.choices:
            x, y = self._point(choice)
            title = f"<title>{escaped(_described(choice, of_batch.counts_microbatches))}</title>"
            yield moved(x, y, [title, _mark(choice.placement, choice.is_searched)])

    def _point(self, choice: TradeoffPoint) -> Point:
        return self.x.at(choice.memory), self.y.at(choice.bubble)

    def _grid(self) -> Iterator[str]:
        """Yield the lines of round amounts, with the amounts beside them, and the
        vertical label of the axis.
        """
        memory = self.x.powers_of_two()
        bubbles = self.y.round_amounts()
        left = self.left
        right = self.right
        lines = [path_data("M", self.x.at(each), 0, "V", _HEIGHT) for each in memory]
        lines += [path_data("M", left, self.y.at(each), "H", right) for each in bubbles]
        lines.append(path_data("M", left, 0, "V", _HEIGHT, "H", right))
        yield path(paint("grid"), "".join(lines))
        for amount in memory:
            x = self.x.at(amount)
            yield self.letters.draw("tick", x, _HEIGHT + 15, f"{amount:g}")
        for bubble in bubbles:
            y = self.y.at(bubble) + 4
            yield self.letters.draw("reading", left - 7, y, f"{100 * bubble:g} %")
        label = self.letters.draw("tick", 0, 0, "bubble, part of all rank time")
        place = f"translate({self.page.margin} {_HEIGHT / 2:g}) rotate(-90)"
        yield group(f'transform="{place}"', [label])

    def _steps(self, corners: Sequence[Point]) -> list[Point]:
        """Return the points of a curve of steps through its corners: from the upper
        edge, and on to the right edge.
        """
        points = []
        y = 0.0
        for memory, bubble in corners:
            x = self.x.at(memory)
            points += [(x, y), (x, y := self.y.at(bubble))]
        if points:
            points.append((float(self.right), y))
        return points

    def _names(
        self, choices: Iterable[TradeoffPoint], lines: Sequence[Box]
    ) -> Iterator[str]:
        """Yield the names of the named schedules; schedules at one point have one
        label.
        """
        shown = sorted(choices, key=lambda choice: (self._point(choice), choice.name))
        labels: list[tuple[Point, str]] = []
        for point, alike in groupby(shown, self._point):
            names = (choice.name for choice in alike if not choice.is_searched)
            labels.append((point, ", ".join(names)))
        widths = [self.letters.width("choice", label) for _, label in labels]
        page = Box(self.left, 0, self.right, _HEIGHT)
        line = 1.15 * self.letters.size_of("choice")
        points = [point for point, _ in labels]
        places = place_names(points, widths, line, _GAP, page, lines)
        for (point, label), callout in zip(labels, places):
            if label and callout is not None:
                yield self._name(point, label, callout)

    def _name(self, point: Point, label: str, callout: Callout) -> str:
        box = callout.box
        near, middle = callout.near_end
        parts = []
        if callout.rows:
            parts.append(_line("leader", polyline(_between(point, callout.near_end))))
        width = box.right - box.left
        height = box.bottom - box.top
        look = f'{paint("ground")} fill-opacity=".8"'
        parts.append(rect(look, width, height, box.left, box.top))
        role = "choice-left" if callout.is_left else "choice"
        baseline = middle + 0.36 * self.letters.size_of(role)
        parts.append(self.letters.draw(role, near, baseline, label))
        return "".join(parts)

    # -- legend ------------------------------------------------------------------------

    def _entries(self, legend: Legend) -> Iterator[Entry]:
        """Yield an entry of the legend for everything that occurs."""
        x = legend.width / 2
        y = legend.height / 2
        placements = {choice.placement for choice in self.choices}
        for shape, label in _SHAPES.items():
            if shape in placements:
                yield Entry(moved(x, y, [_mark(shape)]), label)
        if any(choice.is_searched for choice in self.choices):
            label = "found by search, in the colour of its placement"
            yield Entry(moved(x, y, [_mark("other", is_searched=True)]), label)
        line = f"M0 {number(y)}H{legend.width}"
        yield Entry(_line("front", line), "Pareto front of these schedules")
        for name in _DASHES:
            if any(of_batch.bounds.get(name) for of_batch in self.batches):
                yield Entry(_line(name, line), f"lower bound for {_SHAPES[name]}")


def _name(of_batch: Tradeoff) -> str:
    """Return the name of a panel."""
    ranks = counted(of_batch.num_ranks, "rank")
    return f"{ranks}, {counted(of_batch.num_microbatches, 'microbatch')}"


def _sentence(of_batch: Tradeoff) -> str:
    """Describe a panel for screen readers."""
    counts = of_batch.counts_microbatches
    choices = "; ".join(_described(choice, counts) for choice in of_batch.choices)
    return f"{_name(of_batch)}: {choices}."


def _described(choice: TradeoffPoint, counts_microbatches: bool) -> str:
    peak = f"{choice.memory:g}"
    if counts_microbatches:
        peak = counted(choice.memory, "microbatch")
    figures = f"peak {peak}, makespan {choice.makespan:g}"
    if choice.is_searched:
        figures += ", found by search"
    return f"{choice.name}: bubble {100 * choice.bubble:.1f} %, {figures}"


def _between(point: Point, end: Point) -> list[Point]:
    """Return the ends of a line from the edge of a mark to its name."""
    x, y = point
    end_x, end_y = end
    part = 1.3 * _RADIUS / math.dist(point, end)
    start = (x + part * (end_x - x), y + part * (end_y - y))
    return [start, end]


def _line(name: str, data: str) -> str:
    dashes = ""
    if name in _DASHES:
        dashes = f' stroke-width="1.4" stroke-dasharray="{_DASHES[name]}"'
    return path(f"{paint(name)}{dashes}", data)


def _around(start: Point, end: Point) -> Box:
    """Return the rectangle that a horizontal or vertical line takes, with a pixel on
    each side.
    """
    left, right = sorted([start[0], end[0]])
    top, bottom = sorted([start[1], end[1]])
    return Box(left - 1, top - 1, right + 1, bottom + 1)


def _mark(placement: str, is_searched: bool = False) -> str:
    """Return the outline of the mark of a choice, with its middle at 0, 0. Marks at the
    same point remain visible through each other.
    """
    shape = _MARKS.get(placement, _SQUARE)
    if is_searched:
        shape = _CROSS
    return path(f'{paint(placement)} stroke-width="1.8"', shape)
