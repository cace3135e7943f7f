"""Trains in half precision with a loss scale, and prints what must not depend on the
number of ranks.

mpirun -n 2 python -m tests.pipeline.half_over_mpi float16
"""

import sys
from hashlib import blake2b

from minipipe import init_process_group
from tests.half_precision import named
from tests.pipeline.test_half_precision import trained

if __name__ == "__main__":
    with init_process_group() as group:
        scales, taken, losses, state = trained(group, named(sys.argv[1]), 2.0**17)
        if group.rank == 0:
            for scale, is_taken, loss in zip(scales, taken, losses):
                print(f"scale {scale} {is_taken} {loss!r}")
            print(
                blake2b(
                    b"".join(value.tobytes() for value in state.values())
                ).hexdigest()
            )
