"""SVG as PNG and PDF, by CairoSVG: an optional dependency, imported when it is needed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from minipipe.errors import ArgumentError
from minipipe.render.svg.drawing import draw_svg
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
