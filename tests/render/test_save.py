"""A drawing goes into a file, and the file's ending says which."""

from dataclasses import replace

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.errors import ScheduleError
from minipipe.render import check_ending, draw_html, draw_svg, draw_text, perfetto_trace, save
from minipipe.schedules.schedule import Schedule

BOTH = tuple(simulate(schedule, Costs(latency=0.5)) for schedule in (schedules.gpipe(2, 3), schedules.zb_v(2, 3)))
DRAW = {"svg": draw_svg, "html": draw_html, "json": perfetto_trace}


@pytest.mark.parametrize("ending", DRAW)
def test_what_is_in_the_file_is_what_would_be_drawn(ending, tmp_path):
    path = tmp_path / f"step.{ending}"
    assert save(path, *BOTH) == path
    assert path.read_text(encoding="utf-8") == DRAW[ending](*BOTH) != DRAW[ending](*reversed(BOTH))


def test_text_is_wider_in_a_file_than_in_a_terminal_and_ends_its_last_line(tmp_path):
    text = save(tmp_path / "step.txt", *BOTH).read_text(encoding="utf-8")
    assert text == draw_text(*BOTH, width=120) + "\n"


def test_a_path_may_be_text_a_schedule_is_drawn_and_an_older_file_replaced(tmp_path):
    path = tmp_path / "GPipe.one.SVG"
    path.write_text("x" * 10**6)
    assert save(str(path), schedules.gpipe(2, 3)) == path
    assert path.read_text(encoding="utf-8") == draw_svg(schedules.gpipe(2, 3))


@pytest.mark.parametrize("name", ["step.svg", "a/b.HTML", "step.1.json", "with space.Txt"])
def test_the_ending_is_the_last_one_in_small_letters(name):
    assert check_ending(name) == "." + name.rpartition(".")[2].lower()


@pytest.mark.parametrize(
    ("name", "ends"), [("step.png", ".png"), ("step.svg.gz", ".gz"), ("svg", "nothing"), ("a.svg/step", "nothing")]
)
def test_another_ending_is_refused_before_anything_is_drawn(name, ends, tmp_path):
    with pytest.raises(ValueError, match=rf"ends in {ends}; expected \.svg \(a picture\), \.html \(a player\)"):
        save(tmp_path / name, "not even a schedule")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("drawn", "error"),
    [
        ((), ValueError),
        (("1f1b",), TypeError),
        ((BOTH[0], replace(BOTH[1], unit="s")), ValueError),
        ((Schedule.from_text("0F0 0B0\n1B0 1F0"),), ScheduleError),
    ],
    ids=["nothing", "name", "units", "deadlock"],
)
def test_what_cannot_be_drawn_leaves_the_older_file_as_it_was(drawn, error, tmp_path):
    path = tmp_path / "step.svg"
    path.write_text("older")
    with pytest.raises(error):
        save(path, *drawn)
    assert path.read_text() == "older"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        save(tmp_path / "nowhere" / "step.svg", *BOTH)
