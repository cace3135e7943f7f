"""The elements of an SVG as text: paths, rectangles and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minipipe.io import escaped
from minipipe.render.layout import number


def path_data(*parts: str | float) -> str:
    """Return path data of commands, which are letters, each followed by coordinates.

    Examples
    --------
    >>> path_data("M", 1, 2.5, "H", 10, "z")
    'M1 2.5H10z'
    """
    data = ""
    separator = ""
    for part in parts:
        if isinstance(part, str):
            data += part
            separator = ""
        else:
            data += separator + number(part)
            separator = " "
    return data


def polyline(points: Iterable[Sequence[float]]) -> str:
    """Return path data of straight lines through points; empty without any.

    Examples
    --------
    >>> polyline([(1, 2), (3, 4)])
    'M1 2L3 4'
    """
    joined = "L".join(path_data(*point) for point in points)
    return joined and f"M{joined}"


def path(look: str, data: str, title: str = "") -> str:
    """Return a path with presentation attributes and perhaps a tooltip.

    Examples
    --------
    >>> path('fill="none"', "M0 0H1")
    '<path fill="none" d="M0 0H1"/>'
    """
    return _element("path", [look, f'd="{data}"'], title)


def rect(
    look: str,
    width: float,
    height: float,
    x: float | None = None,
    y: float | None = None,
    more: str = "",
    title: str = "",
) -> str:
    """Return a rectangle with presentation attributes and perhaps a tooltip.

    Examples
    --------
    >>> rect('fill="red"', 2, 3, x=1)
    '<rect fill="red" x="1" width="2" height="3"/>'
    """
    places = {"x": x, "y": y, "width": width, "height": height}
    known = {name: at for name, at in places.items() if at is not None}
    numbers = [f'{name}="{number(at)}"' for name, at in known.items()]
    return _element("rect", [look, *numbers, more], title)


def group(attributes: str, parts: Iterable[str]) -> str:
    """Return a group of parts of a drawing, with attributes that they inherit."""
    return f"<g {attributes}>{''.join(parts)}</g>"


def moved(x: float, y: float, parts: Iterable[str]) -> str:
    """Return parts of a drawing, moved by (x, y) pixels."""
    return group(f'transform="translate({number(x)} {number(y)})"', parts)


def _element(name: str, attributes: Iterable[str], title: str) -> str:
    head = " ".join(filter(None, [name, *attributes]))
    if not title:
        return f"<{head}/>"
    return f"<{head}><title>{escaped(title)}</title></{name}>"
