"""Page faults of a steady step: writing to memory that the kernel has only promised so
far costs one for every 4 KiB.

    python tests/benchmarks/page_faults.py NUMBER kept|freed

NUMBER counts the cases of cases.py from 0; ``kept`` calls keep_freed_memory first. In a
process of its own, because that cannot be taken back. Unix only.
"""

import resource
import sys
from statistics import median

from cases import CASES, Block, autograd_step, block_of, block_step, mlp_of

from minipipe.core.comm.host import keep_freed_memory, limit_blas_threads


def faults_per_step(case):
    """Return the median over several steps, after as many that bring the memory in."""
    step = (
        block_step(block_of(case), case)
        if isinstance(case, Block)
        else autograd_step(mlp_of(case), case)
    )
    count = 5 if case.width >= 512 else 50
    for _ in range(count):
        step()
    return median(faults_of(step) for _ in range(count))


def faults_of(step):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


if __name__ == "__main__":
    if sys.argv[2] == "kept":
        keep_freed_memory()
    with limit_blas_threads(1):
        print(faults_per_step(CASES[int(sys.argv[1])]))
