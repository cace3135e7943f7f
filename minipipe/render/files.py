"""Drawings as files: the ending of the name selects the format. CairoSVG, which is
optional, makes PNG and PDF.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, quoted
from minipipe.io import note_lines, printable, write_whole
from minipipe.render.html import draw_html
from minipipe.render.perfetto import perfetto_trace
from minipipe.render.svg import draw_svg
from minipipe.render.text import draw_text
from minipipe.schedules.simulation.timeline import Timeline

# Pixels of a PNG per pixel of the SVG, for printers and screens of high resolution.
_PNG_SCALE = 2
_TEXT_WIDTH = 120  # columns: a file may be wider than a terminal


def _text(
    *drawn: ActionTable | Timeline, title: str | None = None, notes: Sequence[str] = ()
) -> str:
    head = list(note_lines(notes))
    if title:
        head = [printable(title), *head]
    if head:
        head.append("")
    return "\n".join([*head, draw_text(*drawn, width=_TEXT_WIDTH), ""])


# The drawing of a file with each ending. Pictures are drawn as SVG, and then converted.
ENDINGS = MappingProxyType[str, Callable[..., str]](
    {
        ".svg": draw_svg,
        ".html": draw_html,
        ".json": perfetto_trace,
        ".txt": _text,
        ".png": draw_svg,
        ".pdf": draw_svg,
    }
)
PICTURES = (".svg", ".png", ".pdf")
_MEANINGS = {
    ".svg": " (a picture)",
    ".html": " (a player)",
    ".json": " (a trace for Perfetto)",
}


def save(path: str | Path, *drawn: ActionTable | Timeline, **options: Any) -> Path:
    """Save a drawing of schedules or timelines, above each other on a common time axis,
    to a file.

    Parameters
    ----------
    path : str or Path
        Its ending selects the format: ``.svg`` a picture, ``.html`` a player, ``.json``
        a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing, ``.txt``
        text. ``.png`` and ``.pdf`` need CairoSVG.
    *drawn : Schedule or Timeline
    **options
        ``title`` and ``notes`` for every format; ``.svg``, ``.png`` and ``.pdf`` take
        all options of :func:`minipipe.render.draw_svg`.

    Returns
    -------
    Path

    Raises
    ------
    ArgumentError
        Code ``value``: if the ending is unknown, if CairoSVG is missing for ``.png`` or
        ``.pdf``, or as for :func:`minipipe.render.panel.panels_of`.
    FileError
        Code ``unwritable``; an earlier file stays unchanged.

    Examples
    --------
    >>> import tempfile
    >>> from minipipe import schedules
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/gpipe.svg", schedules.gpipe(4, 8), title="GPipe").name
    'gpipe.svg'
    """
    return write_whole(path, drawing(check_ending(path), *drawn, **options))


def drawing(ending: str, *drawn: ActionTable | Timeline, **options: Any) -> str | bytes:
    """Return the content of a file with this ending: bytes for ``.png`` and ``.pdf``,
    otherwise text.

    Parameters
    ----------
    ending : str
        One of ``ENDINGS``.
    *drawn : Schedule or Timeline
    **options
        As for :func:`save`.

    Raises
    ------
    ArgumentError
        Code ``value``: as for :func:`save`.

    Examples
    --------
    >>> from minipipe import schedules
    >>> drawing(".txt", schedules.gpipe(1, 1), title="One rank").splitlines()[0]
    'One rank'
    """
    Spec(str, choices=tuple(ENDINGS)).check("The ending", ending)
    return converted(ENDINGS[ending](*drawn, **options), ending)


def converted(content: str, ending: str) -> str | bytes:
    """Return an SVG as a PNG, with two pixels for each of its pixels, or as a PDF;
    anything else unchanged.

    Both have a light background. The PDF is one page, with 0.75 points for each pixel.

    Parameters
    ----------
    content : str
    ending : str

    Raises
    ------
    ArgumentError
        Code ``value``, if CairoSVG is missing for ``.png`` or ``.pdf``.
    """
    if ending == ".png":
        return _cairosvg(ending).svg2png(content.encode(), scale=_PNG_SCALE)
    if ending == ".pdf":
        return _cairosvg(ending).svg2pdf(content.encode())
    return content


def check_ending(path: str | Path, endings: Collection[str] = ENDINGS) -> str:
    """Return the ending of a file name after checking that its format can be written.

    Parameters
    ----------
    path : str or Path
    endings : collection of str, optional
        The endings to choose from, such as ``PICTURES``; by default all ``ENDINGS``.

    Raises
    ------
    ArgumentError
        Code ``value``: if the ending is unknown, or if CairoSVG is missing for ``.png``
        or ``.pdf``.

    Examples
    --------
    >>> check_ending("trace.HTML")
    '.html'
    """
    ending = Path(path).suffix.lower()
    if ending not in endings:
        *others, last = (each + _MEANINGS.get(each, "") for each in endings)
        problem = "has no ending"
        if ending:
            problem = f"ends in {printable(ending[:20])}"
        expected = f"{', '.join(others)} or {last}"
        name = quoted(str(path), 200)
        raise ArgumentError(f"{name} {problem}; expected {expected}.")
    if ending in (".png", ".pdf"):
        _cairosvg(str(path))
    return ending


def _cairosvg(name: str) -> ModuleType:
    try:
        import cairosvg
    except ImportError:
        raise _missing(name, "CairoSVG", "pip install cairosvg") from None
    except OSError:  # CairoSVG is installed, but cannot load the library
        raise _missing(name, "the library Cairo", "apt-get install libcairo2") from None
    return cairosvg


def _missing(name: str, library: str, command: str) -> ArgumentError:
    problem = f"{name!r} needs {library}, which is not installed"
    return ArgumentError(f"{problem}; run `{command}`, or write .svg.")
