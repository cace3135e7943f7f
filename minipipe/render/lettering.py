"""Text in a picture: its width in common fonts, its line breaks, and its coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from unicodedata import combining

# Widths in units of the font size, of DejaVu Sans: the widest of the sans-serif fonts that browsers fall back on.
_WIDTHS = {
    **dict.fromkeys("ijl'|", 0.34),
    **dict.fromkeys(" .,:;fIJt/\\", 0.4),
    **dict.fromkeys("r()[]-!", 0.46),
    **dict.fromkeys("szc?_", 0.56),
    **dict.fromkeys("FLvxyk*", 0.6),
    **dict.fromkeys("0123456789abdeghnopquETPY$", 0.64),
    **dict.fromkeys("ABCKRSVXZ", 0.7),
    **dict.fromkeys("DGHNOQUw&+<=>~#", 0.84),
    **dict.fromkeys("mMW%@", 1.0),
}


def text_width(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text, in the unit of its font size.

    Examples
    --------
    >>> round(text_width("F3", 10), 2)
    12.4
    """
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    if combining(character):
        return 0.0
    return _WIDTHS.get(character, 1.0)


def wrapped(text: str, size: float, room: float) -> list[str]:
    """Break a text into lines, between words where possible.

    Examples
    --------
    >>> wrapped("a makespan of 33 units", 10, 90)
    ['a makespan of', '33 units']
    """
    lines = [""]
    for word in _words(text, size, room):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _words(text: str, size: float, room: float) -> Iterator[str]:
    """Yield the words of a text; words wider than a line come in pieces."""
    most = max(1, int(room / size))  # no character is wider than the size of its font
    for word in text.split():
        while text_width(word, size) > room and len(word) > most:
            yield word[:most]
            word = word[most:]
        yield word


def number(value: float) -> str:
    """Write a coordinate to a hundredth of a pixel, without trailing zeros.

    Examples
    --------
    >>> number(3.0), number(12.345678), number(-0.001)
    ('3', '12.35', '0')
    """
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits
