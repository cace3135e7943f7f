"""The SVG shows the timeline's own numbers: read back from the file with a ruler."""

import math
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Action, ActionKind, Costs, Schedule, Timeline, schedules, simulate
from minipipe.errors import ScheduleError
from minipipe.render import draw_svg, palette
from minipipe.render.descriptions import LATE_RECEIPTS, describe_message, title
from minipipe.render.html import draw_html
from minipipe.render.panel import NARROW, TOGETHER
from minipipe.schedules.simulation.span import IdleCause, Message, Span
from tests.launch import slowly
from tests.render.picture import Picture, timelines
from tests.strategies import examples

HUNDREDTH = 0.011  # pixels are written with two digits
ASIDE = 0.4 * 6  # pixels: half the width of an arrowhead


def drawn_spans(timeline, rank):
    return [
        span
        for span in timeline.spans[rank]
        if not span.action.kind.is_communication and span.end > span.start
    ]


# -- checks, each with a ruler; below each is tried on a picture of something else -----


def check_lengths(picture, timeline):
    """The boxes of a rank are together as long as it is busy, and by kind."""
    for rank, lane in enumerate(picture.lanes):
        height = min((box.bottom - box.top for box in lane.boxes), default=26)
        for kind in "FBIW":
            parts = [
                p
                for p in (*lane.boxes, *lane.bands)
                if re.fullmatch(kind + r"\d*", p.name)
            ]
            expected = sum(
                end - start
                for action, start, end in drawn_spans(timeline, rank)
                if action.kind == kind
            )
            found = sum(part.area for part in parts) / height
            assert found == pytest.approx(
                expected * picture.scale, abs=HUNDREDTH * (1 + 2 * len(lane))
            )


def check_places(picture, timeline):
    """Every box stands where its action ran."""
    for rank, lane in enumerate(picture.lanes):
        spans = {
            str(action): (start, end) for action, start, end in timeline.spans[rank]
        }
        for box in lane.boxes:
            start, end = (
                (time - timeline.start) * picture.scale + picture.left
                for time in spans[box.action]
            )
            assert (box.left, box.right) == pytest.approx((start, end), abs=HUNDREDTH)


def check_idle(picture, timeline):
    """Every idle slot of three pixels or more is hatched by its cause."""
    for rank, lane in enumerate(picture.lanes):
        expected = [
            (slot.cause, (slot.start - timeline.start) * picture.scale + picture.left)
            for slot in timeline.idle[rank]
            if (slot.end - slot.start) * picture.scale >= NARROW
        ]
        assert [slot.name for slot in lane.idle] == [cause for cause, _ in expected]
        assert [slot.left for slot in lane.idle] == pytest.approx(
            [x for _, x in expected], abs=HUNDREDTH
        )


def check_strips(picture, timeline):
    """While an action runs, the strip is as high as what is held before or after it,
    whichever is more.
    """
    most = max(timeline.peak_activations)
    for rank, lane in enumerate(picture.lanes):
        held, bottom = 0, max((y for _, y in lane.strip), default=0)
        for (action, start, end), after in zip(
            timeline.spans[rank], timeline.held_activations[rank]
        ):
            x = ((start + end) / 2 - timeline.start) * picture.scale + picture.left
            if (end - start) * picture.scale > 1:
                y = next(
                    (
                        y
                        for (right, y), _ in zip(lane.strip[1::2], lane.strip[2::2])
                        if right >= x
                    ),
                    bottom,
                )
                assert (bottom - y) / max(bottom, 1) == pytest.approx(
                    max(held + (action.kind is ActionKind.FORWARD), after) / most,
                    abs=0.002,
                )
            held = after
        assert lane.peak == (
            "peak "
            f"{timeline.peak_activations[rank] / (timeline.pairs_per_microbatch or 1):.6g}"
        )


CHECKS = (check_lengths, check_places, check_idle, check_strips)


@examples(60)
@given(timelines())
def test_the_numbers_shown_are_those_of_the_timeline(timeline):
    picture = Picture(draw_svg(timeline))
    assert len(picture.lanes) == timeline.num_ranks
    if timeline.makespan:
        for check in CHECKS:
            check(picture, timeline)


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_notice_a_picture_of_something_else(check):
    timeline = simulate(schedules.one_f_one_b(3, 4))
    late = [Span(action, start, end) for action, start, end in timeline.spans[0]]
    # 0F2 begins later, so that it is shorter
    late[2] = late[2]._replace(start=late[2].start + 0.5)
    other = replace(timeline, spans=(tuple(late), *timeline.spans[1:]))
    more = simulate(schedules.gpipe(3, 4))
    check(Picture(draw_svg(timeline)), timeline)
    with pytest.raises(AssertionError):
        check(Picture(draw_svg(more if check is check_strips else other)), timeline)


@examples(40)
@given(timelines())
def test_nothing_in_a_row_overlaps(timeline):
    for lane in Picture(draw_svg(timeline, width=400)).lanes:
        row = sorted(
            (*lane.boxes, *lane.idle), key=lambda part: (part.left, part.right)
        )
        row += sorted(
            (band for band in lane.bands if band.top == lane.top),
            key=lambda band: band.left,
        )
        # a band may be thinner than what numbers say
        row.sort(key=lambda part: (part.left, part.right))
        for part, following in zip(row, row[1:]):
            assert part.right <= following.left + 1e-6, (part, following)


# -- messages --------------------------------------------------------------------------


@examples(40)
@given(timelines())
def test_an_arrow_joins_what_sends_with_what_is_waiting(timeline):
    picture = Picture(draw_svg(timeline, messages=True))
    assert len(picture.arrows) == len(timeline.messages)
    arrows = {arrow.what: arrow for arrow in picture.arrows}
    for message in timeline.messages:
        arrow = arrows[describe_message(message)]
        source, destination = (
            picture.lanes[rank].top for rank in (message.source, message.destination)
        )
        # lower edge to upper edge, or the other way
        facing = (26, 0) if source < destination else (0, 26)
        assert (arrow.start[1], arrow.end[1]) == (
            source + facing[0],
            destination + facing[1],
        )
        if timeline.makespan:
            x, end = (
                (t - timeline.start) * picture.scale + picture.left
                for t in (message.sent, message.arrived)
            )
            away = -ASIDE if source < destination else ASIDE
            is_short, takes_none = (
                abs(x - end) < 2 * HUNDREDTH,
                message.sent == message.arrived,
            )
            # of a short one, the rounding of its ends decides
            asides = [away] * is_short + [0] * (not takes_none)
            found = [arrow.start[0] - x, arrow.end[0] - end]
            # more where another message is there
            shifts = [aside + more for aside in asides for more in (0, 2 * away)]
            assert any(
                found == pytest.approx([shift, shift], abs=2 * HUNDREDTH)
                for shift in shifts
            )
        assert arrow.way == (
            "forward" if message.value.kind is ActionKind.FORWARD else "backward"
        )
    for way in ("forward", "backward"):
        assert picture.heads(way) == [
            arrow.end for arrow in picture.arrows if arrow.way == way
        ]


def test_an_arrow_begins_at_the_end_of_its_box_and_ends_where_the_next_one_begins():
    picture = Picture(
        draw_svg(
            simulate(schedules.gpipe(2, 1), Costs(1, 1, 0, latency=2)), messages=True
        )
    )
    first, second = (lane.boxes for lane in picture.lanes)
    down, up = picture.arrows
    assert (down.start, down.end) == (
        (first[0].right, first[0].bottom),
        (second[0].left, second[0].top),
    )
    assert (up.start, up.end) == (
        (second[1].right, second[1].top),
        (first[1].left, first[1].bottom),
    )
    assert down.what == "the result of 0F0, from rank 0 to rank 1, for 1F0"
    assert picture.legend[-2:] == ["activation sent", "gradient sent"]


@pytest.mark.parametrize(
    "schedule",
    [schedules.one_f_one_b(4, 8), schedules.zb_v(4, 8)],
    ids=lambda s: s.name,
)
def test_no_two_arrows_share_a_line_where_messages_take_no_time(schedule):
    """The story: F4 went down and B0 up between two ranks at one time, and one arrow
    hid the other.
    """
    arrows = Picture(draw_svg(schedule, messages=True)).arrows
    lines = [
        (arrow.start[0], *sorted((arrow.start[1], arrow.end[1]))) for arrow in arrows
    ]
    assert len(set(lines)) == len(lines) > 40


def test_measured_messages_are_drawn_as_measured():
    predicted = simulate(schedules.gpipe(2, 1), Costs(1, 1, 0, latency=2))
    late = Message(Action.parse("0F0"), Action.parse("1F0"), 0, 1, 1.5, 2.5)
    timeline = replace(predicted, measured_messages=(late,), is_measured=True)
    picture = Picture(draw_svg(timeline, messages=True))
    (arrow,) = picture.arrows
    assert (arrow.start[0], arrow.end[0]) == tuple(
        picture.left + time * picture.scale for time in (1.5, 2.5)
    )
    assert "gradient sent" not in picture.legend


def test_the_legend_says_that_an_arrow_may_end_after_its_value_came():
    predicted = simulate(schedules.gpipe(2, 1))
    late = Message(
        Action.parse("0F0"), Action.parse("1F0"), 0, 1, 0.5, 0.9, was_awaited=False
    )
    measured = replace(predicted, measured_messages=(late,), is_measured=True)
    awaited = replace(measured, measured_messages=(late._replace(was_awaited=True),))
    assert LATE_RECEIPTS in Picture(draw_svg(predicted, measured, messages=True)).legend
    assert (
        LATE_RECEIPTS not in Picture(draw_svg(predicted, awaited, messages=True)).legend
    )
    # no arrows
    assert LATE_RECEIPTS not in Picture(draw_svg(predicted, measured)).legend
    assert LATE_RECEIPTS in draw_html(
        predicted, measured
    ) and LATE_RECEIPTS not in draw_html(predicted, awaited)


def test_messages_are_drawn_on_request_only():
    drawn, asked = (
        draw_svg(schedules.gpipe(2, 2), messages=m).partition("</style>")[2]
        for m in (False, True)
    )
    assert "forward-head" in asked and "forward" not in re.sub(
        "<title>.*?</title>|>F forward<", "", drawn
    )


# -- several panels --------------------------------------------------------------------


def test_panels_share_one_axis_and_each_begins_at_its_start():
    predicted = simulate(schedules.one_f_one_b(2, 3))
    slow = tuple(
        tuple(Span(a, 2 * start + 5, 2 * end + 5) for a, start, end in row)
        for row in predicted.spans
    )
    measured = replace(predicted, spans=slow, is_measured=True, note="a slow machine")
    picture = Picture(draw_svg(predicted, measured))
    above, below = picture.lanes[:2], picture.lanes[2:]
    for lane, slower in zip(above, below):
        assert [box.action for box in lane.boxes] == [
            box.action for box in slower.boxes
        ]
        for box, longer in zip(lane.boxes, slower.boxes):
            assert longer.left - picture.left == pytest.approx(
                2 * (box.left - picture.left), abs=3 * HUNDREDTH
            )
    assert above[0].boxes[0].left == below[0].boxes[0].left == picture.left
    right = max(lane.boxes[-1].right for lane in below)
    # the longest fills the page, less its margin and what is written there
    assert 960 - 18 - 60 < right < 960 - 18
    words = [words for words, _ in picture.texts]
    assert words.count("0") == 1
    assert [title(predicted), title(measured)] == [
        line for line in words if line.startswith("1f1b, ")
    ]
    listed = [
        ", ".join(map(" ".join, timeline.figures()))
        for timeline in (predicted, measured)
    ]
    assert [line for line in words if line.startswith("makespan ")] == listed
    assert words.count("a slow machine") == 1


def test_strips_of_panels_have_one_scale():
    picture = Picture(draw_svg(schedules.gpipe(2, 4), schedules.one_f_one_b(2, 4)))
    depths = [
        max(y for _, y in lane.strip) - min(y for _, y in lane.strip)
        for lane in picture.lanes
    ]
    assert depths == pytest.approx([12, 12, 6, 3])


def test_a_round_time_is_marked_in_milliseconds_where_times_are_seconds():
    timeline = simulate(schedules.gpipe(2, 2), Costs(0.01, 0.01, 0.01, unit="s"))
    picture = Picture(draw_svg(timeline))
    ticks = [words for words, text in picture.texts if text.get("class") == "tick"]
    assert ticks == [str(10 * i) for i in range(10)] and any(
        words == "ms" for words, _ in picture.texts
    )
    assert (
        picture.lanes[0].boxes[0].what
        == "0F0: forward of microbatch 0 on stage 0, 0 to 10 ms"
    )


# -- what is held ----------------------------------------------------------------------


def test_bytes_are_shown_where_they_are_known():
    costs = Costs(activation=[1536, 1024], memory_unit="bytes")
    picture = Picture(draw_svg(simulate(schedules.gpipe(2, 2), costs)))
    assert [lane.peak for lane in picture.lanes] == ["peak 3 KiB", "peak 2 KiB"]
    assert "memory held" in picture.legend and "activations held" not in picture.legend


def test_a_forward_alone_holds_its_activations_only_while_it_runs():
    picture = Picture(draw_svg(schedules.build("forward-only", 2, 2)))
    assert [lane.peak for lane in picture.lanes] == ["peak 1", "peak 1"]
    timeline = simulate(
        schedules.build("forward-only", 2, 2),
        Costs(activation=[512, 2048], memory_unit="bytes"),
    )
    assert [lane.peak for lane in Picture(draw_svg(timeline)).lanes] == [
        "peak 512 B",
        "peak 2 KiB",
    ]


def test_strips_can_be_left_out():
    picture = Picture(draw_svg(schedules.gpipe(2, 2), memory=False))
    assert not any(lane.strip or lane.peak for lane in picture.lanes)
    assert "activations held" not in picture.legend


# -- edges -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline("empty", ((), ()), (0, 0)),
        Timeline("no ranks", (), ()),
        Timeline("", ((),), (0,), unit="s"),
        simulate(schedules.gpipe(2, 2), Costs(0, 0, 0)),
        simulate(schedules.gpipe(2, 2), Costs(1e-320, 0, 0)),
        simulate(schedules.gpipe(2, 2), Costs(1e300, 0, 0)),
        simulate(schedules.one_f_one_b(1, 1)),
        Timeline(
            "late",
            ((Span(Action.parse("0F0"), 1e9, 1e9 + 1e-3),),),
            (1,),
            unit="s",
            is_measured=True,
        ),
    ],
    ids=lambda timeline: timeline.name,
)
def test_odd_timelines_can_be_drawn(timeline):
    picture = Picture(draw_svg(timeline, messages=True))
    assert len(picture.lanes) == timeline.num_ranks
    assert picture.root.get("viewBox").startswith("0 0 960 ")


@pytest.mark.slow
def test_narrow_actions_join_in_runs_of_whole_rounds_by_the_rule_of_the_player():
    """The story: at 64 ranks and 128 microbatches a picture had 2.7 MB of stripes; the
    player drew bands.
    """
    timeline = simulate(schedules.one_f_one_b(64, 128))
    svg = draw_svg(timeline)
    assert len(svg) < 300_000
    for narrow, lane in zip(timeline.spans, Picture(svg).lanes):
        kinds = {
            kind: {(band.left, band.right) for band in lane.bands if band.name == kind}
            for kind in "FB"
        }
        assert (
            len(kinds["F"] | kinds["B"]) + len(lane.boxes) <= len(narrow) / TOGETHER + 8
        )
        assert {"F", "B"} == {band.name for band in lane.bands}
    page = draw_html(schedules.gpipe(1, 1))
    assert (
        f"const NARROW = {NARROW}, TOGETHER = {TOGETHER};" in page
        and page.count("const NARROW") == 1
    )


@pytest.mark.parametrize(
    "size", [slowly((64, 78), id="64 ranks"), pytest.param((4, 1250), id="4 ranks")]
)
def test_ten_thousand_actions_make_a_small_file_whose_areas_still_are_times(size):
    timeline = simulate(schedules.one_f_one_b(*size))
    assert sum(map(len, timeline.spans)) >= 9984
    svg = draw_svg(timeline)
    assert len(svg) < 2e6
    check_lengths(Picture(svg), timeline)


def test_actions_too_short_to_be_seen_are_bands_as_high_as_their_shares():
    # F one unit, B two: a third and two thirds
    timeline = simulate(schedules.one_f_one_b(1, 1000))
    (lane,) = Picture(draw_svg(timeline)).lanes
    assert not lane.boxes
    heights = {
        band.name: band.bottom - band.top
        for band in lane.bands
        if band.left > 200 and band.right < 800
    }
    assert heights == {
        "F": pytest.approx(26 / 3, rel=0.2),
        "B": pytest.approx(26 * 2 / 3, rel=0.2),
    }


@pytest.mark.parametrize(
    ("drawn", "options", "error", "words"),
    [
        ((), {}, ValueError, "Nothing to draw"),
        (("1f1b",), {}, TypeError, "expected a Schedule or a Timeline"),
        (
            (schedules.gpipe(2, 2),),
            {"width": 100},
            ValueError,
            "expected 240 to 1048576 pixels",
        ),
        (
            (Timeline("a", (), ()), Timeline("b", (), (), unit="s")),
            {},
            ValueError,
            "one axis",
        ),
        (
            (Schedule.from_text("1F0 0F0 0B0 1B0"),),
            {},
            ScheduleError,
            "1F0 comes before 0F0",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(drawn, options, error, words):
    with pytest.raises(error, match=words):
        draw_svg(*drawn, **options)


def test_every_cause_of_idle_time_has_its_own_hatching():
    assert set(palette.HATCH) == set(IdleCause) and len(
        set(palette.HATCH.values())
    ) == len(IdleCause)


@examples(40)
@given(timelines(), st.sampled_from([300, 960]))
def test_every_idle_slot_is_hatched_within_its_edges_at_the_angle_of_its_cause(
    timeline, width
):
    for lane in Picture(draw_svg(timeline, width=width)).lanes:
        found = Counter()
        for x, y, end_x, end_y in lane.hatch:
            middle = (x + end_x) / 2
            (slot,) = (slot for slot in lane.idle if slot.left < middle < slot.right)
            edges = (
                slot.left - HUNDREDTH,
                slot.right + HUNDREDTH,
                slot.top - HUNDREDTH,
                slot.bottom + HUNDREDTH,
            )
            assert edges[0] <= min(x, end_x) and max(x, end_x) <= edges[1]
            assert edges[2] <= min(y, end_y) and max(y, end_y) <= edges[3]
            angle, _ = palette.HATCH[IdleCause(slot.name)]
            length = math.hypot(end_x - x, end_y - y)
            aside = (end_x - x) * math.sin(math.radians(angle)) - (
                end_y - y
            ) * math.cos(math.radians(angle))
            assert length > 0 and abs(aside) <= 2 * HUNDREDTH
            found[slot] += 1
        for slot in lane.idle:
            angle, gap = palette.HATCH[IdleCause(slot.name)]
            across = (
                slot.right - slot.left
                if angle == 90
                else slot.bottom - slot.top
                if angle == 0
                else None
            )
            assert found[slot] >= 1
            assert across is None or abs(found[slot] - across / gap) <= 1.01
