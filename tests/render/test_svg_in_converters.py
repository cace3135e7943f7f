"""Converters show everything: boxes in their colours, hatching, arrowheads, memory
strips and text.

The first drawings relied on the style sheet, on patterns and on markers. CairoSVG then
wrote an empty image (it read the height from ``height:auto``), svglib lost hatching and
arrowheads, and MuPDF painted everything black.
"""

import re

import numpy as np
import pytest

from minipipe import ActionKind, Costs, schedules, simulate
from minipipe.render import draw_svg, palette
from minipipe.schedules.simulation.span import IdleCause
from tests.launch import slowly
from tests.render.converters import SCALE, with_cairosvg, with_svglib
from tests.render.picture import Picture

CONVERTERS = [with_cairosvg, with_svglib]
# Every cause of idle time, both kinds of message, two chunks, one and both halves of
# the backward.
BLOCKING = simulate(
    schedules.one_f_one_b(3, 4),
    Costs(2, 2, 2, latency=1, sends_block=True, overhead=0.5),
)
SPLIT = simulate(schedules.zb_v(2, 4), Costs(latency=0.5))
STEPS = simulate(schedules.zb_h1(2, 2), Costs(latency=0.5, update=1), num_steps=2)
DRAWN = {
    name: draw_svg(timeline, messages=True)
    for name, timeline in {"blocking": BLOCKING, "split": SPLIT, "steps": STEPS}.items()
}


def rgb(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def is_colour(pixels, colour, tolerance=12):
    return (np.abs(pixels.astype(int) - rgb(colour)) <= tolerance).all(axis=-1)


def within(pixels, left, right, top, bottom):
    """Return the pixels of a rectangle, which is given in pixels of the SVG."""
    left, right, top, bottom = (
        round(SCALE * edge) for edge in (left, right, top, bottom)
    )
    return pixels[top:bottom, left:right]


def fill_of(name):
    return palette.shade(palette.FILL[ActionKind(name[0])], int(name[1:] or 0)).box


def check_size(pixels, picture):
    size = [SCALE * int(picture.root.get(name)) for name in ("height", "width")]
    assert np.abs(np.array(pixels.shape[:2]) - size).max() <= SCALE


def check_boxes(pixels, picture):
    """Each box has its colour but for its outline and its label, and so have the boxes
    of a colour together.
    """
    boxes = [box for lane in picture.lanes for box in lane.boxes]
    for box in boxes:
        assert (
            is_colour(
                within(pixels, box.left, box.right, box.top, box.bottom),
                fill_of(box.name),
            ).mean()
            > 0.6
        ), box
    for name in {box.name for box in boxes}:
        area = sum(box.area for box in boxes if box.name == name)
        swatches = picture.root.findall(f"g/rect[@class='{name}']")
        assert len(swatches) == 1
        area += sum(
            float(rect.get("width")) * float(rect.get("height")) for rect in swatches
        )
        found = is_colour(pixels, fill_of(name)).sum() / SCALE**2
        assert 0.7 * area < found < 1.02 * area, name


def check_labels(pixels, picture):
    texts = list(picture.labels())
    assert len(texts) == sum(len(lane.boxes) for lane in picture.lanes)
    for words, size, x, y, is_turned in texts:
        assert not is_turned
        text = within(pixels, x - size / 2, x + size / 2, y - 0.7 * size, y).astype(int)
        assert text.max() - text.min() > 100, words


def check_hatching(pixels, picture):
    """Lines cover the share of a slot that their spacing gives."""
    slots = [
        slot
        for lane in picture.lanes
        for slot in lane.idle
        if slot.right - slot.left >= 8
    ]
    for slot in slots:
        _, gap = palette.HATCH[IdleCause(slot.name)]
        inner = within(
            pixels, slot.left + 1, slot.right - 1, slot.top + 1, slot.bottom - 1
        ).astype(int)
        depth = (rgb(palette.LIGHT.slot) - inner) / (
            rgb(palette.LIGHT.slot) - rgb(palette.LIGHT.hatch)
        )
        assert 0.6 / gap < depth.mean() < 1.6 / gap, slot
    assert slots


def check_arrowheads(pixels, picture):
    """A head is wider than its shaft, 4 pixels before its tip."""
    found = 0
    for way, colour in (
        ("forward", palette.LIGHT.message),
        ("backward", palette.LIGHT.gradient),
    ):
        for arrow in (arrow for arrow in picture.arrows if arrow.way == way):
            (x, y), back = arrow.end, -4.5 if arrow.end[1] > arrow.start[1] else 4.5
            row = within(pixels, x - 3, x + 3, y + back - 0.5, y + back + 0.5)
            assert is_colour(row, colour, 40).sum(axis=1).max() >= 2.5 * SCALE, (
                arrow.what
            )
            found += 1
    assert found


def check_strips(pixels, picture):
    assert is_colour(pixels, palette.LIGHT.memory, 3).sum() > 1000
    assert is_colour(pixels, palette.LIGHT.memory_edge, 40).sum() > 100


def check_ground(pixels, picture):
    assert is_colour(pixels, palette.LIGHT.ground, 0).mean() > 0.3


CHECKS = (
    check_size,
    check_boxes,
    check_labels,
    check_hatching,
    check_arrowheads,
    check_strips,
    check_ground,
)
# Each takes away what one check looks for.
MUTANTS = {
    check_size: (
        r'viewBox="0 0 960 (\d+)" width="960"',
        r'viewBox="0 0 960 \1" width="480"',
    ),
    check_boxes: (r"#cf78b9|#f0ab35", "#888888"),
    check_labels: (r'(<g class="on-[A-Z]\d?" fill=)"#\w+"', r'\1"none"'),
    check_hatching: (r'<path class="hatch"[^>]*>', ""),
    check_arrowheads: (r'<path class="\w+-head"[^>]*>', ""),
    check_strips: (r'<path class="(held|edge)"[^>]*>', ""),
    check_ground: (r'(class="ground" fill=)"#\w+"', r'\1"#101010"'),
}


@pytest.mark.parametrize(
    "name", [slowly(name) if name == "blocking" else name for name in DRAWN]
)
@pytest.mark.parametrize("convert", CONVERTERS)
def test_a_converter_shows_everything(convert, name):
    pixels, picture = convert(DRAWN[name]), Picture(DRAWN[name])
    for check in CHECKS:
        check(pixels, picture)


@pytest.mark.parametrize("check", CHECKS)
def test_a_missing_part_is_noticed(check):
    svg = DRAWN["blocking"]
    mutant = re.sub(*MUTANTS[check], svg)
    assert mutant != svg
    with pytest.raises(AssertionError):
        check(with_svglib(mutant), Picture(svg))


def test_both_drawings_together_have_every_cause_of_idle_time_and_every_kind():
    lanes = [lane for svg in DRAWN.values() for lane in Picture(svg).lanes]
    assert {slot.name for lane in lanes for slot in lane.idle} == {
        f"{cause}" for cause in IdleCause
    }
    assert {box.name[0] for lane in lanes for box in lane.boxes} == set("FBIW")


@pytest.mark.parametrize("converter", CONVERTERS)
def test_an_animated_drawing_converts_to_its_end(converter):
    drawn = draw_svg(schedules.one_f_one_b(2, 3), animated=True)
    moving = ("frame", "curtain", "now")
    end = re.sub(
        rf'<g class="({"|".join(moving)})" display="none"[^>]*>.*?</g>', "", drawn
    )
    assert all(
        f'class="{name}"' in drawn and f'class="{name}"' not in end for name in moving
    )
    assert (converter(drawn) == converter(end)).all()
