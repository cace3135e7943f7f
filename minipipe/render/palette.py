"""Colours and letters of the kinds of action, the same in every drawing.

The hues follow Okabe and Ito 2008, "Color Universal Design". Their lightness differs
more than in the original: the kinds are distinct on grey paper and for all common forms
of colour blindness, which ``tests/render/test_palette.py`` simulates after Machado,
Oliveira and Fernandes 2009. No drawing relies on colour alone.
"""

from __future__ import annotations

from colorsys import hsv_to_rgb, rgb_to_hsv
from types import MappingProxyType
from typing import NamedTuple

from minipipe.render.contrast import channels_of, text_on
from minipipe.schedules import ActionKind, IdleCause


class Fill(NamedTuple):
    """The colour of a kind of action, and the colour of text on it, as CSS colours; the
    same on light and dark backgrounds.

    These are for the first chunk of a rank; :func:`shade` returns the colours of the
    others.
    """

    box: str
    text: str


class Theme(NamedTuple):
    """The other colours of a drawing, on a light or on a dark background.

    Attributes
    ----------
    ground, ink, muted : str
        The background, text, and secondary text.
    grid : str
        Vertical lines at round times.
    slot, hatch : str
        The background and the lines of idle slots.
    memory, memory_edge : str
        The area and the outline of memory strips.
    message, gradient : str
        The arrows of activations and of gradients.
    """

    ground: str
    ink: str
    muted: str
    grid: str
    slot: str
    hatch: str
    memory: str
    memory_edge: str
    message: str
    gradient: str


LIGHT = Theme(
    ground="#ffffff",
    ink="#1b1f24",
    muted="#57606a",
    grid="#e3e7eb",
    slot="#f6f7f9",
    hatch="#bac1ca",
    memory="#d5dae1",
    memory_edge="#7d8793",
    message="#0a5f94",
    gradient="#8a2176",
)
DARK = Theme(
    ground="#0f1318",
    ink="#e7ebf0",
    muted="#9aa5b1",
    grid="#272e37",
    slot="#161b22",
    hatch="#4b5563",
    memory="#333c48",
    memory_edge="#8a95a3",
    message="#a6dcf9",
    gradient="#eea3de",
)


def _fill(colour: str) -> Fill:
    return Fill(colour, text_on(colour))


def shade(fill: Fill, chunk: int) -> Fill:
    """Return the fill of a chunk: of the same hue for all chunks of a rank, and darker
    for later ones.

    Parameters
    ----------
    fill : Fill
        One of ``FILL``.
    chunk : int
        The index of the stage among the stages of its rank, from 0.

    Examples
    --------
    >>> shade(FILL[ActionKind.FORWARD], 0) == FILL[ActionKind.FORWARD]
    True
    >>> shade(FILL[ActionKind.FORWARD], 1).box
    '#62a1c2'
    """
    if not chunk:
        return fill
    hue, saturation, value = rgb_to_hsv(*channels_of(fill.box))
    depth = 0.6**chunk  # each step is smaller than the last, so that no chunk is black
    red, green, blue = hsv_to_rgb(
        hue,
        saturation + (1 - saturation) * 0.6 * (1 - depth),
        value * (0.45 + 0.55 * depth),
    )
    parts = (round(255 * part) for part in (red, green, blue))
    return _fill("#" + "".join(f"{part:02x}" for part in parts))


_SEND = _fill("#8a8f98")
FILL = MappingProxyType(
    {
        ActionKind.FORWARD: _fill("#a6dcf9"),
        ActionKind.BACKWARD: _fill("#cf78b9"),
        ActionKind.BACKWARD_INPUT: _fill("#f0ab35"),
        ActionKind.BACKWARD_WEIGHT: _fill("#12805c"),
        ActionKind.UPDATE: _fill("#45318f"),
        ActionKind.REDUCE_GRAD: _fill("#7a5200"),
        ActionKind.RECOMPUTE: _fill("#faf53d"),
        ActionKind.OFFLOAD: _SEND,  # transfers, in lanes of their own
        ActionKind.LOAD: _SEND,
        ActionKind.SEND_F: _SEND,
        ActionKind.SEND_B: _SEND,
    }
)
_DECLARED = _fill("#c6b38b")  # the kinds of other programs: their boxes have names


def fill_of(kind: ActionKind) -> Fill:
    """Return the fill of a kind of action, of this package or of another program.

    Examples
    --------
    >>> fill_of(ActionKind.RECV_F) == fill_of(ActionKind.SEND_F) == FILL[
    ...     ActionKind.SEND_F
    ... ]
    True
    """
    if kind.is_communication:
        return _SEND
    return FILL.get(kind, _DECLARED)


# The hatching of idle time, by cause: the angle of the lines in degrees, clockwise, and
# their spacing in pixels.
HATCH = MappingProxyType(
    {
        IdleCause.WARM_UP: (45, 6),
        IdleCause.WAITING: (0, 4),
        IdleCause.SENDING: (90, 4),
        IdleCause.DRAIN: (-45, 6),
        IdleCause.UPDATE: (45, 3),
        IdleCause.OVERHEAD: (0, 9),
    }
)
