"""``minipipe compare``: its formats, its mistakes, and its ranks."""

import csv
import io
import json
import sys
from dataclasses import asdict, replace

import pytest

from tests.launch import needs_mpi, run
from tests.tuning.test_grids import FOUR, TINY, assert_as_promised, tiny


def options_of(task):
    return [f"--{name}={value}" for name, value in asdict(task).items()]


@pytest.fixture
def measured(monkeypatch):
    """Let the verb find what was measured before."""
    monkeypatch.setattr("minipipe.cli.compare.launcher_of_ranks", lambda: "mpirun")
    monkeypatch.setattr("minipipe.cli.compare.answer_of_ranks", lambda *_: tiny())


ASKED = ("compare", "--ranks", "2", *options_of(TINY), "--rounds", "1")


def is_progress(err):
    """Tell whether all that was said are lines about what is done meanwhile."""
    return all(line.startswith("minipipe: ") for line in err.splitlines())


def compared(num_ranks, task):
    command = [
        sys.executable,
        "-m",
        "minipipe",
        "compare",
        f"--ranks={num_ranks}",
        *options_of(task),
        "--rounds=1",
    ]
    done = run([*command, "--json"], limit=240)  # four ranks that share two cores
    assert done.code == 0 and is_progress(done.err)
    said = next(line for line in done.err.splitlines() if "busy" not in line)
    assert (
        said.startswith("minipipe: comparing ")
        and f" meshes on {num_ranks} ranks under mpirun, 1 round" in said
    )
    return json.loads(done.out)


@pytest.mark.slow
@needs_mpi
def test_it_starts_its_ranks_itself():
    task = replace(FOUR, heads=2)
    found = compared(4, task)
    assert list(found["left_out"]) == ["tensor 4"]
    assert found["where"].startswith("4 MPI ranks on ")
    assert_as_promised(found["grids"], task)


@pytest.mark.slow
def test_without_mpi_thread_ranks_run_and_it_says_what_their_times_are_worth(
    ask, monkeypatch
):
    monkeypatch.setattr("minipipe.cli.compare.launcher_of_ranks", lambda: None)
    status, out, err = ask(*ASKED)
    assert (
        status == 0
        and is_progress(err)
        and "2 thread ranks" in out.splitlines()[0]
        and "is the fastest" not in out
    )
    assert out.endswith("so their times do not show the fastest mesh; run under MPI.\n")


def test_ranks_of_a_job_start_no_others(ask, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    status, _, err = ask(*ASKED)
    assert status == 2 and "run it without mpirun, as minipipe compare --ranks 2" in err


def test_it_prints_tables_and_then_the_reasons(ask, measured):
    status, out, err = ask(*ASKED, "--hosts", "2")
    assert status == 0 and is_progress(err)
    tables = out.split("\n\n")
    first_words = [table.split()[0] for table in tables]
    sent = first_words.index("sent")  # a note on busy cores may stand above
    assert first_words[sent - 1 : sent + 2] == ["mesh", "sent", "held"]
    assert (
        " compiled " in tables[sent - 1]
        and "With compile=True a step takes " in tables[-1]
    )
    assert (
        "is the fastest (measured): " in tables[-1]
        and "simulated on 2 hosts" in tables[-1]
    )


def test_each_format_has_the_same_rows(ask, measured, tmp_path):
    for name, read in (
        ("json", json.loads),
        ("csv", lambda text: list(csv.DictReader(io.StringIO(text)))),
    ):
        printed = ask(*ASKED, "--format", name)[1]
        assert ask(*ASKED, "-o", tmp_path / f"found.{name}")[1].startswith(
            f"wrote {tmp_path}/found.{name}: "
        )
        assert (tmp_path / f"found.{name}").read_text() == printed
        rows = read(printed)
        assert len(rows["grids"] if name == "json" else rows) == (
            4 if name == "json" else 8
        )
    ask(*ASKED, "-o", tmp_path / "found.svg")
    assert (tmp_path / "found.svg").read_text().startswith("<svg")
    assert json.loads(ask(*ASKED, "--json")[1])["grids"] == tiny()


def test_a_loss_that_differs_is_the_answer_no(ask, monkeypatch, measured):
    wrong = [
        {**row, "losses": [1.0 + number, 1.0]} for number, row in enumerate(tiny())
    ]
    monkeypatch.setattr("minipipe.cli.compare.answer_of_ranks", lambda *_: wrong)
    status, out, _ = ask(*ASKED)
    assert (
        status == 1
        and (
            "the losses of fully sharded 2, tensor 2, pipeline 2 differ from the "
            "losses of data 2"
        )
        in out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "0"], "--ranks is 0; expected a whole number, 1 to 4096."),
        (
            ["--ranks", "7"],
            (
                "No mesh of 7 ranks fits this model. data 7: microbatches are 16, "
                "not a multiple of 7; ful"
            ),
        ),
        (["--heads", "3"], "--heads is 3; expected a divisor of --width, 128."),
        (
            ["--microbatches", "5"],
            "--microbatches is 5; expected a divisor of --batch, 32.",
        ),
        (
            ["--layers", "-1"],
            "--layers is -1; expected a whole number, 1 to 1000000000.",
        ),
        (["--rounds", "0"], "--rounds is 0; expected a whole number, 1 to 1000000000."),
        (["--hosts", "3"], "--hosts is 3; expected a divisor of the 4 ranks."),
        (
            ["--links", "fast"],
            (
                "--links is 'fast'; expected seconds and bytes per second, such as "
                "5e-5,1.25e9."
            ),
        ),
        (["--links", "0,0"], "--links is '0,0'; expected seconds"),
        (
            ["--layers", "1000000000"],
            "the meshes of 4 ranks need at least 75089 TiB, and this machine has ",
        ),
        (
            ["--ranks", "4096", "--batch", "4096", "--microbatches", "4096"],
            "the meshes of 4096 ranks need at least ",
        ),
        (["--length", "1000000000"], ", and this machine has "),
        (["--symbols", "1000000000"], ", and this machine has "),
        (["--batch", "1000000000"], ", and this machine has "),
        (
            ["--rounds", "1000000000"],
            "--rounds 1000000000, the comparison takes about ",
        ),
        (["--width", "9" * 4000], "expected a whole number, 1 to 1000000000."),
        (
            ["-o", "nowhere/x.svg"],
            "'nowhere/x.svg' cannot be written: its folder does not exist.",
        ),
        (["-o", "x.png"], "'x.png' ends in .png; expected .txt, .csv, .json or .svg."),
    ],
)
def test_what_is_wrong_exits_2_and_says_what_would_be_right(words, said, ask):
    status, out, err = ask("compare", *words)
    assert (status, out) == (2, "") and said in err


def test_an_unknown_option_is_refused(ask, capsys):
    with pytest.raises(SystemExit) as refused:
        ask("compare", "--model", "gpt")
    assert (
        refused.value.code == 2
        and "unrecognized arguments: --model gpt" in capsys.readouterr().err
    )
