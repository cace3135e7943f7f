"""Drawings as files: the ending of the name selects the format. CairoSVG, which is optional, makes PNG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from minipipe.errors import ArgumentError, quoted
from minipipe.io import note_lines, printable, write_whole
from minipipe.render.html import draw_html
from minipipe.render.perfetto import perfetto_trace
from minipipe.render.svg import draw_svg
from minipipe.render.text import draw_text
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.simulation.timeline import Timeline

_PNG_SCALE = 2  # pixels for each pixel of the SVG: screens of high resolution and printers show them


def draw_png(*drawn: ActionTable | Timeline, **options: Any) -> bytes:
    """Draw schedules and timelines as PNG, for a light ground, with two pixels for each pixel of ``width``.

    Parameters
    ----------
    *drawn : Schedule or Timeline
    **options
        Of :func:`minipipe.render.svg.draw_svg`.

    Raises
    ------
    ArgumentError
        Code ``value``: when CairoSVG is missing.
    """
    return png_of(draw_svg(*drawn, **options))


def draw_pdf(*drawn: ActionTable | Timeline, **options: Any) -> bytes:
    """Draw schedules and timelines as a PDF of one page, for a light ground, with 0.75 points for each pixel.

    Parameters
    ----------
    *drawn : Schedule or Timeline
    **options
        Of :func:`minipipe.render.svg.draw_svg`.

    Raises
    ------
    ArgumentError
        Code ``value``: when CairoSVG is missing.
    """
    return pdf_of(draw_svg(*drawn, **options))


def png_of(svg: str) -> bytes:
    """Return an SVG as PNG, with two pixels for each of its pixels; raise as :func:`draw_png` does."""
    return _cairosvg(".png").svg2png(svg.encode(), scale=_PNG_SCALE)


def pdf_of(svg: str) -> bytes:
    """Return an SVG as a PDF of one page; raise as :func:`draw_pdf` does."""
    return _cairosvg(".pdf").svg2pdf(svg.encode())


def check_converter(given: str) -> None:
    """Refuse a file that needs CairoSVG where it is missing.

    Parameters
    ----------
    given : str
        The name of the file, for the message.

    Raises
    ------
    ArgumentError
        Code ``value``, when CairoSVG is missing.
    """
    _cairosvg(given)


def _cairosvg(given: str) -> ModuleType:
    try:
        import cairosvg
    except ImportError:
        message = f"{given!r} needs CairoSVG, which is not installed; run `pip install cairosvg`, or write .svg."
        raise ArgumentError("value", message) from None
    except OSError:  # CairoSVG is there, but cannot load the library
        message = f"{given!r} needs the library Cairo, which is not installed; run `apt-get install libcairo2`"
        raise ArgumentError("value", f"{message}, or write .svg.") from None
    return cairosvg


_TEXT_WIDTH = 120  # columns: a file has more room than a terminal


def _text(*drawn: ActionTable | Timeline, title: str | None = None, notes: Sequence[str] = ()) -> str:
    head = [*([printable(title)] if title else []), *note_lines(notes)]
    return "\n".join([*head, *([""] if head else []), draw_text(*drawn, width=_TEXT_WIDTH), ""])


ENDINGS = MappingProxyType[str, Callable[..., str | bytes]](
    {
        ".svg": draw_svg,
        ".html": draw_html,
        ".json": perfetto_trace,
        ".txt": _text,
        ".png": draw_png,
        ".pdf": draw_pdf,
    }
)
_CONVERTED = (".png", ".pdf")


def save(path: str | Path, *drawn: ActionTable | Timeline, **options: Any) -> Path:
    """Save a drawing of schedules or timelines, above each other on a common time axis, to a file.

    Parameters
    ----------
    path : str or Path
        Its ending selects the format: ``.svg`` a picture, ``.html`` a player, ``.json`` a trace for Perfetto
        (https://ui.perfetto.dev) or chrome://tracing, ``.txt`` text. ``.png`` and ``.pdf`` need CairoSVG.
    *drawn : Schedule or Timeline
    **options
        ``title`` and ``notes`` for every format; ``.svg``, ``.png`` and ``.pdf`` take all options of
        :func:`minipipe.render.draw_svg`.

    Returns
    -------
    Path

    Raises
    ------
    ArgumentError
        Code ``value``: if the ending is unknown, if CairoSVG is missing for ``.png`` or ``.pdf``, or as for
        :func:`minipipe.render.panel.panels_of`.
    FileError
        Code ``unwritable``; then there is no file, or the earlier one.

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
    """Return the content of a file with this ending: bytes for ``.png`` and ``.pdf``, otherwise text.

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
    if ending not in ENDINGS:
        raise ArgumentError("value", f"{ending!r} is not an ending of a drawing; expected one of {', '.join(ENDINGS)}.")
    return ENDINGS[ending](*drawn, **options)


def check_ending(path: str | Path) -> str:
    """Return the ending of a file name after checking that its format can be written.

    Raises
    ------
    ArgumentError
        Code ``value``: if the ending is unknown, or if CairoSVG is missing for ``.png`` or ``.pdf``.

    Examples
    --------
    >>> check_ending("trace.HTML")
    '.html'
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ArgumentError(
            "value",
            f"{quoted(str(path), 200)} ends in {printable(ending[:20]) or 'nothing'}; expected .svg (a picture), "
            ".html (a player), .json (a trace for Perfetto), .txt, .png or .pdf.",
        )
    if ending in _CONVERTED:
        check_converter(str(path))
    return ending
