"""How the player looks: colours, labels, paper, phones, and much to draw."""

import re
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.core.schedules.action import ActionKind
from minipipe.render.html import draw_html
from minipipe.render.palette import DARK, FILL, LIGHT
from minipipe.schedules.simulation.span import Span
from tests.browser.oracle import TIMELINES
from tests.browser.player_page import COLOUR, SHOW, clock, difference, frame


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_colours_are_those_of_the_palette_light_and_dark(open_page, scheme, theme):
    page = open_page(draw_html(schedules.gpipe(2, 2)), color_scheme=scheme)
    frame(page)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert list(map(int, re.findall(r"\d+", ground))) == rgb(theme.ground)
    assert page.evaluate(COLOUR, [75, 32]) == rgb(FILL[ActionKind.FORWARD].box)


def test_the_look_follows_when_the_preference_changes_and_paper_is_light(open_page):
    page = open_page(draw_html(schedules.one_f_one_b(2, 2)), color_scheme="light")
    frame(page)
    # idle, on rank 1
    point = [
        page.evaluate("document.querySelector('.chart').clientWidth") - 30,
        40 + 44,
    ]
    light = page.evaluate(COLOUR, point)
    page.emulate_media(color_scheme="dark")
    frame(page)
    dark = page.evaluate(COLOUR, point)
    assert max(dark) < 128 < min(light)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert min(page.evaluate(COLOUR, point)) > 128
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    frame(page)
    assert page.evaluate(COLOUR, point) == dark
    page.emulate_media(media="print", color_scheme="dark")
    assert [
        page.is_visible(part) for part in ("#play", "#scrub", "#clock", ".chart", "h1")
    ] == [False] * 2 + [True] * 3
    assert page.pdf().startswith(b"%PDF")


def test_on_paper_no_canvas_clears_the_one_below_it(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2), schedules.one_f_one_b(2, 2)))
    frame(page)
    page.evaluate("""() => {
      window.cleared = 0;  // Chromium prints strokes, not pixels: clearing one canvas erases all that it lies on
      const prototype = CanvasRenderingContext2D.prototype;
      const { clearRect } = prototype;
      prototype.clearRect = function (...place) { window.cleared += 1; clearRect.apply(this, place); };
    }""")
    page.keyboard.press("ArrowRight")
    frame(page)
    assert page.evaluate("window.cleared") > 0
    page.evaluate("window.cleared = 0")
    for _ in range(2):  # the second time nothing changes its size
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("window.cleared") == 0


# Draws the charts anew, and returns the labels that each writes into its boxes, with
# the middle of each.
LABELS = """async () => {
  const prototype = CanvasRenderingContext2D.prototype;
  const { fillText } = prototype;
  const charts = [...document.querySelectorAll("canvas:first-child")];
  const written = charts.map(() => []);
  prototype.fillText = function (text, x, y) {
    const chart = charts.indexOf(this.canvas);
    const { e, f, b } = this.getTransform();
    const ratio = this.canvas.width / parseFloat(this.canvas.style.width);
    if (chart >= 0 && f && this.textAlign === "center") written[chart].push([text, e / ratio, f / ratio, b !== 0]);
    fillText.call(this, text, x, y);
  };
  dispatchEvent(new Event("beforeprint"));
  prototype.fillText = fillText;
  return written;
}"""


def labelled(page, drawn):
    """Return, for each timeline, the labelled actions as (length, action, label, is
    turned), and the others.
    """
    width = page.evaluate("document.querySelector('canvas').clientWidth")
    gutter = 28 if width < 600 else 62
    scale = (width - gutter - 14) / max(timeline.makespan for timeline in drawn)
    found = []
    for timeline, written in zip(drawn, page.evaluate(LABELS), strict=True):
        heights = sorted({y for _, _, y, _ in written})
        have, lack = [], []
        for rank, row in enumerate(timeline.spans):
            for action, start, end in row:
                middle = gutter + scale * (start + end) / 2
                near = [
                    label
                    for label in written
                    if abs(label[1] - middle) < 0.6 and label[2] == heights[rank]
                ]
                for text, _, _, is_turned in near:
                    assert re.fullmatch(
                        rf"(\d*{action.kind})?{action.microbatch}", text
                    )
                    have.append((end - start, action, text, is_turned))
                if not near:
                    lack.append((end - start, action))
        assert len(have) == len(written)
        found.append((have, lack))
    return found


@pytest.mark.parametrize("width", [700, 1000, 1400])
def test_boxes_of_equal_width_are_labelled_alike_in_measured_and_predicted(
    open_page, width
):
    predicted = simulate(schedules.one_f_one_b(2, 16))
    random = Random(0)
    rows = (
        [Span(a, s, s + (e - s) * random.uniform(0.3, 1)) for a, s, e in row]
        for row in predicted.spans
    )
    uneven = replace(predicted, spans=tuple(map(tuple, rows)), is_measured=True)
    for drawn in ((predicted,), (uneven, predicted)):
        page = open_page(draw_html(*drawn), width=width)
        frame(page)
        labels = labelled(page, drawn)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
            forms = set()
            for (have, lack), stage in product(labels, range(2)):
                have, lack = (
                    [each for each in found if each[1][:2] == (stage, kind)]
                    for found in (have, lack)
                )
                assert not have or len(have) >= len(lack)
                assert not have or max(lack, default=(0,))[0] <= min(have)[0] + 1e-9
                forms |= {
                    (re.sub(r"\d+", "", text), is_turned)
                    for _, _, text, is_turned in have
                }
            assert len(forms) == 1


def test_labels_lose_the_kind_where_there_is_less_room_then_are_turned_then_left_out(
    open_page,
):
    timeline = simulate(schedules.one_f_one_b(2, 12))
    shown = {}
    for width in range(300, 1500, 100):
        page = open_page(draw_html(timeline), width=width)
        frame(page)
        ((have, lack),) = labelled(page, [timeline])
        forwards = [
            label for _, action, *label in have if action.kind is ActionKind.FORWARD
        ]
        assert len(forwards) in (0, 24) and len(have) + len(lack) == 48
        shown[width] = {
            (re.sub(r"\d+", "#", text), is_turned) for text, is_turned in forwards
        }
    forms = [shown[width] for width in sorted(shown, reverse=True)]
    changes = [form for form, before in zip(forms, [None, *forms]) if form != before]
    assert changes == [{("F#", False)}, {("#", False)}, {("F#", True)}, set()]


def test_a_title_and_notes_stand_above_the_player(open_page):
    page = open_page(
        draw_html(
            schedules.gpipe(2, 2), title="A step", notes=["on <b>2</b> cores", "in May"]
        )
    )
    assert page.inner_text("h1") == page.title() == "A step"
    assert page.locator(".notes li").all_inner_texts() == [
        "on <b>2</b> cores",
        "in May",
    ]
    assert (
        page.locator(".notes").bounding_box()["y"]
        < page.locator("#player").bounding_box()["y"]
    )
    assert not open_page(draw_html(schedules.gpipe(2, 2))).is_visible(".notes")


@pytest.mark.parametrize("name", ["zb-v", "zb-h1 in bytes", "blocking sends"])
def test_nothing_is_wider_than_a_phone(open_page, name):
    page = open_page(draw_html(TIMELINES[name], TIMELINES[name]), width=375, height=800)
    frame(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    edges = "document.querySelector('#scrub').getBoundingClientRect().right"
    assert page.evaluate(edges) <= 375


def test_the_critical_path_and_all_messages_are_drawn_on_request(open_page):
    page = open_page(draw_html(TIMELINES["1f1b, uneven, with latency"]))
    picture = "document.querySelector('canvas').toDataURL()"
    frame(page)
    plain = page.evaluate(picture)
    for wish in ("#show-path", "#show-messages"):
        page.check(wish)
        frame(page)
        assert page.evaluate(picture) != plain
        page.uncheck(wish)
        frame(page)
        assert page.evaluate(picture) == plain


def test_sends_that_block_hide_no_action_and_passing_ones_wait_for_nobody(open_page):
    page = open_page(draw_html(TIMELINES["blocking sends"]))
    frame(page)
    assert page.is_hidden("#narrow-actions")  # receives take no time
    page.evaluate("""() => {
      window.dashes = 0;
      const prototype = CanvasRenderingContext2D.prototype;
      const { setLineDash } = prototype;
      prototype.setLineDash = function (dashes) { window.dashes += dashes.length > 0; setLineDash.call(this, dashes); };
    }""")
    # rank 0 sends, the others wait for what comes
    (shown,) = page.evaluate(SHOW, [1.25])
    assert (
        shown[0]["rows"][0]["doing"].startswith("0SEND_F0")
        and "on the way" in shown[0]["rows"][0]["beside"]
    )
    page.evaluate("window.dashes = 0")
    page.evaluate("document.getElementById('scrub').dispatchEvent(new Event('input'))")
    frame(page)
    assert page.evaluate("window.dashes") == 3


def test_ten_thousand_actions_load_step_and_never_draw_more_than_there_is_room_for(
    open_page,
):
    timeline = simulate(schedules.one_f_one_b(8, 625), Costs(latency=0.2))
    assert sum(map(len, timeline.spans)) == 10_000
    page = open_page(draw_html(timeline))
    page.check("#show-path")
    page.check("#show-messages")
    boxes = "Number(document.querySelector('canvas').dataset.boxes)"
    # less than a box for each pixel of each row, at any zoom
    room = timeline.num_ranks * 1400
    drawn = []
    for _ in range(14):
        frame(page)
        drawn.append(page.evaluate(boxes))
        page.click("#zoom-in")
    assert max(drawn) < room / 2
    assert drawn[-1] < 600
    assert page.is_hidden("#hidden-messages") and page.is_hidden("#narrow-actions")
    page.click("#zoom-all")
    frame(page)
    assert page.is_visible("#hidden-messages") and page.is_visible("#narrow-actions")
    times = [0.0, 700.1, 1400.3]
    shown = page.evaluate(SHOW, times)
    assert [
        difference(timeline, moment[0], time) for moment, time in zip(shown, times)
    ] == [None] * 3
    page.keyboard.press("ArrowRight")
    frame(page)
    assert float(clock(page).split()[0]) > times[-1]


def test_a_name_is_a_text_whatever_it_holds(open_page):
    name = "</script><b>bold</b> $title {action} <!--"
    page = open_page(draw_html(schedules.Schedule(name, (0,), 1, (("0F0", "0B0"),))))
    assert page.inner_text("h1") == f"{name}, predicted"
    assert page.locator("b", has_text="bold").count() == 0
    assert page.evaluate(SHOW, [0.5])[0][0]["rows"][0]["doing"].startswith(
        "0F0: forward"
    )


@pytest.mark.parametrize(
    "rows", [((), ()), (("0F0",), ())], ids=["nothing", "one action"]
)
def test_hardly_anything_is_drawn_as_well(open_page, rows):
    timeline = schedules.Timeline("small", tuple(() for _ in rows), (0, 0))
    if rows[0]:
        span = schedules.Span(schedules.Action.parse("0F0"), 0.0, 0.0)
        timeline = schedules.Timeline("small", ((span,), ()), (1, 0))
    page = open_page(draw_html(timeline))
    for key in ("Space", "ArrowRight", "ArrowLeft", "End", "+"):
        page.keyboard.press(key)
        frame(page)
    assert clock(page) == "0 of 0 units"
