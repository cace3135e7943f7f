"""Needs of a comparison of device meshes, before it runs: a lower bound of its memory,
and its approximate time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from minipipe.comm.job.host import BYTES_OF_A_RANK
from minipipe.core.comm.host import limit_blas_threads
from minipipe.tuning.grids import GridSizes, Task

# of the parameters: values, gradients, and two of Adam, in an eager and in a compiled
# pipeline
_COPIES = 8
_BYTES_OF_A_BLOCK = 10_000  # of its modules and parameters as Python objects, at least
_SECONDS_OF_A_RANK = 1.5  # to start, on a core
_SECONDS_OF_A_BLOCK = 2.5e-3  # of Python, for a microbatch, there and back
_STEPS = 8  # of a mesh before the first round: losses, memory, measurements, recording
_STEPS_OF_A_ROUND = 6  # eager and compiled ones
# factor by which the products of a model, of several shapes, are slower than one timed
# alone
_SLOWER = 1.5
_LARGEST_PROBE = 512  # rows and columns of a product


def num_parameters(task: Task) -> int:
    """Return the parameters of a task's model.

    Examples
    --------
    >>> model = Task(layers=2, width=8, heads=2).model().initialise(0)
    >>> num_parameters(Task(layers=2, width=8, heads=2)) == sum(
    ...     each.size for each in model.parameters()
    ... )
    True
    """
    block = 12 * task.width**2 + 13 * task.width
    ends = (2 * task.symbols + task.length + 2) * task.width + task.symbols
    return task.layers * block + ends


def least_bytes(task: Task, grids: Sequence[GridSizes], num_ranks: int) -> int:
    """Return a lower bound on the memory of all ranks together: every mesh keeps its
    parameters to the end.
    """
    size = np.dtype(task.dtype).itemsize
    model = _COPIES * size * num_parameters(task)
    num_models = sum(sizes.data for sizes in grids if not sizes.fully_sharded)
    num_models += sum(sizes.fully_sharded for sizes in grids)
    objects = len(grids) * task.layers * _BYTES_OF_A_BLOCK
    token = np.dtype(np.int64).itemsize
    tokens = len(grids) * num_ranks * 2 * task.batch * task.length * token
    scores = task.batch // task.microbatches * task.heads * task.length**2 * size
    ranks = num_ranks * BYTES_OF_A_RANK
    return ranks + num_models * model + objects + tokens + scores


def expected_seconds(
    task: Task, num_grids: int, rounds: int, num_ranks: int, num_cores: int
) -> float:
    """Return the approximate time of a comparison, estimated from a matrix product that
    is timed now.
    """
    at_once = min(num_ranks, num_cores)
    tokens = task.batch * task.length
    attention = 24 * task.layers * task.batch * task.length**2 * task.width
    operations = 6 * num_parameters(task) * tokens + attention
    products = _SLOWER * operations * _seconds_of_an_operation(task)
    step = products + _SECONDS_OF_A_BLOCK * (task.layers + 2) * task.microbatches
    steps = num_grids * (_STEPS + _STEPS_OF_A_ROUND * rounds)
    return steps * step / at_once + _SECONDS_OF_A_RANK * num_ranks / num_cores


def _seconds_of_an_operation(task: Task) -> float:
    rows, columns = (min(size, _LARGEST_PROBE) for size in (task.positions, task.width))
    left = np.ones((rows, columns), task.dtype)
    right = np.ones((columns, columns), task.dtype)
    times = []
    with limit_blas_threads(1):  # as on a rank
        for _ in range(9):
            begun = perf_counter()
            left @ right
            times.append(perf_counter() - begun)
    return min(times) / (2 * rows * columns**2)
