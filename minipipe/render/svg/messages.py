"""The messages of a timeline in an SVG: thin arrows from where a value is sent to where it arrives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minipipe.render.axis import Axis
from minipipe.render.descriptions import describe_message
from minipipe.render.lettering import number
from minipipe.render.panel import Panel
from minipipe.schedules.action import ActionKind
from minipipe.simulation.message import Message

__all__ = ["draw_messages", "way_of"]


def way_of(message: Message) -> str:
    """Return ``"forward"`` for an activation, ``"backward"`` for a gradient."""
    return "forward" if message.value.kind is ActionKind.FORWARD else "backward"


def draw_messages(panel: Panel, axis: Axis, tops: Sequence[float], height: float) -> Iterator[str]:
    """Yield an arrow for each message: from the edge of the sender's lane that faces the receiver, to the receiver's.

    Parameters
    ----------
    panel : Panel
    axis : Axis
    tops : sequence of float
        By rank, the upper edge of its boxes.
    height : float
        Of the boxes.
    """
    origin = panel.timeline.start
    for message in panel.timeline.messages:
        goes_down = tops[message.source] < tops[message.destination]
        start, end = tops[message.source] + height * goes_down, tops[message.destination] + height * (not goes_down)
        x, arrival = number(axis.x(message.sent - origin)), number(axis.x(message.arrived - origin))
        middle = number((start + end) / 2)
        bend = f"V{number(end)}" if x == arrival else f"C{x} {middle} {arrival} {middle} {arrival} {number(end)}"
        yield (
            f'<path class="arrow {way_of(message)}" d="M{x} {number(start)}{bend}">'
            f"<title>{describe_message(message)}</title></path>"
        )
