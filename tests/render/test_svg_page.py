"""Labels, legend, title and options of an SVG, and a file that needs nothing else."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import ActionKind, schedules, simulate
from minipipe.core.values import KINDS
from minipipe.render import draw_svg, palette
from minipipe.render.descriptions import caption
from minipipe.render.layout import text_width
from minipipe.render.panel import Panel
from tests.render.picture import CAUSES, NAMESPACE, Picture, timelines
from tests.strategies import examples

# -- labels ----------------------------------------------------------------------------


@examples(40)
@given(timelines(), st.sampled_from([300, 700, 960]))
def test_labels_fit_their_boxes_and_name_their_actions(timeline, width):
    picture = Picture(draw_svg(timeline, width=width))
    boxes = [box for lane in picture.lanes for box in lane.boxes]
    for words, size, x, y, is_turned in picture.labels():
        box = next(
            box
            for box in boxes
            if box.left <= x <= box.right and box.top <= y <= box.bottom
        )
        room, thickness = box.right - box.left, box.bottom - box.top
        if is_turned:
            room, thickness = thickness, room
        # capitals and digits
        assert text_width(words, size) <= room and 0.73 * size + 1 <= thickness
        assert words in (
            box.action,
            box.action.lstrip("0123456789"),
            re.split("[A-Z]", box.action)[-1],
        )


def test_labels_say_the_stage_only_where_a_rank_holds_several():
    one, several = (
        {words for words, *_ in Picture(draw_svg(schedule)).labels()}
        for schedule in (
            schedules.one_f_one_b(2, 2),
            schedules.interleaved_1f1b(2, 2, 2),
        )
    )
    assert one == {"F0", "F1", "B0", "B1"}
    assert several == {
        f"{stage}{kind}{k}" for stage in range(4) for kind in "FB" for k in range(2)
    }


def test_labels_are_shortened_then_turned_then_left_out():
    def found(width):
        return {
            words
            for words, *_ in Picture(
                draw_svg(schedules.one_f_one_b(4, 8), width=width)
            ).labels()
        }

    both = {f"{kind}{k}" for kind in "FB" for k in range(8)}
    assert found(960) == found(400) == both
    assert found(240) == set()
    turned = Picture(draw_svg(schedules.zb_v(4, 16)))
    assert {is_turned for *_, is_turned in turned.labels()} == {True}
    assert not list(Picture(draw_svg(schedules.one_f_one_b(16, 64))).labels())


def test_labels_keep_the_letter_of_the_kind_and_turn():
    """The story: at 8 ranks and 32 microbatches a backward was only a number, and a
    forward had no label.
    """
    labels = list(Picture(draw_svg(schedules.one_f_one_b(8, 32))).labels())
    assert {words for words, *_ in labels} == {
        f"{kind}{k}" for kind in "FB" for k in range(32)
    }
    assert len(labels) == 2 * 8 * 32


def test_boxes_of_one_width_say_equally_much_whatever_their_letter():
    labels = {words for words, *_ in Picture(draw_svg(schedules.zb_v(4, 12))).labels()}
    # no stage for any, though 0I7 is narrow
    assert {words[0] for words in labels} == {"F", "I", "W"}


# -- what stands around it -------------------------------------------------------------


@examples(40)
@given(timelines())
def test_the_legend_names_only_what_occurs(timeline):
    picture = Picture(draw_svg(timeline, messages=True))
    parts = [
        part
        for lane in picture.lanes
        for part in (*lane.boxes, *lane.bands, *lane.idle)
    ]
    # updates that take no time
    names = {part.name for part in parts}.union(
        *(lane.instants for lane in picture.lanes)
    )
    kinds = [
        f"{kind} {KINDS[kind].words}"
        for kind in ActionKind
        if any(re.fullmatch(f"{kind}\\d*", n) for n in names)
    ]
    assert [
        words for words in picture.legend if words[:2] in ("F ", "B ", "I ", "W ", "U ")
    ] == kinds
    causes = [f"idle, {cause}" for cause in CAUSES if cause in names]
    assert [words for words in picture.legend if words.startswith("idle")] == causes
    assert ("bands" in " ".join(picture.legend)) == any(
        lane.bands for lane in picture.lanes
    )
    assert any(words.startswith("darker: ") for words in picture.legend) == any(
        re.match("[FBIWU][1-9]", n) for n in names
    )


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_of_two_pipelines_the_second_is_darker_on_every_rank(name):
    """Without it, a shade was a stage's place on its rank: a pipeline was light on one
    half of the ranks only.
    """
    schedule = schedules.build(name, 4, 8)
    picture = Picture(draw_svg(schedule))
    assert "darker: a replica of later microbatches, or a later stage" in picture.legend
    for lane, row in zip(picture.lanes, schedule.actions, strict=True):
        microbatches = [
            int(re.search(r"microbatch (\d+)", box.what)[1]) for box in lane.boxes
        ]
        assert len(microbatches) == len(row)
        assert [box.name.endswith("1") for box in lane.boxes] == [
            k >= 4 for k in microbatches
        ]


@examples(30)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_name_and_note_give_valid_xml_and_leave_what_is_drawn_alone(name, note):
    timeline = simulate(schedules.gpipe(2, 2))
    svg = draw_svg(replace(timeline, name=name, note=note))
    assert len(Picture(svg).lanes) == 2
    assert (
        Picture(svg).lanes[0].boxes[0].what
        == "0F0: forward of microbatch 0 on stage 0, 0 to 1 units"
    )


def test_markup_in_a_name_is_text():
    picture = Picture(
        draw_svg(replace(simulate(schedules.gpipe(2, 2)), name='<script>"&'))
    )
    assert picture.root.find(".//script") is None
    assert any(words == '<script>"&, predicted' for words, _ in picture.texts)
    assert picture.root.findtext("title") == 'Timeline of <script>"&'


@pytest.mark.parametrize("messages", [False, True])
def test_the_file_needs_nothing_from_outside(messages):
    svg = draw_svg(schedules.interleaved_1f1b(2, 4), messages=messages).replace(
        NAMESPACE, ""
    )
    for word in (
        "http",
        "href",
        "<script",
        "@import",
        "@font-face",
        "<image",
        "<foreignObject",
        "data:",
    ):
        assert word not in svg
    assert "url(" not in svg and not re.search(r"\son\w+=", svg)


def painted(element, attributes=()):
    """Yield every element that is drawn, with its attributes and those that it
    inherits.
    """
    attributes = {**dict(attributes), **element.attrib}
    if element.tag in ("rect", "path", "text"):
        yield element, attributes
    for child in element:
        yield from painted(child, attributes)


@pytest.mark.parametrize(
    "schedule",
    [schedules.build("dualpipe-v", 2, 4), schedules.one_f_one_b(1, 1000)],
    ids=str,
)
def test_attributes_alone_give_everything_its_light_colour(schedule):
    svg = draw_svg(schedule, messages=True)
    for element, attributes in painted(Picture(svg).root):
        strokes = (
            [attributes.get("stroke")]
            if attributes.get("fill") == "none"
            else [attributes.get("fill")]
        )
        assert all(re.fullmatch("#[0-9a-f]{6}", colour or "") for colour in strokes), (
            element.attrib
        )
        name = attributes["class"]
        if kind := re.fullmatch(r"(on-)?([FBIW])(\d*)", name):
            fill = palette.shade(palette.FILL[ActionKind(kind[2])], int(kind[3] or 0))
            assert attributes["fill"] == (fill.text if kind[1] else fill.box)
    for beyond_some_converters in (
        "<pattern",
        "<marker",
        "<clipPath",
        "<mask",
        "<use",
        "<filter",
        "style=",
        "url(",
    ):
        assert beyond_some_converters not in svg


def test_a_dark_ground_changes_every_class_and_no_rule_reaches_another_drawing_or_a_converter():
    svg = draw_svg(schedules.build("dualpipe-v", 2, 4), messages=True)
    own, style = (
        re.search(' id="([^"]+)"', svg)[1],
        re.search("<style>(.*)</style>", svg)[1],
    )
    everywhere, dark = re.fullmatch(
        r"@media all\{(.*)\}@media screen and \(prefers-color-scheme:dark\)\{(.*)\}",
        style,
    ).groups()
    selectors = re.findall(r"([^{}]+)\{", everywhere + dark)
    assert all(
        part.startswith(f"#{own}")
        for selector in selectors
        for part in selector.split(",")
    )
    # these name slots; the class of their group has the colour
    causes = {f"{cause}" for cause in CAUSES}
    names = {
        element.get("class")
        for element in Picture(svg).root.iter()
        if element.get("class")
    } - causes
    # the same on both grounds
    boxes = {name for name in names if re.fullmatch(r"(on-)?[FBIW]\d*", name)}
    for name in names - boxes:
        assert (
            len(
                re.findall(
                    rf"#{own} \.{name}\{{(?:fill|stroke):#[0-9a-f]{{6}}\}}", dark
                )
            )
            == 1
        ), name
    assert boxes and not any(re.search(rf"#{own} \.{name}\{{", dark) for name in boxes)


def test_it_says_what_it_shows_to_those_who_cannot_see_it():
    timeline = replace(simulate(schedules.gpipe(2, 2)), note="a note")
    root = Picture(draw_svg(timeline)).root
    assert root.get("role") == "img"
    named = root.get("aria-labelledby").split()
    assert [root.find(f"*[@id='{name}']").text for name in named] == [
        "Timeline of gpipe",
        f"{caption(Panel(timeline))}. a note",
    ]


def test_two_drawings_have_different_ids_and_one_always_the_same():
    first, again, other = (
        draw_svg(s)
        for s in (schedules.gpipe(2, 2), schedules.gpipe(2, 2), schedules.gpipe(2, 3))
    )
    assert first == again
    assert first.split()[2] != other.split()[2]
