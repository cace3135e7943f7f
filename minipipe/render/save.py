"""Writing a drawing to a file; its ending says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from minipipe.render.html import draw_html
from minipipe.render.perfetto import perfetto_trace
from minipipe.render.svg import draw_svg
from minipipe.render.text import draw_text
from minipipe.schedules.action_table import ActionTable
from minipipe.simulation.timeline import Timeline

__all__ = ["ENDINGS", "check_ending", "save"]


def _text(*drawn: ActionTable | Timeline) -> str:
    return draw_text(*drawn, width=120) + "\n"


ENDINGS = MappingProxyType[str, Callable[..., str]](
    {".svg": draw_svg, ".html": draw_html, ".json": perfetto_trace, ".txt": _text}
)


def save(path: str | Path, *drawn: ActionTable | Timeline) -> Path:
    """Draw schedules or timelines, above each other on one axis of time, into a file.

    Parameters
    ----------
    path : str or Path
        Its ending says what to draw: ``.svg`` a picture, ``.html`` a player, ``.json`` a trace for Perfetto
        (https://ui.perfetto.dev) or chrome://tracing, ``.txt`` text.
    *drawn : Schedule or Timeline

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        For another ending, and what :func:`minipipe.render.panel.panels_of` refuses.

    Examples
    --------
    >>> import tempfile
    >>> from minipipe import schedules
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/gpipe.svg", schedules.gpipe(4, 8)).name
    'gpipe.svg'
    """
    path = Path(path)
    draw = ENDINGS[check_ending(path)]
    path.write_text(draw(*drawn), encoding="utf-8")
    return path


def check_ending(path: str | Path) -> str:
    """Return a file's ending, if it is one of those that can be drawn.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_ending("trace.HTML")
    '.html'
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(
            f"{str(path)!r} ends in {ending or 'nothing'}; expected .svg (a picture), .html (a player), "
            ".json (a trace for Perfetto) or .txt."
        )
    return ending
