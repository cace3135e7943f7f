"""Display of drawings: a picture in a notebook, text in a terminal."""

from __future__ import annotations

import sys
from typing import Any

from minipipe.core.schedules.action_table import ActionTable
from minipipe.io import escaped
from minipipe.render.svg import draw_svg
from minipipe.render.terminal import has_colour
from minipipe.render.text import draw_text
from minipipe.schedules.simulation.timeline import Timeline


def show(*drawn: ActionTable | Timeline) -> None:
    """Show schedules and timelines above each other: as a picture in a notebook,
    elsewhere as text.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        All in one unit of time.

    Raises
    ------
    ArgumentError
        Code ``type``: if an argument is neither a schedule nor a timeline.
        Code ``value``: if there is nothing to show, or if the units differ.
    ScheduleError
        Code ``deadlock``, if a schedule cannot run to completion.

    Examples
    --------
    >>> from minipipe import schedules
    >>> show(schedules.gpipe(2, 1))
    rank 0 F0---···············B0========
    rank 1 ·····F0---B0========··········
    F- forward, B= backward, · idle, F3: microbatch 3
    gpipe: makespan 6 units, bubble 50.0 %, peak activations by rank 1, 1
    """
    if _notebook() is None:
        print(draw_text(*drawn, colour=has_colour()))
    else:
        show_picture(draw_svg(*drawn), draw_text(*drawn))


def show_picture(picture: str, text: str) -> None:
    """Show a picture in a notebook, or an equivalent text elsewhere.

    Parameters
    ----------
    picture : str
        SVG, as :func:`draw_svg`, :func:`draw_graph` and :func:`draw_tradeoff` return
        it.
    text : str
        The text that a terminal prints, and that replaces the picture if it cannot be
        drawn.

    Examples
    --------
    >>> from minipipe import schedules
    >>> show_picture(draw_svg(schedules.gpipe(2, 1)), "two ranks")
    two ranks
    """
    ipython = _notebook()
    if ipython is None:
        print(text)
    else:
        ipython.display.display({"text/html": picture, "text/plain": text}, raw=True)


def _notebook() -> Any:
    """Return IPython if this process is one of its kernels, whose front end can draw.
    It is never imported here.
    """
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    return ipython


def picture_or_text(drawn: ActionTable | Timeline) -> str:
    """Return HTML for a notebook: a picture or, if a schedule cannot run, its text and
    the error.
    """
    try:
        return draw_svg(drawn)
    except ValueError as error:  # such as a ScheduleError
        text = "\n".join(map(escaped, f"{drawn}\n\n{error}".split("\n")))
        return f"<pre>{text}</pre>"
