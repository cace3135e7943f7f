"""The animated SVG in Chromium: it plays inside an <img>, and is complete where nothing
may move.
"""

import base64

import pytest

from minipipe.render.palette import DARK, LIGHT
from tests.browser.test_svg_in_browser import MISPLACED, css
from tests.launch import ROOT

PICTURE = (ROOT / "tutorials" / "site" / "zero-bubble.svg").read_text()

FREEZE = (
    "(ms) => document.getAnimations().forEach((each) => { each.pause(); "
    "each.currentTime = ms; })"
)


def page_with_image(open_page, svg, **options):
    """Open a page whose only content is the picture, as a code host embeds it."""
    data = base64.b64encode(svg.encode()).decode()
    image = f"<img style='width: 100%' src='data:image/svg+xml;base64,{data}'>"
    page = open_page(
        f"<!doctype html><title>a page</title>{image}", width=880, **options
    )
    page.wait_for_function(
        "document.images[0].complete && document.images[0].naturalWidth > 0"
    )
    return page


def other_screenshot(page, first, seconds):
    """Return whether the page changes within a number of seconds."""
    for _ in range(4 * seconds):
        page.wait_for_timeout(250)
        if page.screenshot() != first:
            return True
    return False


def test_the_picture_of_readme_moves_inside_an_image(open_page):
    page = page_with_image(open_page, PICTURE)
    assert other_screenshot(page, page.screenshot(), seconds=20)


@pytest.mark.parametrize(
    ("preference", "moves"), [("reduce", False), ("no-preference", True)]
)
def test_it_stands_still_for_readers_who_prefer_reduced_motion(
    open_page, preference, moves
):
    page = open_page(PICTURE, ending="svg", reduced_motion=preference)
    assert bool(page.evaluate("document.getAnimations().length")) == moves


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_the_finished_picture_is_complete_and_legible(open_page, scheme, theme):
    page = open_page(
        PICTURE, ending="svg", color_scheme=scheme, reduced_motion="reduce"
    )
    assert page.evaluate(
        "getComputedStyle(document.querySelector('.ground')).fill"
    ) == css(theme.ground)
    hidden = (
        "document.querySelectorAll('.frame, .curtain, .now').forEach((group) => "
        "group.remove())"
    )
    page.evaluate(hidden)  # which are not drawn, but would count as overlapping
    assert page.evaluate(MISPLACED) == []
    assert page.evaluate(
        "[...document.querySelectorAll('.total')].map((text) => text.textContent)"
    ) == [
        "33 units, bubble 27.3 %",
        "27 units, bubble 11.1 %",
    ]


@pytest.mark.parametrize("second", [0.0, 1.9, 9.0, 11.9])
def test_a_loop_begins_and_ends_with_the_finished_picture(open_page, second):
    page = open_page(PICTURE, ending="svg")
    page.evaluate(FREEZE, 1000 * second)
    assert page.evaluate("document.querySelectorAll('.saved').length") == 1
    assert page.evaluate(
        "[...document.querySelectorAll('.end, .saved')].every((end) => "
        "getComputedStyle(end).opacity === '1')"
    )
    curtains = (
        "[...document.querySelectorAll('.curtain')].map((curtain) => "
        "getComputedStyle(curtain).transform)"
    )
    assert set(page.evaluate(curtains)) == {"matrix(0, 0, 0, 1, 0, 0)"}
    assert page.evaluate(
        "[...document.querySelectorAll('.now')].every((now) => "
        "getComputedStyle(now).opacity === '0')"
    )


@pytest.mark.parametrize("second", [0.1, 2.1, 5.1, 7.9, 11.9])
def test_one_frame_is_seen_at_a_time_and_nothing_overlaps(open_page, second):
    page = open_page(PICTURE, ending="svg")
    page.evaluate(FREEZE, 1000 * second)
    page.evaluate(
        "document.querySelectorAll('g').forEach((g) => { if "
        "(getComputedStyle(g).opacity === '0') g.remove(); })"
    )
    # one for each schedule
    assert page.evaluate("document.querySelectorAll('.frame, .end').length") == 2
    assert page.evaluate(MISPLACED) == []
