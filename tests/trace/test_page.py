"""The page of the site about traces: its figures are those of its commands."""

import re
import shlex

import pytest

from tests.launch import ROOT

PAGE = (ROOT / "tutorials" / "site" / "traces.md").read_text()
COMMANDS = re.findall(r"^minipipe (trace .*)$", PAGE, re.MULTILINE)
OUTPUTS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1:]


@pytest.fixture
def printed(capsys, monkeypatch):
    """Return what a command of the page prints."""
    from minipipe.cli import main

    def asked(command):
        monkeypatch.chdir(ROOT)
        assert main(shlex.split(command)) == 0
        return capsys.readouterr().out

    return asked


def test_each_output_on_the_page_is_a_part_of_what_its_command_prints(printed):
    out = printed(COMMANDS[0])
    assert len(OUTPUTS) == 4
    for output in OUTPUTS:
        assert output in out


def test_each_command_of_the_page_runs(printed):
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        assert "measured: makespan" in printed(command)


def test_each_option_on_the_page_exists(printed):
    import argparse

    from minipipe.cli import trace

    parser = argparse.ArgumentParser()
    trace.add_options(parser)
    named = set(re.findall(r"(?<=[`\s])--?[a-z][a-z-]*", PAGE))
    known = {name for action in parser._actions for name in action.option_strings}
    assert named - {"--costs", "--json"} <= known
