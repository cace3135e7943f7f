"""``minipipe show``: several schedules in one drawing, the options of pictures, and
files of every ending.
"""

import json
import re

import pytest

from minipipe import Costs, render, schedules, simulate
from minipipe.cli import main
from minipipe.render.svg.tradeoff import draw_tradeoff
from minipipe.schedules.simulation.comparison import tradeoff

THREE = ("gpipe", "1f1b", "zb-h1")


@pytest.fixture
def ask(capsys):
    def ask(*arguments):
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as error:
            status = error.code
        done = capsys.readouterr()
        return status, done.out, done.err

    return ask


def test_several_schedules_are_drawn_above_each_other_on_one_axis(ask):
    timelines = [
        simulate(schedules.build(name, 4, 8), Costs(latency=0.5)) for name in THREE
    ]
    status, out, _ = ask("show", *THREE, "--costs", "latency=0.5", "--width", 100)
    assert (status, out) == (0, render.draw_text(*timelines, width=100) + "\n")
    picture = ask("show", *THREE, "--costs", "latency=0.5", "--format", "svg")[1]
    assert picture == render.draw_svg(*timelines)


def test_named_schedules_beside_a_file_have_its_sizes(ask, tmp_path):
    """The story: two ranks and four microbatches were drawn above four and eight, and
    compared by eye.
    """
    path = tmp_path / "mine.txt"
    path.write_text("F0 F1 F2 B0 B1 B2\nF0 B0 F1 B1 F2 B2")
    drawn = ask("show", path, "1f1b", "--width", 100)[1]
    assert (
        drawn
        == render.draw_text(
            simulate(schedules.Schedule.from_file(path)),
            simulate(schedules.one_f_one_b(2, 3)),
            width=100,
        )
        + "\n"
    )
    assert "1f1b, predicted: makespan 12 units" in drawn


def test_an_illegal_schedule_among_several_is_refused(ask, tmp_path):
    (tmp_path / "mine.txt").write_text("0B0 0F0")
    status, out, err = ask("show", "gpipe", tmp_path / "mine.txt")
    assert (status, out) == (1, "") and "[order]" in err


def test_title_legend_font_size_and_width_reach_the_picture(ask):
    plain = ask("show", "zb-v", "--format", "svg")[1]
    options = ("--title", "A <V>", "--no-legend", "--font-size", 16, "--width", 1200)
    status, picture, _ = ask("show", "zb-v", "--format", "svg", *options)
    legend = "darker: a later stage of the same rank"
    assert (
        status == 0
        and "A &lt;V&gt;" in picture
        and legend not in picture
        and legend in plain
    )
    assert 'viewBox="0 0 1200 ' in picture and 'viewBox="0 0 960 ' in plain
    assert picture == render.draw_svg(
        simulate(schedules.zb_v(4, 8)),
        title="A <V>",
        legend=False,
        font_size=16,
        width=1200,
    )


@pytest.mark.parametrize(("ending", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_pdf_and_png_are_written_as_such(ending, magic, ask, tmp_path):
    """The story: `show 1f1b -o x.pdf` wrote text into the file, and said that all was
    well.
    """
    pytest.importorskip(
        "cairosvg",
        reason="needs CairoSVG, and with it Cairo",
        exc_type=(ImportError, OSError),
    )
    path = tmp_path / f"mine.{ending}"
    assert ask("show", *THREE, "-o", path) == (0, f"wrote {path}\n", "")
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize("ending", ["doc", "jpg", "svg.gz"])
def test_another_ending_is_refused_and_nothing_is_written(ending, ask, tmp_path):
    path = tmp_path / f"mine.{ending}"
    status, out, err = ask("show", "1f1b", "-o", path)
    assert (status, out) == (
        2,
        "",
    ) and "expected .csv, .txt, .svg, .pdf, .png, .html or .json, or a --format" in err
    assert not path.exists()


@pytest.mark.parametrize(
    "verb",
    [
        "show",
        "check",
        "simulate",
        "step",
        "schedules",
        "sweep",
        "grade",
        "coursework",
        "info",
    ],
)
def test_a_wrong_option_prints_the_usage_of_its_verb(verb, ask):
    """The story: it printed the usage of minipipe, which says nothing about the
    verb.
    """
    status, out, err = ask(
        verb,
        *(["x"] if verb not in ("schedules", "sweep", "info") else []),
        "--no-such-option",
    )
    assert (status, out) == (2, "")
    assert (
        err.startswith(f"usage: minipipe {verb} ")
        and "unrecognized arguments: --no-such-option" in err
    )


def test_json_of_several_is_a_list(ask):
    one, several = (
        json.loads(ask("show", *names, "--json")[1]) for names in (THREE[:1], THREE)
    )
    assert several[0] == one and [entry["schedule"] for entry in several] == list(THREE)


# -- bubble over peak memory -----------------------------------------------------------


def test_a_plot_has_a_panel_for_each_number_of_microbatches(ask, tmp_path):
    path, costs = tmp_path / "pareto.svg", Costs(latency=0.5)
    answer = ask(
        "schedules",
        "--plot",
        path,
        "--ranks",
        3,
        "--microbatches",
        "4,8",
        "--costs",
        "latency=0.5",
    )
    assert answer == (0, f"wrote {path}\n", "")
    assert path.read_text() == draw_tradeoff(
        tradeoff(3, 4, costs), tradeoff(3, 8, costs), notes=["latency=0.5"]
    )
    assert json.loads(ask("schedules", "--plot", path, "--json")[1]) == {
        "wrote": str(path)
    }
    assert path.read_text() == draw_tradeoff(
        tradeoff(4, 8), notes=["F, I and W one unit each"]
    )


def test_the_limits_of_a_search_for_a_plot_are_multiples_of_what_the_fullest_rank_holds_of_a_microbatch(
    ask, tmp_path, monkeypatch
):
    limits = {}
    keep = lambda workload, seconds: limits.setdefault(workload.placement, []).append(
        max(workload.memory_limit)
    )
    monkeypatch.setattr("minipipe.tuning.weighing.searched_schedule", keep)
    options = (
        "--ranks",
        2,
        "--microbatches",
        4,
        "--costs",
        "activation=1:3",
        "--search",
        1,
    )
    assert ask("schedules", "--plot", tmp_path / "plot.svg", *options)[0] == 0
    assert limits == {(0, 1): [3, 6], (0, 1, 1, 0): [3]}


def test_a_plot_with_a_search_has_more_points_and_no_worse_front(ask, tmp_path):
    path = tmp_path / "pareto.svg"
    assert (
        ask(
            "schedules",
            "--plot",
            path,
            "--ranks",
            2,
            "--microbatches",
            4,
            "--search",
            0.5,
        )[0]
        == 0
    )
    found = re.findall(
        r"<title>found: bubble (.+?) %, peak (.+?) microbatch.*?search</title>",
        path.read_text(),
    )
    assert len(found) == 4  # straight and over a V, with memory for one and for two
    for choice in tradeoff(2, 4).choices:
        assert any(float(bubble) <= 100 * choice.bubble + 0.05 for bubble, _ in found)


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_a_plot_is_written_as_png_and_pdf(ending, ask, tmp_path):
    pytest.importorskip(
        "cairosvg",
        reason="needs CairoSVG, and with it Cairo",
        exc_type=(ImportError, OSError),
    )
    path = tmp_path / f"pareto.{ending}"
    assert ask("schedules", "--plot", path)[0] == 0
    assert path.read_bytes().startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[ending])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--plot", "a.html"],
            "'a.html' ends in .html; expected .svg (a picture), .png or .pdf",
        ),
        (["--plot", "no-ending"], "has no ending; expected .svg"),
        (
            ["--plot", "a.svg", "--memory-limit", "4"],
            "--memory-limit is for the table; a picture has all limits",
        ),
        (
            ["--plot", "a.svg", "--search", "0"],
            "--search is 0.0; expected seconds, above 0",
        ),
        (["--plot", "a.svg", "--ranks", "1"], "num_ranks is 1; expected at least 2"),
        (["--plot", "no/such/folder.svg"], "'no/such/folder.svg' cannot be written"),
        (["--search", "3"], "--search is for a picture, --plot FILE"),
        (
            ["--microbatches", "4,8"],
            "a list of --microbatches is for a picture, --plot FILE; `minipipe sweep`",
        ),
    ],
)
def test_a_plot_that_is_wrong_is_refused(arguments, words, ask):
    status, out, err = ask("schedules", *arguments)
    assert (status, out) == (2, "") and words in err
