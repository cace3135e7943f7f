"""Every command in a text is one: those in README files, lessons, helps, hints,
messages and docstrings.
"""

import shlex
import shutil
from pathlib import Path

import pytest

from minipipe.cli import main
from minipipe.search import finding
from tests.commands import (
    PLACEHOLDER,
    Wrong,
    check,
    documents,
    in_copy,
    in_help,
    strings_of,
)
from tests.launch import ROOT, for_each, slowly


@for_each(document=documents())
def test_every_command_of_a_text_can_be_given(document):
    path, read = document
    wrong = []
    for command in read(path):
        try:
            check(command)
        except Wrong as error:
            wrong.append(f"{command}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_command_of_a_students_copy_can_be_given(tmp_path):
    """The story: python -m pytest was told to students who had no pytest."""
    commands = in_copy(tmp_path)
    for command in commands:
        check(command)
    assert (
        "pip install pytest" in commands
        and sum("pytest" in each for each in commands) > 6
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "minipipe shows gpipe",
        "minipipe show nosuch",
        "minipipe check --proof",
        "minipipe show gpipe --costs",
        "minipipe show gpipe --widths 3",
        "minipipe grade mine/05_bubbles.py",
        "minipipe grade mine --only 5_bubble",
        "minipipe paper nosuch-table",
        "minipipe run -n 4 tutorials/nosuch.py",
        "minipipe advise tutorials/train.py --hiden 512",
        "mpirun -n 4 python tutorials/train.py --timetable zb-h1",
        "mpirun -n 4 python tutorials/train.py --epochs many",
        "python -m tests.nosuch",
        "python -m nosuch",
        "python tutorials/22_nothing.py",
        "python -m tests.fuzz --inputz 3",
        "pip install 'minipipe-mpi[search]'",
        "pip install minipipe-mpi",
        "pip install -e '.[serach]'",
        "pytest tests/nosuch",
        "sbatch tutorials/cluster/nosuch.sh",
        "nosuch --help",
    ],
)
def test_a_command_that_cannot_be_given_is_found(wrong):
    with pytest.raises(Wrong):
        check(wrong)


# -- running ---------------------------------------------------------------------------

QUICK = (
    "schedules",
    "sweep",
    "show",
    "check",
    "simulate",
    "paper",
    "search",
    "step",
    "coursework",
)
# What a reader has by then: a file of a lesson, a student's copy.
BEFORE = [
    ["show", "zb-v", "--ranks", "2", "--microbatches", "6", "-o", "mine.csv"],
    ["search", "--memory-limit", "4", "-o", "found.json"],
    ["coursework", "mine"],
]
OWN_SCHEDULE = [
    "search",
    "--ranks",
    "3",
    "--microbatches",
    "5",
    "--memory-limit",
    "2",
    "-o",
    "mine.csv",
]
RUN_ALWAYS = ("11_", "18_", "22_")  # lessons; the others in .ci/run


def quick_commands():
    """Return the commands of minipipe that are run, by document: those of lessons, and
    examples of helps.
    """
    found = {}
    for name, (path, read) in documents().items():
        is_help = path.parent.name == "cli" and path.suffix == ".py"
        if not is_help and path.parent.name != "tutorials":
            continue  # test_readme.py runs those of the README files
        texts = (
            (each for text in strings_of(path) for each in in_help(text))
            if is_help
            else read(path)
        )
        commands = [
            shlex.split(each, comments=True)[1:]
            for each in texts
            if each.startswith("minipipe ")
        ]
        chosen = [
            words
            for words in commands
            if words[:1] and words[0] in QUICK and len(words) > 1
        ]
        found[name] = [
            words for words in chosen if not any(map(PLACEHOLDER.fullmatch, words))
        ]
    return {name: commands for name, commands in found.items() if commands}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with what a reader has."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(finding, "_ACTIONS", 10**5)
        for words in BEFORE:
            assert main(words) == 0
    return folder


def in_short(words):
    """Return a command with fewer seconds for a search or a proof, and with a page
    where a PDF needs a browser.
    """
    return [
        "1" if word in ("20", "60") else word.replace("bubble.pdf", "bubble.html")
        for word in words
    ]


@pytest.mark.parametrize(
    "document",
    [
        each if any(name in each for name in RUN_ALWAYS) else slowly(each)
        for each in quick_commands()
    ],
)
def test_the_quick_commands_run(document, begun, tmp_path, monkeypatch, capsys):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finding, "_ACTIONS", 10**5)
    if "11_" in document:
        assert main(OWN_SCHEDULE) == 0
    if "paper" in document:
        shutil.copy(
            ROOT / "minipipe" / "schedules" / "simulation" / "published.csv", "mine.csv"
        )
    for words in map(in_short, quick_commands()[document]):
        if words[0] == "coursework" and Path(words[1]).exists():
            continue  # "once", as the lessons say
        assert main(words) in (0, 1), (words, capsys.readouterr().err)
