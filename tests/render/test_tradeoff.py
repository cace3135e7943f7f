"""Bubble over peak memory as a picture: points, the best of them, bounds, and names
that cover nothing.
"""

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import ArgumentError
from minipipe.render.layout import LogAxis
from minipipe.render.palette import DARK, LIGHT
from minipipe.render.svg.tradeoff import Box, draw_tradeoff, place_names
from minipipe.schedules.simulation.comparison import Tradeoff, TradeoffPoint
from tests.render.converters import SCALE, with_cairosvg, with_svglib
from tests.render.picture import NAMESPACE
from tests.strategies import examples

STRAIGHT = TradeoffPoint("zb-h1", "straight", 4.0, 0.11, 27.0)
CHOICES = (
    TradeoffPoint("sequential", "straight", 1.0, 0.75, 96.0),
    TradeoffPoint("v-min", "V", 2.0, 0.186, 29.5),
    TradeoffPoint("interleaved-zb", "looped", 4.0, 0.059, 25.5),
    TradeoffPoint("zb-v", "V", 4.0, 0.059, 25.5),
    STRAIGHT,
    TradeoffPoint("searched", "straight", 3.0, 0.226, 31.0, is_searched=True),
)
BOUNDS = {
    "straight": ((1.0, 2 / 3), (2.0, 0.4), (4.0, 0.11)),
    "V": ((1.0, 0.5), (4.0, 0.059)),
}
DRAWN = Tradeoff(4, 8, CHOICES, BOUNDS)
PICTURE = draw_tradeoff(DRAWN, notes=["F, I and W one unit each"])


def root_of(svg):
    return ElementTree.fromstring(svg.replace(NAMESPACE, ""))


def moved(element):
    return tuple(
        map(
            float,
            re.match(
                r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform")
            ).groups(),
        )
    )


def panels(svg):
    return [
        group
        for group in root_of(svg).iterfind("g")
        if group.find("g/title") is not None
    ]


def marks(panel):
    """Return {name: (x, y) of its mark in the panel}."""
    found = [group for group in panel.iterfind("g") if group.find("title") is not None]
    return {group.find("title").text.partition(":")[0]: moved(group) for group in found}


def ticks(panel):
    """Return {amount of memory: x} and {bubble: y}."""
    memory = {
        float(t.text): float(t.get("x")) for t in panel.iterfind("text[@class='tick']")
    }
    bubbles = {
        float(t.text[:-2]) / 100: float(t.get("y")) - 4
        for t in panel.iterfind("text[@class='reading']")
    }
    return memory, bubbles


def corners(path):
    return [tuple(map(float, pair.split())) for pair in path.get("d")[1:].split("L")]


# -- where things are ------------------------------------------------------------------


def test_a_mark_is_at_its_memory_and_its_bubble_on_axes_of_equal_ratios():
    (panel,) = panels(PICTURE)
    memory, bubbles = ticks(panel)
    assert list(memory) == [1, 2, 4] and list(bubbles) == [0.05, 0.1, 0.2, 0.5]
    octave, tenfold = memory[2] - memory[1], (bubbles[0.05] - bubbles[0.5])
    for choice in CHOICES:
        x, y = marks(panel)[choice.name]
        assert x == pytest.approx(memory[1] + octave * log(choice.memory, 2), abs=0.05)
        assert y == pytest.approx(
            bubbles[0.5] - tenfold * log(choice.bubble / 0.5, 10), abs=0.05
        )


def test_the_front_and_the_bounds_are_steps_through_their_corners():
    (panel,) = panels(PICTURE)
    at = marks(panel)
    (front,) = panel.iterfind("path[@class='front']")
    best = [at[name] for name in ("sequential", "v-min", "zb-v")]
    assert corners(front)[1:-1:2] == best
    assert all(
        a == c or b == d for (a, b), (c, d) in zip(corners(front), corners(front)[1:])
    )
    (bound,) = panel.iterfind("path[@class='straight']")
    assert corners(bound)[-2][1] == corners(bound)[-1][1] == at["zb-h1"][
        1
    ] and bound.get("stroke-dasharray")
    assert corners(bound)[-1][0] == corners(front)[-1][0] == 960 - 18


def test_panels_of_several_batches_share_their_axes():
    more = DRAWN._replace(
        num_microbatches=32,
        choices=(STRAIGHT._replace(memory=32.0, bubble=0.02),),
        bounds={},
    )
    one, other = panels(draw_tradeoff(DRAWN, more))
    assert ticks(one) == ticks(other) and 32 in ticks(one)[0] and 0.02 in ticks(one)[1]
    assert moved(other)[1] > moved(one)[1] + 300
    words = [
        text.text
        for text in root_of(draw_tradeoff(DRAWN, more)).iterfind("text[@class='name']")
    ]
    assert words == ["4 ranks, 8 microbatches", "4 ranks, 32 microbatches"]


@examples(60)
@given(
    st.lists(st.floats(1e-4, 1e9), min_size=1, max_size=5), st.sampled_from([0.0, 1e-3])
)
def test_an_axis_has_room_for_its_amounts_and_marks_only_what_is_on_it(amounts, floor):
    axis = LogAxis.over(amounts, 10, 500, floor)
    assert all(10 <= axis.at(amount) <= 500 for amount in amounts)
    for first, second in combinations(sorted(amounts), 2):
        assert axis.at(first) <= axis.at(second)
    marked = [*axis.powers_of_two(), *axis.round_amounts()]
    assert all(axis.least <= amount <= axis.most for amount in marked)


def test_no_bubble_at_all_is_drawn_at_the_lower_edge():
    least = TradeoffPoint("zb-v", "V", 1.0, 0.0, 10.0)
    (panel,) = panels(draw_tradeoff(DRAWN._replace(choices=(*CHOICES[1:], least))))
    assert marks(panel)["zb-v"][
        1
    ] == 300 and "zb-v: bubble 0.0 %" in ElementTree.tostring(panel, "unicode")


# -- names -----------------------------------------------------------------------------

PAGE = Box(0, 0, 400, 300)
points = st.tuples(st.integers(0, 400), st.integers(0, 300))


@examples(60)
@given(
    st.lists(
        st.tuples(points, st.integers(5, 120)),
        max_size=14,
        unique_by=lambda each: each[0],
    ),
    st.data(),
)
def test_no_name_covers_another_or_a_point_or_leaves_the_page(named, data):
    lines = [
        Box(x, 0, x + 2, 300)
        for x in data.draw(st.lists(st.integers(0, 400), max_size=3))
    ]
    where, widths = [point for point, _ in named], [width for _, width in named]
    found = [
        place.box
        for place in place_names(where, widths, 13, 8, PAGE, lines)
        if place is not None
    ]
    assert not any(a.overlaps(b) for a, b in combinations(found, 2))
    assert not any(
        box.overlaps(Box(x - 8, y - 8, x + 8, y + 8)) for box in found for x, y in where
    )
    assert all(box.is_inside(PAGE) for box in found)


def test_a_name_avoids_lines_and_points_that_could_be_meant_and_is_left_out_where_there_is_no_room():
    on_line, other_side = (
        place_names([(200, 150)], [60], 13, 8, PAGE, lines)[0]
        for lines in ([], [Box(200, 149, 400, 151)])
    )
    assert not on_line.is_left and other_side.is_left and other_side.rows == 0
    upper, lower = place_names([(200, 150), (200, 160)], [60, 60], 13, 8, PAGE)
    assert upper.rows == 0 and upper.box.top < lower.box.top
    assert place_names([(5, 5)], [60], 13, 8, Box(0, 0, 50, 10)) == [None]


def test_schedules_at_one_point_have_one_name_and_searched_ones_none():
    words = [
        t.text
        for t in panels(PICTURE)[0].iter("text")
        if t.get("class").startswith("choice")
    ]
    assert sorted(words) == ["interleaved-zb, zb-v", "sequential", "v-min", "zb-h1"]


# -- what stands around it -------------------------------------------------------------


def test_the_legend_names_only_what_occurs():
    def legend(*drawn):
        return [
            text.text
            for text in root_of(draw_tradeoff(*drawn)).iterfind(".//text[@class='key']")
        ]

    best = "Pareto front of these schedules"
    assert legend(DRAWN) == [
        *(
            "straight placement",
            "looped placement",
            "a V",
            "found by search, in the colour of its placement",
            best,
        ),
        *("lower bound for straight placement", "lower bound for a V"),
    ]
    assert legend(DRAWN._replace(choices=(STRAIGHT,), bounds={})) == [
        "straight placement",
        best,
    ]


def test_it_says_what_it_shows_to_those_who_cannot_see_it():
    root = root_of(PICTURE)
    title, description = (
        root.find(f"*[@id='{name}']").text
        for name in root.get("aria-labelledby").split()
    )
    assert title == "Bubble over peak memory"
    assert description.startswith(
        "4 ranks, 8 microbatches: sequential: bubble 75.0 %, peak 1 microbatch, "
        "makespan 96;"
    )
    assert (
        "searched: bubble 22.6 %, peak 3 microbatches, makespan 31, found by search."
        in description
    )
    assert description.endswith(" F, I and W one unit each")


def test_memory_in_another_unit_is_not_called_microbatches():
    picture = draw_tradeoff(DRAWN._replace(counts_microbatches=False))
    assert (
        "peak of the fullest rank, in the memory unit of the costs" in picture
        and "peak 4, makespan" in picture
    )


@pytest.mark.parametrize("text", ['<script>"&', "a\0b\x1b[2J"])
def test_names_and_notes_are_text(text):
    picture = draw_tradeoff(
        DRAWN._replace(choices=(STRAIGHT._replace(name=text),)),
        title=text,
        notes=[text],
    )
    tags = {element.tag for element in root_of(picture).iter()}
    assert (
        tags <= {"svg", "title", "desc", "style", "rect", "g", "path", "text"}
        and "\0" not in picture
    )
    assert "href" not in picture and "url(" not in picture


def test_every_class_has_a_light_colour_of_its_own_and_a_dark_one_in_the_style_sheet():
    style = re.search("<style>(.*)</style>", PICTURE)[1].partition(
        "prefers-color-scheme:dark"
    )[2]
    for element in root_of(PICTURE).iter():
        if name := element.get("class"):
            colour = element.get("stroke" if element.get("fill") == "none" else "fill")
            assert colour in LIGHT and any(
                f" .{name}{{{what}:{c}}}" in style
                for c in DARK
                for what in ("fill", "stroke")
            )


@pytest.mark.parametrize("convert", [with_cairosvg, with_svglib])
def test_converters_show_every_mark_in_its_colour(convert):
    (panel,), pixels = panels(PICTURE), convert(PICTURE).astype(int)
    (_, top), colours = (
        moved(panel),
        {"straight": LIGHT.message, "looped": LIGHT.memory_edge, "V": LIGHT.gradient},
    )

    def seen(x, y, colour):
        rows, columns = (
            slice(round(SCALE * (at - 6)), round(SCALE * (at + 6)))
            for at in (top + y, x)
        )
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        return (abs(pixels[rows, columns] - rgb) <= 40).all(axis=-1).sum()

    for choice in CHOICES:
        assert seen(*marks(panel)[choice.name], colours[choice.placement]) > 20, choice
    # where there is none
    assert seen(marks(panel)["v-min"][0], 290, LIGHT.gradient) == 0


@pytest.mark.parametrize(
    ("drawn", "options", "code", "words"),
    [
        ((), {}, "value", "Nothing to draw; expected at least one Tradeoff"),
        (
            (DRAWN,),
            {"width": 100},
            "value",
            "width is 100; expected 480 to 1048576 pixels",
        ),
        ((DRAWN,), {"notes": "one"}, "type", "notes is the text 'one'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(drawn, options, code, words):
    with pytest.raises(ArgumentError, match=re.escape(words)) as caught:
        draw_tradeoff(*drawn, **options)
    assert caught.value.code == code
