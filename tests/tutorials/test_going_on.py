"""--checkpoint, --every, --resume and --sample of the training programs, as a student
uses them.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import ROOT, environment, mpirun, needs_mpi, run, slowly
from tests.tutorials import test_train, test_train_lm

DIGITS = ("tutorials/train.py", *test_train.SHORT)
TEXT = ("tutorials/train_lm.py", *test_train_lm.SHORT, *test_train_lm.WITH_ALL)


def on(num_ranks, *command):
    return (
        mpirun(num_ranks, *command)
        if num_ranks > 1
        else run([sys.executable, *command])
    )


def break_off(folder):
    """Delete all but the oldest checkpoint: as it was when the program was killed after
    that.
    """
    first, *others = sorted(folder.glob("0*"))
    for path in others:
        shutil.rmtree(path)
    return first


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("program", "every", "ranks", "changed"),
    [
        # in the middle of the second epoch of 23 steps
        (DIGITS, 30, (1, 2), ["--schedule", "zb-h1"]),
        (DIGITS, 30, (2, 3), ["--schedule", "zb-h1"]),
        (DIGITS, 23, (4, 1), []),
        (DIGITS, 5, (1, 4), ["--schedule", "gpipe"]),
        (TEXT, 4, (4, 2), ["--recompute"]),
        (TEXT, 5, (1, 3), ["--schedule", "gpipe"]),
        (TEXT, 2, (2, 4), ["--schedule", "interleaved-1f1b"]),
    ],
)
def test_what_was_broken_off_ends_with_the_loss_of_what_was_not(
    program, every, ranks, changed, tmp_path
):
    before, after = ranks
    whole = on(before, *program, "--checkpoint", tmp_path, "--every", str(every))
    first = break_off(tmp_path)
    more = on(after, *program, *changed, "--checkpoint", tmp_path, "--resume")
    assert f"Resuming after step {first.name.rpartition('-')[2]} of" in more.out, (
        more.err
    )
    # no option that counts has changed
    assert " was " not in more.out.partition("Resuming")[2].partition("epoch")[0]
    assert test_train.result(more)["loss"] == test_train.result(whole)["loss"]
    assert (tmp_path / "best.safetensors").exists()


@pytest.mark.slow
def test_the_last_checkpoint_leaves_nothing_to_train_and_writes_text(tmp_path):
    trained = run([sys.executable, *TEXT, "--checkpoint", tmp_path])
    again = run([sys.executable, *TEXT, "--checkpoint", tmp_path, "--resume"])
    assert again.code == 0 and "Nothing is left to train." in again.out
    assert repr(test_train.result(trained)["loss"]) in again.out
    # the model's width and so on are in the checkpoint
    sample = run([sys.executable, TEXT[0], "--sample", tmp_path, "--characters", "40"])
    assert sample.code == 0, sample.err
    assert (
        sample.out.partition("\n")[2].strip()
        == test_train.result(trained)["text"].strip()
    )


@pytest.mark.slow
def test_an_option_that_changes_numbers_is_named(tmp_path):
    run([sys.executable, *DIGITS, "--epochs", "1", "--checkpoint", tmp_path])
    more = run(
        [
            sys.executable,
            *DIGITS,
            "--batch-size",
            "128",
            "--checkpoint",
            tmp_path,
            "--resume",
        ]
    )
    assert more.code == 0, more.err
    assert (
        "--epochs was 1, and is 2 now." in more.out
        and "--batch-size was 64, and is 128 now." in more.out
    )


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        (DIGITS, ["--resume"], "--resume needs a folder: --checkpoint DIR"),
        slowly(DIGITS, ["--every", "5"], "--every needs a folder: --checkpoint DIR"),
        slowly(
            DIGITS,
            ["--checkpoint", "FOLDER", "--every", "0"],
            "--every is 0; expected at least 1 step",
        ),
        slowly(
            DIGITS,
            ["--checkpoint", "FOLDER/file"],
            "file' cannot be a folder: File exists; name another one",
        ),
        slowly(
            TEXT,
            ["--sample", "FOLDER/nowhere"],
            "There is no checkpoint in 'FOLDER/nowhere': No such file or directory.",
        ),
        slowly(TEXT, ["--sample", "FOLDER"], "no checkpoint in it was finished."),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(program, options, words, tmp_path):
    (tmp_path / "file").touch()
    done = run(
        [
            sys.executable,
            *program,
            *(option.replace("FOLDER", str(tmp_path)) for option in options),
        ]
    )
    assert done.code != 0 and words.replace("FOLDER", str(tmp_path)) in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@needs_mpi
@pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="no folder here that tells of other processes"
)
def test_a_job_that_loses_a_rank_starts_again_by_itself_and_ends_with_the_same_loss(
    tmp_path,
):
    program = ("tutorials/train.py", "--epochs", "12", "--hidden", "32", "--json")
    whole = test_train.result(run([sys.executable, *program]))
    options = ("--checkpoint", str(tmp_path), "--every", "40", "--resume")
    command = [
        sys.executable,
        "-m",
        "minipipe",
        "run",
        "-n",
        "4",
        "--restarts",
        "2",
        *program,
        *options,
    ]
    job = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=-1, stderr=-1, text=True
    )
    while not list(tmp_path.glob("0*")) and job.poll() is None:
        time.sleep(0.05)
    os.kill(process_of_rank_2(tmp_path), signal.SIGKILL)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "Resuming after step" in out and "attempt 0 failed with" in err
    assert json.loads(out.splitlines()[-1])["loss"] == whole["loss"]


def process_of_rank_2(folder):
    """Return the process of rank 2 among those that were given this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            has_folder = os.fsencode(folder) in (path / "cmdline").read_bytes()
            if has_folder and b"PMI_RANK=2" in (path / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(path.name))
    (process,) = found
    return process
