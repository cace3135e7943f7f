"""The SVG in Chromium: complete, legible at any font size, on light and dark grounds,
alone and in a page.
"""

import pytest

from minipipe import schedules
from minipipe.core.schedules.action import ActionKind
from minipipe.render import draw_svg
from minipipe.render.palette import DARK, FILL, LIGHT
from minipipe.render.svg.tradeoff import draw_tradeoff
from minipipe.schedules.simulation.comparison import tradeoff

# Texts that reach out of the picture, and pairs of texts that overlap.
MISPLACED = """() => {
  const page = document.documentElement.getBoundingClientRect();
  // The box of a text is as high as the highest letter of its font; of a turned one, as wide.
  const inner = (text, box) => {
    const isTurned = text.getCTM().b !== 0;
    const [dx, dy] = isTurned ? [0.2 * box.width, 0] : [0, 0.2 * box.height];
    return { left: box.left + dx, right: box.right - dx, top: box.top + dy, bottom: box.bottom - dy };
  };
  const texts = [...document.querySelectorAll("text")].map((text) => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box, inner(text, box)];
  });
  const isOutside = (box) => box.left < page.left - 1 || box.right > page.right + 1
    || box.top < page.top - 1 || box.bottom > page.bottom + 1;
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const pairs = texts.flatMap(([words, , box], i) => texts.slice(i + 1).filter(([, , other]) => overlap(box, other))
    .map(([others]) => `${words} / ${others}`));
  return [...texts.filter(([, box]) => isOutside(box)).map(([words]) => words), ...pairs];
}"""
# The computed fill, or stroke, of the first element of a class.
COLOUR = "([name, what]) => getComputedStyle(document.querySelector(`.${name}`))[what]"
# The computed style of everything that is drawn.
STYLES = """(root) => [...root.querySelectorAll("rect, path, text")].map((element) => {
  const { fill, stroke, fontSize, pointerEvents } = getComputedStyle(element);
  return [fill, stroke, fontSize, pointerEvents];
})"""
DRAWN = {
    "1f1b": [schedules.one_f_one_b(4, 8)],
    "zb-v": [schedules.zb_v(4, 16)],
    "two": [schedules.gpipe(4, 8), schedules.interleaved_1f1b(4, 8, 2)],
}


def css(colour):
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize("size", [8, 12, 18])
@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_complete_and_legible(open_page, name, size):
    options = {
        "title": "Fill and drain of a pipeline",
        "notes": ["a note"],
        "font_size": size,
    }
    page = open_page(draw_svg(*DRAWN[name], messages=True, **options), ending="svg")
    assert page.evaluate("document.documentElement.localName") == "svg"
    extent = page.evaluate(
        "[document.documentElement.getBoundingClientRect()].map((box) => "
        "[box.width, box.height])[0]"
    )
    assert extent[0] == 960 and extent[1] > 100
    assert page.evaluate("document.querySelectorAll('text').length") > 10
    assert page.evaluate(MISPLACED) == []


@pytest.mark.parametrize("num_ranks", [4, 8])
def test_bubble_over_peak_memory_is_complete_and_legible(open_page, num_ranks):
    page = open_page(
        draw_tradeoff(*(tradeoff(num_ranks, m) for m in (8, 24)), notes=["a note"]),
        ending="svg",
    )
    assert page.evaluate("document.querySelectorAll('text').length") > 40
    assert page.evaluate(MISPLACED) == []


def test_misplaced_text_is_noticed(open_page):
    drawn = draw_svg(schedules.gpipe(2, 2))
    page = open_page(
        drawn.replace(
            'class="unit" fill="#57606a" font-size="12"', 'class="unit" font-size="90"'
        ),
        "svg",
    )
    assert len(page.evaluate(MISPLACED)) > 1


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_a_picture_follows_the_preference_for_light_or_dark(open_page, scheme, theme):
    page = open_page(
        draw_svg(schedules.one_f_one_b(4, 8), messages=True),
        ending="svg",
        color_scheme=scheme,
    )
    forward = FILL[ActionKind.FORWARD]
    expected = [
        *(
            ("ground", "fill", theme.ground),
            ("rank", "fill", theme.ink),
            ("tick", "fill", theme.muted),
        ),
        *(
            ("slot", "fill", theme.slot),
            ("hatch", "stroke", theme.hatch),
            ("grid", "stroke", theme.grid),
        ),
        *(
            ("forward", "stroke", theme.message),
            ("backward-head", "fill", theme.gradient),
        ),
        *(("F", "fill", forward.box), ("on-F", "fill", forward.text)),
    ]
    for name, what, colour in expected:
        assert page.evaluate(COLOUR, [name, what]) == css(colour), name


def test_a_picture_shrinks_with_its_page_and_keeps_its_shape(open_page):
    page = open_page(
        f"<!doctype html><title>a page</title>{draw_svg(schedules.gpipe(2, 2))}",
        width=375,
    )
    box = page.locator("svg").bounding_box()
    shape = page.evaluate(
        "[document.querySelector('svg').viewBox.baseVal].map((box) => box.height "
        "/ box.width)[0]"
    )
    assert 300 < box["width"] <= 375 and box["height"] / box["width"] == pytest.approx(
        shape, rel=0.01
    )


def test_pictures_leave_each_other_and_their_page_alone(open_page):
    pictures = [
        draw_svg(schedules.gpipe(2, 2)),
        draw_svg(schedules.zb_v(2, 2), font_size=9),
    ]
    own = (
        "<style>.F, .tick { outline: 3px solid red }</style><p class='tick'>12</p><p "
        "class='F'>F</p>"
    )
    page = open_page(
        f"<!doctype html><title>a page</title>{own}{''.join(pictures)}",
        color_scheme="dark",
    )
    plain = open_page(f"<!doctype html><title>a page</title>{own}", color_scheme="dark")
    for name in ("tick", "F"):
        found, expected = (
            p.evaluate(
                f"[getComputedStyle(document.querySelector('p.{name}'))].map((s) "
                "=> [s.fill, s.font, s.color])"
            )
            for p in (page, plain)
        )
        assert found == expected
    alone = open_page(pictures[1], ending="svg", color_scheme="dark")
    assert page.locator("svg").nth(1).evaluate(STYLES) == alone.locator("svg").evaluate(
        STYLES
    )


def test_a_tooltip_belongs_to_its_box_where_label_and_hatching_lie_above_it(open_page):
    page = open_page(draw_svg(schedules.one_f_one_b(4, 8), messages=True), ending="svg")
    under = (
        "([x, y]) => document.elementFromPoint(x, "
        "y).querySelector('title')?.textContent"
    )
    first = page.locator("g.box rect").first.bounding_box()
    middle = [first["x"] + first["width"] / 2, first["y"] + first["height"] / 2]
    assert page.evaluate(under, middle).startswith("0F0: forward")
    slot = page.locator("g.slot rect").first.bounding_box()
    for step in range(12):
        point = [
            slot["x"] + slot["width"] / 2 + step / 2,
            slot["y"] + slot["height"] / 2,
        ]
        assert page.evaluate(under, point).startswith("idle, ")
