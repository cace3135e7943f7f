"""The player in a real browser: what it shows is what the timeline says."""

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.render.descriptions import describe_action
from minipipe.render.html import draw_html
from minipipe.schedules.simulation.timeline import format_time
from tests.browser import oracle
from tests.browser.oracle import TIMELINES
from tests.browser.player_page import (
    DASH,
    SHOW,
    clock,
    difference,
    frame,
    wait_until_played,
)


@pytest.mark.parametrize("name", TIMELINES)
def test_what_is_shown_is_what_the_timeline_says(open_page, name):
    timeline = TIMELINES[name]
    page = open_page(draw_html(timeline))
    times = oracle.moments(timeline, 24, seed=0)
    shown = page.evaluate(SHOW, times)
    assert [
        difference(timeline, moment[0], time) for moment, time in zip(shown, times)
    ] == [None] * len(times)
    facts = page.inner_text(".facts").replace("\n", " ")
    assert f"makespan {format_time(timeline.makespan, timeline.unit)}" in facts
    assert f"bubble {100 * timeline.bubble_fraction:.1f} %" in facts
    assert (
        "peak activations by rank "
        f"{dict(timeline.figures())['peak activations by rank']}"
    ) in facts


def test_a_long_run_is_timed_in_full_digits(open_page):
    # 11.2035 s
    timeline = simulate(schedules.gpipe(2, 2), Costs(1.2345, 1, 1.5, unit="s"))
    page = open_page(draw_html(timeline))
    page.keyboard.press("End")
    frame(page)
    written = format_time(timeline.makespan, "s")
    assert clock(page) == f"{written.removesuffix(' ms')} of {written}"
    assert (
        written.removesuffix(" ms").isdigit()
        and written in str(timeline)
        and written in page.inner_text(".facts")
    )


def test_what_is_between_two_actions_blames_nobody_in_a_prediction(open_page):
    page = open_page(draw_html(simulate(schedules.gpipe(2, 2), Costs(overhead=0.5))))
    (shown,) = page.evaluate(SHOW, [1.25])
    assert shown[0]["rows"][0]["doing"].startswith(
        "between two actions (overhead: bookkeeping or, if measured, "
    )


def test_microbatches_that_follow_each_other_are_listed_as_one(open_page):
    page = open_page(draw_html(TIMELINES["out of order"]))
    listed = [
        shown[0]["rows"][0]["holds"] for shown in page.evaluate(SHOW, [3.5, 6.5, 9.5])
    ]
    assert listed == [
        f"microbatches 0{DASH}3",
        f"microbatches 0, 2{DASH}3",
        "microbatches 0, 3",
    ]


def test_the_comparison_notices_another_timeline(open_page):
    page = open_page(draw_html(schedules.gpipe(4, 8)))
    other = simulate(schedules.one_f_one_b(4, 8))
    times = oracle.moments(other, 10, seed=0)
    assert any(
        difference(other, moment[0], time)
        for moment, time in zip(page.evaluate(SHOW, times), times)
    )


def test_two_timelines_have_one_axis_and_one_moment(open_page):
    pair = (
        simulate(schedules.gpipe(2, 3), Costs(1, 2, 3)),
        simulate(schedules.one_f_one_b(2, 3)),
    )
    page = open_page(draw_html(*pair))
    for time, shown in zip(times := [0.5, 4.5, 8.5, 10.5], page.evaluate(SHOW, times)):
        assert [
            difference(timeline, moment, time)
            for timeline, moment in zip(pair, shown)
            if time < 11
        ] == [None] * 2
    assert pair[1].makespan < pair[0].makespan
    assert page.evaluate(SHOW, [20.0])[0][1]["rows"][0]["doing"] == "has finished"
    assert clock(page) == "20 of 24 units"


def test_memory_is_shown_where_it_says_more_than_the_count_of_activations(open_page):
    plain, uneven = (
        simulate(schedules.gpipe(2, 2), Costs(activation=held)) for held in (1, [1, 3])
    )
    for drawn, has_memory in (
        ((plain,), [False]),
        ((uneven,), [True]),
        ((plain, uneven), [True, True]),
    ):
        page = open_page(draw_html(*drawn))
        moments = page.locator(".moment").all()
        assert ["memory" in moment.inner_text() for moment in moments] == has_memory
        assert page.get_by_text("memory held", exact=True).count() == all(has_memory)
        assert [
            "peak memory" in facts.inner_text()
            for facts in page.locator(".facts").all()
        ] == has_memory


def test_headings_skip_no_level(open_page):
    for drawn in (
        [schedules.gpipe(2, 2)],
        [schedules.gpipe(2, 2), schedules.one_f_one_b(2, 2)],
    ):
        page = open_page(draw_html(*drawn))
        levels = page.locator("h1, h2, h3").evaluate_all(
            "nodes => nodes.map((node) => Number(node.localName[1]))"
        )
        assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:]))


# -- moving ----------------------------------------------------------------------------


def test_stepping_visits_every_event_once_forwards_and_back(open_page):
    timeline = simulate(schedules.interleaved_1f1b(2, 2, 2), Costs(latency=0.5))
    page = open_page(draw_html(timeline))
    expected = [
        f"{time:g} of {timeline.makespan:g} units" for time in oracle.events(timeline)
    ]
    seen = [clock(page)]
    for key, count in (("ArrowRight", len(expected)), ("ArrowLeft", len(expected))):
        for _ in range(count - 1):
            page.keyboard.press(key)
            frame(page)
            seen.append(clock(page))
    assert seen == expected + expected[-2::-1]


def test_what_differs_by_rounding_only_is_one_event(open_page):
    timeline = simulate(schedules.one_f_one_b(3, 3), Costs(0.1, 0.1, 0.1))
    events = sorted({round(time, 6) for time in oracle.events(timeline)})
    assert len(events) < len(oracle.events(timeline))
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
    for button, key in (
        ("last", "End"),
        ("back", "ArrowLeft"),
        ("first", "Home"),
        ("forward", "ArrowRight"),
    ):
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
        place = page.evaluate(
            "[document.getElementById('scroller')].map((s) => [s.scrollLeft, "
            "s.clientWidth])[0]"
        )
        assert clock(page).startswith(f"{time} of")
        assert (place[0] > place[1]) == (edge == "End")


# -- for everybody ---------------------------------------------------------------------


def test_a_step_is_spoken_and_playing_is_not(open_page):
    timeline = simulate(schedules.gpipe(2, 2))
    page = open_page(draw_html(timeline))
    page.keyboard.press("ArrowRight")
    spoken = page.inner_text("#spoken")
    assert spoken.startswith(
        "1 of 9 units. Rank 0: 0F1: forward of microbatch 1 on stage 0, "
    )
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
    # at the end, and not before
    assert page.evaluate("document.body.dataset.spoken") == "1"
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
    assert page.inner_text("#details").splitlines() == [
        describe_action(last.action),
        "from 7 to 9 units, length 2",
    ]
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
        lines = [
            tuple(line.split("\t"))
            for line in table.locator("tbody").inner_text().splitlines()
        ]
        assert lines == [
            (describe_action(action), f"{start:g}", f"{end:g}")
            for action, start, end in row
        ]


def test_every_control_has_a_name(open_page):
    page = open_page(draw_html(schedules.gpipe(2, 2), schedules.one_f_one_b(2, 2)))
    for role, count in (
        ("button", 8),
        ("slider", 1),
        ("combobox", 1),
        ("checkbox", 2),
        ("img", 2),
    ):
        names = page.get_by_role(role).evaluate_all(
            "nodes => nodes.map((n) => n.ariaLabel || n.textContent.trim() || "
            "n.closest('label')?.textContent.trim())"
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
    assert set(seen) <= {
        f"{time:g} of {timeline.makespan:g} units" for time in oracle.events(timeline)
    }
