"""Rows whose handlers need more than sections have the bits of eager ones over MPI."""

import pytest

from tests.launch import mpirun, mpirun_together, needs_mpi

KINDS = ("runs", "offloaded", "slices", "tensor", "shards")


PROGRAMS = {
    "rows": ("tests.compile.rows_over_mpi", "runs", "failed"),
    "schedules": ("tests.compile.all_schedules_over_mpi", "1f1b", 2, "wait"),
    "pipelines": ("tests.compile.around_steps_over_mpi",),
    "replicas": ("tests.compile.replicas_over_mpi", "1f1b"),
    "frozen": ("tests.compile.test_frozen_between_steps", 3),
}
PRINTED = {
    "rows": "runs: the same bits\nfailed: the same bits\n",
    "schedules": "the same bits in 1 trainings\n",
    "pipelines": "the same bits\n",
    "replicas": "the same bits in 1 trainings\n",
    "frozen": "",
}


@needs_mpi
def test_compiled_steps_of_two_processes_have_the_bits_of_eager_ones():
    """One launch for what the other tests over MPI, which are slow, do at length."""
    assert mpirun_together(2, PROGRAMS) == PRINTED


@needs_mpi
@pytest.mark.slow
def test_such_rows_have_the_bits_of_eager_ones():
    job = mpirun(2, "-m", "tests.compile.rows_over_mpi", *KINDS, limit=120)
    assert job.code == 0, job
    assert all(f"{kind}: the same bits" in job.out for kind in KINDS), job
