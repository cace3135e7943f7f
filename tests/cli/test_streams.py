"""Every verb with each standard stream closed, full, or without a reader: its own exit
status, and no traceback.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minipipe.cli.main import VERBS
from tests.launch import ROOT, environment, needs_mpi, run, slowly
from tests.trace.written import recorded

needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full here"
)

TRAINS = """
import numpy as np
from minipipe import Pipeline, init_process_group, nn, optim
with init_process_group() as group:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pipeline = Pipeline(model, group, num_microbatches=4, loss=nn.MSELoss())
    optimiser = optim.SGD(pipeline.parameters(), 0.1)
    for _ in range(6):  # the third step of a compiled pipeline is the first that can be exported
        pipeline.step(np.ones((8, 4), np.float32), np.ones((8, 4), np.float32))
        optimiser.step()
"""
TINY = (  # one rank is started by mpirun, too
    "--ranks 1 --width 8 --heads 2 --layers 2 --length 4 --symbols 4 --batch 4 "
    "--microbatches 2 --rounds 1"
)
# A command of each verb: its words, and its exit status with all streams open.
COMMANDS = {
    "schedules": ("", 0),
    "sweep": ("--schedules gpipe,1f1b", 0),
    "show": ("1f1b", 0),
    "check": ("--json {folder}/illegal.csv", 1),
    "simulate": ("1f1b", 0),
    "trace": (" ".join(map(str, recorded("zb-v"))), 0),
    "paper": ("megatron-table-2", 0),
    "search": ("--ranks 2 --microbatches 2", 0),
    "step": ("gpipe --microbatches 2", 0),
    "edit": ("nowhere", 2),
    "advise": ("--ranks 1 --seconds 0 {folder}/trains.py", 0),
    "compare": (TINY, 0),
    "run": ("-n 2 {folder}/trains.py", 0),
    "referee": ("{folder}/a.npz {folder}/b.npz", 1),
    "export": ("--ranks 1 -o {new} {folder}/trains.py", 0),
    "coursework": ("{new}", 0),
    "assignment": ("quiz --task 05_bubble -o {new}", 0),
    "grade": ("{folder}/mine --only 05_bubble", 1),
    "info": ("", 0),
}
STREAMS = (
    *("stdin closed", "stdout closed", "stderr closed"),
    *("stdout full", "stderr full", "stdout unread", "stderr unread"),
)
# A failure, because the answer is lost. (A job under `run` prints its own output, and
# `run` has none.)
LOST = {
    (verb, stream) for verb in COMMANDS for stream in ("stdout closed", "stdout full")
} - {("run", "stdout full")}
QUICK = {
    *(("check", stream) for stream in STREAMS if "unread" not in stream),
    ("step", "stdin closed"),
}


TRAIN = ["tutorials/train.py", "--epochs=1", "--layers=2"]


def spoil(stream):
    """Close a standard stream of this process, fill its disk, or take away its
    reader.
    """
    name, way = stream.split()
    number = ("stdin", "stdout", "stderr").index(name)
    if way == "closed":
        os.close(number)
    elif way == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    else:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, number)


def with_spoilt(stream, *words):
    """Run Python with a stream spoilt; return its exit status, and what it said on the
    others.
    """
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=150, check=False,
        preexec_fn=lambda: spoil(stream),
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with an illegal schedule, a program that trains, and a student's
    copy.
    """
    path = tmp_path_factory.mktemp("streams")
    (path / "illegal.csv").write_text("0F0,0F1,0B0\n")
    (path / "trains.py").write_text(TRAINS)
    for name, scale in (("a", 1), ("b", 2)):
        np.savez(path / f"{name}.npz", loss=scale * np.ones(3))
    assert (
        run([sys.executable, "-m", "minipipe", "coursework", str(path / "mine")]).code
        == 0
    )
    return path


def test_the_table_has_every_verb():
    assert set(COMMANDS) == set(VERBS)


# Verbs differ in what they write, and where a stream is closed in what they open; how a
# stream fails that is there is no matter of the verb.
TRIED = [
    *itertools.product(VERBS, STREAMS[:4]),
    *zip(VERBS, itertools.cycle(STREAMS[4:])),
]


@pytest.mark.parametrize(
    ("verb", "stream"),
    [
        *sorted(QUICK),
        *itertools.starmap(slowly, [case for case in TRIED if case not in QUICK]),
    ],
    ids=str,
)
@needs_full
@needs_mpi
def test_a_stream_that_is_closed_full_or_unread_changes_no_exit_status(
    verb, stream, folder, tmp_path
):
    """The story: `compare` with stderr closed exited with 1 and no word, `step` with
    stdin closed had a traceback.
    """
    words, expected = COMMANDS[verb]
    words = words.format(folder=folder, new=tmp_path / "copy").split()
    code, said = with_spoilt(stream, "-m", "minipipe", verb, *words)
    assert "Traceback" not in said and "Exception ignored" not in said, said
    assert code == (2 if (verb, stream) in LOST else expected), said
    if (verb, stream) in LOST and expected != 2:
        assert "minipipe: 'stdout' cannot be written: " in said


@pytest.mark.parametrize(
    "stream", [*map(slowly, STREAMS[:2]), *STREAMS[2:3], *map(slowly, STREAMS[3:])]
)
@pytest.mark.parametrize(
    "words",
    [
        *map(slowly, ("--version", "", "nonsense", "show --help")),
        "--help",
        "show --nonsense",
    ],
)
@needs_full
def test_so_it_is_with_help_and_bad_usage(words, stream):
    is_help = "--help" in words or "--version" in words
    code, said = with_spoilt(stream, "-m", "minipipe", *words.split())
    is_lost = stream in ("stdout closed", "stdout full")
    assert "Traceback" not in said and "Exception ignored" not in said, said
    assert code == (0 if is_help and not is_lost else 2), said


@pytest.mark.slow
@pytest.mark.parametrize(
    "stream",
    [stream if stream == "stderr closed" else slowly(stream) for stream in STREAMS],
)
@needs_full
def test_so_it_is_with_the_programs_of_the_tutorials(stream):
    """With one of them: all have their streams from training_program.py."""
    code, said = with_spoilt(stream, *TRAIN)
    assert "Traceback" not in said and "Exception ignored" not in said, said
    is_lost = stream in ("stdout full", "stdout unread")
    assert code == is_lost and (
        not is_lost or "train.py: its output cannot be written" in said
    ), said
