"""A fault in a step like the last one, on two ranks: ``FAULT RANK compiled|eager
stages|replicas``.
"""

import os
import signal
import sys
import time

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim

STEPS, STEP = 10, 7  # in which something goes wrong
FAULTS = {
    "is_killed": lambda pipeline, optimiser, x: os.kill(os.getpid(), signal.SIGKILL),
    "raises": lambda pipeline, optimiser, x: 1 // 0,
    "exits": lambda pipeline, optimiser, x: sys.exit(3),
    "sleeps": lambda pipeline, optimiser, x: time.sleep(60),
    "evaluates": lambda pipeline, optimiser, x: pipeline.evaluate(x, x),
    "steps_again": lambda pipeline, optimiser, x: optimiser.step(),
    "has_another_batch": lambda pipeline, optimiser, x: np.add(x, 1, x),
    "has_another_mode": lambda pipeline, optimiser, x: pipeline.eval(),
    "has_a_nan": lambda pipeline, optimiser, x: x.__setitem__((5, 3), np.nan),
}


def main():
    fault, rank, how, layout = sys.argv[1:]
    with init_process_group(timeout=3) as group:
        layers = [nn.Linear(8, 8) for _ in range(4)]
        model = nn.Sequential(*layers).initialise(0)
        options = {"num_microbatches": 4, "compile": how == "compiled"}
        if layout == "replicas":
            options |= {"num_microbatches": 2, "replicas": 2}
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)
        optimiser = optim.SGD(pipeline.parameters(), 0.01)
        x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
        for step in range(STEPS):
            if step == STEP and group.rank == int(rank):
                FAULTS[fault](pipeline, optimiser, x)
            pipeline.step(x, x)
            optimiser.step()
    print("no fault")


if __name__ == "__main__":
    main()
