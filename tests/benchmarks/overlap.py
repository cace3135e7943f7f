"""What it brings to begin a step before the loss of the last one has come, predicted
and measured.

    mpirun -n 4 python tests/benchmarks/overlap.py

Layers that sleep for one unit in F, one in I and one in W, so that nothing but waiting
is measured. Shown are the units that a step takes with the wait for the loss at its end
(``step``) and without it (``step(…, wait=False)``), the prediction of
``simulate(schedule, num_steps=…, wait=…)``, and how far the measurement is from it.
"""

import argparse
import sys
import time

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim, schedules, simulate
from minipipe.core.tensor import record


class Sleep(nn.Module):
    """Returns its input after a while; so do its gradients, of the input and of its
    weights.
    """

    def __init__(self, seconds, num_weights=1):
        self.seconds = seconds
        self.weight = nn.Parameter((num_weights,), nn.initialisers.constant(1.0))

    def forward(self, x):
        def of_x(g):
            time.sleep(self.seconds)
            return g

        def of_weight(g):
            time.sleep(self.seconds)
            return np.zeros(self.weight.shape, np.float32)

        time.sleep(self.seconds)
        return record(x.data.copy(), (x, of_x), (self.weight, of_weight))


def measure(group, name, options, wait):
    """Return (units of a step measured, and predicted)."""
    x = np.ones((options.microbatches, 1), np.float32)
    schedule = schedules.build(name, group.size, options.microbatches)
    chunks = schedule.num_stages // group.size
    unit = options.unit / chunks
    model = nn.Sequential(*(Sleep(unit) for _ in range(schedule.num_stages)))
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule)
    optimiser = optim.SGD(pipeline.parameters(), 0.0)
    pipeline.step(x, x)
    group.barrier()
    start = time.perf_counter()
    for _ in range(options.steps):
        pipeline.step(x, x, wait=wait)
        optimiser.step()
    spent = float(group.all_reduce(np.array(time.perf_counter() - start), "max"))
    predicted = simulate(schedule, num_steps=options.steps, wait=wait).makespan
    return spent / unit / options.steps / chunks, predicted / options.steps / chunks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--unit", type=float, default=0.02, help="seconds of F, I and W on a rank"
    )
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--schedule", action="append")
    with init_process_group() as group:
        options = parser.parse_args()
        if group.rank == 0:
            print(
                f"{'':12}{'waits':>10}{'predicted':>11}{'off':>8}{'overlap':>11}{'predicted':>11}{'off':>8}"
            )
        for name in options.schedule or ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v"]:
            found = [measure(group, name, options, wait) for wait in (True, False)]
            if group.rank == 0:
                cells = [
                    f"{spent:10.2f} {ideal:10.2f} {100 * (spent / ideal - 1):6.1f}%"
                    for spent, ideal in found
                ]
                print(f"{name:12}{' '.join(cells)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
