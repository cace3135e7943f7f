"""tutorials/train.py, as a student runs it."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from minipipe import schedules
from tests.launch import mpirun, needs_mpi, run, slowly

TRAIN = "tutorials/train.py"
SHORT = ("--epochs", "2", "--hidden", "32", "--json")


def result(done):
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


@pytest.fixture(scope="module")
def alone():
    return result(run([sys.executable, TRAIN, *SHORT]))


def test_on_one_rank_it_trains(alone):
    keys = {
        "loss",
        "accuracy",
        "seconds",
        "step_ms",
        "bubble_fraction",
        "schedule",
        "ranks",
    }
    assert keys <= alone.keys()
    assert (
        alone["ranks"] == 1 and alone["schedule"] == "1f1b" and alone["accuracy"] > 0.5
    )


@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "schedule"),
    [slowly(8, "interleaved-1f1b")],  # others: tests/slow/same_loss_everywhere.py
)
def test_any_ranks_and_schedule_end_with_the_same_loss(num_ranks, schedule, alone):
    many = result(mpirun(num_ranks, TRAIN, *SHORT, "--schedule", schedule))
    assert (many["ranks"], many["schedule"]) == (num_ranks, schedule)
    assert many["loss"] == alone["loss"] and many["accuracy"] == alone["accuracy"]


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "schedule"), [(1, "1f1b"), slowly(2, "1f1b"), slowly(4, "zb-v")]
)
def test_compiled_steps_end_with_the_same_loss(num_ranks, schedule, alone):
    launch = (
        (lambda _, *command: run([sys.executable, *command]))
        if num_ranks == 1
        else mpirun
    )
    done = launch(num_ranks, TRAIN, *SHORT, "--schedule", schedule, "--compile")
    assert result(done)["loss"] == alone["loss"]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "num_ranks", [8]
)  # two and four: tests/slow/same_loss_everywhere.py
def test_replicas_end_with_the_loss_of_one_process_with_as_many_blocks(num_ranks):
    many = result(mpirun(num_ranks, TRAIN, *SHORT, "--replicas", 2))
    assert (
        many["loss"]
        == result(run([sys.executable, TRAIN, *SHORT, "--blocks", "2"]))["loss"]
    )


@pytest.mark.slow
@needs_mpi
def test_a_schedule_from_a_file_runs_as_written(tmp_path, alone):
    path = tmp_path / "mine.csv"
    path.write_text(schedules.gpipe(2, 16).to_csv())
    done = mpirun(2, TRAIN, *SHORT, "--schedule", path)
    assert result(done)["schedule"] == "mine" and result(done)["loss"] == alone["loss"]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """What two ranks print and draw of two epochs, once for all tests: the trace in
    Perfetto's form, and the rest.
    """
    path = tmp_path_factory.mktemp("trace") / "step.json"
    return path, mpirun(2, TRAIN, *SHORT, "--trace", path)


@pytest.mark.slow
@needs_mpi
def test_two_ranks_end_with_the_loss_of_one(traced, alone):
    many = result(traced[1])
    assert (many["ranks"], many["loss"], many["accuracy"]) == (
        2,
        alone["loss"],
        alone["accuracy"],
    )


@needs_mpi
def test_it_shows_progress_the_result_and_a_timeline(traced):
    done = traced[1]
    assert done.code == 0 and done.err == ""
    for words in (
        "epoch   2 of 2, loss",
        "test loss ",
        "test accuracy",
        "bubble: measured",
        "predicted",
    ):
        assert words in done.out, words
    rows = [line for line in done.out.splitlines() if line.startswith("rank ")]
    assert [row[:6] for row in rows] == ["rank 0", "rank 1"] * (len(rows) // 2)
    assert 4 <= len(rows) <= 24 and all(len(row) <= 80 for row in rows)


@needs_mpi
@pytest.mark.parametrize("ending", [slowly("svg"), slowly("html"), "json"])
def test_the_numbers_in_the_trace_are_those_that_are_printed(ending, tmp_path, traced):
    path, done = traced
    if ending != "json":
        path = tmp_path / f"step.{ending}"
        done = mpirun(2, TRAIN, *SHORT, "--trace", path)  # on two cores
    found, drawn = result(done), path.read_text(encoding="utf-8")
    assert f"wrote {path} on {socket.gethostname()}\n" in done.out and done.err == ""
    makespans = found["makespan_ms"], found["predicted_makespan_ms"]
    assert (
        "makespan: measured {:.2f} ms, predicted {:.2f} ms".format(*makespans)
        in done.out
    )
    bubbles = found["bubble_fraction"], found["predicted_bubble_fraction"]
    assert (
        "bubble: measured {:.1%}, predicted {:.1%}".format(*bubbles).replace("%", " %")
        in done.out
    )
    if ending == "json":
        timelines = json.loads(drawn)["otherData"]["timelines"]
        assert [timeline["origin"] for timeline in timelines] == [
            "measured",
            "predicted",
        ]
        assert tuple(1000 * timeline["makespan"] for timeline in timelines) == makespans
        assert tuple(timeline["bubble_fraction"] for timeline in timelines) == bubbles
    for origin, makespan, bubble in zip(("measured", "predicted"), makespans, bubbles):
        caption = (
            f"1f1b, {origin}: makespan {makespan:.4g} ms, bubble {100 * bubble:.1f} %"
        )
        assert caption in done.out and (ending != "svg" or caption in drawn)
        assert ending != "html" or f"{makespan:.4g} ms" in drawn
    deviation = f"({100 * (makespans[1] / makespans[0] - 1):+.1f} %)"
    model = "model: 8 linear layers, 32 wide; batches of 64; 2 ranks, 16 microbatches"
    for fact in (deviation, model, "machine: ", "date: 20"):
        assert fact in drawn, fact
    if ending == "html":
        assert (
            float(re.search('"duration":([0-9.e-]+)', drawn)[1])
            == max(makespans) / 1000
        )


@pytest.mark.slow
@needs_mpi
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="this system takes no cores from a process",
)
def test_where_ranks_share_a_core_the_order_of_the_step_is_drawn_with_the_times_of_a_core(
    tmp_path,
):
    """The story: the first command's picture on a laptop with two cores was dots, 82 %
    of it waiting for a core.
    """
    path, cores = tmp_path / "step.json", os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        done = mpirun(
            2, TRAIN, "--epochs", "1", "--hidden", "16", "--trace", path, "--json"
        )
    finally:
        os.sched_setaffinity(0, cores)
    found, (order,) = (
        result(done),
        json.loads(path.read_text())["otherData"]["timelines"],
    )
    measured, predicted = json.loads((tmp_path / "step.measured.json").read_text())[
        "otherData"
    ]["timelines"]
    assert (measured["origin"], predicted["origin"], order["origin"]) == (
        "measured",
        "predicted",
        "predicted",
    )
    assert order["makespan"] < measured["makespan"] == found["makespan_ms"] / 1000
    assert (
        "predicted with one core per rank: makespan at least "
        f"{1000 * order['makespan']:.2f} ms"
    ) in done.out
    took = (
        f"the step took {found['makespan_ms']:.2f} ms: the rest is waiting for a "
        "core and time between actions."
    )
    here = f"On this machine 2 ranks share 1 core, so {took}"
    assert done.out.index("predicted with one core per rank: ") < done.out.index(here)
    # which say nothing about a schedule
    assert "predicted -" not in done.out and "bubble: measured" not in done.out
    captions = [
        line
        for line in done.out.splitlines()
        if "1f1b, " in line and "makespan" in line
    ]
    assert len(captions) == 1 and captions[0].startswith(
        "1f1b, one core per rank: makespan"
    )


@pytest.mark.skipif(
    not Path("/proc").is_dir(),
    reason="no folder here that takes no files, whoever asks",
)
@pytest.mark.slow
def test_a_trace_that_cannot_be_written_in_the_end_loses_no_result():
    done = run(
        [
            sys.executable,
            TRAIN,
            "--epochs",
            "1",
            "--hidden",
            "8",
            "--trace",
            "/proc/step.svg",
            "--json",
        ]
    )
    assert (
        "'/proc/step.svg' cannot be written" in done.err and "Traceback" not in done.err
    )
    if "usage:" not in done.err:  # only root is not told before
        assert done.code == 1 and json.loads(done.out.splitlines()[-1])["loss"] > 0


@pytest.mark.slow
def test_a_trace_on_a_full_disk_leaves_no_half_of_a_file_and_the_job_fails(tmp_path):
    """The story: half a file was left under the name of the whole one, and the job
    exited with 0.
    """
    path = tmp_path / "step.svg"
    limited = (
        f"ulimit -f 2; trap '' XFSZ; exec {sys.executable} {TRAIN} --epochs 1 "
        f"--hidden 8 --trace {path}"
    )
    done = run(["bash", "-c", limited], PYTHONDONTWRITEBYTECODE="1")
    assert done.code == 1 and "step.svg' cannot be written: File too large" in done.err
    assert "makespan: measured" in done.out and list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_mpi
@pytest.mark.skipif(
    not Path("/proc").is_dir() or os.geteuid() != 0,
    reason="only root is not told before",
)
def test_so_does_a_job_of_several_ranks():
    done = mpirun(
        2,
        TRAIN,
        "--epochs",
        "1",
        "--hidden",
        "8",
        "--trace",
        "/proc/step.svg",
        "--json",
    )
    assert done.code == 1 and "'/proc/step.svg' cannot be written" in done.err
    assert (
        json.loads(
            next(line for line in done.out.splitlines() if line.startswith("{"))
        )["loss"]
        > 0
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        slowly(
            ["--trace", "step.gif"],
            "--trace: 'step.gif' ends in .gif; expected .svg (a picture), .html "
            "(a player)",
        ),
        slowly(["--trace", "step"], "--trace: 'step' has no ending; expected .svg"),
        slowly(
            ["--trace", "no/such/step.svg"],
            "--trace: there is no folder 'no/such'; make it first",
        ),
        slowly(["--layers", "0"], "--layers is 0; expected at least 1"),
        (
            ["--schedule", "1f2b"],
            (
                "There is no schedule '1f2b'; did you mean 1f1b? Expected one of "
                "sequential, gpipe"
            ),
        ),
        slowly(
            ["--schedule", "nowhere.csv"],
            "The schedule 'nowhere.csv' cannot be read: No such file",
        ),
        slowly(["--microbatches", "100"], "samples cannot make 100 microbatches"),
        slowly(
            ["--learning-rate", "-1"],
            "--learning-rate is -1.0; expected a finite number, more than 0",
        ),
        slowly(["--seed", "-1"], "--seed is -1; expected at least 0"),
        slowly(
            ["--learning-rate", "1e9", "--epochs", "1"],
            "A smaller learning rate often helps",
        ),
        slowly(["--epochs", "many"], "invalid int value: 'many'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(options, words):
    done = run([sys.executable, TRAIN, *options])
    assert done.code != 0 and words in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_trace_is_not_written_over_a_folder_nor_over_what_is_read_only(tmp_path):
    kept = tmp_path / "kept.svg"
    kept.touch(mode=0o400)
    for path in (tmp_path / "folder.html", kept):
        if path != kept:
            path.mkdir()
        elif os.access(kept, os.W_OK):  # to root nothing is read-only
            continue
        done = run([sys.executable, TRAIN, "--trace", path])
        assert (
            done.code == 2
            and f"--trace: '{path}' cannot be written; name another file" in done.err
        )


@needs_mpi
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "1"], "2 layers cannot make 4 stages"),
        slowly(["--epochs", "0"], "--epochs is 0; expected at least 1"),
        slowly(["--schedule", "1f2b"], "There is no schedule '1f2b'"),
        slowly(
            ["--trace", "no/such/step.svg"], "--trace: there is no folder 'no/such'"
        ),
        slowly(["--trace", "step.gif"], "--trace: 'step.gif' ends in .gif"),
    ],
)
def test_on_ranks_a_mistake_is_said_once(options, words):
    done = mpirun(4, TRAIN, *options)
    assert done.code not in (0, None)
    assert done.err.count(words) == 1 and "Traceback" not in done.err


@pytest.mark.slow
@needs_mpi
def test_help_is_printed_once():
    done = mpirun(2, TRAIN, "--help")
    assert done.code == 0 and done.out.count("usage:") == 1
