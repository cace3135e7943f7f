"""Slides: six to eight for a lesson, each with notes, and no copy of the lesson."""

import re

import pytest

from minipipe import Costs, schedules, simulate
from tests.launch import ROOT

FOLDER = ROOT / "tutorials" / "slides"
DECKS = sorted(FOLDER.glob("[0-9][0-9]_*.md"))
RUN = 8  # words that a slide and its lesson may not have in common


def runs_of(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


@pytest.mark.parametrize("path", DECKS, ids=lambda path: path.stem)
def test_a_deck_has_slides_with_titles_and_notes_for_its_lesson(path):
    slides = path.read_text().split("\n---\n")
    assert 6 <= len(slides) <= 8
    for slide in slides:
        assert re.match(r"\n?# .+\n", slide), slide
        assert len(re.findall(r"<!-- Notes: .+?\s-->", slide, re.DOTALL)) == 1
        shown = re.sub(r"<!--.+?-->", "", slide, flags=re.DOTALL)
        assert len(shown.split()) < 50, shown
    lesson = (ROOT / "tutorials" / f"{path.stem}.py").read_text()
    assert not runs_of(path.read_text()) & runs_of(lesson.replace("\n# ", "\n"))
    assert path.name in (FOLDER / "README.md").read_text()


def test_the_figures_of_the_slides_are_so():
    idle = [simulate(schedules.gpipe(4, m)).bubble_fraction for m in (4, 8, 16, 32)]
    assert [round(100 * part) for part in idle] == [43, 27, 16, 9]
    gpipe, zb_h1 = schedules.gpipe(4, 8), schedules.zb_h1(4, 8)
    assert (simulate(gpipe).makespan, simulate(zb_h1).makespan) == (33, 27)
    late = Costs(latency=1)
    one_f_one_b = schedules.one_f_one_b(4, 8)
    assert simulate(one_f_one_b, late).makespan > simulate(gpipe, late).makespan == 39
