"""The player in a real browser: what it shows is what the timeline says."""

import re
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.render.descriptions import describe_action, format_time
from minipipe.render.html import draw_html
from minipipe.render.palette import DARK, FILL, LIGHT
from minipipe.schedules.action import ActionKind
from minipipe.simulation.span import Span
from tests.browser import as_told
from tests.browser.as_told import TIMELINES

DASH = "\N{EN DASH}"
# Goes to each of some times and returns what the page then shows.
SHOW = """async (times) => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const text = (node, name) => node.querySelector(`.${name}`)?.textContent ?? null;
  const rows = (moment) => [...moment.querySelectorAll("tbody tr")].map((row) => Object.fromEntries(
    ["doing", "beside", "count", "holds", "memory"].map((name) => [name, text(row, name)])));
  const scrub = document.getElementById("scrub");
  const shown = [];
  for (const time of times) {
    scrub.value = time;
    scrub.dispatchEvent(new Event("input"));
    await frame();
    shown.push([...document.querySelectorAll(".moment")].map((moment) => ({
      rows: rows(moment),
      messages: [...moment.querySelectorAll(".messages li:not(.none)")].map((item) => item.textContent),
    })));
  }
  return shown;
}"""
# The colour of a point of the chart, in CSS pixels from its corner.
COLOUR = """([x, y]) => {
  const canvas = document.querySelector("canvas");
  const ratio = canvas.width / canvas.clientWidth;
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, x * ratio, y * ratio, 1, 1, 0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""


def clock(page):
    return page.inner_text("#clock")


def wait_until_played(page):
    page.locator("#play", has_text="Play").wait_for()


def frame(page):
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def difference(timeline, shown, time):
    """Return the first thing in which the page and the timeline differ at a time, or None."""
    expected = as_told.told(timeline, time)
    if sorted(shown["messages"]) != expected["messages"]:
        return time, "messages", shown["messages"], expected["messages"]
    for rank, (row, told) in enumerate(zip(shown["rows"], expected["rows"], strict=True)):
        stages = {span.action.stage for span in timeline.spans[rank]}
        holds = as_told.read_holds(row["holds"], min(stages))
        for name, seen in (("doing", row["doing"]), ("holds", holds), ("memory", row["memory"])):
            if seen != told[name]:
                return time, rank, name, seen, told[name]
        if int(row["count"]) != told["count"]:
            return time, rank, "count", row["count"], told["count"]
        beside = row["beside"].split("; ")
        if not {told["cause"], told["how_far"]} - {""} <= set(beside) or (not told["how_far"] and "rank" in beside):
            return time, rank, "beside", row["beside"], told
    return None


@pytest.mark.parametrize("name", TIMELINES)
def test_what_is_shown_is_what_the_timeline_says(open_page, name):
    timeline = TIMELINES[name]
    page = open_page(draw_html(timeline))
    times = as_told.moments(timeline, 24, seed=0)
    shown = page.evaluate(SHOW, times)
    assert [difference(timeline, moment[0], time) for moment, time in zip(shown, times)] == [None] * len(times)
    facts = page.inner_text(".facts").replace("\n", " ")
    assert f"makespan {format_time(timeline.makespan, timeline.unit)}" in facts
    assert f"bubble {100 * timeline.bubble_fraction:.1f} %" in facts
    assert f"peak activations by rank {', '.join(map(str, timeline.peak_activations))}" in facts


def test_a_long_run_is_timed_in_full_digits(open_page):
    timeline = simulate(schedules.gpipe(2, 2), Costs(1.2345, 1, 1.5, unit="s"))  # 11.2035 s
    page = open_page(draw_html(timeline))
    page.keyboard.press("End")
    frame(page)
    written = format_time(timeline.makespan, "s")
    assert clock(page) == f"{written.removesuffix(' ms')} of {written}"
    assert written.removesuffix(" ms").isdigit() and written in str(timeline) and written in page.inner_text(".facts")


def test_what_is_between_two_actions_blames_nobody_in_a_prediction(open_page):
    page = open_page(draw_html(simulate(schedules.gpipe(2, 2), Costs(overhead=0.5))))
    (shown,) = page.evaluate(SHOW, [1.25])
    assert shown[0]["rows"][0]["doing"].startswith("between two actions (overhead: bookkeeping or, where measured, ")


def test_microbatches_that_follow_each_other_are_listed_as_one(open_page):
    page = open_page(draw_html(TIMELINES["out of order"]))
    listed = [shown[0]["rows"][0]["holds"] for shown in page.evaluate(SHOW, [3.5, 6.5, 9.5])]
    assert listed == [f"microbatches 0{DASH}3", f"microbatches 0, 2{DASH}3", "microbatches 0, 3"]


def test_the_comparison_notices_another_timeline(open_page):
    page = open_page(draw_html(schedules.gpipe(4, 8)))
    other = simulate(schedules.one_f_one_b(4, 8))
    times = as_told.moments(other, 10, seed=0)
    assert any(difference(other, moment[0], time) for moment, time in zip(page.evaluate(SHOW, times), times))


def test_two_timelines_have_one_axis_and_one_moment(open_page):
    pair = simulate(schedules.gpipe(2, 3), Costs(1, 2, 3)), simulate(schedules.one_f_one_b(2, 3))
    page = open_page(draw_html(*pair))
    for time, shown in zip(times := [0.5, 4.5, 8.5, 10.5], page.evaluate(SHOW, times)):
        assert [difference(timeline, moment, time) for timeline, moment in zip(pair, shown) if time < 11] == [None] * 2
    assert pair[1].makespan < pair[0].makespan
    assert page.evaluate(SHOW, [20.0])[0][1]["rows"][0]["doing"] == "has finished"
    assert clock(page) == "20 of 24 units"


def test_memory_is_shown_where_it_says_more_than_the_count_of_activations(open_page):
    plain, uneven = (simulate(schedules.gpipe(2, 2), Costs(activation=held)) for held in (1, [1, 3]))
    for drawn, has_memory in (((plain,), [False]), ((uneven,), [True]), ((plain, uneven), [True, True])):
        page = open_page(draw_html(*drawn))
        moments = page.locator(".moment").all()
        assert ["memory" in moment.inner_text() for moment in moments] == has_memory
        assert page.get_by_text("memory held", exact=True).count() == all(has_memory)
        assert ["peak memory" in facts.inner_text() for facts in page.locator(".facts").all()] == has_memory


def test_headings_skip_no_level(open_page):
    for drawn in ([schedules.gpipe(2, 2)], [schedules.gpipe(2, 2), schedules.one_f_one_b(2, 2)]):
        page = open_page(draw_html(*drawn))
        levels = page.locator("h1, h2, h3").evaluate_all("nodes => nodes.map((node) => Number(node.localName[1]))")
        assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:]))


# -- moving ---------------------------------------------------------------------------------------------------


def test_stepping_visits_every_event_once_forwards_and_back(open_page):
    timeline = simulate(schedules.interleaved_1f1b(2, 2, 2), Costs(latency=0.5))
    page = open_page(draw_html(timeline))
    expected = [f"{time:g} of {timeline.makespan:g} units" for time in as_told.events(timeline)]
    seen = [clock(page)]
    for key, count in (("ArrowRight", len(expected)), ("ArrowLeft", len(expected))):
        for _ in range(count - 1):
            page.keyboard.press(key)
            frame(page)
            seen.append(clock(page))
    assert seen == expected + expected[-2::-1]


def test_what_differs_by_rounding_only_is_one_event(open_page):
    timeline = simulate(schedules.one_f_one_b(3, 3), Costs(0.1, 0.1, 0.1))
    events = sorted({round(time, 6) for time in as_told.events(timeline)})
    assert len(events) < len(as_told.events(timeline))
    page = open_page(draw_html(timeline))
    for time in events[1:]:
        page.keyboard.press("ArrowRight")
        frame(page)
        assert clock(page) == f"{time:g} of 1.5 units"


def test_play_reaches_the_end_and_then_starts_anew(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2)))
    page.select_option("#speed", "64")
    page.click("#play")
    wait_until_played(page)
    assert clock(page) == "9 of 9 units"
    page.select_option("#speed", "0.25")
    page.click("#play")
    frame(page)
    assert float(clock(page).split()[0]) < 5
    assert page.inner_text("#play") == "Pause"


def test_every_button_and_its_key_do_the_same(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2)))
    for button, key in (("last", "End"), ("back", "ArrowLeft"), ("first", "Home"), ("forward", "ArrowRight")):
        before = page.evaluate("Number(document.getElementById('scrub').value)")
        page.click(f"#{button}")
        frame(page)
        by_button = clock(page)
        page.evaluate(SHOW, [before])
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press(key)
        frame(page)
        assert clock(page) == by_button, button


def test_space_plays_and_pauses_once_wherever_the_focus_is(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2)))
    page.select_option("#speed", "0.25")
    page.evaluate("document.activeElement.blur()")
    for focus in (None, "#play", "#scrub", "#scroller"):
        if focus:
            page.focus(focus)
        for label in ("Pause", "Play"):
            page.keyboard.press("Space")
            assert page.inner_text("#play") == label, focus
    page.focus("#last")
    page.keyboard.press("Space")
    frame(page)
    assert (clock(page), page.inner_text("#play")) == ("9 of 9 units", "Play")


def test_a_click_in_the_chart_goes_to_its_time(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2)))
    box = page.locator(".chart").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    frame(page)
    assert 4 < float(clock(page).split()[0]) < 5


def test_zooming_keeps_the_moment_in_sight(open_page):
    page = open_page(draw_html(schedules.one_f_one_b(4, 40)))
    page.keyboard.press("End")
    widths = [page.evaluate("document.getElementById('scroller').scrollWidth")]
    for key in "+++0":
        page.keyboard.press(key)
        frame(page)
        widths.append(page.evaluate("document.getElementById('scroller').scrollWidth"))
    assert widths[0] < widths[1] < widths[2] < widths[3] > widths[4] == widths[0]
    for key in ("+", "+", "Home", "End"):
        page.keyboard.press(key)
    for edge, time in (("End", 129), ("Home", 0)):
        page.keyboard.press(edge)
        frame(page)
        place = page.evaluate("[document.getElementById('scroller')].map((s) => [s.scrollLeft, s.clientWidth])[0]")
        assert clock(page).startswith(f"{time} of")
        assert (place[0] > place[1]) == (edge == "End")


# -- for everybody --------------------------------------------------------------------------------------------


def test_a_step_is_spoken_and_playing_is_not(open_page):
    timeline = simulate(schedules.gpipe(2, 2))
    page = open_page(draw_html(timeline))
    page.keyboard.press("ArrowRight")
    spoken = page.inner_text("#spoken")
    assert spoken.startswith("1 of 9 units. Rank 0: 0F1: forward of microbatch 1 on stage 0, ")
    assert "Rank 1: 1F0: forward of microbatch 0 on stage 1" in spoken
    assert "the result of 0F0, from rank 0 to rank 1, for 1F0" in spoken
    page.evaluate("""() => {
      const count = () => { document.body.dataset.spoken = Number(document.body.dataset.spoken || 0) + 1; };
      new MutationObserver(count).observe(document.getElementById("spoken"), { childList: true, subtree: true });
    }""")
    page.select_option("#speed", "0.25")
    page.click("#play")
    page.evaluate("document.getElementById('scrub').dispatchEvent(new Event('change'))")
    frame(page)
    assert page.evaluate("document.body.dataset.spoken") is None
    page.select_option("#speed", "16")
    wait_until_played(page)
    assert page.evaluate("document.body.dataset.spoken") == "1"  # at the end, and not before
    assert page.inner_text("#spoken").startswith("9 of 9 units. Rank 0: has finished")


def test_a_rank_can_be_chosen_and_is_told(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2)))
    page.focus("#scroller")
    for key, start in (
        ("ArrowDown", "rank 0: 0F0: forward"),
        ("ArrowDown", "rank 1: warm-up: waits for 0F0 on rank 0"),
    ):
        page.keyboard.press(key)
        assert page.inner_text("#spoken").startswith(start)
    assert page.inner_text("#details").splitlines()[-1] == "from 0 to 1 units, length 1"
    page.keyboard.press("Escape")
    assert not page.is_visible("#details")


def test_a_box_tells_its_details_under_the_pointer(open_page):
    timeline = simulate(schedules.gpipe(2, 2))
    page = open_page(draw_html(timeline))
    box = page.locator(".chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 40)
    last = timeline.spans[0][-1]
    assert page.inner_text("#details").splitlines() == [describe_action(last.action), "from 7 to 9 units, length 2"]
    page.mouse.move(5, 5)
    assert not page.is_visible("#details")


def test_all_actions_stand_in_tables_for_those_who_ask(open_page):
    timeline = TIMELINES["zb-v"]
    page = open_page(draw_html(timeline))
    assert page.locator(".all tbody tr").count() == 0
    page.click(".all > summary")
    for rank, row in enumerate(timeline.spans):
        table = page.locator(".all details").nth(rank)
        table.locator("summary").click()
        table.locator("tbody tr").first.wait_for()
        lines = [tuple(line.split("\t")) for line in table.locator("tbody").inner_text().splitlines()]
        assert lines == [(describe_action(action), f"{start:g}", f"{end:g}") for action, start, end in row]


def test_every_control_has_a_name(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2), schedules.one_f_one_b(2, 2)))
    for role, count in (("button", 8), ("slider", 1), ("combobox", 1), ("checkbox", 2), ("img", 2)):
        names = page.get_by_role(role).evaluate_all(
            "nodes => nodes.map((n) => n.ariaLabel || n.textContent.trim() || n.closest('label')?.textContent.trim())"
        )
        assert len(names) == count
        assert all(names)


def test_nothing_but_the_spoken_text_speaks_up(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2)))
    live = page.locator("output, [aria-live], [role=status], [role=alert], [role=log]")
    assert live.evaluate_all("nodes => nodes.map((node) => node.id)") == ["spoken"]


def test_without_wish_for_motion_only_events_are_shown(open_page):
    timeline = simulate(schedules.gpipe(2, 2), Costs(1, 1, 1.5))
    page = open_page(draw_html(timeline), reduced_motion="reduce")
    page.evaluate("""() => {
      window.seen = [];
      const clock = document.getElementById("clock");
      const note = () => window.seen.push(clock.textContent);
      new MutationObserver(note).observe(clock, { childList: true, subtree: true });
    }""")
    page.select_option("#speed", "16")
    page.click("#play")
    wait_until_played(page)
    seen = page.evaluate("window.seen")
    assert len(seen) > 3
    assert set(seen) <= {f"{time:g} of {timeline.makespan:g} units" for time in as_told.events(timeline)}


# -- how it looks ---------------------------------------------------------------------------------------------


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_colours_are_those_of_the_palette_light_and_dark(open_page, scheme, theme):
    page = open_page(draw_html(schedules.gpipe(2, 2)), color_scheme=scheme)
    frame(page)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert list(map(int, re.findall(r"\d+", ground))) == rgb(theme.ground)
    assert page.evaluate(COLOUR, [75, 32]) == rgb(getattr(FILL[ActionKind.FORWARD], scheme))


def test_the_look_follows_when_the_preference_changes_and_paper_is_light(open_page):
    page = open_page(draw_html(schedules.one_f_one_b(2, 2)), color_scheme="light")
    frame(page)
    point = [page.evaluate("document.querySelector('.chart').clientWidth") - 30, 40 + 44]  # idle, on rank 1
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
    assert [page.is_visible(part) for part in ("#play", "#scrub", "#clock", ".chart", "h1")] == [False] * 2 + [True] * 3
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


# Draws the charts anew, and returns the labels that each writes into its boxes, with the middle of each.
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
    """Return, for each timeline, the labelled actions as (length, action, label, is turned), and the others."""
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
                near = [label for label in written if abs(label[1] - middle) < 0.6 and label[2] == heights[rank]]
                for text, _, _, is_turned in near:
                    assert re.fullmatch(rf"(\d*{action.kind})?{action.microbatch}", text)
                    have.append((end - start, action, text, is_turned))
                if not near:
                    lack.append((end - start, action))
        assert len(have) == len(written)
        found.append((have, lack))
    return found


@pytest.mark.parametrize("width", [700, 1000, 1400])
def test_boxes_of_equal_width_are_labelled_alike_in_measured_and_predicted(open_page, width):
    predicted = simulate(schedules.one_f_one_b(2, 16))
    random = Random(0)
    rows = ([Span(a, s, s + (e - s) * random.uniform(0.3, 1)) for a, s, e in row] for row in predicted.spans)
    uneven = replace(predicted, spans=tuple(map(tuple, rows)), is_measured=True)
    for drawn in ((predicted,), (uneven, predicted)):
        page = open_page(draw_html(*drawn), width=width)
        frame(page)
        labels = labelled(page, drawn)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
            forms = set()
            for (have, lack), stage in product(labels, range(2)):
                have, lack = ([each for each in found if each[1][:2] == (stage, kind)] for found in (have, lack))
                assert not have or len(have) >= len(lack)
                assert not have or max(lack, default=(0,))[0] <= min(have)[0] + 1e-9
                forms |= {(re.sub(r"\d+", "", text), is_turned) for _, _, text, is_turned in have}
            assert len(forms) == 1


def test_labels_lose_the_kind_where_there_is_less_room_then_are_turned_then_left_out(open_page):
    timeline = simulate(schedules.one_f_one_b(2, 12))
    shown = {}
    for width in range(300, 1500, 100):
        page = open_page(draw_html(timeline), width=width)
        frame(page)
        ((have, lack),) = labelled(page, [timeline])
        forwards = [label for _, action, *label in have if action.kind is ActionKind.FORWARD]
        assert len(forwards) in (0, 24) and len(have) + len(lack) == 48
        shown[width] = {(re.sub(r"\d+", "#", text), is_turned) for text, is_turned in forwards}
    forms = [shown[width] for width in sorted(shown, reverse=True)]
    changes = [form for form, before in zip(forms, [None, *forms]) if form != before]
    assert changes == [{("F#", False)}, {("#", False)}, {("F#", True)}, set()]


def test_a_title_and_notes_stand_above_the_player(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2), title="A step", notes=["on <b>2</b> cores", "in May"]))
    assert page.inner_text("h1") == page.title() == "A step"
    assert page.locator(".notes li").all_inner_texts() == ["on <b>2</b> cores", "in May"]
    assert page.locator(".notes").bounding_box()["y"] < page.locator("#player").bounding_box()["y"]
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
    (shown,) = page.evaluate(SHOW, [1.25])  # rank 0 sends, the others wait for what comes
    assert shown[0]["rows"][0]["doing"].startswith("0SEND_F0") and "on the way" in shown[0]["rows"][0]["beside"]
    page.evaluate("window.dashes = 0")
    page.evaluate("document.getElementById('scrub').dispatchEvent(new Event('input'))")
    frame(page)
    assert page.evaluate("window.dashes") == 3


def test_ten_thousand_actions_load_step_and_never_draw_more_than_there_is_room_for(open_page):
    timeline = simulate(schedules.one_f_one_b(8, 625), Costs(latency=0.2))
    assert sum(map(len, timeline.spans)) == 10_000
    page = open_page(draw_html(timeline))
    page.check("#show-path")
    page.check("#show-messages")
    boxes = "Number(document.querySelector('canvas').dataset.boxes)"
    room = timeline.num_ranks * 1400  # less than a box for each pixel of each row, at any zoom
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
    assert [difference(timeline, moment[0], time) for moment, time in zip(shown, times)] == [None] * 3
    page.keyboard.press("ArrowRight")
    frame(page)
    assert float(clock(page).split()[0]) > times[-1]


def test_a_name_is_a_text_whatever_it_holds(open_page):
    name = "</script><b>bold</b> $title {action} <!--"
    page = open_page(draw_html(schedules.Schedule(name, (0,), 1, (("0F0", "0B0"),))))
    assert page.inner_text("h1") == f"{name}, predicted"
    assert page.locator("b", has_text="bold").count() == 0
    assert page.evaluate(SHOW, [0.5])[0][0]["rows"][0]["doing"].startswith("0F0: forward")


@pytest.mark.parametrize("rows", [((), ()), (("0F0",), ())], ids=["nothing", "one action"])
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
