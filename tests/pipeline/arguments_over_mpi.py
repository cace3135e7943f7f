"""Two ranks, of which one gives another argument, named on the command line:
test_arguments_of_one_rank.py runs it.
"""

import sys

import numpy as np

from minipipe import Grid, Pipeline, init_process_group, nn
from minipipe.errors import RankError

X = np.ones((8, 4), np.float32)


def made(grid, **options):
    return Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        grid,
        loss=nn.MSELoss(),
        num_microbatches=4,
        **options,
    )


def frozen(group):
    pipeline = made(Grid(group, data=group.size, fully_sharded=True))
    for parameter in pipeline.parameters() if group.rank else ():
        parameter.requires_grad = False
    pipeline.step(X, X)


CASES = {
    "fully_sharded": lambda group: made(
        Grid(group, data=group.size, fully_sharded=group.rank == 0)
    ).step(X, X),
    "axes": lambda group: made(
        Grid(group, **{"pipeline" if group.rank else "tensor": group.size})
    ).step(X, X),
    "recompute": lambda group: made(
        Grid(group, tensor=group.size), recompute=group.rank == 1
    ).step(X, X),
    "frozen": frozen,
}

if __name__ == "__main__":
    with init_process_group() as ranks:
        try:
            CASES[sys.argv[1]](ranks)
        except RankError as error:
            print(f"rank {ranks.rank}: {error}", flush=True)
            ranks.barrier()  # every rank gets here, since each has got the error
            raise
