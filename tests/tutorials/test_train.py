"""tutorials/train.py, as a student runs it."""

import json
import sys

import pytest

from minipipe import schedules
from tests.launch import mpirun, needs_mpi, run

TRAIN = "tutorials/train.py"
SHORT = ("--epochs", "2", "--hidden", "32", "--json")


def result(done):
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


@pytest.fixture(scope="module")
def alone():
    return result(run([sys.executable, TRAIN, *SHORT]))


def test_on_one_rank_it_trains(alone):
    keys = {"loss", "accuracy", "seconds", "step_ms", "bubble_fraction", "schedule", "ranks"}
    assert keys <= alone.keys()
    assert alone["ranks"] == 1 and alone["schedule"] == "1f1b" and alone["accuracy"] > 0.5


@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "schedule"), [(4, "1f1b"), (3, "gpipe"), (2, "sequential"), (8, "interleaved-1f1b")]
)
def test_any_ranks_and_schedule_end_with_the_same_loss(num_ranks, schedule, alone):
    many = result(mpirun(num_ranks, TRAIN, *SHORT, "--schedule", schedule))
    assert (many["ranks"], many["schedule"]) == (num_ranks, schedule)
    assert many["loss"] == alone["loss"] and many["accuracy"] == alone["accuracy"]


@needs_mpi
def test_a_schedule_from_a_file_runs_as_written(tmp_path, alone):
    path = tmp_path / "mine.csv"
    path.write_text(schedules.gpipe(2, 16).to_csv())
    done = mpirun(2, TRAIN, *SHORT, "--schedule", path)
    assert result(done)["schedule"] == "mine" and result(done)["loss"] == alone["loss"]


@needs_mpi
def test_it_shows_progress_the_result_and_a_timeline():
    done = mpirun(2, TRAIN, "--epochs", "2", "--hidden", "16")
    assert done.code == 0 and done.err == ""
    for words in ("epoch   2 of 2, loss", "test loss ", "test accuracy", "bubble: measured", "predicted"):
        assert words in done.out, words
    rows = [line for line in done.out.splitlines() if line.startswith("rank ")]
    assert [row[:6] for row in rows] == ["rank 0", "rank 1"] * (len(rows) // 2)
    assert 4 <= len(rows) <= 16 and all(len(row) <= 80 for row in rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "0"], "--layers is 0; expected at least 1"),
        (["--schedule", "1f2b"], "There is no schedule '1f2b'; did you mean 1f1b? expected one of sequential, gpipe"),
        (["--schedule", "nowhere.csv"], "The schedule 'nowhere.csv' cannot be read: No such file"),
        (["--microbatches", "100"], "samples cannot make 100 microbatches"),
        (["--learning-rate", "-1"], "--learning-rate is -1.0; expected a finite number, more than 0"),
        (["--seed", "-1"], "--seed is -1; expected at least 0"),
        (["--learning-rate", "1e9", "--epochs", "1"], "Try a smaller --learning-rate"),
        (["--epochs", "many"], "invalid int value: 'many'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(options, words):
    done = run([sys.executable, TRAIN, *options])
    assert done.code != 0 and words in done.err
    assert "Traceback" not in done.err


@needs_mpi
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "1"], "2 layers cannot make 4 stages"),
        (["--epochs", "0"], "--epochs is 0; expected at least 1"),
        (["--schedule", "1f2b"], "There is no schedule '1f2b'"),
    ],
)
def test_on_ranks_a_mistake_is_said_once(options, words):
    done = mpirun(4, TRAIN, *options)
    assert done.code not in (0, None)
    assert done.err.count(words) == 1 and "Traceback" not in done.err


@needs_mpi
def test_help_is_printed_once():
    done = mpirun(3, TRAIN, "--help")
    assert done.code == 0 and done.out.count("usage:") == 1
