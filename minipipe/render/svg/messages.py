"""The messages of a timeline in an SVG: thin arrows from the send to the arrival of a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minipipe.render.axis import Axis
from minipipe.render.descriptions import describe_message
from minipipe.render.lettering import number
from minipipe.render.panel import Panel
from minipipe.render.svg.style import paint
from minipipe.schedules.action import ActionKind
from minipipe.schedules.simulation.timeline import Message

WAYS = ("forward", "backward")
_ASIDE = 0.4  # of its length: half the width of a head


def way_of(message: Message) -> str:
    """Return ``"forward"`` for an activation, ``"backward"`` for a gradient."""
    return WAYS[message.value.kind is not ActionKind.FORWARD]


def draw_messages(panel: Panel, axis: Axis, tops: Sequence[float], height: float, head: float) -> Iterator[str]:
    """Yield an arrow for each message, between the facing edges of the sender's and the receiver's lane.

    Heads are paths: svglib and MuPDF draw no markers. A vertical arrow stands half a head beside its time, before it on
    the way down and after it on the way up: where messages take no time, both often go at one time.

    Parameters
    ----------
    panel : Panel
    axis : Axis
    tops : sequence of float
        By rank, the upper edge of its boxes.
    height : float
        Of the boxes.
    head : float
        The length of arrowheads, in pixels.
    """
    origin = panel.timeline.start
    for way in WAYS:
        shafts, heads = [], []
        for message in (message for message in panel.timeline.messages if way_of(message) == way):
            goes_down = tops[message.source] < tops[message.destination]
            start, end = tops[message.source] + height * goes_down, tops[message.destination] + height * (not goes_down)
            x, arrival = axis.x(message.sent - origin), axis.x(message.arrived - origin)
            if x == arrival:
                x = arrival = x + _ASIDE * (-head if goes_down else head)
            shafts.append(
                f'<path d="{_shaft(x, start, arrival, end)}"><title>{describe_message(message)}</title></path>'
            )
            heads.append(arrow_head(arrival, end, 0, head if goes_down else -head))
        if shafts:
            yield f'<g {paint(way)}>{"".join(shafts)}</g><path {paint(f"{way}-head")} d="{"".join(heads)}"/>'


def _shaft(x: float, y: float, end_x: float, end_y: float) -> str:
    """Return path data of a line that begins and ends vertically."""
    start, end, middle = f"M{number(x)} {number(y)}", number(end_y), number((y + end_y) / 2)
    if number(x) == number(end_x):
        return f"{start}V{end}"
    return f"{start}C{number(x)} {middle} {number(end_x)} {middle} {number(end_x)} {end}"


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
    base_x, base_y = x - along_x, y - along_y
    aside_x, aside_y = _ASIDE * along_y, _ASIDE * along_x
    corners = (base_x + aside_x, base_y + aside_y), (base_x - aside_x, base_y - aside_y), (x, y)
    return f"M{'L'.join(f'{number(a)} {number(b)}' for a, b in corners)}z"
