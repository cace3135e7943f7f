"""Processes compute as threads do: one launch for what each subject tests slowly, on
other numbers of ranks.
"""

import functools

import numpy as np

from tests.launch import for_each, mpirun_together, needs_mpi
from tests.pipeline.test_asynchronous import losses_on_threads
from tests.pipeline.test_tensor_parallel import CLOSE, alone

PROGRAMS = {
    "tensor-parallel": ("tests.pipeline.grid_over_mpi", 1, 1, 2),
    "fully sharded": ("tests.pipeline.grid_over_mpi", 1, 2, 1, 1),
    "asynchronous": ("tests.pipeline.test_asynchronous", "pipedream:1"),
    "pending losses": ("tests.pipeline.test_delivery", 3),
    "random steps": ("tests.pipeline.random_steps", 3, "strict"),
    "arrays that are filled again": ("tests.pipeline.refilling_over_mpi",),
}


@functools.cache
def printed():
    return mpirun_together(2, PROGRAMS)


def is_alone(text):
    """Return whether the losses are those of one rank."""
    return np.allclose(
        list(map(float, text.split())), alone()[0], rtol=CLOSE, atol=CLOSE
    )


CHECKS = {
    "tensor-parallel": is_alone,
    "fully sharded": is_alone,
    "asynchronous": lambda text: (
        text.split() == losses_on_threads("pipedream", 1, num_ranks=2)
    ),
    "pending losses": lambda text: text == "passed\n" * 2,
    "random steps": lambda text: text == "the same bits in 3 steps\n",
    "arrays that are filled again": lambda text: (
        sorted(text.splitlines()) == ["rank 0: alike", "rank 1: alike"]
    ),
}


@needs_mpi
@for_each(name={name: name for name in PROGRAMS})
def test_a_subject_on_two_processes_is_as_on_threads(name):
    assert CHECKS[name](printed()[name]), printed()[name]
