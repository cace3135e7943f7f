"""The SVG in a real browser: it is drawn, for light and for dark grounds, and complains of nothing."""

import pytest

from minipipe import schedules
from minipipe.render import draw_svg

# Texts of the picture that reach out of it.
OUTSIDE = """() => {
  const page = document.documentElement.getBoundingClientRect();
  const isOutside = (box) => box.left < page.left - 1 || box.right > page.right + 1
    || box.top < page.top - 1 || box.bottom > page.bottom + 1;
  return [...document.querySelectorAll("text")].filter((text) => isOutside(text.getBoundingClientRect()))
    .map((text) => text.textContent);
}"""
DRAWN = {
    "1f1b": [schedules.one_f_one_b(4, 8)],
    "zb-v": [schedules.zb_v(4, 16)],
    "two": [schedules.gpipe(4, 8), schedules.interleaved_1f1b(4, 8, 2)],
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_drawn_whole(open_page, name):
    page = open_page(draw_svg(*DRAWN[name], messages=True), ending="svg")
    assert page.evaluate("document.documentElement.localName") == "svg"
    size = page.evaluate("[document.documentElement.getBoundingClientRect()].map((box) => [box.width, box.height])[0]")
    assert min(size) > 100
    assert page.evaluate("document.querySelectorAll('text').length") > 10
    assert page.evaluate(OUTSIDE) == []


def test_a_picture_follows_the_preference_for_light_or_dark(open_page):
    picture = draw_svg(schedules.one_f_one_b(4, 8))
    light, dark = (open_page(picture, ending="svg", color_scheme=s).screenshot() for s in ("light", "dark"))
    assert light != dark


def test_a_picture_needs_no_script_in_a_page(open_page):
    page = open_page(f"<!doctype html><title>a page</title>{draw_svg(schedules.gpipe(2, 2))}", width=375)
    assert page.locator("svg").bounding_box()["width"] > 100
