"""Print the most memory that a rank held in a step, in MiB, for few and for many
microbatches. For test_executor.py.
"""

import sys
import tracemalloc

import numpy as np

from minipipe import Pipeline, init_process_group, nn

if __name__ == "__main__":
    with init_process_group(timeout=30) as group:
        for num_microbatches in map(int, sys.argv[1:]):
            rows = 64 * num_microbatches
            # 1 MiB passes between the stages
            model = nn.Sequential(nn.Linear(4, 4096), nn.Tanh(), nn.Linear(4096, 4))
            pipeline = Pipeline(
                model,
                group,
                loss=nn.MSELoss(),
                num_microbatches=num_microbatches,
                partition=[range(1), range(1, 3)],
            )
            inputs = np.ones((rows, 4), np.float32)
            pipeline.step(inputs, inputs)
            tracemalloc.start()
            pipeline.step(inputs, inputs)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            peaks = group.all_gather(np.array(peak / 2**20))
            if group.rank == 0:
                print(*(round(float(p), 1) for p in peaks), flush=True)
