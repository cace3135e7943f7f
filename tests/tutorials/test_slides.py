"""Slides: six to eight for a lesson, each with notes, and no copy of the lesson; their
outputs and figures are so.
"""

import contextlib
import io
import math
import re

import numpy as np
import pytest

from minipipe import Costs, data, nn, optim, schedules, simulate
from tests.coursework.test_course_page import PAGE
from tests.launch import ROOT

FOLDER = ROOT / "tutorials" / "slides"
DECKS = sorted(FOLDER.glob("[0-9][0-9]_*.md"))
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE
)
OUTPUTS = [
    pytest.param(*block, id=f"{path.stem}-{number}")
    for path in DECKS
    for number, block in enumerate(BLOCK.findall(path.read_text()))
]
FIGURE = re.compile(r"(?<![\w.])\d[\d,]*\.\d+|(?<![\w.,])\d[\d,]*\d(?![\w.]\d)")
# Figures that the tests below compute. All others stand in the lesson, which asserts
# them.
COMPUTED = {
    "01": "1,048,576",
    "02": "1000 1001 540 75 110,000",
    "05": "1,000 11 24 27 43",
    "07": "03",  # of a task
    "12": "190",
    "14": "30",
    "21": "0.26 1.26 3.34 7.57",
}
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


def test_every_lesson_of_the_four_weeks_has_slides():
    weeks = PAGE.split("## Four weeks")[1].split("Each assignment counts")[0]
    lessons = re.findall(r"lessons/(\w+)\.ipynb", weeks)
    assert len(lessons) == 13
    assert [path.stem for path in DECKS] == lessons


@pytest.mark.parametrize(("source", "output"), OUTPUTS)
def test_a_program_on_a_slide_prints_what_stands_below_it(source, output):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "slide", "exec"), {})
    assert out.getvalue() == output


@pytest.mark.parametrize("path", DECKS, ids=lambda path: path.stem)
def test_a_figure_of_a_deck_is_in_its_lesson_or_computed_here(path):
    lesson = (ROOT / "tutorials" / f"{path.stem}.py").read_text()
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
    known = COMPUTED.get(path.stem[:2], "").split()
    unknown = {figure for figure in FIGURE.findall(text) if figure not in lesson}
    assert unknown == set(known)


@pytest.mark.slow
def test_the_figures_of_the_first_week_are_so():
    assert 2**20 == 1_048_576
    assert 2 * 1e6 * 1e-3 / 60 > 30  # minutes to try a million knobs, twice each
    assert round(math.log(10), 1) == 2.3
    scores = np.array([1000.0, 1001.0])
    shifted = np.exp(scores - scores.max())
    assert np.isfinite(shifted / shifted.sum()).all()
    # all samples in one batch, or eight: batches and images until the loss is 0.2
    images, labels = data.load_digits()
    (images, labels), _ = data.split_examples(images, labels, test_fraction=0.2)
    counts = {}
    for size in (len(images), 8):
        layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        model = nn.Sequential(*layers).initialise(0)
        optimiser = optim.SGD(model.parameters(), 0.5)
        loss_of, mean, epoch = nn.CrossEntropyLoss(), 9.0, 0
        while mean > 0.2:
            losses = []
            for inputs, targets in data.batches(images, labels, size, 0, epoch):
                model.zero_grad()
                loss = loss_of(model(inputs), targets)
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
            mean = sum(losses) / len(losses)
            epoch += 1
        batches = data.num_batches(len(images), size)
        counts[size] = epoch * batches, epoch * len(images)
    steps, looked_at = counts[1438]
    assert 70 < steps < 80 and abs(looked_at - 110_000) < 6000
    assert counts[8] == (540, 3 * 1438) and round(3 * 1438, -2) == 4300


def test_the_figures_of_the_last_week_are_so():
    minutes = [10, 20, 15, 5]
    assert sum(minutes) + 7 * max(minutes) == 190
    fast, slow = (
        simulate(schedules.gpipe(4, 8), Costs(*[[10, 20, 15, last]] * 3)).makespan
        for last in (2.5, 5)
    )
    assert 0.98 < fast / slow < 1  # a faster rank 3 brings next to nothing
    assert (30 * 2 + 10 * 4) / 40 == 2.5
    assert round(math.comb(39, 7), -6) == 15_000_000  # ways to cut 40 layers into 8
    sent = {262144: "0.26", 1262208: "1.26", 3342336: "3.34", 7573248: "7.57"}
    lesson = (ROOT / "tutorials" / "21_which_parallelism.py").read_text()
    for size, shown in sent.items():
        assert f"{size / 1e6:.2f}" == shown and f"== {size}" in lesson
