"""A drawing goes into a file, and the ending of its name selects the format."""

import builtins
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from minipipe import Costs, schedules, simulate
from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import FileError, ScheduleError
from minipipe.render import (
    check_ending,
    draw_html,
    draw_svg,
    draw_text,
    perfetto_trace,
    save,
)
from minipipe.render.files import ENDINGS, drawing
from minipipe.render.palette import FILL
from tests.launch import run
from tests.render.converters import cairosvg, pdf_pixels, png_pixels

BOTH = tuple(
    simulate(schedule, Costs(latency=0.5))
    for schedule in (schedules.gpipe(2, 3), schedules.zb_v(2, 3))
)
DRAW = {"svg": draw_svg, "html": draw_html, "json": perfetto_trace}


@pytest.mark.parametrize("ending", DRAW)
def test_what_is_in_the_file_is_what_would_be_drawn(ending, tmp_path):
    path = tmp_path / f"step.{ending}"
    assert save(path, *BOTH) == path
    assert (
        path.read_text(encoding="utf-8")
        == DRAW[ending](*BOTH)
        != DRAW[ending](*reversed(BOTH))
    )


def test_text_is_wider_in_a_file_than_in_a_terminal_and_ends_its_last_line(tmp_path):
    text = save(tmp_path / "step.txt", *BOTH).read_text(encoding="utf-8")
    assert text == draw_text(*BOTH, width=120) + "\n"


def test_a_path_may_be_text_a_schedule_is_drawn_and_an_older_file_replaced(tmp_path):
    path = tmp_path / "GPipe.one.SVG"
    path.write_text("x" * 10**6)
    assert save(str(path), schedules.gpipe(2, 3)) == path
    assert path.read_text(encoding="utf-8") == draw_svg(schedules.gpipe(2, 3))


@pytest.mark.parametrize(
    "name", ["step.svg", "a/b.HTML", "step.1.json", "with space.Txt"]
)
def test_the_ending_is_the_last_one_in_small_letters(name):
    assert check_ending(name) == "." + name.rpartition(".")[2].lower()


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("step.gif", "ends in .gif"),
        ("step.svg.gz", "ends in .gz"),
        ("svg", "has no ending"),
        ("a.svg/step", "has no ending"),
    ],
)
def test_another_ending_is_refused_before_anything_is_drawn(name, ending, tmp_path):
    with pytest.raises(
        ValueError,
        match=rf"{ending}; expected \.svg \(a picture\), \.html \(a player\)",
    ):
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
    with pytest.raises(
        FileError, match=r"nowhere/step.svg' cannot be written: No such file"
    ):
        save(tmp_path / "nowhere" / "step.svg", *BOTH)


# -- title and notes -------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".svg", ".html", ".json", ".txt"])
def test_every_format_carries_title_and_notes(ending, tmp_path):
    facts = {"title": "A step", "notes": ["measured in May", "on 2 cores"]}
    text = save(tmp_path / f"step{ending}", *BOTH, **facts).read_text(encoding="utf-8")
    assert text == drawing(ending, *BOTH, **facts)
    places = [text.index(line) for line in (facts["title"], *facts["notes"])]
    assert places == sorted(places)
    if ending == ".json":
        about = json.loads(text)["otherData"]
        assert {name: about[name] for name in facts} == facts
        assert "title" not in json.loads(drawing(ending, *BOTH))["otherData"]


def test_a_picture_takes_the_options_of_draw_svg_and_no_other_format_does(tmp_path):
    options = {
        "messages": True,
        "legend": False,
        "font_size": 9,
        "width": 500,
        "memory": False,
    }
    assert save(tmp_path / "a.svg", *BOTH, **options).read_text(
        encoding="utf-8"
    ) == draw_svg(*BOTH, **options)
    with pytest.raises(TypeError, match="font_size"):
        save(tmp_path / "a.txt", *BOTH, font_size=9)


@pytest.mark.parametrize("ending", [".svg", ".html", ".json", ".txt"])
def test_one_text_as_notes_is_refused_by_every_format(ending):
    with pytest.raises(
        TypeError, match=r"notes is the text 'in May'; expected a sequence of lines"
    ):
        drawing(ending, *BOTH, notes="in May")


def test_an_ending_without_a_format_has_no_drawing():
    with pytest.raises(
        ValueError, match=r"The ending is '\.gif'; expected '\.svg', '\.html'"
    ):
        drawing(".gif", *BOTH)


# -- PNG and PDF -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "pixels"), [(".png", png_pixels), (".pdf", pdf_pixels)]
)
def test_a_converted_picture_shows_the_boxes(ending, pixels, tmp_path):
    cairosvg()
    content = save(
        tmp_path / f"step{ending}", *BOTH, font_size=14, width=700
    ).read_bytes()
    # a PDF holds its date
    assert (
        content == drawing(ending, *BOTH, font_size=14, width=700) or ending == ".pdf"
    )
    image = pixels(content).astype(int)
    assert abs(image.shape[1] - 1400) <= 2
    for kind in (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT):
        colour = [int(FILL[kind].box[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(image - colour).max(axis=-1) <= 6).mean() > 0.01, kind


@pytest.mark.parametrize("ending", [".png", ".pdf"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ImportError("no module"),
            (
                r"needs CairoSVG, which is not installed; run `pip install "
                r"cairosvg`, or write \.svg"
            ),
        ),
        (
            OSError("no library"),
            (
                r"needs the library Cairo, which is not installed; run `apt-get "
                r"install libcairo2`, or"
            ),
        ),
    ],
)
def test_without_its_converter_a_picture_is_refused_in_one_sentence(
    ending, error, words, tmp_path, monkeypatch
):
    importing = builtins.__import__

    def imports(name, *rest):
        if name == "cairosvg":
            raise error
        return importing(name, *rest)

    monkeypatch.delitem(sys.modules, "cairosvg", raising=False)
    monkeypatch.setattr(builtins, "__import__", imports)
    path = tmp_path / f"step{ending}"
    for refuse in (check_ending, lambda path: save(path, *BOTH)):
        with pytest.raises(ValueError, match=rf"step{ending}' {words}"):
            refuse(path)
    with pytest.raises(ValueError, match=rf"^'{ending}' {words}"):
        drawing(ending, *BOTH)
    assert list(tmp_path.iterdir()) == []


def test_no_drawing_imports_the_converter_without_need():
    assert set(ENDINGS) == {".svg", ".html", ".json", ".txt", ".png", ".pdf"}
    program = (
        "import sys, minipipe.render as r, minipipe.schedules as s; "
        "r.draw_svg(s.gpipe(1, 1)); r.check_ending('a.svg')"
    )
    done = run(
        [sys.executable, "-c", f"{program}; assert 'cairosvg' not in sys.modules"]
    )
    assert done.code == 0, done.err
