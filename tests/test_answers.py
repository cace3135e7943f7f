"""The page of the site with answers to public questions: each has a command or a
program, and its output is the one on the page.
"""

import contextlib
import io
import re
import shlex
from typing import NamedTuple

import pytest

from minipipe.cli import main
from tests.launch import ROOT, for_each

PAGE = (ROOT / "tutorials" / "site" / "answers.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")
LEFT_OUT = "…\n"
QUESTIONS = {
    "deepseek-ai/DualPipe": {8, 15, 17, 20, 23},
    "deepseek-ai/DeepSeek-V3": {211},
    "NVIDIA/Megatron-LM": {691, 1736},
    "sail-sg/zero-bubble-pipeline-parallelism": {18},
    "kakaobrain/torchgpipe": {35},
    "pytorch/pytorch": {128070},
}


class Answer(NamedTuple):
    """A question's text, the block that answers it, and the output on the page."""

    prose: str
    language: str
    source: str
    output: str


def answer_of(section):
    (language, source), (kind, output) = BLOCK.findall(section)
    assert kind == "text"
    return Answer(BLOCK.sub("", section), language, source, output)


def answers():
    """Return the answers by their questions."""
    sections = re.split(r"^###? ", PAGE, flags=re.MULTILINE)[1:]
    asked = [section.split("\n", 1) for section in sections]
    return {title: answer_of(text) for title, text in asked if title.endswith("?")}


def printed_by(answer):
    """Return what the commands or the program of an answer print."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
        if answer.language == "python":
            exec(compile(answer.source, "answers.md", "exec"), {})
        else:
            for command in answer.source.splitlines():
                program, *words = shlex.split(command)
                assert program == "minipipe" and main(words) == 0, command
    return out.getvalue()


def is_excerpt(output, printed):
    """Return whether the parts of an output, between lines that leave some out, are
    whole lines of what is printed, in this order.
    """
    position = 0
    printed = f"\n{printed}"
    for part in output.split(LEFT_OUT):
        start = printed.find(f"\n{part}", position)
        if start < 0:
            return False
        position = start + len(part)
    return True


@for_each(answer=answers())
def test_the_output_of_an_answer_is_printed_by_its_commands(answer):
    printed = printed_by(answer)
    assert is_excerpt(answer.output, printed), printed
    # a wrong digit or letter is noticed in each part
    for part in answer.output.split(LEFT_OUT):
        wrong = part[:-2] + "@\n"
        assert not is_excerpt(answer.output.replace(part, wrong), printed)


@for_each(answer=answers())
def test_the_figures_in_an_answer_are_in_its_blocks(answer):
    text = re.sub(r"\]\([^)]*\)|^\[.*?\]|`[^`]*`", "", answer.prose, flags=re.MULTILINE)
    figures = re.findall(r"(?<![\w.-])\d+\.\d+|(?<![\w.-])\d{2,}(?![\w.])", text)
    asked = set(LINK.findall(answer.prose))
    numbers = {number for _, number in asked}
    blocks = answer.source + answer.output
    assert [f for f in figures if f not in blocks and f not in numbers] == []


def test_each_question_is_linked_once():
    links = [(repository, int(number)) for repository, number in LINK.findall(PAGE)]
    expected = [(name, n) for name, numbers in QUESTIONS.items() for n in numbers]
    assert sorted(links) == sorted(expected)


def test_each_answer_is_short():
    for title, answer in answers().items():
        sentences = re.findall(r"[.?](?=\)?\s)", answer.prose)
        assert 4 <= len(sentences) <= 10, (title, len(sentences))


@pytest.mark.parametrize("wrong", ["a\nc\n", "b\n…\na\n", "a\nb\nd\n"])
def test_an_output_that_is_not_printed_is_noticed(wrong):
    assert is_excerpt("a\n…\nc\n", "a\nb\nc\n")
    assert not is_excerpt(wrong, "a\nb\nc\n")
