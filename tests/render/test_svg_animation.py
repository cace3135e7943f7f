"""An animated SVG: running figures of each moment, and the finished drawing where
nothing moves.
"""

import re
from dataclasses import replace

import pytest
from hypothesis import given

from minipipe import schedules, simulate
from minipipe.render import draw_svg
from minipipe.render.panel import panels_of
from tests.render.picture import Picture, timelines
from tests.render.test_svg_options import overlapping, texts_of
from tests.strategies import examples

TWO = [schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8)]


def groups(drawn, name):
    """Return the groups of a class that an animated drawing has, in their order."""
    return [
        group
        for group in Picture(drawn).root.iter("g")
        if name in group.get("class", "").split()
    ]


def words(group):
    return [text.text for text in group.iter("text")]


def test_each_frame_says_how_long_the_ranks_have_been_idle_until_then():
    frames = groups(draw_svg(schedules.one_f_one_b(4, 8), animated=True), "frame")
    assert len(frames) == 33
    assert words(frames[0]) == ["after 0 units", "idle 0", "idle 0", "idle 0", "idle 0"]
    assert words(frames[1]) == ["after 1 unit", "idle 0", "idle 1", "idle 1", "idle 1"]
    assert words(frames[3]) == ["after 3 units", "idle 0", "idle 1", "idle 2", "idle 3"]
    assert words(frames[16]) == [
        "after 16 units",
        "idle 6",
        "idle 5",
        "idle 4",
        "idle 3",
    ]


def test_it_ends_with_the_figures_of_both_schedules_and_the_time_between_their_ends():
    drawn = draw_svg(*TWO, animated=True)
    first, second = groups(drawn, "end")
    assert words(first) == [
        "33 units, bubble 27.3 %",
        *["idle 9"] * 4,
        "peak 4",
        "peak 3",
        "peak 2",
        "peak 1",
    ]
    assert words(second) == [
        "27 units, bubble 11.1 %",
        *["idle 3"] * 4,
        *["peak 4"] * 4,
    ]
    (saved,) = groups(drawn, "saved")
    assert words(saved) == ["6 units less"]


def test_a_gap_too_narrow_for_its_text_has_none():
    drawn = draw_svg(
        schedules.one_f_one_b(4, 80), schedules.zb_h1(4, 80), animated=True
    )
    assert groups(drawn, "saved") == [] and "less" not in drawn


def test_its_captions_explain_the_units_and_what_a_stage_waits_for():
    texts = [text for text, *_ in texts_of(Picture(draw_svg(*TWO, animated=True)).root)]
    assert texts[:4] == [
        "One training step: 8 microbatches on 4 ranks",
        "F takes 1 unit of time, B 2, I 1, W 1",
        "1F1B",
        "B is one block of 2 units: the stage before waits until all of it is done.",
    ]
    assert "ZB-H1 (zero bubble)" in texts
    assert (
        "B is split into I and W: the stage before waits for I only, and W fills "
        "idle time."
    ) in texts


def test_a_title_and_notes_of_the_caller_stay():
    drawn = draw_svg(TWO[0], animated=True, title="Mine", notes=["in May"])
    assert [text for text, *_ in texts_of(Picture(drawn).root)][:3] == [
        "Mine",
        "in May",
        "F takes 1 unit of time, B 2",
    ]


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_the_idle_times_add_up_to_the_bubble(name):
    timeline = simulate(schedules.build(name, 4, 8))
    (panel,) = panels_of([timeline])
    idle = sum(
        panel.idle_until(rank, timeline.makespan) for rank in range(timeline.num_ranks)
    )
    assert idle / (timeline.num_ranks * timeline.makespan) == pytest.approx(
        timeline.bubble_fraction
    )


def test_frames_of_one_panel_follow_each_other_and_the_last_one_stays():
    drawn = draw_svg(*TWO, animated=True)
    delays = [
        float(re.fullmatch(r"animation-delay:([\d.]+)s", g.get("style"))[1])
        for g in groups(drawn, "frame")
    ]
    assert delays[:33] == pytest.approx(
        [2 + 6.5 / 33 * index for index in range(33)], abs=0.01
    )
    assert delays[33:] == delays[:27]
    ends = re.findall(
        r"-end-\d\{0%\{opacity:1\}([\d.]+)%\{opacity:0\}([\d.]+)%,100%\{opacity:1\}\}",
        drawn,
    )
    assert [float(start) for start, _ in ends] == pytest.approx(
        [100 * 2 / 12] * 2, abs=0.01
    )
    expected = [100 * (2 + 6.5 * part) / 12 for part in (1, 27 / 33)]
    assert [float(end) for _, end in ends] == pytest.approx(expected, abs=0.01)


def test_without_style_sheets_the_finished_drawing_is_seen():
    moving, still = (
        Picture(draw_svg(*TWO, animated=animated)).root for animated in (True, False)
    )
    for group in [
        g for g in moving.iter("g") if g.get("class") in ("frame", "curtain", "now")
    ]:
        assert group.get("display") == "none"
    boxes = [
        len([rect for rect in root.iter("rect") if rect.find("title") is not None])
        for root in (moving, still)
    ]
    assert boxes[0] == boxes[1] > 150


def test_whoever_prefers_reduced_motion_sees_no_motion():
    (sheet,) = re.findall("<style>(.*?)</style>", draw_svg(*TWO, animated=True))
    before, query, moving = sheet.partition(
        "@media screen and (prefers-reduced-motion:no-preference){"
    )
    assert query and "animation" not in before and "display:inline" in moving


def test_two_drawings_in_one_page_have_animations_of_their_own():
    names = [
        set(re.findall(r"@keyframes (\S+?)\{", draw_svg(s, animated=True))) for s in TWO
    ]
    assert len(names[0]) == len(names[1]) == 4 and not names[0] & names[1]


@examples(20)
@given(timelines())
def test_any_timeline_is_drawn_in_frames_that_add_up_to_it(timeline):
    drawn = draw_svg(timeline, animated=True)
    frames, (end,) = groups(drawn, "frame"), groups(drawn, "end")
    assert len(frames) <= 61
    assert words(end)[0].endswith(f", bubble {100 * timeline.bubble_fraction:.1f} %")


def test_running_figures_stand_on_the_line_of_the_name_with_messages_too():
    for messages in (False, True):
        texts = [
            text
            for _, text in Picture(
                draw_svg(*TWO, animated=True, messages=messages)
            ).texts
        ]
        places = [
            {t.get("y") for t in texts if t.get("class") == role}
            for role in ("name", "running", "total")
        ]
        assert len(places[0]) == 2 and places[0] == places[1] == places[2]


@pytest.mark.parametrize("length", [1, 20, 40, 60, 90])
def test_running_figures_have_room_beside_or_below_the_longest_name(length):
    schedule = replace(schedules.one_f_one_b(4, 8), name="m" * length)
    texts = [
        text
        for text in texts_of(Picture(draw_svg(schedule, animated=True)).root)
        if text[0]
    ]
    names = [text for text in texts if set(text[0]) == {"m"}]
    figures = [text for text in texts if "bubble" in text[0] or "after" in text[0]]
    assert len(figures) == 34
    assert not [pair for figure in figures for pair in overlapping([*names, figure])]
