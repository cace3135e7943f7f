"""The options of draw_svg: title, notes, legend and font size; and the rule of the
labels.
"""

import math
import re
from dataclasses import replace
from itertools import combinations, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.render import draw_svg
from minipipe.render.layout import text_width
from minipipe.schedules.simulation.span import Span
from tests.launch import covering
from tests.render.picture import Picture, timelines
from tests.strategies import examples

SIZES = [8, 12, 18, 30]


def texts_of(element, attributes=(), x=0.0, y=0.0):
    """Yield each upright text as (words, left, right, top, bottom), in pixels of the
    page.
    """
    attributes = {**dict(attributes), **element.attrib}
    moved = re.fullmatch(
        r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", "")
    )
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.tag == "text" and "rotate" not in element.get("transform", ""):
        size, baseline, left = (
            float(attributes["font-size"]),
            y + float(element.get("y")),
            x + float(element.get("x")),
        )
        width = text_width(element.text, size)
        left -= {"middle": width / 2, "end": width}.get(
            attributes.get("text-anchor"), 0
        )
        yield (
            element.text,
            left,
            left + width,
            baseline - 0.75 * size,
            baseline + 0.2 * size,
        )
    for child in element:
        yield from texts_of(child, attributes, x, y)


def overlapping(texts):
    """Return the pairs of texts that share a pixel."""
    return [
        (a[0], b[0])
        for a, b in combinations(texts, 2)
        if min(a[2], b[2]) - max(a[1], b[1]) > 0.5
        and min(a[4], b[4]) - max(a[3], b[3]) > 0.5
    ]


# -- title, notes and legend -----------------------------------------------------------


def test_a_title_and_notes_stand_above_everything_in_their_order():
    picture = Picture(
        draw_svg(
            schedules.gpipe(2, 2),
            title="Fill & drain",
            notes=["on <one> machine", "in May"],
        )
    )
    lines = sorted(texts_of(picture.root), key=lambda text: text[3])
    assert [words for words, *_ in lines[:4]] == [
        "Fill & drain",
        "on <one> machine",
        "in May",
        "gpipe, predicted",
    ]
    assert picture.root.findtext("title") == "Fill & drain"
    assert picture.root.findtext("desc").endswith("on <one> machine in May")


def test_without_a_title_nothing_stands_above_the_caption():
    first, second = (
        draw_svg(schedules.gpipe(2, 2)),
        draw_svg(schedules.gpipe(2, 2), title=None, notes=[]),
    )
    assert first == second and Picture(first).texts[0][0] == "gpipe, predicted"


def test_a_long_title_goes_on_in_the_next_line():
    title = " ".join(["very"] * 40 + ["long"])
    picture = Picture(draw_svg(schedules.gpipe(2, 2), title=title))
    lines = [words for words, text in picture.texts if text.get("class") == "title"]
    assert len(lines) > 1 and " ".join(lines) == title


@pytest.mark.parametrize("messages", [False, True])
def test_the_legend_can_be_left_out_and_all_else_stays(messages):
    drawn = [
        draw_svg(schedules.one_f_one_b(2, 4), messages=messages, legend=legend)
        for legend in (True, False)
    ]
    full, bare = map(Picture, drawn)
    assert full.legend and not bare.legend
    assert [lane.boxes for lane in full.lanes] == [lane.boxes for lane in bare.lanes]
    assert float(bare.root.get("height")) < float(full.root.get("height"))
    bottom = max(bottom for *_, bottom in texts_of(bare.root))
    assert bottom < float(bare.root.get("height"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"font_size": 0},
            ValueError,
            "font_size is 0; expected a number of pixels, at least 1",
        ),
        ({"font_size": math.inf}, ValueError, "font_size is inf"),
        ({"font_size": math.nan}, ValueError, "font_size is nan"),
        (
            {"font_size": 30, "width": 599},
            ValueError,
            "width is 599; expected 600 to 1048576 pixels with a font_size of",
        ),
        (
            {"notes": "in May"},
            TypeError,
            r"notes is the text 'in May'; expected a sequence of lines",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        draw_svg(schedules.gpipe(2, 2), **options)


# -- font size -------------------------------------------------------------------------


def test_all_text_scales_with_the_font_size_and_the_width_stays():
    for size in SIZES:
        picture = Picture(
            draw_svg(
                schedules.gpipe(2, 2), font_size=size, title="a title", notes=["a note"]
            )
        )
        assert picture.root.get("width") == "960"
        found = {
            text.get("class"): float(text.get("font-size"))
            for _, text in picture.texts
            if text.get("class")
        }
        scale = size / 12
        expected = {
            "title": 16,
            "fact": 12,
            "name": 14,
            "figures": 12,
            "rank": 12,
            "tick": 11,
            "peak": 11,
            "key": 11,
        }
        assert found == {
            **found,
            **{
                role: pytest.approx(s * scale, abs=0.01) for role, s in expected.items()
            },
        }
        assert [label[1] for label in picture.labels()] == pytest.approx(
            [11 * scale] * 8, abs=0.01
        )
        assert picture.lanes[0].boxes[0].bottom - picture.lanes[0].top == pytest.approx(
            26 * scale, abs=0.5
        )


@examples(40)
@given(
    timelines(),
    st.sampled_from(SIZES),
    st.booleans(),
    st.booleans(),
    st.sampled_from([600, 960]),
)
def test_no_text_is_cut_or_overlaps_another_at_any_font_size(
    timeline, size, memory, messages, width
):
    options = {
        "memory": memory,
        "messages": messages,
        "width": width,
        "font_size": size,
    }
    root = Picture(
        draw_svg(timeline, timeline, title="a title", notes=["a note"], **options)
    ).root
    texts = list(texts_of(root))
    for words, left, right, top, bottom in texts:
        assert (
            left >= 0
            and right <= width + 0.5
            and top >= 0
            and bottom <= float(root.get("height"))
        ), words
    assert overlapping(texts) == []


@pytest.mark.parametrize(
    ("size", "num_ranks"), covering(SIZES, [1, 16, 64], strength=1)
)
def test_many_ranks_stay_apart_at_any_font_size(num_ranks, size):
    timeline = simulate(
        schedules.one_f_one_b(num_ranks, 2),
        Costs(activation=123456789, memory_unit="bytes"),
    )
    for memory in (False, True):
        assert (
            overlapping(
                list(
                    texts_of(
                        Picture(draw_svg(timeline, font_size=size, memory=memory)).root
                    )
                )
            )
            == []
        )


def test_the_ruler_notices_texts_on_each_other():
    svg = draw_svg(schedules.gpipe(2, 2))
    twice = svg.replace(
        'class="unit" fill="#57606a" font-size="12"',
        'class="unit" fill="#57606a" font-size="90"',
    )
    assert overlapping(list(texts_of(Picture(svg).root))) == []
    assert twice != svg and overlapping(list(texts_of(Picture(twice).root)))


# -- labels ----------------------------------------------------------------------------


def jittered(timeline, shares):
    """Return a timeline as if measured: each action takes a share of its predicted
    time, and the rest is idle.
    """
    share = cycle(shares)
    rows = (
        tuple(
            Span(a, start, start + (end - start) * next(share)) for a, start, end in row
        )
        for row in timeline.spans
    )
    return replace(timeline, spans=tuple(rows), is_measured=True)


@examples(30)
@given(
    st.lists(st.floats(0.2, 1.0), min_size=5, max_size=40),
    st.sampled_from([400, 700, 960]),
)
def test_boxes_of_a_kind_have_one_form_and_in_a_row_the_narrow_ones_or_all_have_none(
    shares, width
):
    predicted = simulate(schedules.one_f_one_b(2, 16))
    picture = Picture(draw_svg(jittered(predicted, shares), predicted, width=width))
    labels = {(x, y): words for words, _, x, y, _ in picture.labels()}
    boxes = [box for lane in picture.lanes for box in lane.boxes]
    labelled = {
        box: words
        for box in boxes
        for (x, y), words in labels.items()
        if box.left < x < box.right and box.top < y < box.bottom
    }
    for kind in "FB":
        assert (
            len(
                {
                    re.sub(r"\d+", "", words)
                    for box, words in labelled.items()
                    if box.name == kind
                }
            )
            <= 1
        )
        for lane in picture.lanes:
            alike = [box for box in lane.boxes if box.name == kind]
            widths = [box.right - box.left for box in alike if box in labelled]
            assert not widths or 2 * len(widths) >= len(alike)
            assert all(
                box.right - box.left <= min(widths, default=math.inf) + 0.02
                for box in alike
                if box not in labelled
            )


def test_two_digits_are_labelled_like_one_in_boxes_of_equal_width():
    for width in range(400, 1300, 50):
        picture = Picture(draw_svg(schedules.one_f_one_b(2, 16), width=width))
        labels = {
            re.sub("[FB]", "", words)
            for words, *_ in picture.labels()
            if not words.startswith("B")
        }
        assert labels in (set(), {str(k) for k in range(16)}), width
