"""Every option of every verb: numbers that are written otherwise, and options that are
given twice.
"""

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from minipipe.cli import edit, main, run
from minipipe.cli.declaring import file_path
from minipipe.cli.main import VERBS, _parser_of
from tests.launch import slowly
from tests.trace.written import recorded

SIZES = ["--ranks=2", "--microbatches=2"]
# By verb: words with which it does little.
LITTLE = {
    "schedules": SIZES,
    "sweep": ["--schedules=gpipe", *SIZES],
    "show": ["gpipe", *SIZES],
    "check": ["gpipe", *SIZES],
    "simulate": ["gpipe", *SIZES],
    "trace": [*map(str, recorded("zb-v"))],
    "paper": ["megatron-table-1", "--model=1.7B"],
    "search": ["--evaluations=3", *SIZES],
    "step": ["gpipe", *SIZES],
    "edit": ["gpipe", "-o=mine.csv", *SIZES],
    "advise": ["program.py"],
    "compare": [],
    "run": ["-n=1", "program.py"],
    "referee": ["a.npz", "b.npz"],
    "export": ["program.py", "-o=exported"],
    "coursework": ["copy"],
    "assignment": ["quiz", "--task=05_bubble"],
    "grade": ["--only=05_bubble", "mine"],
    "info": [],
}
REFUSED = [
    "1_0",
    "\u00b2",
    "\uff11",
    "\u0663",
    "",
    "x",
    "0x10",
    "1\x0b2",
    "\udcff",
    "1:",
    "1.5.1",
    "1e",
    "--",
]
ODD = [
    "9" * 20,
    "9" * 5000,
    "-1",
    "0",
    "1.5",
    "1e400",
    "nan",
    "inf",
    "-inf",
    ",",
    "1,2",
    "1,9999999999999999999",
]


def options_of(verb):
    return [
        each
        for each in _parser_of(verb, import_module(f"minipipe.cli.{verb}"))._actions
        if each.option_strings
    ]


def numbers_of(verb):
    """Return the options whose value is a number, or a list of them."""
    others = (None, Path, file_path, str)
    return [
        each
        for each in options_of(verb)
        if each.type not in others and each.dest != "schedules"
    ]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty folder, and start no job."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("raise SystemExit(0)\n")
    monkeypatch.setattr(edit.Page, "serve_forever", lambda page: None)
    monkeypatch.setattr(run, "become_supervisor", lambda: 0)


def status_of(*words):
    try:
        return main(words)
    except SystemExit as end:
        return end.code


def written(option, value, little):
    """Return words of a command without an option, and then with it."""
    names = tuple(f"{name}=" for name in option.option_strings)
    others = [word for word in little if not word.startswith(names)]
    return [f"{option.option_strings[-1]}={value}", *others]


def test_every_verb_is_here():
    assert set(LITTLE) == set(VERBS)
    assert sum(len(numbers_of(verb)) for verb in VERBS) > 50


# Verbs whose options `step` has as well, or that start processes.
LIKE_STEP = ("check", "grade", "show", "simulate")


@pytest.mark.parametrize(
    "verb",
    [slowly(verb) if verb in LIKE_STEP else verb for verb in VERBS if numbers_of(verb)],
)
def test_what_is_no_number_is_refused_by_the_parser_for_every_option(verb, capsys):
    for option in numbers_of(verb):
        for value in REFUSED:
            assert status_of(verb, *written(option, value, LITTLE[verb])) == 2, (
                option.dest,
                value,
            )
            complaint = capsys.readouterr().err
            assert f"error: argument {'/'.join(option.option_strings)}: " in complaint
            assert (
                complaint.splitlines()[-1].isprintable()
                and len(complaint.splitlines()[-1]) < 700
            )


# these have tests of their own for what they refuse
STARTING_RANKS = ("advise", "compare", "export")


ASKED = [verb for verb in VERBS if numbers_of(verb) and verb not in STARTING_RANKS]


@pytest.mark.parametrize(
    "verb", [slowly(verb) if verb in LIKE_STEP else verb for verb in ASKED]
)
def test_an_odd_number_is_taken_or_refused_in_a_sentence_for_every_option(verb, capsys):
    assert main(["coursework", "mine"]) == 0
    for option in numbers_of(verb):
        for value in ODD:
            words = written(option, value, LITTLE[verb])
            assert status_of(verb, *words) in (0, 1, 2), words
            complaint = capsys.readouterr().err
            assert "Traceback" not in complaint and len(complaint) < 3000, words


def test_every_option_that_is_given_twice_is_refused_unless_it_is_repeatable(capsys):
    repeatable = set()
    for verb in VERBS:
        for option in options_of(verb):
            if isinstance(option, argparse._HelpAction):
                continue
            if isinstance(option, argparse._AppendAction):
                repeatable.add((verb, option.dest))
                continue
            takes_none = option.nargs == 0
            value = next(iter(option.choices)) if option.choices else "1"
            words = [
                word if takes_none else f"{word}={value}"
                for word in (option.option_strings * 2)[:2]
            ]
            words = [
                word if word.startswith("--") else word.replace("=", "")
                for word in words
            ]
            assert status_of(verb, *words, *LITTLE[verb]) == 2
            assert (
                "this option was passed twice; pass it once" in capsys.readouterr().err
            ), (verb, words)
    assert repeatable == {
        ("paper", "without"),
        ("grade", "only"),
        ("coursework", "only"),
        ("assignment", "task"),
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["show", "gpipe", "-o", "a.svg", "--output", "b.svg"],
            "-o/--output: this option was passed twice",
        ),
        (["show", "gpipe", "--costs", "F=1,F=2"], "forward twice"),
        (
            ["paper", "megatron-table-1", "--rates", "memory=1e12,memory=2e12"],
            "'memory' twice",
        ),
    ],
)
def test_a_name_that_an_option_has_twice_is_refused(words, complaint, capsys):
    assert status_of(*words) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1_0", "\u00b2", "\uff11", "\u0663", "x", ""])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "gpipe", "--costs", "F=NUMBER"], "has no number"),
        (["show", "gpipe", "--costs", "F=1,W=1:NUMBER"], "has no number"),
        (["paper", "megatron-table-1", "--rates", "memory=NUMBER"], "--rates has "),
        (["advise", "--memory-limit", "NUMBER MB", "program.py"], "memory_limit is "),
        (["search", "--memory-limit", "NUMBER"], "argument --memory-limit: "),
    ],
)
def test_a_number_within_the_text_of_an_option_is_written_in_digits(
    words, complaint, number, capsys
):
    assert status_of(*(word.replace("NUMBER", number) for word in words)) == 2
    assert complaint in capsys.readouterr().err
