"""The tables and sentences of advice and of a comparison keep to the width of the
terminal.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.io import text_table, wrapped
from minipipe.tuning import Advice
from minipipe.tuning.report import AdviceReport
from tests.strategies import examples
from tests.tuning.invented import measured
from tests.tuning.test_grids import report, tiny
from tests.tuning.test_report import COUNTS, row

LAYERS = measured(4, COUNTS)
WIDTHS = (60, 80, 100, 200)


def advice():
    choices = [row(name, 4, 1.0, 1.0, 64) for name in ("zb-h1", "zb-h2")]
    choices += [row("1f1b", count, 1.5, 1.6, 4, drain=0.5) for count in COUNTS]
    return Advice(choices, LAYERS, own=row("gpipe", 2, 3.0, 4.0, 64))


TEXTS = {
    "compare": lambda: str(report(tiny(), hosts=2)),
    "advise": lambda: str(advice()),
    "the report of advise": lambda: str(AdviceReport.of(advice())),
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_wider_than_the_terminal(name, columns, monkeypatch):
    """The story: on a terminal of 80 columns the tables of 130 were broken anywhere,
    and could not be read.
    """
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = TEXTS[name]().splitlines()
    assert max(map(len, lines)) <= columns
    assert columns < 200 or max(map(len, lines)) > 100, "a wide terminal is used"


@pytest.mark.parametrize("name", TEXTS)
def test_without_a_terminal_lines_have_at_most_100_columns(name, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(
        "os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError)
    )
    assert max(map(len, TEXTS[name]().splitlines())) <= 100


cells = st.text("abc,", min_size=1, max_size=8)


def rows_of(columns):
    return st.lists(
        st.lists(cells, min_size=columns, max_size=columns), min_size=1, max_size=4
    )


@examples(60)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(
            st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=4
        )
    ),
    st.integers(20, 60),
)
def test_a_table_that_is_broken_has_every_cell_once_beside_its_first_column(
    rows, width
):
    parts = text_table(rows, right=(), width=width).split("\n\n")
    whole = [part.split("\n") for part in parts]
    assert all(len(line) <= width for lines in whole for line in lines)
    found = [[line.split() for line in lines] for lines in whole]
    for number, expected in enumerate(rows):
        assert all(part[number][0] == expected[0] for part in found)
        assert [cell for part in found for cell in part[number][1:]] == expected[1:]


@examples(60)
@given(
    st.lists(st.lists(cells, max_size=9).map(" ".join), max_size=4), st.integers(10, 40)
)
def test_a_text_that_is_wrapped_has_the_same_words(lines, width):
    text = "\n".join(lines)
    assert wrapped(text, width).split() == text.split()
    assert all(len(line) <= width for line in wrapped(text, width).splitlines())


# -- rows that tie ---------------------------------------------------------------------


def test_schedules_with_the_same_figures_have_one_row_and_their_names_below():
    text = str(advice())
    assert [
        line.split("  ")[0] for line in text.split("\n\n")[1].splitlines()[1:3]
    ] == ["zb-h1 (+1)", "1f1b"]
    assert "\nzb-h1 (+1): zb-h2 has the same figures.\n" in text
    assert (
        "<td" in advice()._repr_html_() and ">zb-h1, zb-h2<" in advice()._repr_html_()
    )


def test_schedules_whose_figures_differ_have_a_row_each():
    choices = [row("zb-h1", 4, 1.0, 1.0, 64), row("zb-h2", 4, 1.0, 1.1, 64)]
    assert "(+" not in str(Advice(choices, LAYERS))
