"""Nodes in columns, and arrows between them: a calculation, or ranks that wait for each
other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from minipipe.errors import ArgumentError, quoted
from minipipe.render.svg.elements import moved, path, path_data, polyline, rect
from minipipe.render.svg.style import DEFAULT_SIZE, Letters, Page, paint

# pixels: of a node, beside its name, from row to row, between columns
_HEIGHT = 30
_PADDING = 12
_ROW = 62
_GAP = 96
# pixels: from arrow to arrow between the same nodes; length of an arrowhead
_BOW = 30
_HEAD = 8


def draw_graph(
    columns: Sequence[Sequence[str]],
    arrows: Iterable[tuple[str, str, str]],
    title: str | None = None,
) -> str:
    """Draw named nodes and the arrows between them, as SVG.

    Parameters
    ----------
    columns : sequence of sequences of str
        The names of the nodes, each once: columns from the left, each from above.
    arrows : iterable of (str, str, str)
        Source, target, and a label beside the arrow, which may be empty. Several arrows
        may connect the same nodes. Arrows that do not lead to a column further right
        pass below all nodes.
    title : str, optional

    Returns
    -------
    str

    Raises
    ------
    ArgumentError
        Code ``value``, for a name that occurs twice, and for an arrow at a node that
        does not exist.

    Examples
    --------
    >>> picture = draw_graph(
    ...     [["x"], ["x * x"]], [("x", "x * x", "slope 3"), ("x", "x * x", "slope 3")]
    ... )
    >>> picture[:4], picture.count("slope 3</text>")
    ('<svg', 2)
    """
    arrows = list(arrows)
    names = Counter(name for column in columns for name in column)
    for name in [name for name, count in names.items() if count > 1]:
        problem = f"There are {names[name]} nodes called {quoted(name)}"
        raise ArgumentError(f"{problem}; expected one.")
    for name in [name for arrow in arrows for name in arrow[:2] if name not in names]:
        problem = f"An arrow is at {quoted(name)}; expected one of the nodes"
        raise ArgumentError(f"{problem}: {', '.join(names)}.")
    return _GraphPage(columns, arrows, title).drawn()


class _GraphPage:
    """The page of a graph: the middle of each node in ``places``, and half of its width
    in ``halves``.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[str]],
        arrows: list[tuple[str, str, str]],
        title: str | None,
    ) -> None:
        self.letters = letters = Letters(DEFAULT_SIZE)
        self.places: dict[str, tuple[float, float]] = {}
        self.halves: dict[str, float] = {}
        self.column_of: dict[str, int] = {}
        x = float(letters.scaled(18))
        self.lower = _ROW * max(map(len, columns), default=0)
        for i, column in enumerate(columns):
            widths = (letters.width("node", name) for name in column)
            half = max((width / 2 + _PADDING for width in widths), default=0)
            for row, name in enumerate(column):
                y = self.lower / 2 + (row + 0.5 - len(column) / 2) * _ROW
                self.places[name] = (x + half, y)
                self.halves[name] = half
                self.column_of[name] = i
            x += 2 * half + _GAP
        width = max(round(x - _GAP + letters.scaled(18)), 200)
        self.page = Page(width, title, (), letters)
        self.arrows = arrows

    def drawn(self) -> str:
        """Return the whole document."""
        parts, y = self.page.head()
        times = Counter(arrow[:2] for arrow in self.arrows)
        before = Counter[tuple[str, str]]()
        drawn = []
        bottom = float(self.lower)
        for source, target, label in self.arrows:
            bow = _BOW * (2 * before[source, target] - (times[source, target] - 1))
            before[source, target] += 1
            arrow, lowest = self._arrow(source, target, label, bow)
            drawn.append(arrow)
            bottom = max(bottom, lowest)
        drawn += [self._node(name) for name in self.places]
        upper = 0.0
        if any(self._span(*arrow[:2]) > 1 for arrow in self.arrows):
            upper = _ROW / 2
        described = "; ".join(
            f"{source} to {target}: {label}" for source, target, label in self.arrows
        )
        parts.append(moved(0, y + upper, drawn))
        return self.page.document(parts, y + upper + bottom, "A graph", described)

    def _span(self, source: str, target: str) -> int:
        """Return how many columns an arrow goes to the right."""
        return self.column_of[target] - self.column_of[source]

    def _node(self, name: str) -> str:
        x, y = self.places[name]
        half = self.halves[name]
        corner = (x - half, y - _HEIGHT / 2)
        box = rect(paint("other"), 2 * half, _HEIGHT, *corner, more='rx="5"')
        return box + self.letters.draw("node", x, y + 4, name)

    def _arrow(
        self, source: str, target: str, label: str, bow: float
    ) -> tuple[str, float]:
        """Return an arrow, a curve that is bent downwards by ``bow``, with its label;
        and its lower edge.
        """
        x0, y0 = self.places[source]
        x1, y1 = self.places[target]
        span = self._span(source, target)
        if span == 1:
            x0 = x0 + self.halves[source]
            x1 = x1 - self.halves[target]
            down = (y0 + y1) / 2 + bow
        elif span > 1:  # above the nodes between the two
            y0 = y0 - _HEIGHT / 2
            y1 = y1 - _HEIGHT / 2
            down = bow + (min(y0, y1) - _ROW)
        else:  # back, below all nodes
            y0 = y0 + _HEIGHT / 2
            y1 = y1 + _HEIGHT / 2
            down = bow + (self.lower + _BOW)
        across = (x0 + x1) / 2
        angle = math.atan2(y1 - down, x1 - across)
        dx = _HEAD * math.cos(angle)
        dy = _HEAD * math.sin(angle)
        curve = path_data("M", x0, y0, "Q", across, down, x1 - dx, y1 - dy)
        left = (x1 - dx - dy / 2, y1 - dy + dx / 2)
        right = (x1 - dx + dy / 2, y1 - dy - dx / 2)
        head = f"{polyline([(x1, y1), left, right])}z"
        line = path(paint("forward"), curve) + path(paint("forward-head"), head)
        middle = (y0 + y1) / 4 + down / 2
        if label:
            x = (x0 + x1) / 4 + across / 2
            line += self.letters.draw("tick", x, middle - 5, label)
        return line, middle + 8
