"""Rows 1 and 12 of what must hold when things break, with real processes: killed
anywhere, and gone on with.
"""

import os
import re
import shutil
import sys
from types import SimpleNamespace

import pytest

from minipipe import checkpoint, spawn
from minipipe.comm import OneRankGroup
from tests.launch import find_mpirun, mpirun, needs_mpi, run, slowly
from tests.pipeline.checkpoint import job, small

pytestmark = needs_mpi

JOB = "tests/pipeline/checkpoint/job.py"
NUM_STEPS, KEEP = 4, 1  # so that a save deletes, too
NO_FAULT = SimpleNamespace(reach=lambda where, array=None: array)


def final_bits(folder):
    pipeline, optimiser = job.pipeline_of(OneRankGroup())
    assert checkpoint.restore(folder, pipeline, optimiser).step == NUM_STEPS
    return small.bits(pipeline, optimiser=optimiser)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the bits of a training that nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    spawn(lambda group: job.train(group, folder, NUM_STEPS, NO_FAULT), 2)
    return final_bits(folder)


def in_threads(num_ranks, folder):
    return spawn(
        lambda group: job.train(group, folder, NUM_STEPS, NO_FAULT), num_ranks
    )[0]


def in_processes(num_ranks, folder):
    done = mpirun(num_ranks, JOB, folder, NUM_STEPS, 0, "nothing")
    assert done.code == 0, done.err
    return int(done.out.split()[-1])


def check(folder, undisturbed, resume, *fault, num_ranks=4):
    """Train with a fault, and go on on 4 and on 3 ranks. Return whether the fault
    happened.
    """
    done = mpirun(num_ranks, JOB, folder, NUM_STEPS, *fault)
    if done.code == 0:
        assert final_bits(folder) == undisturbed
        return False
    for num_ranks in (4, 3):
        copy = folder.with_name(f"{folder.name}-{num_ranks}")
        shutil.copytree(folder, copy)
        assert resume(num_ranks, copy) in (1, 2)
        assert final_bits(copy) == undisturbed
        names = sorted(path.name for path in copy.iterdir())
        assert (
            names[-1].endswith("-step-4")
            and len(names) == 2
            and not names[0].startswith(".")
        ), names
    return True


@pytest.mark.parametrize(
    ("resume", "rank", "what", "number"),
    [
        slowly(in_threads, 0, "call", 9),
        *[
            slowly(in_threads, rank, what, 0)
            for rank, what in enumerate(("warm-up", "cool-down", "steady", "warm-up"))
        ],
        *[slowly(in_processes, rank, "call", 2) for rank in (0, 3)],
    ],
)
def test_a_killed_training_goes_on_with_the_bits_of_one_that_was_not(
    tmp_path, undisturbed, resume, rank, what, number
):
    assert check(tmp_path / "runs", undisturbed, resume, rank, what, number)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "every"), [(0, 4), (1, 2)])
def test_killed_at_any_call_of_the_file_system_it_is_the_old_or_the_new(
    tmp_path, undisturbed, rank, every
):
    """At each call, in threads: test_crashes.py."""
    number = 1
    while check(
        tmp_path / f"{number}",
        undisturbed,
        in_threads,
        rank,
        "call",
        number,
        KEEP,
        num_ranks=2,
    ):
        number += every
    print(f"rank {rank}: killed at each {every}. of {number - 1} calls")
    # open, write and fsync; on rank 0 all the others, too
    assert number - 1 >= {0: 25, 1: 3}[rank]


FULL = """
mount -t tmpfs -o size=1m tmpfs {folder} || exit 99
dd if=/dev/zero of={folder}/filler bs=1k count=980 2>/dev/null
{mpirun} -n 2 {python} {job} {folder}/runs 4 0 nothing
echo $?
{python} -c "from tests.pipeline.checkpoint.test_killed import newest; print(newest('{folder}/runs'))"
ls -A {folder}/runs
"""


def newest(folder):
    return checkpoint.restore(folder, *job.pipeline_of(OneRankGroup())).step


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="needs root, for namespaces of the kernel",
)
def test_on_a_full_disk_the_error_says_so_and_the_last_checkpoint_stays(tmp_path):
    script = FULL.format(
        folder=tmp_path, mpirun=find_mpirun(), python=sys.executable, job=JOB
    )
    done = run(["unshare", "--mount", "sh", "-c", script])
    assert re.search(
        r"^\[rank \d\] CheckpointError: Rank \d could not write \S+: No space "
        r"left on device. Earlier",
        done.err,
    )
    assert done.err.count("could not write") == 1
    code, step, *names = done.out.split()
    assert int(code) == 1
    assert (
        1 <= int(step) == len(names) and sorted(names)[-1] == f"00000{step}-step-{step}"
    )


@pytest.mark.parametrize("rank", [slowly(0), 1])
def test_a_file_that_grows_too_large_is_named_with_its_rank(tmp_path, rank):
    done = mpirun(2, JOB, tmp_path, NUM_STEPS, rank, "limit", 100)
    assert done.code == 1
    assert re.search(
        rf"Rank {rank} could not write \S+/rank-{rank}.safetensors: File too "
        r"large. Earlier",
        done.err,
    )
    assert newest(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["000001-step-1"]
