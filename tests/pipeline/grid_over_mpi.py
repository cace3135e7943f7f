"""mpirun -n N python grid_over_mpi.py PIPELINE DATA TENSOR [FULLY_SHARDED]: print the
losses on a grid.

FULLY_SHARDED is 0, 1 (layer by layer), or 2 (stages, gathered once for a step).
"""

import sys

from minipipe import init_process_group
from tests.pipeline.test_tensor_parallel import large_enough, on_grid, train

if __name__ == "__main__":
    with init_process_group() as group:
        *sizes, is_sharded = map(int, [*sys.argv[1:], "0"][:4])
        losses, *_ = train(
            on_grid(
                group,
                *sizes,
                **large_enough(sizes),
                fully_sharded=(False, True, "stages")[is_sharded],
            )
        )
        if group.rank == 0:
            print(*map(repr, losses))
