"""Compiled steps have the bits of eager ones under Open MPI."""

import sys

import pytest

from tests.launch import AS_ROOT, find_mpirun, needs_open_mpi, run

pytestmark = pytest.mark.slow  # .ci/run has an environment with Open MPI

_launcher = pytest.fixture(scope="module", autouse=True)(needs_open_mpi)


def mpirun(num_ranks, *command):
    launcher = find_mpirun(), "--oversubscribe", "-n", str(num_ranks)
    program = sys.executable, "-m", *map(str, command)
    done = run([*launcher, *program], limit=240, **AS_ROOT)
    if "listener thread failed to start" in done.err:  # of the launcher, at times
        done = run([*launcher, *program], limit=240, **AS_ROOT)
    return done


ROWS = ("runs", "failed", "offloaded", "slices", "tensor", "shards")
FEATURES = ("plain", "tied", "dropout", "ragged", "frozen inside", "clipping", "wait")
PROGRAMS = {
    "further rows": (2, "tests.compile.rows_over_mpi", *ROWS),
    "schedules": (2, "tests.compile.all_schedules_over_mpi", "zb-h1", 2, *FEATURES),
    "stages on a rank": (2, "tests.compile.all_schedules_over_mpi", "zb-v", 2, "plain"),
    "several pipelines": (2, "tests.compile.around_steps_over_mpi"),
    "frozen": (2, "tests.compile.test_frozen_between_steps", 3, 6),
    "replicas": (2, "tests.compile.replicas_over_mpi"),
    "replicas of stages": (4, "tests.compile.replicas_over_mpi"),
    "channels": (3, "tests.parallel.test_repeated"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_steps_have_the_bits_of_eager_ones(name):
    done = mpirun(*PROGRAMS[name])
    assert done.code == 0, done.err
    assert "the same bits" in done.out or name == "frozen"


@pytest.mark.parametrize(
    ("fault", "layout"),
    [
        ("is_killed", "stages"),
        ("raises", "replicas"),
        ("sleeps", "replicas"),
        ("evaluates", "stages"),
    ],
)
def test_a_fault_ends_all_ranks_and_names_one(fault, layout):
    command = "tests.compile.faults_over_mpi", fault, 1, "compiled", layout
    done = mpirun(2, *command)
    assert done.code != 0 and "no fault" not in done.out
    assert "ank 1" in done.err, done.err
