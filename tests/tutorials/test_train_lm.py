"""tutorials/train_lm.py, as a student runs it."""

import functools
import json
import sys

import pytest

from tests.launch import mpirun, needs_mpi, run, slowly

TRAIN = "tutorials/train_lm.py"
SHORT = (
    "--steps",
    "6",
    "--width",
    "16",
    "--heads",
    "2",
    "--context",
    "12",
    "--layers",
    "6",
    "--characters",
    "40",
    "--json",
)


def result(done):
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


WITH_ALL = ("--dropout", "0.2", "--tied")


@functools.cache
def on_ranks(num_ranks, *options):
    """Train on so many ranks, once for all tests that ask for it."""
    launch = (
        mpirun if num_ranks > 1 else lambda _, *command: run([sys.executable, *command])
    )
    return launch(num_ranks, TRAIN, *SHORT, *options)


@pytest.fixture(scope="module")
def alone():
    return result(on_ranks(1))


def test_on_one_rank_it_trains_and_writes(alone):
    assert {
        "loss",
        "seconds",
        "step_ms",
        "bubble_fraction",
        "schedule",
        "ranks",
        "text",
    } <= alone.keys()
    # ln 103 = 4.6
    assert alone["ranks"] == 1 and 3 < alone["loss"] < 4.7 and len(alone["text"]) == 41


@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "schedule"),
    [slowly(3, "gpipe")],  # others: tests/slow/same_loss_everywhere.py
)
def test_any_ranks_and_schedule_end_with_the_same_loss_and_text(
    num_ranks, schedule, alone
):
    many = result(on_ranks(num_ranks, "--schedule", schedule))
    assert (many["ranks"], many["schedule"]) == (num_ranks, schedule)
    assert many["loss"] == alone["loss"] and many["text"] == alone["text"]


TENSOR, SHARDED = ("--tensor", 2), ("--replicas", 2, "--fully-sharded")
SHARED_OPTIONS = [(2, TENSOR), (4, (*TENSOR, "--replicas", 2)), (2, SHARDED)]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "options"), SHARED_OPTIONS)
def test_ranks_that_share_layers_end_with_the_same_loss_within_rounding(
    num_ranks, options, alone
):
    many = result(on_ranks(num_ranks, *options))
    assert many["loss"] == pytest.approx(alone["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "schedule"), [slowly(2, "zb-v"), slowly(4, "zb-h1")]
)
def test_so_they_do_with_dropout_tied_embeddings_and_recomputation(
    num_ranks, schedule, traces
):
    one = result(on_ranks(1, *WITH_ALL))
    options = (
        "--recompute",
        "--schedule",
        schedule,
        "--trace",
        traces / f"{schedule}.json",
    )
    many = result(on_ranks(num_ranks, *WITH_ALL, *options))
    assert many["loss"] == one["loss"] and many["text"] == one["text"]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), WITH_ALL, (*WITH_ALL, "--recompute")],
    ids=["plain", "all", "recompute"],
)
def test_compiled_steps_end_with_the_same_loss_and_text(options):
    one = result(on_ranks(1, *WITH_ALL)) if options else result(on_ranks(1))
    many = result(on_ranks(2, *options, "--compile", "--schedule", "zb-h1"))
    assert many["loss"] == one["loss"] and many["text"] == one["text"]


@pytest.mark.slow
@needs_mpi
def test_it_shows_progress_the_result_and_a_timeline():
    done = on_ranks(2, "--schedule", "1f1b")
    assert done.code == 0 and done.err == ""
    for words in (
        "step    6 of 6, loss",
        "validation loss ",
        "Generated text:",
        "bubble: measured",
        "TransformerBlock(16",
    ):
        assert words in done.out, words
    table = [
        line for line in done.out.splitlines() if line.startswith(("layer", "    "))
    ]
    assert len(table) > 10 and all(
        len(line) <= 100 for line in table if "{" not in line
    )


@needs_mpi
@pytest.mark.slow
def test_the_numbers_in_the_trace_are_those_that_are_printed(traces):
    path = traces / "zb-v.json"
    found = result(
        on_ranks(2, *WITH_ALL, "--recompute", "--schedule", "zb-v", "--trace", path)
    )
    timelines = json.loads(path.read_text(encoding="utf-8"))["otherData"]["timelines"]
    assert [timeline["origin"] for timeline in timelines] == ["measured", "predicted"]
    assert [1000 * t["makespan"] for t in timelines] == [
        found["makespan_ms"],
        found["predicted_makespan_ms"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        slowly(["--steps", "0"], "--steps is 0; expected at least 1"),
        slowly(["--heads", "5"], "--width is 96; expected a multiple of --heads, 5"),
        slowly(
            ["--dropout", "1"], "--dropout is 1.0; expected at least 0 and less than 1"
        ),
        slowly(
            ["--learning-rate", "nan"],
            "--learning-rate is nan; expected a finite number",
        ),
        (
            ["--tensor", "2"],
            "pipeline 1 x data 1 x tensor 2 are 2 ranks, but there are 1",
        ),
        slowly(["--device", "gpu"], "There is no GPU to use: no CuPy"),
        slowly(["--device", "cuda"], "There is no GPU to use: no CuPy"),
        slowly(
            ["--microbatches", "17"],
            "A batch of 16 samples cannot make 17 microbatches",
        ),
    ],
)
def test_a_mistake_is_one_sentence(options, words):
    done = run([sys.executable, TRAIN, *SHORT[:2], *options])
    assert done.code not in (0, None)
    assert words in done.err and "Traceback" not in done.err, done.err


@needs_mpi
@pytest.mark.parametrize(
    "options",
    [slowly(["--layers", "0"]), slowly(["--schedule", "1f2b"]), ["--heads", "7"]],
)
def test_on_ranks_a_mistake_is_said_once(options):
    done = mpirun(4, TRAIN, *options)
    assert done.code not in (0, None)
    assert done.err.lower().count("expected") == 1 and "Traceback" not in done.err, (
        done.err
    )
