"""Showing a drawing: a picture in a notebook, text in a terminal."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from minipipe.render.svg import draw_svg
from minipipe.render.terminal import has_colour
from minipipe.render.text import draw_text
from minipipe.schedules.action_table import ActionTable
from minipipe.simulation.timeline import Timeline

__all__ = ["picture_or_text", "show"]


def show(*drawn: ActionTable | Timeline) -> None:
    """Show schedules and timelines above each other: as a picture in a notebook, elsewhere as text.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        All in one unit of time.

    Raises
    ------
    TypeError
        For what is neither a schedule nor a timeline.
    ValueError
        When there is nothing to show, or units differ.
    ScheduleError
        Code ``deadlock``, when a schedule cannot run to its end.

    Examples
    --------
    >>> from minipipe import schedules
    >>> show(schedules.gpipe(2, 1))
    rank 0 F0---···············B0========
    rank 1 ·····F0---B0========··········
    gpipe: makespan 6 units, bubble 50.0 %, peak activations by rank 1, 1
    """
    ipython = _notebook()
    if ipython is None:
        print(draw_text(*drawn, colour=has_colour()))
    else:
        ipython.display.display({"text/html": draw_svg(*drawn), "text/plain": draw_text(*drawn)}, raw=True)


def _notebook() -> Any:
    """Return IPython if this runs in one of its kernels, which have a front end that draws; it is never imported."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return ipython if hasattr(shell, "kernel") else None


def picture_or_text(drawn: ActionTable | Timeline) -> str:
    """Return what a notebook shows: a picture, or the text of a schedule that cannot run, and the reason."""
    try:
        return draw_svg(drawn)
    except ValueError as error:  # such as a ScheduleError
        return f"<pre>{escape(str(drawn))}\n\n{escape(str(error))}</pre>"
