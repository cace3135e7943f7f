"""mpirun -n N python grid_over_mpi.py PIPELINE DATA TENSOR: print the losses of a training on a grid."""

import sys

from minipipe import init_process_group
from tests.pipeline.test_tensor_parallel import on_grid, train

if __name__ == "__main__":
    with init_process_group() as group:
        sizes = tuple(map(int, sys.argv[1:]))
        losses, *_ = train(on_grid(group, *sizes, num_blocks=6 if sizes[0] == 8 else 2))
        if group.rank == 0:
            print(*map(repr, losses))
