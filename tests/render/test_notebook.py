"""A notebook shows pictures, a terminal text, and neither is asked for what is not
loaded.
"""

import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from minipipe import (
    Pipeline,
    Schedule,
    init_process_group,
    nn,
    render,
    schedules,
    simulate,
)
from minipipe.render import draw_svg, draw_text, show
from tests.launch import run

PROGRAM = """
import sys
from minipipe import render, schedules
render.show(schedules.gpipe(2, 2))
assert "IPython" not in sys.modules
"""


@pytest.fixture
def displayed(monkeypatch):
    """Pretend to run in a kernel; return what it is given to display."""
    shown = []

    def display(data, raw=False):
        assert raw
        shown.append(data)

    shell = SimpleNamespace(kernel=object())
    module = SimpleNamespace(
        get_ipython=lambda: shell, display=SimpleNamespace(display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shown


def test_in_a_terminal_it_prints_text(capsys):
    timelines = simulate(schedules.gpipe(2, 2)), simulate(schedules.one_f_one_b(2, 2))
    show(*timelines)
    assert capsys.readouterr().out == draw_text(*timelines) + "\n"


def test_it_does_not_load_ipython():
    done = run([sys.executable, "-c", PROGRAM])
    assert done.code == 0, done.err
    assert done.out.rstrip() == draw_text(schedules.gpipe(2, 2))


def test_in_a_notebook_it_displays_one_picture_with_the_text_for_those_who_cannot_show_it(
    displayed, capsys
):
    drawn = schedules.gpipe(2, 2), schedules.one_f_one_b(2, 2)
    show(*drawn)
    assert displayed == [
        {"text/html": draw_svg(*drawn), "text/plain": draw_text(*drawn)}
    ]
    assert capsys.readouterr().out == ""


def test_in_ipythons_terminal_it_prints_text(displayed, monkeypatch, capsys):
    # a shell without a kernel
    monkeypatch.setattr(
        sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace()
    )
    show(schedules.gpipe(2, 2))
    assert displayed == [] and capsys.readouterr().out.startswith("rank 0")


def test_with_ipython_loaded_by_a_library_it_prints_text(
    displayed, monkeypatch, capsys
):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    show(schedules.gpipe(2, 2))
    assert displayed == [] and capsys.readouterr().out.startswith("rank 0")


@pytest.mark.parametrize(("drawn", "error"), [((), ValueError), (("1f1b",), TypeError)])
def test_what_cannot_be_shown_is_refused_alike_in_notebook_and_terminal(
    drawn, error, request
):
    with pytest.raises(error):
        show(*drawn)
    request.getfixturevalue("displayed")
    with pytest.raises(error):
        show(*drawn)


@pytest.mark.parametrize(
    "drawn",
    [schedules.gpipe(2, 2), simulate(schedules.gpipe(2, 2))],
    ids=["schedule", "timeline"],
)
def test_schedules_and_timelines_show_themselves(drawn):
    assert (
        drawn._repr_html_() == draw_svg(drawn) == render.draw_svg(schedules.gpipe(2, 2))
    )


def test_a_schedule_that_cannot_run_shows_its_text_and_why():
    schedule = Schedule.from_text("1F0 0F0 0B0 1B0", name="<mine>")
    page = ElementTree.fromstring(schedule._repr_html_())
    assert page.tag == "pre"
    assert (
        page.text.startswith(str(schedule))
        and "1F0 comes before 0F0 (position 1), which it needs" in page.text
    )


class Odd(nn.Identity):
    """A layer whose name is markup."""

    def brief(self):
        return "<b>&odd</b>"


def test_a_pipeline_shows_its_table():
    model = nn.Sequential(nn.Linear(20, 60), Odd(), nn.Linear(60, 2))
    with init_process_group() as group:
        pipeline = Pipeline(model, group, loss=nn.MSELoss())
    table = ElementTree.fromstring(pipeline._repr_html_())
    rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
    assert table.find(".//b") is None and rows[2][1] == "<b>&odd</b>"
    assert rows[0] == ["layer", "", "stage", "rank", "parameters", "bytes"]
    assert rows[1] == ["0", "Linear(20, 60)", "0", "0", "1,260", "5,040"]
    assert [" ".join(filter(None, row)) for row in rows] == [
        " ".join(line.split()) for line in str(pipeline).splitlines()
    ]
