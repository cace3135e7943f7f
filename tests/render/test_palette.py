"""Colours can be told apart by everybody, on paper too, and text can be read on
them.
"""

from itertools import combinations

import pytest

from minipipe.core.schedules.action import ActionKind
from minipipe.render.palette import DARK, FILL, LIGHT, fill_of, shade
from minipipe.schedules import Kind, Uses, declared

# all but transfers
KINDS = [kind for kind in FILL if FILL[kind] != FILL[ActionKind.SEND_F]]

# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of
# Color Vision Deficiency", severity 1.0, for linear RGB.
VISION = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# IEC 61966-2-1, D65
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def linear(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def lab(colour, vision):
    """Return a colour in CIE 1976 L*a*b*, as it is seen."""
    seen = [min(1, max(0, v)) for v in times(VISION[vision], linear(colour))]
    x, y, z = (v / white for v, white in zip(times(TO_XYZ, seen), (0.9505, 1, 1.089)))
    fx, fy, fz = (
        v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116
        for v in (x, y, z)
    )
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(first, second, vision):
    return (
        sum((a - b) ** 2 for a, b in zip(lab(first, vision), lab(second, vision)))
        ** 0.5
    )


def contrast(first, second):
    """Return the contrast as the Web Content Accessibility Guidelines 2.1 define it."""
    darker, lighter = sorted(
        times(TO_XYZ, linear(colour))[1] for colour in (first, second)
    )
    return (lighter + 0.05) / (darker + 0.05)


def test_the_ruler_is_right():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert lab("#ffffff", "all cones") == pytest.approx((100, 0, 0), abs=0.1)
    assert (
        distance("#ff0000", "#00a000", "deuteranopia")
        < distance("#ff0000", "#00a000", "all cones") / 2
    )


@pytest.mark.parametrize("kind", list(FILL))
def test_text_on_every_fill_has_a_contrast_of_4_5(kind):
    for chunk in range(12):
        fill = shade(FILL[kind], chunk)
        assert contrast(fill.box, fill.text) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_what_is_written_around_boxes_can_be_read_and_lines_can_be_seen(theme):
    assert (
        min(contrast(colour, theme.ground) for colour in (theme.ink, theme.muted))
        >= 4.5
    )
    assert (
        min(
            contrast(colour, theme.ground)
            for colour in (theme.message, theme.gradient, theme.memory_edge)
        )
        >= 3
    )
    assert contrast(theme.hatch, theme.slot) >= 1.6 > contrast(theme.slot, theme.ground)


@pytest.mark.parametrize("vision", VISION)
def test_kinds_differ_whatever_cones_see_them(vision):
    colours = [FILL[kind].box for kind in KINDS]
    # 2.3 is just to be seen
    assert min(distance(a, b, vision) for a, b in combinations(colours, 2)) >= 18


@pytest.mark.parametrize("vision", VISION)
def test_kinds_of_other_programs_look_like_none_of_these(vision):
    with declared(Kind("KEEP", lambda site: Uses(), "copy of the weights")):
        own = fill_of(ActionKind("KEEP"))
    assert min(distance(own.box, FILL[kind].box, vision) for kind in FILL) >= 18


def test_kinds_differ_on_grey_paper():
    lightness = sorted(lab(FILL[kind].box, "all cones")[0] for kind in KINDS)
    assert min(b - a for a, b in zip(lightness, lightness[1:])) >= 8


@pytest.mark.parametrize("kind", KINDS)
def test_each_further_chunk_is_darker_and_of_the_same_hue(kind):
    colours = [shade(FILL[kind], chunk).box for chunk in range(6)]
    lightness = [lab(colour, "all cones")[0] for colour in colours]
    assert (
        all(a > b for a, b in zip(lightness, lightness[1:]))
        and lightness[0] - lightness[1] >= 8
    )
    for later in colours[1:]:
        nearest = min(KINDS, key=lambda other: hue_between(later, FILL[other].box))
        assert nearest is kind


def hue_between(first, second):
    """Return how far the directions of two colours from grey are apart, from 0 to 2."""
    (_, a, b), (_, c, d) = lab(first, "all cones"), lab(second, "all cones")
    return 1 - (a * c + b * d) / ((a * a + b * b) * (c * c + d * d)) ** 0.5
