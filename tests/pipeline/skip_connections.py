"""A model with skip connections, cut in every way over the ranks of mpirun. For
test_parcel.py.
"""

import itertools

import numpy as np

from minipipe import init_process_group, nn
from tests.pipeline.random_steps import differences
from tests.strategies import Beside, Fork, Join, batch, build


def model(form):
    """Return six layers; between the second and the fifth pass three tensors, one of
    them of bytes.
    """
    return nn.Sequential(
        nn.Linear(4, 4),
        Fork(form),
        Beside(nn.Linear(4, 4)),
        Beside(nn.Dropout(0.3)),
        Join(),
        nn.Linear(4, 2),
    )


def main():
    inputs, targets = batch(7, 4)
    with init_process_group(timeout=30) as group:
        num_steps = wrong = 0
        for form, cuts, name in itertools.product(
            (tuple, list, dict),
            itertools.combinations(range(1, 6), group.size - 1),
            ("1f1b", "zb-h1"),
        ):
            ends = [0, *cuts, 6]
            partition = [range(a, b) for a, b in itertools.pairwise(ends)]
            wrong += differences(
                group,
                model(form),
                inputs,
                targets,
                build(name, group.size, 3),
                partition,
            )
            num_steps += 1
        wrong = int(group.all_reduce(np.array(wrong)))
        assert not wrong, f"{wrong} values differ from one process"
        if group.rank == 0:
            print("the same bits in", num_steps, "steps")


if __name__ == "__main__":
    main()
