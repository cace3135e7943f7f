"""The page of the site about large vocabularies: its outputs are printed by its
commands and programs, and its other figures are so.
"""

import re

import pytest

from minipipe.execution.vocabulary import _BARRIERS, NUM_PIECES
from minipipe.passes.vocabulary import OF_VOCABULARY
from minipipe.schedules.simulation.vocabulary_scale import vocabulary_runs
from tests.launch import ROOT
from tests.outputs import BLOCK, shown_in

PAGE = (ROOT / "tutorials" / "site" / "large-vocabularies.md").read_text()
PROSE = BLOCK.sub("", PAGE)


@pytest.mark.parametrize("number", range(4))
def test_an_output_of_the_page_is_printed_by_its_source(number):
    shown = shown_in(PAGE)
    assert len(shown) == 4
    shown[number].check()


def test_the_figures_in_the_text_are_so():
    run = next(run for run in vocabulary_runs() if run.vocabulary == 262144)
    assert (run.ranks, run.layers // run.ranks) == (8, 4) and run.name == "8/3072/32"
    layer = run.stage / 4
    assert f"{run.head / layer:.1f}" == "6.4" and "as 6.4 of them" in PROSE
    late = (run.stage + run.head) / run.stage
    assert f"{late:.1f}" == "2.6" and "takes 2.6\ntimes as long" in PROSE
    assert NUM_PIECES == 8 and "multiple of 8" in PROSE


def test_the_options_and_tasks_on_the_page_exist():
    quoted = set(re.findall(r'"(vocabulary[\w-]*)"', PAGE))
    assert quoted == set(_BARRIERS)
    tasks = re.findall(r"^\| ([A-Z]) \| (.+?) \|", PAGE, re.MULTILINE)
    names = {name: " ".join(text.replace("the ", "").split()) for name, text in tasks}
    assert names.keys() == {"S", "T"}
    for name, text in names.items():
        first = OF_VOCABULARY[name].words.split()[0]
        assert text.startswith(first)
