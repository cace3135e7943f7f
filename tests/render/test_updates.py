"""Sums of gradients and updates in pictures: a thin lane beside the actions, and the
versions of weights held.
"""

import json
import re

from minipipe import Costs, schedules, simulate
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.html import player_data
from minipipe.render.panel import panels_of
from minipipe.render.stepper.description import draw_snapshot
from minipipe.render.stepper.walkthrough import Walkthrough

SUMMED = simulate(
    schedules.data_parallel(schedules.one_f_one_b(2, 2), 2),
    Costs(gradient_size=3, bandwidth=1),
)
DREAM = simulate(schedules.pipedream(2, 3), Costs(update=1))


def test_text_has_the_sums_below_their_ranks_while_these_continue():
    assert draw_text(SUMMED, width=80).splitlines()[:4] == [
        "rank 0 F0---F1---··········B0========·····B1========···············",
        "  sum                                               %%%%%%%%%%%%%%%",
        "rank 1 ·····F0---B0========F1---B1========·························",
        "  sum                                     %%%%%%%%%%%%%%%",
    ]


def test_text_fills_an_update_with_its_own_sign():
    assert draw_text(DREAM, width=80).splitlines()[0] == (
        "rank 0 F0--F1--········B0======U0##F2--B1======U1##····B2======U2##"
    )


def test_text_has_a_letter_for_an_update_that_takes_no_time():
    assert draw_text(simulate(schedules.pipedream(2, 3)), width=80).splitlines()[
        :2
    ] == [
        "rank 0 F0---F1---··········B0========UF2--B1========U····B2=======U",
        "rank 1 ·····F0---B0========UF1--B1========UF2--B2=======U··········",
    ]


def test_svg_has_the_sums_as_a_thin_lane_with_words_and_in_the_legend():
    svg = draw_svg(SUMMED)
    assert (
        svg.count(
            "<title>gradient all-reduce of stage 0 over ranks 0, 2, 9 to 12 "
            "units</title>"
        )
        == 2
    )
    assert (
        svg.count(
            "<title>gradient all-reduce of stage 1 over ranks 1, 3, 7 to 10 "
            "units</title>"
        )
        == 2
    )
    assert svg.count('class="REDUCE_GRAD"') == 4 + 1
    assert "REDUCE_GRAD all-reduce of the gradients" in svg
    assert "REDUCE_GRAD" not in draw_svg(DREAM)


def test_svg_has_a_strip_of_versions_where_there_are_updates():
    svg = draw_svg(DREAM)
    assert re.findall(r">(\d versions?)<", svg) == ["2 versions", "1 version"]
    assert "versions of weights held" in svg
    assert "version" not in draw_svg(SUMMED) and "version" not in draw_svg(
        DREAM, memory=False
    )


def test_an_update_that_takes_no_time_is_a_line():
    svg = draw_svg(simulate(schedules.pipedream(2, 3)))
    assert svg.count("h2v") == 6 and "U update of the weights" in svg


def test_a_trace_has_tracks_for_sums_and_counters_for_versions():
    events = json.loads(perfetto_trace(SUMMED))["traceEvents"]
    named = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert list(named.values())[:3] == [
        "rank 0",
        "rank 0, idle",
        "rank 0, sums of stage 0",
    ]
    sums = [
        (named[e["tid"]], e["ts"], e["dur"])
        for e in events
        if e.get("cat") == "REDUCE_GRAD"
    ]
    assert sorted(sums)[0] == ("rank 0, sums of stage 0", 9000, 3000) and len(sums) == 4
    versions = [
        e["args"]
        for e in json.loads(perfetto_trace(DREAM))["traceEvents"]
        if e["name"] == "rank 0 versions"
    ]
    assert max(value["of weights"] for value in versions) == 2
    assert not [event for event in events if event["name"] == "rank 0 versions"]


def test_the_player_has_updates_and_the_words_of_a_wait_for_a_sum():
    page = draw_html(SUMMED, DREAM)
    assert (
        "waits for the gradient all-reduce of stage {stage}: it is in progress" in page
    )
    assert "REDUCE_GRAD all-reduce of the gradients" in page
    data = player_data(panels_of([SUMMED, DREAM]))["panels"]
    assert [rank["beside"] for rank in data[0]["ranks"]] == [
        [["REDUCE_GRAD", 0, 9, 12]],
        [["REDUCE_GRAD", 1, 7, 10]],
    ] * 2
    assert [rank["beside"] for rank in data[1]["ranks"]] == [[], []]
    assert '[0, "U", 0, ' in page or '[0,"U",0,' in page


def test_the_stepper_says_for_which_sum_a_rank_waits():
    both = schedules.data_parallel(schedules.pipedream(1, 2), 2)
    walkthrough = Walkthrough(both, Costs(gradient_size=6, bandwidth=1))
    drawn = [draw_snapshot(walkthrough, snapshot) for snapshot in walkthrough]
    assert any(
        "begins 0REDUCE_GRAD0: all-reduce of the gradients up to microbatch 0" in text
        for text in drawn
    )
    assert any(
        "rank 0: waits for the gradient all-reduce of stage 0 until 9; holds nothing"
        in text
        for text in drawn
    )


def test_the_walk_ends_with_the_last_sum():
    """The story: it ended at 9, every rank done, under a verdict of 15 units."""
    walkthrough = Walkthrough(
        schedules.data_parallel(schedules.one_f_one_b(2, 2), 2),
        Costs(gradient_size=3, bandwidth=1),
    )
    last, end = (draw_snapshot(walkthrough, walkthrough[at]) for at in (-2, -1))
    assert "time 9 of 12 units: rank 2 begins 0REDUCE_GRAD3" in last
    assert (
        "  rank 0: done, except for the gradient all-reduce of stage 0 until 12; "
        "holds nothing"
    ) in last
    assert (
        "  rank 1: done, except for the gradient all-reduce of stage 1 until 10; "
        "holds nothing"
    ) in last
    assert (
        "end, time 12 units: every rank has ended" in end
        and "sum" not in end
        and "makespan 12 units" in end
    )
