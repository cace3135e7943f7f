"""The page of the site with answers to public questions: each has a command or a
program, and its output is the one on the page.
"""

import re

import pytest

from tests.launch import ROOT, for_each
from tests.outputs import BLOCK, is_excerpt, shown_in

PAGE = (ROOT / "tutorials" / "site" / "answers.md").read_text(encoding="utf-8")
LINK = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")
QUESTIONS = {
    "deepseek-ai/DualPipe": {8, 15, 17, 20, 23},
    "deepseek-ai/DeepSeek-V3": {211},
    "NVIDIA/Megatron-LM": {381, 691, 1736},
    "sail-sg/zero-bubble-pipeline-parallelism": {18},
    "kakaobrain/torchgpipe": {29, 35},  # 29 is named as not answered
    "facebookresearch/HolisticTraceAnalysis": {99},  # so is this one
    "pytorch/pytorch": {128070, 132644, 152938},  # 152938 is the fix of 132644
}


def answers():
    """Return the sections with answers by their questions."""
    sections = re.split(r"^###? ", PAGE, flags=re.MULTILINE)[1:]
    asked = [section.split("\n", 1) for section in sections]
    return {title: text for title, text in asked if title.endswith("?")}


@for_each(answer=answers())
def test_the_output_of_an_answer_is_printed_by_its_commands(answer):
    (shown,) = shown_in(answer)
    shown.check()


@for_each(answer=answers())
def test_the_figures_in_an_answer_are_in_its_blocks(answer):
    prose = BLOCK.sub("", answer)
    text = re.sub(r"\]\([^)]*\)|^\[.*?\]|`[^`]*`", "", prose, flags=re.MULTILINE)
    figures = re.findall(r"(?<![\w.-])\d+\.\d+|(?<![\w.-])\d{2,}(?![\w.])", text)
    numbers = {number for _, number in LINK.findall(prose)}
    blocks = "".join(block for _, block in BLOCK.findall(answer))
    assert [f for f in figures if f not in blocks and f not in numbers] == []


def test_each_question_is_linked_once():
    links = [(repository, int(number)) for repository, number in LINK.findall(PAGE)]
    expected = [(name, n) for name, numbers in QUESTIONS.items() for n in numbers]
    assert sorted(links) == sorted(expected)


def test_each_answer_is_short():
    for title, answer in answers().items():
        sentences = re.findall(r"[.?](?=\)?\s)", BLOCK.sub("", answer))
        assert 4 <= len(sentences) <= 10, (title, len(sentences))


@pytest.mark.parametrize("wrong", ["a\nc\n", "b\n…\na\n", "a\nb\nd\n"])
def test_an_output_that_is_not_printed_is_noticed(wrong):
    assert is_excerpt("a\n…\nc\n", "a\nb\nc\n")
    assert not is_excerpt(wrong, "a\nb\nc\n")
