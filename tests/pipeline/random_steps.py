"""Random pipelined steps over the ranks of mpirun, each compared with one process. For test_same_bits.py.

Every rank draws the same examples. Gradients are compared where they are; then all ranks agree on the answer, so that
all go on, or all fail, together.
"""

import copy

import numpy as np
from hypothesis import HealthCheck, given, settings

from minipipe import Pipeline, init_process_group, nn
from minipipe.testing import one_process_step, same_bits
from tests.strategies import steps


def differences(group, model, inputs, targets, schedule, partition):
    """Return how many of this rank's parameters, and losses, differ from one process."""
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule, seed=3, partition=partition)
    loss = pipeline.step(inputs, targets)
    twin = copy.deepcopy(model).initialise(3)
    expected = one_process_step(twin, nn.MSELoss(), inputs, targets, schedule.num_microbatches)
    wrong = sum(not same_bits(p.grad, expected.gradients[name]) for name, p in pipeline.named_parameters())
    return wrong + (loss != expected.loss)


def main():
    with init_process_group(timeout=30) as group:
        compared = []

        @settings(
            max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
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
