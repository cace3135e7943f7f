"""A fault in a step like the last one is told in the words of an eager step."""

import re
from itertools import product

import pytest

from tests.compile.faults_over_mpi import FAULTS
from tests.launch import mpirun, needs_mpi, slowly

QUICK = {
    ("has_another_batch", 1, "stages"),
    ("evaluates", 1, "replicas"),
}
CASES = [
    case if case in QUICK else slowly(*case)
    for case in product(FAULTS, (0, 1), ("stages", "replicas"))
]
OF_A_RUN = r"\bPID \d+|\d+ vm|since [\d:]+|[\d.]+ s\b|rank\] +\d|\b\d{3,}\b|0x[0-9a-f]+"


def said(fault, rank, how, layout):
    """Return the exit code and the sentences, without times and process numbers."""
    command = "-m", "tests.compile.faults_over_mpi", fault, rank, how, layout
    job = mpirun(2, *command, limit=60)
    lines = re.sub(OF_A_RUN, "_", job.err + job.out).splitlines()
    told = {line for line in lines if re.match(r"\[rank|\w+Error", line)}
    return job.code, sorted(told)


@needs_mpi
@pytest.mark.parametrize(("fault", "rank", "layout"), CASES)
def test_a_fault_is_told_as_in_an_eager_step(fault, rank, layout):
    code, sentences = said(fault, rank, "eager", layout)
    assert code != 0 and sentences, sentences
    assert said(fault, rank, "compiled", layout) == (code, sentences)
