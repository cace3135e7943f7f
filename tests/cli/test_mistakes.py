"""Commands that are wrong: exit status 2, and one sentence that says what would be
right.
"""

import json
import shutil
import subprocess
import sys

import pytest

from minipipe import Schedule, schedules
from minipipe.cli.main import main
from minipipe.render import draw_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from tests.launch import ROOT, run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["show", "1f2b"],
            (
                "There is neither a schedule nor a file '1f2b'; did you mean 1f1b? "
                "Expected one of sequential"
            ),
        ),
        (["show", "nowhere.csv"], "There is no file 'nowhere.csv'; expected"),
        (
            ["step", "1f1b", "--from", "5", "--to", "2"],
            "--from is 5 and --to is 2; expected --from to be before --to",
        ),
        (["show", "."], "neither a schedule nor a file '.'"),
        (
            ["show", "gpipe", "--ranks", "0"],
            "--ranks is 0; expected a whole number, at least 1",
        ),
        (["schedules", "--ranks", "0"], "--ranks is 0"),
        (
            ["show", "zb-v", "--chunks", "3"],
            "chunks_per_rank is 3; zb-v is V-shaped and has exactly 2 chunks",
        ),
        (
            ["show", "gpipe", "--group", "4"],
            "gpipe takes no microbatch_group_size; leave it out.",
        ),
        (
            ["show", "1f1b", "--slices", "2"],
            "1f1b takes no num_slices; leave it out. Schedules that take it: seq1f1b.",
        ),
        (
            ["simulate", "seq1f1b", "--costs", "slice_work=0:0"],
            "expected numbers, at least 0 and not all 0, such as",
        ),
        (
            ["show", "zb-v", "--joined"],
            (
                "zb-v takes no joined; leave it out. Schedules that take it: "
                "dualpipe-v, dualpipe."
            ),
        ),
        (
            ["show", "gpipe", "1f1b", "--format", "csv"],
            "--format csv writes one schedule; 2 were given",
        ),
        (
            ["show", "gpipe", "-o", "a.doc"],
            (
                "'a.doc' ends in .doc; expected .csv, .txt, .svg, .pdf, .png, .html "
                "or .json, or a"
            ),
        ),
        (["show", "gpipe", "-o", "no-ending"], "'no-ending' has no ending; expected"),
        (
            ["show", "gpipe", "--title", "mine"],
            "--title has no effect with --format text",
        ),
        (
            ["show", "gpipe", "--format", "png"],
            "--format png needs a file to write to: -o FILE",
        ),
        (["show", "gpipe", "--width", "10"], "--width is 10; expected at least 40"),
        (
            ["show", "gpipe", "--json", "--format", "csv"],
            "--json and --format csv are different formats; choose one",
        ),
        (
            ["show", "gpipe", "--messages"],
            "--messages has no effect with --format text; expected --format rows",
        ),
        (["show", "zb_v"], "did you mean zb-v?"),
        (
            ["show", "gpipe", "-o", "no/such/folder.txt"],
            "'no/such/folder.txt' cannot be written: No such file",
        ),
        (
            ["show", "gpipe", "--format", "svg", "-o", "."],
            "'.' cannot be written: Is a directory",
        ),
        (
            ["show", "gpipe", "--json", "--format", "svg"],
            "--json and --format svg are different formats; choose one",
        ),
        (
            ["show", "gpipe", "--costs", "F=1e13", "--format", "perfetto"],
            "a trace may last at most 1.13e+12; choose another",
        ),
        (
            ["simulate", "gpipe", "--costs", "F=1:2"],
            "forward has 2 values for 4 stages",
        ),
        (
            ["simulate", "gpipe", "--costs", "costs.txt"],
            "a file of costs, whose name ends in .json",
        ),
        (
            ["simulate", "gpipe", "--costs", "speed=9"],
            "'speed=9' is not a cost; expected one of F, I, W, latency",
        ),
        (
            ["check", "gpipe", "--memory-limit", "0"],
            "memory_limit is 0; expected an amount above 0",
        ),
    ],
)
def test_a_question_that_is_wrong_exits_2_and_says_what_would_be_right(
    arguments, words, ask
):
    status, out, err = ask(*arguments)
    assert (status, out) == (2, "") or (
        "--json" in arguments and json.loads(out)["error"] == "value"
    )
    assert words in err and err.startswith("minipipe: ") and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["simulate", "gpipe", "--ranks", "x"],
            "argument --ranks: cannot read 'x'; expected a whole number, such as 4",
        ),
        (
            ["search", "--memory-limit", "x"],
            "--memory-limit: cannot read 'x'; expected a number, such as 0.5",
        ),
        (
            ["compare", "--rounds", "1.5"],
            "argument --rounds: cannot read '1.5'; expected a whole number, such as 4",
        ),
    ],
)
def test_what_is_no_number_is_refused_with_an_example(arguments, words, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2 and words in capsys.readouterr().err


def test_sizes_that_contradict_a_file_are_refused(ask, file):
    path = file(schedules.gpipe(2, 3).to_csv())
    for option, words in (
        ("--ranks", "--ranks is 4, but"),
        ("--chunks", "has 1; leave --chunks out"),
    ):
        status, _, err = ask("show", path, option, 4)
        assert status == 2 and words in err
    assert ask("show", path, "--ranks", 2, "--microbatches", 3, "--chunks", 1)[0] == 0


def test_what_is_no_schedule_at_all_is_refused_with_line_and_cell(ask, file, tmp_path):
    status, _, err = ask("check", file("0F0,hello\n"))
    assert status == 1 and "Line 1, cell 2: 'hello' is not an action" in err
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    status, _, err = ask("check", tmp_path / "picture.png")
    assert status == 2 and "cannot be read" in err


def test_an_unknown_verb_or_option_is_bad_usage():
    for arguments in (["frobnicate"], [], ["show"], ["show", "gpipe", "--rank", "3"]):
        done = run([sys.executable, "-m", "minipipe", *arguments])
        assert (
            done.code == 2
            and "usage: minipipe" in done.err
            and "Traceback" not in done.err
        )


# -- as a program ----------------------------------------------------------------------


def test_as_a_module_it_exits_with_its_status():
    done = run([sys.executable, "-m", "minipipe", "simulate", "1f1b", "--json"])
    assert done.code == 0 and json.loads(done.out)["makespan"] == 33
    assert run([sys.executable, "-m", "minipipe", "show", "1f2b"]).code == 2


@pytest.mark.skipif(
    shutil.which("minipipe") is None,
    reason="minipipe is not installed: pip install -e .",
)
def test_installed_it_is_a_command():
    done = run(["minipipe", "check", "zb-v"])
    assert done.code == 0 and done.out.startswith("legal: zb-v")


@pytest.mark.slow
def test_a_pipe_is_as_good_as_a_file_and_a_narrow_terminal_as_a_wide_one():
    minipipe = f"{sys.executable} -m minipipe"
    done = run(["bash", "-c", f"{minipipe} check <({minipipe} show 1f1b --format csv)"])
    assert done.code == 0 and done.out.startswith("legal: ")
    assert (
        run([sys.executable, "-m", "minipipe", "show", "1f1b"], COLUMNS="30").code == 0
    )


def test_costs_that_are_not_needed_are_read_all_the_same(ask):
    assert ask("show", "gpipe", "--format", "csv", "--costs", "nonsense=3")[0] == 2


def test_costs_of_another_number_of_ranks_are_refused(ask):
    status, _, err = ask("schedules", "--costs", "F=1:2:1")
    assert status == 2 and "forward has 3 values for 4 stages" in err


def test_a_colon_in_a_files_name_is_no_harm(ask, tmp_path):
    path = tmp_path / "a: b.csv"
    path.write_text("0F0,0B0\n")
    assert ask("check", path)[1].startswith(
        "legal: a: b, 1 rank, 1 stage, 1 microbatch; makespan 3 units"
    )


def test_a_terminal_without_the_signs_shows_others():
    done = run(
        [sys.executable, "-m", "minipipe", "show", "1f1b"], PYTHONIOENCODING="ascii"
    )
    assert done.code == 0 and done.out.startswith("rank 0 F0F1F2F3????")


def test_a_reader_that_stops_after_the_first_line_is_no_error():
    command = (
        f"{sys.executable} -m minipipe show gpipe --microbatches 3000 --format csv | "
        "head -c 10"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0F0,0F1,0F", "")
    closed = f"{sys.executable} -m minipipe check no-such-file --json | true"
    done = subprocess.run(
        ["bash", "-c", closed], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "Traceback" not in done.stderr


# -- what mutants survived -------------------------------------------------------------


def test_a_file_that_is_not_there_is_neither_legal_nor_illegal(ask):
    status, out, _ = ask("check", "nowhere.csv", "--json")
    verdict = json.loads(out)
    assert status == 2 and "legal" not in verdict and verdict["error"] == "name"


def test_the_options_of_show_are_not_ignored(ask):
    _, out, _ = ask(
        "show", "gpipe", "--ranks", 2, "--microbatches", 1, "--messages", "--json"
    )
    assert json.loads(out)["actions"][0] == ["0F0", "0SEND_F0", "0RECV_B0", "0B0"]
    _, out, _ = ask("show", "1f1b", "--width", 60, "--costs", "F=2,latency=1")
    assert (
        out
        == draw_text(
            simulate(schedules.one_f_one_b(4, 8), Costs(2, latency=1)), width=60
        )
        + "\n"
    )


def test_the_table_is_timed_with_the_costs(ask):
    entries = {
        entry["schedule"]: entry
        for entry in json.loads(ask("schedules", "--costs", "latency=1", "--json")[1])
    }
    assert (
        entries["1f1b"]["makespan"]
        == simulate(schedules.one_f_one_b(4, 8), Costs(latency=1)).makespan
    )


def test_a_number_of_microbatches_that_contradicts_a_file_is_refused(ask, file):
    path = file(schedules.gpipe(2, 3).to_csv())
    for option, wrong in (
        ("--ranks", 1),
        ("--ranks", 4),
        ("--microbatches", 1),
        ("--microbatches", 4),
    ):
        assert ask("show", path, option, wrong)[0] == 2


def test_the_figures_for_machines_are_those_of_the_file(ask, file):
    found = json.loads(ask("simulate", file("0F0,0F1,0B1,0B0\n"), "--json")[1])
    assert found["is_reproducible"] is False and found["bubble_over_ideal"] == 0
    assert (
        json.loads(ask("check", "zb-h1", "--json")[1]).items()
        >= {"legal": True, "makespan": 27}.items()
    )
    assert (
        "4 ranks, 4 stages, 1 microbatch;"
        in ask("check", "gpipe", "--microbatches", 1)[1]
    )


def test_each_column_of_simulate_stands_under_its_name(ask):
    _, out, _ = ask(
        "simulate",
        "eager-1f1b",
        "--ranks",
        2,
        "--microbatches",
        2,
        "--costs",
        "F=2,latency=1,activation=7",
    )
    lines = out.splitlines()
    names = [
        "rank",
        "busy",
        "warm-up",
        "waiting",
        "drain",
        "peak",
        "activations",
        "peak",
        "memory",
    ]
    assert lines[2].split() == names
    timeline = simulate(schedules.eager_1f1b(2, 2), Costs(2, latency=1, activation=7))
    for rank in (0, 1):
        idle = [
            sum(s.end - s.start for s in timeline.idle[rank] if s.cause == cause)
            for cause in names[2:5]
        ]
        held = [timeline.peak_activations[rank], timeline.peak_memory[rank]]
        assert [float(cell) for cell in lines[3 + rank].split()] == [
            rank,
            timeline.busy(rank),
            *idle,
            *held,
        ]
    assert (
        "critical path: "
        f"{' '.join(str(span.action) for _, span in timeline.critical_path)}\n"
    ) in out


def test_a_long_critical_path_is_shown_by_its_ends_and_each_bubble_has_its_name(ask):
    _, out, _ = ask("simulate", "zb-v")
    assert (
        "bubble 5.9 % of all time, 6.2 % of the ideal time, 0.0 % of the longest "
        "span of a rank"
    ) in out
    whole = [
        str(span.action) for _, span in simulate(schedules.zb_v(4, 8)).critical_path
    ]
    assert f"critical path: {' '.join([*whole[:6], '…', *whole[-6:]])}\n" in out


@pytest.mark.parametrize("verb", ["show", "simulate"])
def test_an_illegal_file_is_neither_drawn_nor_timed(ask, file, verb):
    status, out, err = ask(verb, file("0F0,0F1,0B0\n"))
    assert (status, out) == (1, "") and "[missing] 0B1" in err


@pytest.mark.parametrize(
    "words, hint",
    [
        (
            ["1f1b", "--width", "300", "-o", "a.html"],
            "--width has no effect with --format html",
        ),
        (
            ["1f1b", "--width", "300", "--format", "csv"],
            "--width has no effect with --format csv",
        ),
        (["1f1b", "--width", "300", "--json"], "--width has no effect with --json"),
    ],
)
def test_a_width_that_would_have_no_effect_is_refused(ask, words, hint, tmp_path):
    """The story: it was accepted and ignored."""
    words = [str(tmp_path / word) if word.startswith("a.") else word for word in words]
    status, _, err = ask("show", *words)
    assert status == 2 and hint in err.replace(f"{tmp_path}/", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("--group", 5), ("--joined",)])
def test_an_option_of_builders_is_refused_for_a_file(ask, file, option):
    status, _, err = ask("show", file("0F0 0B0"), *option)
    assert status == 2 and f"{option[0]} applies to named schedules only" in err


def test_joined_pairs_are_those_of_the_builder(ask):
    status, out, _ = ask("show", "dualpipe", "--joined", "--format", "csv")
    assert status == 0 and Schedule.from_csv(out, "dualpipe") == schedules.dualpipe(
        4, 8, joined=True
    )


@pytest.mark.parametrize("limit", ["-1", "0", "nan"])
def test_a_memory_limit_that_is_none_is_refused(ask, limit):
    status, _, err = ask("schedules", "--memory-limit", limit)
    assert status == 2 and "expected a number of microbatches, above 0" in err
