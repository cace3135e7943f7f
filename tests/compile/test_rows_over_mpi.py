"""Rows whose handlers need more than sections have the bits of eager ones over MPI."""

import pytest

from tests.launch import mpirun, needs_mpi, slowly

KINDS = ("runs", "offloaded", "slices", "tensor", "shards")


@needs_mpi
@pytest.mark.parametrize("kinds", [("runs", "failed"), slowly(KINDS)])
def test_such_rows_have_the_bits_of_eager_ones(kinds):
    job = mpirun(2, "-m", "tests.compile.rows_over_mpi", *kinds, limit=120)
    assert job.code == 0, job
    assert all(f"{kind}: the same bits" in job.out for kind in kinds), job
