"""Pictures of recomputation, and of copies, which go on beside the actions of their
ranks.
"""

import json
import xml.etree.ElementTree as ET

import pytest

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.html import holds_of, player_data
from minipipe.render.panel import Panel
from minipipe.render.stepper.walkthrough import Walkthrough

MINE = Schedule.from_text("F0 O0 F1 F2 B2 L0 B1 R0 B0", name="mine")
TIMELINE = simulate(MINE, Costs(copy_bandwidth=0.5))


def test_copies_have_rows_of_their_own_below_their_rank():
    drawn = draw_text(TIMELINE, width=70).splitlines()
    rows = [line for line in drawn if line.startswith(("rank 0", "  out", "  in"))]
    text = {
        name: "".join(
            line[7:].rstrip("\n") for line in rows if line[:7].strip() == name
        )
        for name in ("out", "in")
    }
    assert text["out"].strip().startswith("O0>") and set(text["out"].strip()) == set(
        "O0>"
    )
    assert text["in"].strip().startswith("L0<") and set(text["in"].strip()) == set(
        "L0<"
    )
    assert any("R0:" in line for line in rows)


def test_a_rank_without_copies_has_no_rows_for_them():
    drawn = draw_text(
        simulate(
            schedules.offloaded(schedules.one_f_one_b(3, 4), 2), Costs(copy_bandwidth=1)
        ),
        width=120,
    )
    assert [line[:6] for line in drawn.splitlines()[:5]] == [
        "rank 0",
        "  out ",
        "  in  ",
        "rank 1",
        "rank 2",
    ]


def test_a_picture_has_a_thin_lane_for_each_way():
    root = ET.fromstring(draw_svg(TIMELINE))
    titles = {
        node.text: parent
        for parent in root.iter()
        for node in parent
        if node.tag.endswith("title")
    }
    out = titles[
        "0O0: offload of the activations of microbatch 0 on stage 0, 1 to 3 units"
    ]
    into = titles[
        (
            "0L0: load of the offloaded activations of microbatch 0 on stage 0, 5 to "
            "7 units"
        )
    ]
    again = titles[
        "0R0: recomputation of the forward of microbatch 0 on stage 0, 7 to 8 units"
    ]
    assert float(out.get("y")) + float(out.get("height")) < float(into.get("y"))
    assert float(out.get("height")) < float(again.get("height")) / 2
    assert float(into.get("width")) == pytest.approx(
        2 * float(again.get("width")), rel=0.1
    )
    assert "R recomputation of the forward" in draw_svg(TIMELINE)


def test_a_trace_has_a_thread_for_each_way():
    events = json.loads(perfetto_trace(TIMELINE))["traceEvents"]
    names = {
        event["args"]["name"]: event["tid"]
        for event in events
        if event["name"] == "thread_name"
    }
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert slices["O0"]["tid"] == names["rank 0, offloads of stage 0"]
    assert slices["L0"]["tid"] == names["rank 0, loads of stage 0"]
    assert slices["L0"]["dur"] == 2 * slices["R0"]["dur"]


def test_the_player_holds_nothing_between_the_end_of_an_offload_and_the_begin_of_its_load():
    holds = [hold[2:] for hold in holds_of(TIMELINE, 0) if hold.microbatch == 0]
    assert holds == [(0, 3), (5, 10)]
    assert "recomputation of the forward" in draw_html(TIMELINE)
    (rank,) = player_data([Panel(TIMELINE)])["panels"][0]["ranks"]
    assert rank["beside"] == [["O", 0, 1, 3], ["L", 0, 5, 7]]


def test_what_goes_on_beside_actions_takes_some_time():
    assert not Panel(simulate(MINE)).kinds_beside()
    assert [kind.value for kind in Panel(TIMELINE).kinds_beside()] == ["O", "L"]


def test_a_strip_tells_the_memory_that_recomputation_saves():
    recomputed = schedules.recomputed(schedules.one_f_one_b(4, 8))
    drawn = draw_svg(
        simulate(recomputed, Costs(activation=1 / 8, transient_activation=7 / 8))
    )
    assert "peak 1.375" in drawn and "memory held" in drawn
    assert "peak 4" in draw_svg(recomputed) and "activations held" in draw_svg(
        recomputed
    )


def test_a_step_holds_what_the_timeline_says():
    schedule, costs = (
        schedules.offloaded(schedules.one_f_one_b(4, 8), 1),
        Costs(copy_bandwidth=0.5),
    )
    walkthrough = Walkthrough(schedule, costs)
    most = [
        max(len(snapshot.ranks[rank].held) for snapshot in walkthrough)
        for rank in range(4)
    ]
    assert tuple(most) == simulate(schedule, costs).peak_activations == (3, 3, 2, 1)
    begun = next(
        snapshot.ranks[0]
        for snapshot in walkthrough
        if str(snapshot.ranks[0].action) == "0O0"
    )
    assert begun.until == 3  # when the copy has ended, though the rank continues


@pytest.mark.parametrize("sends_block", [False, True])
def test_a_program_whose_rank_begins_with_a_receive_is_stepped_through(sends_block):
    """The story: what a rank holds at its first RECV was looked for behind the action
    before it.
    """
    program = schedules.lower(Schedule.from_text("0F0 0B0 \n 1F0 1O0 1L0 1B0"))
    held = [
        during.pairs
        for during, _ in Walkthrough(
            program, Costs(sends_block=sends_block)
        )._held_pairs[1]
    ]
    assert held == [(), ((1, 0),), (), (), ((1, 0),), ()]
