"""Two overlapped actions as one cell with two halves: in text, SVG, the player's page and
Perfetto.
"""

import json
import re

import pytest

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.html import player_data
from minipipe.render.panel import Panel
from minipipe.render.stepper.description import (
    describe_diagnosis,
    describe_event,
    describe_state,
)
from minipipe.render.stepper.frame import Frame
from minipipe.render.stepper.walkthrough import Activity, Walkthrough
from tests.render.perfetto_rules import problems

JOINED = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1 \n 1F0 1B0 1F1 1B1", "mine")
STUCK = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1 \n 1F0 1F1 1B0 1B1", "mine")
NOTE = "overlapped forward and backward, each drawn in half of their time"


def test_text_draws_the_halves_side_by_side():
    assert draw_text(simulate(JOINED, Costs(overlap=1)), width=80).splitlines() == [
        "rank 0 F0---···············F1--&B0===···············B1========",
        "rank 1 ·····F0---B0========··········F1---B1========··········",
        "F- forward, B= backward, · idle, F3: microbatch 3",
        "mine: makespan 11 units, bubble 50.0 %, peak activations by rank 2, 1",
        "(&: a forward and a backward overlap, each drawn in half of their time)",
    ]


def test_without_overlapped_actions_no_drawing_mentions_them():
    plain = schedules.dualpipe_v(2, 4)
    for drawn in (draw_text(plain), draw_svg(plain), draw_html(plain)):
        assert NOTE not in drawn and "&B" not in drawn and 'class="joined"' not in drawn


def test_svg_frames_the_halves_and_their_tooltips_have_the_whole_time():
    svg = draw_svg(simulate(JOINED), width=800)
    for sentence in (
        "0F1: forward of microbatch 1 on stage 0, overlapped with 0B0, 4 to 7 units",
        "0B0: backward of microbatch 0 on stage 0, overlapped with 0F1, 4 to 7 units",
    ):
        assert svg.count(f"<title>{sentence}</title>") == 1
    boxes = re.findall(
        r'<rect x="([\d.]+)" width="([\d.]+)"[^>]*><title>0(?:F1|B0)', svg
    )
    (left, width), (right, other) = sorted((float(x), float(w)) for x, w in boxes)
    assert width == other and left + width == pytest.approx(right)
    frames = re.findall(
        r'class="joined"[^>]* d="M([\d.]+) 0H([\d.]+)V',
        draw_svg(simulate(JOINED), width=800, legend=False),
    )
    assert [(float(x), float(end)) for x, end in frames] == [(left, right + other)]
    assert NOTE in svg


@pytest.mark.parametrize("latency", [0, 0.5])
def test_two_messages_that_go_together_are_two_arrows(latency):
    timeline = simulate(schedules.dualpipe(4, 8, joined=True), Costs(latency=latency))
    shafts = re.findall(
        r'<path d="(M[^"]+)"><title>', draw_svg(timeline, messages=True)
    )
    assert len(set(shafts)) == len(shafts) == len(timeline.messages)


@pytest.mark.slow
def test_narrow_pairs_have_no_frame():
    assert (
        'class="joined"'
        not in draw_svg(schedules.dualpipe(8, 400, joined=True), width=400).split(
            "<g font-size"
        )[0]
    )


def test_the_page_has_the_whole_times_and_draws_the_halves_itself():
    page = draw_html(simulate(JOINED))
    assert NOTE in page and "partnersIn" in page
    actions = player_data([Panel(simulate(JOINED))])["panels"][0]["ranks"][0]["actions"]
    assert [list(map(str, action)) for action in actions[1:3]] == [
        ["0", "F", "1", "4.0", "7.0"],
        ["0", "B", "0", "4.0", "7.0"],
    ]


def test_a_trace_has_one_slice_for_both():
    trace = json.loads(perfetto_trace(schedules.dualpipe(4, 8, joined=True)))
    assert not problems(trace)
    slices = [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and "&" in event["name"]
    ]
    assert len(slices) == len(schedules.dualpipe(4, 8, joined=True).overlaps)
    first = slices[0]
    assert first["name"] == "0F3 & 3B5" and first["dur"] == 3000
    assert (
        first["args"]["forward"]["microbatch"] == 3
        and first["args"]["backward"]["kind"] == "backward"
    )


# -- step by step ----------------------------------------------------------------------


def test_the_stepper_tells_what_a_pair_waits_for_and_that_it_overlaps():
    walkthrough = Walkthrough(JOINED, Costs(latency=0.5))
    waits, runs = walkthrough[2], walkthrough[4]
    assert describe_state(walkthrough, waits, 0)[0] == "waits for 1B0 on rank 1 until 5"
    assert describe_event(walkthrough, runs).endswith(
        "begins 0F1: forward of microbatch 1 on stage 0, overlapped with 0B0"
    )
    assert describe_state(walkthrough, runs, 0)[0] == "0F1, overlapped with 0B0 until 8"


@pytest.mark.parametrize("width", [39, 80])
def test_the_stepper_goes_up_to_a_deadlock_by_an_overlap(width):
    walkthrough = Walkthrough(STUCK)
    frame = Frame(walkthrough, colour=False)
    screens = ["\n".join(frame.draw(snapshot, width, 20)) for snapshot in walkthrough]
    assert "0F1!" in screens[-1] and walkthrough.cycle == (0, 1)
    assert describe_diagnosis(walkthrough)[1:] == [
        "the cycle: rank 0 waits for rank 1, rank 1 waits for rank 0",
        (
            "rank 0 is stuck at 0F1 (position 1 of its list): it needs 1B0, position "
            "2 of rank 1"
        ),
        (
            "rank 1 is stuck at 1F1 (position 1 of its list): it needs 0F1, position "
            "1 of rank 0"
        ),
    ]


def test_all_of_dualpipe_is_stepped_through():
    walkthrough = Walkthrough(
        schedules.dualpipe(4, 8, joined=True), Costs(latency=0.25, overlap=0.5)
    )
    for snapshot in walkthrough:
        for rank in range(4):
            assert describe_state(walkthrough, snapshot, rank)
    assert [state.activity for state in walkthrough[-1].ranks] == [Activity.DONE] * 4
