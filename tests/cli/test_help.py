"""The helps: they fit a terminal of 80 columns, describe every option, and are in plain
English.
"""

import argparse
from importlib import import_module

import pytest

from minipipe.cli.main import VERBS, _of_all_verbs, _parser_of
from tests.language import COMPILED


@pytest.fixture(params=["", *VERBS])
def parser(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    verb = request.param
    return (
        _parser_of(verb, import_module(f"minipipe.cli.{verb}"))
        if verb
        else _of_all_verbs()
    )


def test_its_lines_fit_80_columns(parser):
    assert [line for line in parser.format_help().splitlines() if len(line) > 80] == []


def test_it_describes_every_option(parser):
    described = [
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction)
    ]
    assert [
        action.dest
        for action in described
        if not (action.help or "").strip() or action.help[0] in "(,;"
    ] == []


def test_it_has_no_phrases_that_are_hard_to_read(parser):
    text = parser.format_help()
    assert {
        name: pattern.findall(text)
        for name, pattern in COMPILED.items()
        if pattern.search(text)
    } == {}
