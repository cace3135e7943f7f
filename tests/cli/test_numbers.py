"""Every numeric option of every verb with absurd values: an answer or a refusal, soon
and in a few lines.
"""

import argparse
from importlib import import_module

import pytest

from minipipe.cli.main import VERBS, main
from minipipe.cli.options import whole_numbers
from tests.launch import slowly
from tests.trace.written import recorded

# A command of each verb, quick and complete but for the option that is tried.
COMMANDS = {
    "show": ["1f1b"],
    "check": ["1f1b"],
    "simulate": ["1f1b"],
    "step": ["1f1b"],
    "schedules": [],
    "sweep": ["--schedules=gpipe"],
    "trace": [*map(str, recorded("zb-v"))],
    "paper": ["megatron-table-2"],
    "search": ["--evaluations=3"],
    "advise": ["program.py"],
    "compare": [],
    "run": ["-n1", "program.py"],
    "referee": ["a.npz", "b.npz"],
    "export": ["program.py", "-o=exported"],
    "edit": ["nowhere"],
    "coursework": ["nowhere/x.pdf"],
    "assignment": ["nowhere"],
    "grade": ["nowhere"],
    "info": [],
}
VALUES = (
    "0",
    "-1",
    "1000000000",
    "1" + 18 * "0",
    4000 * "9",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "1e-300",
    "0.5",
)
# Options of text that hold numbers.
TEXTS = {
    "costs": "F={}",
    "rates": "memory={}",
    "links": "{0},{0}",
    "memory_limit": "{}",
    "freeze": "0,{}",
}


class Begun(BaseException):
    """Raised where ranks would be started."""


def begin(*_, **__):
    raise Begun


def numeric_options(verb):
    """Return the options of a verb that take numbers, as templates for a value."""
    parser = argparse.ArgumentParser()
    import_module(f"minipipe.cli.{verb}").add_options(parser)
    found = {}
    for action in parser._actions:
        is_number = (
            action.type in (int, float, whole_numbers)
            or getattr(action.type, "__name__", "") == "_number"
        )
        if action.option_strings and (is_number or action.dest in TEXTS):
            name = action.option_strings[-1]
            value = TEXTS.get(action.dest, "{}")
            found[name] = (
                f"{name}={value}" if name.startswith("--") else f"{name}{value}"
            )
    return found


def test_the_table_has_every_verb_and_finds_their_numbers():
    assert set(COMMANDS) == set(VERBS)
    assert {"--layers", "--rounds", "--links"} <= set(numeric_options("compare"))
    assert {"--seconds", "--memory-limit", "--ranks"} <= set(numeric_options("advise"))
    assert not numeric_options("info")


# Verbs that take long, or whose options `step` has as well.
LONG = ("check", "grade", "paper", "schedules", "show", "simulate")


@pytest.mark.parametrize(
    "verb",
    [slowly(verb) if verb in LONG else verb for verb in VERBS if numeric_options(verb)],
)
def test_an_absurd_number_is_refused_or_harmless(verb, capsys, monkeypatch, tmp_path):
    """The story: `compare --layers 1000000000` filled the memory, `search --ranks
    1000000000` had a traceback.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("print(1)")
    monkeypatch.setattr("minipipe.cli.compare.answer_of_ranks", begin)
    monkeypatch.setattr("minipipe.cli.advise_program.program_report", begin)
    monkeypatch.setattr("minipipe.cli.run.become_supervisor", begin)
    monkeypatch.setattr("minipipe.cli.ranks.busy_cores", lambda: 0.0)
    for name, template in numeric_options(verb).items():
        others = [word for word in COMMANDS[verb] if not word.startswith(name)]
        for value in VALUES:
            status = status_of([verb, template.format(value), *others])
            _, err = capsys.readouterr()
            assert status in (0, 1, 2, "begun"), (name, value[:9], status)
            assert len(err) < 3000 and (status != 2 or err.count("\n") >= 1), (
                name,
                value[:9],
                err[:99],
            )


def status_of(words):
    try:
        return int(main(words))
    except SystemExit as left:
        return left.code
    except Begun:
        return "begun"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["search", "--ranks", "1000000000"],
            "the limits are 4096 stages and 16777216 actions",
        ),
        (
            ["search", "--ranks", "0"],
            "--ranks is 0; expected a whole number, at least 1.",
        ),
        (
            ["search", "--seconds", "1e9"],
            (
                "--seconds is 1000000000.0; expected seconds, above 0 and at most "
                "604800, a week."
            ),
        ),
        (
            ["advise", "--seconds", "1e9", "a.py"],
            "--seconds is 1000000000.0; expected 0 to 604800, a week.",
        ),
        (
            ["advise", "--replicas", "5", "a.py"],
            "--replicas is 5; expected a whole number, 1 to 4.",
        ),
        (["schedules", "--memory-limit", "0"], "memory_limit is 0"),
        (["step", "gpipe", "--at", "9" * 99], "--at is 99999"),
    ],
)
def test_a_refusal_names_the_option_and_its_limit(words, said, ask):
    status, out, err = ask(*words)
    assert (status, out) == (2, "") and said in err


def test_more_ranks_than_have_room_are_refused_with_what_they_need(ask, monkeypatch):
    monkeypatch.setattr("minipipe.cli.ranks.memory_of_this_host", lambda: 2**30)
    status, out, err = ask("advise", "--ranks", "100", "a.py")
    assert (status, out) == (2, "")
    assert (
        "--ranks is 100: each is a process of at least 40 MiB, together 3.91 "
        "GiB, and this machine has 1 GiB"
    ) in err
