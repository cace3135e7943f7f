"""The captions of drawings: the figures of each timeline, in one unit for all panels."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, Timeline, schedules, simulate
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.descriptions import caption, figures, title
from minipipe.render.panel import Panel, panels_of
from minipipe.schedules.simulation import comparison
from minipipe.schedules.simulation.timeline import by_rank
from tests.render.picture import Picture, timelines


@given(timelines())
def test_the_figures_of_a_caption_are_those_of_the_timeline(timeline: Timeline):
    assert str(timeline) == f"{timeline.name}: {figures(Panel(timeline))}"


@given(timelines(), st.sampled_from(["", "a: b", "1f1b:", "gpipe, predicted:"]))
def test_a_caption_is_the_same_whatever_stands_in_the_name(
    timeline: Timeline, name: str
):
    named, other = Panel(replace(timeline, name=name)), Panel(timeline)
    assert caption(named).removeprefix(title(named.timeline)) == caption(
        other
    ).removeprefix(title(timeline))
    assert caption(named).startswith(f"{name}, predicted: makespan ")


# -- one unit --------------------------------------------------------------------------

COMPARED = [schedules.gpipe(4, 8), schedules.zb_v(4, 8), schedules.one_f_one_b(4, 8)]
# microbatches of all layers of a rank
PEAKS = [[8, 8, 8, 8], [4, 4, 4, 4], [4, 3, 2, 1]]
UNIT = "microbatches over all stages of a rank"


def as_measured(schedule):
    """Return a timeline that knows the times, and no memory."""
    return replace(
        simulate(schedule),
        memory=None,
        memory_during=None,
        peak_memory=None,
        is_measured=True,
    )


@pytest.mark.parametrize(
    "drawn", [COMPARED, list(map(as_measured, COMPARED))], ids=["predicted", "measured"]
)
def test_ranks_with_one_stage_and_with_two_compare_in_every_picture(drawn):
    """The story: zb-v was drawn with a peak of 8 beside the 4 of 1F1B, in chunks beside
    stages: it needs no more.
    """
    svg, html, perfetto = (
        draw_svg(*drawn),
        draw_html(*drawn),
        json.loads(perfetto_trace(*drawn)),
    )
    listed = [
        f"peak activations by rank {', '.join(map(str, peaks))} {UNIT}"
        for peaks in PEAKS
    ]
    assert (
        re.findall(
            rf"peak activations[\d ,a-z]* {UNIT}", " ".join(draw_text(*drawn).split())
        )
        == listed
    )
    lanes = iter(Picture(svg).lanes)
    assert [[next(lanes).peak for _ in peaks] for peaks in PEAKS] == [
        [f"peak {n}" for n in peaks] for peaks in PEAKS
    ]
    assert svg.count(f"activations held, in {UNIT}") == 1 and all(
        words in svg for words in listed
    )
    assert [panel["pairs"] for panel in player_data_in(html)["panels"]] == [1, 2, 1]
    assert all(
        words.removeprefix("peak activations by rank ") in html for words in listed
    )
    counters = {}
    for event in perfetto["traceEvents"]:
        if event["ph"] == "C":
            counters.setdefault((event["pid"], event["name"]), []).append(
                *event["args"].values()
            )
    assert list(map(max, counters.values())) == [
        peak for peaks in PEAKS for peak in peaks
    ]


def player_data_in(page):
    return json.loads(
        re.search(
            r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL
        )[1]
    )


def test_schedules_above_each_other_take_equal_times_for_the_layers_of_a_rank():
    """The story: `show` scaled the times, the same call in Python drew zb-v with twice
    the time.
    """
    assert [panel.timeline.makespan for panel in panels_of(COMPARED)] == [33, 25.5, 33]
    # alone, a stage takes a unit
    assert [panel.timeline.makespan for panel in panels_of(COMPARED[1:2])] == [51]


@pytest.mark.parametrize(
    "name", [name for name in schedules.REGISTRY if name != "forward-only"]
)
def test_page_player_picture_and_table_count_the_peak_of_a_schedule_in_one_unit(name):
    """The story: the table said 4 for zb-v, and the player below it 8: it counted
    (stage, microbatch) pairs.
    """
    schedule = schedules.build(name, 4, 8)
    (panel,), row = panels_of([schedule]), comparison.figures(schedule, Costs())
    pairs = schedule.num_stages // 4 * schedule.num_slices
    expected = by_rank(
        [peak / pairs for peak in simulate(schedule).peak_activations]
    ) + f" {UNIT}" * (pairs > 1)
    assert dict(panel.figures)["peak activations by rank"] == expected
    assert str(panel.timeline) == f"{name}: {figures(panel)}" and expected in " ".join(
        draw_text(schedule).split()
    )
    assert (
        (panel.pairs or 1)
        == player_data_in(draw_html(schedule))["panels"][0]["pairs"]
        == pairs
    )
    assert f"peak {row['peak']:g}" in [
        lane.peak for lane in Picture(draw_svg(as_measured(schedule))).lanes
    ]


def test_ranks_that_hold_different_numbers_of_stages_count_pairs():
    uneven = simulate(Schedule.from_text("0F0 1F0 1B0 0B0\n2F0 2B0"))
    assert uneven.pairs_per_microbatch is None and UNIT not in str(uneven)


@pytest.mark.slow
def test_the_peaks_of_many_ranks_are_their_ends():
    """The story: a caption of 64 ranks said 128 for each of them, in bold."""
    assert "by rank 128 on each" in figures(Panel(simulate(schedules.gpipe(64, 128))))
    page = draw_html(schedules.one_f_one_b(64, 128))
    assert page.count("<dd>at most 64 (rank 0), at least 1 (rank 63)</dd>") == 1
