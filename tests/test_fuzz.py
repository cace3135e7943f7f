"""Row 16 of what must hold when things break: nonsense gets documented errors only. At
full size: tests/fuzz.py.
"""

import pytest

from minipipe.schedules import Action
from tests import fuzz
from tests.launch import slowly


@pytest.mark.parametrize("parser", fuzz.PARSERS)
@pytest.mark.parametrize("inputs", [100, slowly(1000)])
def test_a_parser_refuses_nonsense_with_documented_errors(parser, inputs):
    found = fuzz.fuzz(parser, inputs)
    print(f"\n{parser}: {found}")
    # which answers with its exit status
    assert found.refused > 0 or parser == "command line"


def test_a_parser_with_another_error_is_found_with_its_input(monkeypatch):
    """A mutant: without its check, an action is a bare IndexError or ValueError."""
    monkeypatch.setattr(
        Action, "parse", lambda cell: Action(*map(int, cell.split("F")))
    )
    with pytest.raises(
        AssertionError, match=r"Action.parse, input \d+: (ValueError|TypeError)"
    ):
        fuzz.fuzz("Action.parse", 50)
