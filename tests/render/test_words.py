"""Captions are data, and say what a timeline says of itself."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from minipipe import Timeline
from minipipe.render.descriptions import caption, figures, title
from tests.render.picture import timelines


@given(timelines())
def test_the_figures_of_a_caption_are_those_of_the_timeline(timeline: Timeline):
    assert str(timeline) == f"{timeline.name}: " + ", ".join(f"{name} {value}" for name, value in figures(timeline))


@given(timelines(), st.sampled_from(["", "a: b", "1f1b:", "gpipe, predicted:"]))
def test_a_caption_is_the_same_whatever_stands_in_the_name(timeline: Timeline, name: str):
    named = replace(timeline, name=name)
    assert caption(named).removeprefix(f"{title(named)}: ") == caption(timeline).removeprefix(f"{title(timeline)}: ")
    assert caption(named).startswith(f"{name}, predicted: makespan ")
