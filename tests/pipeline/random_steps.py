"""Random pipelined steps over the ranks of mpirun, each compared with one process. For
test_same_bits.py.

The arguments are how many steps, and perhaps ``strict``: then they compute with
array-api-strict, whose arrays MPI cannot send; they go through the host, as those of a
GPU do where MPI is not CUDA-aware.

Every rank draws the same examples. Gradients are compared where they are; then all
ranks agree on the answer, so that all go on, or all fail, together.
"""

import copy
import sys

import array_api_strict
import numpy as np
from hypothesis import HealthCheck, given, settings

from minipipe import Pipeline, init_process_group, nn
from minipipe.core.autograd.backend import to_numpy
from minipipe.testing import blocks_of, one_process_step, same_bits
from tests.strategies import steps


def differences(group, model, inputs, targets, schedule, partition):
    """Return how many of this rank's parameters, and losses, differ from one
    process.
    """
    xp = array_api_strict if "strict" in sys.argv else np
    pipeline = Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        schedule=schedule,
        seed=3,
        partition=partition,
        device=xp,
    )
    loss = pipeline.step(inputs, targets)
    twin = copy.deepcopy(model).to(xp).initialise(3)
    batch = xp.asarray(inputs), xp.asarray(targets)
    expected = one_process_step(
        twin,
        nn.MSELoss(),
        *batch,
        schedule.num_microbatches,
        seed=3,
        blocks=blocks_of(schedule),
    )
    gradients = {
        name: None if p.grad is None else to_numpy(p.grad)
        for name, p in pipeline.named_parameters()
    }
    wrong = sum(
        not same_bits(gradient, expected.gradients[name])
        for name, gradient in gradients.items()
    )
    return wrong + (loss != expected.loss)


def main():
    with init_process_group(timeout=30) as group:
        compared = []

        @settings(
            max_examples=int(sys.argv[1]),
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(steps(num_ranks=group.size))
        def check(step):
            wrong = int(group.all_reduce(np.array(differences(group, *step))))
            compared.append(step)
            assert not wrong, f"{wrong} values differ from one process"

        check()
        if group.rank == 0:
            print("the same bits in", len(compared), "steps")


if __name__ == "__main__":
    main()
