"""A drawing in a terminal says what its letters, fills and numbers stand for."""

import re

import pytest

from minipipe import Costs, Schedule, Timeline, schedules, simulate
from minipipe.core.values import KINDS
from minipipe.render import draw_text
from minipipe.render.stepper.frame import Frame
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import ActionKind
from tests.launch import for_each
from tests.render.stepper.screens import plain

OTHERS = {
    "sends that block": simulate(
        schedules.gpipe(2, 2), Costs(latency=1, sends_block=True)
    ),
    "copies and recomputation": simulate(
        Schedule.from_text("F0 O0 L0 R0 B0"), Costs(copy_bandwidth=1)
    ),
    "replicas": schedules.data_parallel(schedules.gpipe(2, 2), 2),
}
DRAWN = {name: schedules.build(name, 4, 8) for name in schedules.REGISTRY} | OTHERS


def legend_of(text):
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if "microbatch 3" in line)
    begin = max(
        i
        for i, line in enumerate(lines[: end + 1])
        if line.startswith(("rank ", "  sum", "  out", "  in"))
    )
    return " ".join(lines[begin + 1 : end + 1])


@for_each(drawn=DRAWN)
def test_the_legend_of_a_drawing_names_the_kinds_that_it_draws_and_no_others(drawn):
    legend = legend_of(draw_text(drawn))
    timeline = drawn if isinstance(drawn, Timeline) else simulate(drawn)
    kinds = {span.action.kind for row in timeline.spans for span in row}
    for kind in kinds - {ActionKind.RECV_F, ActionKind.RECV_B}:
        assert KINDS[kind].words in legend, kind
    named = [
        kind for kind in KINDS if re.search(rf"\S {KINDS[kind].words}(,|$)", legend)
    ]
    assert (
        len(named)
        == legend.count(",")
        - legend.count("stage 2,")
        - legend.count("microbatch 3,")
        - 1
    )
    assert legend.count("· idle") == 1


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("gpipe", "F3: microbatch 3"),
        ("zb-v", "2F3: stage 2, microbatch 3"),
        ("seq1f1b", "F3.1: microbatch 3, slice 1"),
    ],
)
def test_the_legend_reads_a_label(name, example):
    assert legend_of(draw_text(schedules.build(name, 4, 8))).endswith(f", {example}")


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "2bw"])
def test_colours_leave_the_characters_of_the_legend_as_they_are(name):
    schedule = schedules.build(name, 4, 8)
    coloured = draw_text(schedule, colour=True)
    assert plain(coloured) == draw_text(schedule)
    assert all(
        " forward" not in line or "\x1b[" in line for line in coloured.splitlines()
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_legend_is_no_wider_than_a_caption(width):
    text = draw_text(schedules.build("2bw", 4, 8), width=width)
    assert all(len(line) <= max(80, width) for line in text.splitlines())


def test_the_stepper_has_the_legend_where_the_window_has_room_for_it():
    walkthrough = Walkthrough(schedules.zb_h1(4, 8))
    for width, height, is_there in ((80, 30, True), (80, 14, False), (42, 40, False)):
        lines = Frame(walkthrough).draw(walkthrough[9], width, height)
        assert ("backward of the weights, · idle" in "\n".join(lines)) == is_there
        assert len(lines) <= height and max(map(len, lines)) <= width
