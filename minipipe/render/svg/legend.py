"""The messages of a timeline as arrows, and the legend: an entry for each kind, cause
and line that occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from minipipe.render.descriptions import OVERLAPPED, WAYS, describe_message, way_of
from minipipe.render.layout import Axis, number, wrapped
from minipipe.render.panel import Panel
from minipipe.render.svg.elements import group, moved, path, path_data, polyline, rect
from minipipe.render.svg.lanes import filled, slot
from minipipe.render.svg.style import Page, box_paint, paint
from minipipe.schedules import ActionKind, IdleCause

_ASIDE = 0.4  # half the width of an arrowhead, relative to its length


def draw_messages(
    panel: Panel, axis: Axis, tops: Sequence[float], height: float, head: float
) -> Iterator[str]:
    """Yield an arrow for each message, between the facing edges of the sender's and the
    receiver's lane.

    Heads are paths, because svglib and MuPDF draw no markers. If messages take no time,
    an activation and a gradient are often sent at the same time. Therefore a vertical
    arrow is drawn half a head beside its time: before it on the way down, and after it
    on the way up. If the activation and the gradient of two overlapped actions are sent
    together, the gradient is drawn a head farther.

    Parameters
    ----------
    panel : Panel
    axis : Axis
    tops : sequence of float
        By rank, the upper edge of its boxes.
    height : float
        The height of the boxes.
    head : float
        The length of arrowheads, in pixels.
    """
    origin = panel.timeline.start
    places = set()
    for way in WAYS:
        shafts = []
        heads = []
        messages = (it for it in panel.timeline.messages if way_of(it) == way)
        for message in messages:
            start = tops[message.source]
            end = tops[message.destination]
            down = head
            if start < end:
                start = start + height
            else:
                end = end + height
                down = -head
            x = axis.x(message.sent - origin)
            arrival = axis.x(message.arrived - origin)
            aside = -2 * _ASIDE * down
            if x == arrival:
                x = arrival = x + aside / 2
            if (x, start, arrival, end) in places:
                x = x + aside
                arrival = arrival + aside
            places.add((x, start, arrival, end))
            shaft = _shaft(x, start, arrival, end)
            shafts.append(path("", shaft, describe_message(message)))
            heads.append(arrow_head(arrival, end, 0, down))
        if shafts:
            yield group(paint(way), shafts)
            yield path(paint(f"{way}-head"), "".join(heads))


def _shaft(x: float, y: float, end_x: float, end_y: float) -> str:
    """Return path data of a line that begins and ends vertically."""
    if number(x) == number(end_x):
        return path_data("M", x, y, "V", end_y)
    middle = (y + end_y) / 2
    return path_data("M", x, y, "C", x, middle, end_x, middle, end_x, end_y)


def arrow_head(x: float, y: float, along_x: float, along_y: float) -> str:
    """Return path data of a triangle with its tip at (x, y).

    Parameters
    ----------
    x, y : float
    along_x, along_y : float
        The vector from the middle of its base to the tip, in pixels.

    Examples
    --------
    >>> arrow_head(10, 20, 0, 6)
    'M12.4 14L7.6 14L10 20z'
    """
    base_x = x - along_x
    base_y = y - along_y
    aside_x = _ASIDE * along_y
    aside_y = _ASIDE * along_x
    corners = (
        (base_x + aside_x, base_y + aside_y),
        (base_x - aside_x, base_y - aside_y),
        (x, y),
    )
    return f"{polyline(corners)}z"


# pixels from one line to the next; this and the sizes below at the default font size
_LINE = 20
_WIDTH = 20
_HEIGHT = 13
_GAP = 14  # between two entries


class Entry(NamedTuple):
    """A picture, as SVG at 0, 0, and its explanation."""

    picture: str
    text: str


class Legend:
    """The entries of the legend of a page.

    Parameters
    ----------
    page : Page

    Attributes
    ----------
    width, height : int
        The size of the picture of an entry, in pixels.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._letters = page.letters
        self.width = page.letters.scaled(_WIDTH)
        self.height = page.letters.scaled(_HEIGHT)

    def shades(self, boxes: Sequence[tuple[ActionKind, int]], text: str) -> Entry:
        """Return the entry of a kind of action, with the shades of its chunks."""
        drawn = ""
        for i, (kind, chunk) in enumerate(boxes):
            width = self.width / len(boxes)
            drawn += rect(box_paint(kind, chunk), width, self.height, x=i * width)
        return Entry(drawn, text)

    def idle(self, causes: Iterable[IdleCause]) -> Iterator[Entry]:
        """Yield the causes of idle time, each with its hatching."""
        for cause in causes:
            yield Entry(slot(self.width, self.height, cause), f"idle, {cause}")

    def step(self) -> Entry:
        """Return the entry of the lines between training steps."""
        line = path(paint("step"), f"M{self.width / 2} 0V{self.height}")
        return Entry(line, "the rank begins the next step")

    def overlapped(self) -> Entry:
        """Return the entry of the frames around overlapped actions."""
        frame = path(paint("joined"), f"M0 0H{self.width}V{self.height}H0z")
        return Entry(frame, OVERLAPPED)

    def runs(self) -> Entry:
        """Return the entry of the bands that merge many short actions."""
        return Entry(
            "", "bands: many short actions, each kind by its share of the time"
        )

    def strip(self, label: str) -> Entry:
        """Return the entry of the strips under the ranks."""
        right = self.width
        bottom = self.height
        steps = ((0.25, 0.6), (0.5, 0.3), (0.75, 0.1), (1.0, 0.6))
        corners = (path_data("V", y * bottom, "H", x * right) for x, y in steps)
        return Entry(filled(f"M0 {bottom}{''.join(corners)}V{bottom}"), label)

    def arrow(self, way: str, text: str) -> Entry:
        """Return the entry of the messages of one way, or of a note on arrows."""
        if not way:
            return Entry("", text)
        middle = self.height / 2
        head = self._letters.size / 2
        shaft = path(paint(way), path_data("M", 0, middle, "H", self.width))
        tip = path(paint(f"{way}-head"), arrow_head(self.width, middle, head, 0))
        return Entry(shaft + tip, text)

    def draw(
        self, entries: Iterable[Entry], left: float, top: float
    ) -> tuple[list[str], float]:
        """Draw entries side by side, in as many lines as they need; return them and
        their lower edge.
        """
        letters = self._letters
        right = self._page.right
        drawn = []
        x = left
        y = top
        for picture, text in entries:
            indent = 0
            if picture:
                indent = self.width + letters.scaled(6)
            lines = wrapped(text, letters.wrapping_size("key"), right - left - indent)
            width = indent + max(letters.width("key", line) for line in lines)
            if x > left and (x + width > right or len(lines) > 1):
                x = left
                y = y + letters.scaled(_LINE)
            parts = [picture]
            for row, line in enumerate(lines):
                parts.append(letters.draw("key", indent, self._baseline(row), line))
            drawn.append(moved(x, y, parts))
            x = x + width + letters.scaled(_GAP)
            y = y + (len(lines) - 1) * letters.scaled(_LINE)
        return drawn, y + self.height

    def _baseline(self, row: int) -> float:
        baseline = self.height / 2 + 0.35 * self._letters.size_of("key")
        return baseline + row * self._letters.scaled(_LINE)
