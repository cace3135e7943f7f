"""Captions are data, and say what a timeline says of itself, in one unit for all that stand above each other."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Timeline, schedules, simulate
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.descriptions import caption, figures, title
from minipipe.render.panel import Panel, panels_of
from tests.render.picture import Picture, timelines


@given(timelines())
def test_the_figures_of_a_caption_are_those_of_the_timeline(timeline: Timeline):
    assert str(timeline) == f"{timeline.name}: {figures(Panel(timeline))}"


@given(timelines(), st.sampled_from(["", "a: b", "1f1b:", "gpipe, predicted:"]))
def test_a_caption_is_the_same_whatever_stands_in_the_name(timeline: Timeline, name: str):
    named, other = Panel(replace(timeline, name=name)), Panel(timeline)
    assert caption(named).removeprefix(title(named.timeline)) == caption(other).removeprefix(title(timeline))
    assert caption(named).startswith(f"{name}, predicted: makespan ")


# -- one unit ---------------------------------------------------------------------------------------------------

COMPARED = [schedules.gpipe(4, 8), schedules.zb_v(4, 8), schedules.one_f_one_b(4, 8)]
PEAKS = [[8, 8, 8, 8], [4, 4, 4, 4], [4, 3, 2, 1]]  # microbatches of all layers of a rank
UNIT = "microbatches of all its layers"


def as_measured(schedule):
    """Return a timeline that knows the times, and no memory."""
    return replace(simulate(schedule), memory=None, memory_during=None, peak_memory=None, is_measured=True)


@pytest.mark.parametrize("drawn", [COMPARED, list(map(as_measured, COMPARED))], ids=["predicted", "measured"])
def test_ranks_with_one_stage_and_with_two_compare_in_every_picture(drawn):
    """The story: zb-v was drawn with a peak of 8 beside the 4 of 1F1B, in chunks beside stages: it needs no more."""
    svg, html, perfetto = draw_svg(*drawn), draw_html(*drawn), json.loads(perfetto_trace(*drawn))
    listed = [f"peak activations by rank {', '.join(map(str, peaks))} {UNIT}" for peaks in PEAKS]
    assert re.findall(rf"peak activations[\d ,a-z]* {UNIT}", " ".join(draw_text(*drawn).split())) == listed
    lanes = iter(Picture(svg).lanes)
    assert [[next(lanes).peak for _ in peaks] for peaks in PEAKS] == [[f"peak {n}" for n in peaks] for peaks in PEAKS]
    assert svg.count(f"activations held, in {UNIT}") == 1 and all(words in svg for words in listed)
    assert [panel["pairs"] for panel in player_data_in(html)["panels"]] == [1, 2, 1]
    assert all(words.removeprefix("peak activations by rank ") in html for words in listed)
    counters = {}
    for event in perfetto["traceEvents"]:
        if event["ph"] == "C":
            counters.setdefault((event["pid"], event["name"]), []).append(*event["args"].values())
    assert list(map(max, counters.values())) == [peak for peaks in PEAKS for peak in peaks]


def player_data_in(page):
    return json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def test_schedules_above_each_other_take_equal_times_for_the_layers_of_a_rank():
    """The story: `show` scaled the times, the same call in Python drew zb-v with twice the time."""
    assert [panel.timeline.makespan for panel in panels_of(COMPARED)] == [33, 25.5, 33]
    assert [panel.timeline.makespan for panel in panels_of(COMPARED[1:2])] == [51]  # alone, a stage takes a unit


@pytest.mark.parametrize("drawn", [COMPARED[:1], [schedules.zb_v(4, 8), schedules.v_min(4, 8)]])
def test_where_all_ranks_hold_equally_many_stages_pairs_are_counted(drawn):
    panels = panels_of(drawn)
    assert not any(UNIT in figures(panel) for panel in panels) and "in microbatches" not in draw_svg(*drawn)
    assert [panel.figures for panel in panels] == [panel.timeline.figures() for panel in panels]


def test_the_peaks_of_many_ranks_are_their_ends():
    """The story: a caption of 64 ranks said 128 for each of them, in bold."""
    assert "by rank 128 on each" in figures(Panel(simulate(schedules.gpipe(64, 128))))
    page = draw_html(schedules.one_f_one_b(64, 128))
    assert page.count("<dd>at most 64 (rank 0), at least 1 (rank 63)</dd>") == 1
