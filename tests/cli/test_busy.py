"""On a busy machine, what measures says so before it measures."""

import pytest

from minipipe.cli import ranks

WORDS = {
    "advise": ["advise", "--ranks", "2", __file__],
    "compare": ["compare", "--ranks", "2"],
}


class Begun(BaseException):
    """Raised where measuring would begin."""


@pytest.fixture
def first(monkeypatch, capsys):
    """Return a function that tells what a verb says before it measures, where so many
    cores are busy.
    """

    def begin(*_, **__):
        raise Begun

    def said(verb, busy):
        monkeypatch.setattr(ranks, "busy_cores", lambda: busy)
        monkeypatch.setattr(ranks, "num_cores", lambda: 4)
        monkeypatch.setattr("minipipe.cli.advise_program.program_report", begin)
        monkeypatch.setattr("minipipe.cli.compare.Progress", begin)
        from minipipe.cli import main

        with pytest.raises(Begun):
            main(WORDS[verb])
        return capsys.readouterr().err

    return said


@pytest.mark.parametrize("verb", WORDS)
def test_a_busy_machine_is_named_before_anything_is_measured(verb, first):
    said = first(verb, 2.5)
    assert said.startswith(
        "minipipe: This machine is busy: other processes use 2.5 of 4 cores. "
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize("verb", WORDS)
def test_an_idle_machine_is_no_word_worth(verb, first):
    assert first(verb, 0.5) == ""
