"""The contrast of colours: as text in boxes, for pictures and terminals."""

from __future__ import annotations

from collections.abc import Sequence

_BLACK = "#000000"
_WHITE = "#ffffff"


def text_on(colour: str) -> str:
    """Return black or white, the one with more contrast: one of them always has at
    least 4.58, the root of 21.
    """
    return max((_BLACK, _WHITE), key=lambda ink: _contrast(ink, colour))


def _contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, from 1 to 21, as the Web Content
    Accessibility Guidelines 2.1 define it.
    """
    channels = map(channels_of, (first, second))
    darker, lighter = sorted(map(luminance, channels))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(channels: Sequence[float]) -> float:
    """Return the relative luminance of red, green and blue, each from 0 to 1: 0 for
    black, 1 for white.

    References
    ----------
    Web Content Accessibility Guidelines 2.1, "relative luminance".
    """
    linear = map(_linear, channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def _linear(channel: float) -> float:
    if channel <= 0.04045:
        return channel / 12.92
    return ((channel + 0.055) / 1.055) ** 2.4


def channels_of(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue of a CSS colour, each from 0 to 1."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red / 255, green / 255, blue / 255
