"""Terminal colours, and whether a stream takes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TextIO

from minipipe.core.schedules.action import ActionKind
from minipipe.io import is_terminal
from minipipe.render.contrast import luminance as relative_luminance

_GREYS = (247, 243, 240, 237)  # of SEND and RECV
# The hues of palette.py in the nearest of a terminal's 256 colours: for the first chunk
# of a rank, then a shade darker for each further chunk. Background and text are both
# set, so that labels are legible on dark and light terminals.
SHADES = MappingProxyType(
    {
        ActionKind.FORWARD: (117, 74, 31, 24),
        ActionKind.BACKWARD: (218, 175, 132, 89),
        ActionKind.BACKWARD_INPUT: (220, 208, 166, 94),
        ActionKind.BACKWARD_WEIGHT: (85, 36, 29, 22),
        ActionKind.UPDATE: (62, 61, 55, 54),
        ActionKind.REDUCE_GRAD: (136, 130, 94, 58),
        ActionKind.RECOMPUTE: (227, 185, 143, 101),
    }
)
IDLE = "38;5;244"  # a grey, visible on black and on white
ALARM = "1;38;5;160"  # a red, visible on both


def has_colour(
    stream: TextIO | None = None, environment: Mapping[str, str] | None = None
) -> bool:
    """Return whether the output to a stream may be coloured.

    Parameters
    ----------
    stream : TextIO, optional
        By default standard output.
    environment : mapping, optional
        By default the environment of the process. Its variables decide in this order:
        ``NO_COLOR`` (any value: no), ``FORCE_COLOR`` (any value but 0: yes), ``TERM``
        (``dumb``: no). Without them, a terminal may be coloured.

    References
    ----------
    https://no-color.org and https://force-color.org.

    Examples
    --------
    >>> (
    ...     has_colour(environment={"FORCE_COLOR": "1"}),
    ...     has_colour(environment={"FORCE_COLOR": "1", "NO_COLOR": "1"}),
    ... )
    (True, False)
    """
    variables = os.environ if environment is None else environment
    if variables.get("NO_COLOR"):
        return False
    if variables.get("FORCE_COLOR"):
        return variables["FORCE_COLOR"] != "0"
    return variables.get("TERM") != "dumb" and is_terminal(stream or sys.stdout)


def paint(text: str, code: str) -> str:
    """Return a text in a colour, followed by a reset to the terminal's own colours.

    Examples
    --------
    >>> paint("F0", ground(ActionKind.FORWARD, chunk=0))
    '\\x1b[38;5;16;48;5;117mF0\\x1b[0m'
    """
    if not code:
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def ground(kind: ActionKind, chunk: int, is_label: bool = True) -> str:
    """Return the colours of an action: its background, and black or white for its
    label, the more legible one.

    The fill characters after the label have the colour of the background.
    """
    shades = SHADES.get(kind, _GREYS)
    shade = shades[min(chunk, len(shades) - 1)]
    text = shade
    if is_label:
        text = 16 if luminance(shade) > 0.18 else 231
    return f"38;5;{text};48;5;{shade}"


def luminance(colour: int) -> float:
    """Return the relative luminance of one of the colours 16 to 255, from 0 (black) to
    1 (white).

    Above 0.18, black text is more legible than white.
    """
    if colour >= 232:
        channels = [8 + 10 * (colour - 232)] * 3
    else:
        steps = (0, 95, 135, 175, 215, 255)
        channels = [steps[(colour - 16) // weight % 6] for weight in (36, 6, 1)]
    return relative_luminance([channel / 255 for channel in channels])
