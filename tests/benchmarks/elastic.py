"""What it costs to be able to lose a rank: ``mpirun --with-ft ulfm -n 4 python
tests/benchmarks/elastic.py``.

Steps of a stack of linear layers with Adam, with and without copies, by turns in one
job; the median of a step's time from its beginning to that of the next one, and the
ratio to steps without copies.
"""

import sys
import time
from statistics import median

import numpy as np

from minipipe import Pipeline, elastic, init_process_group, nn, optim

CASES = {"no copies": {"copies": 0}, "every step": {}, "every 10 steps": {"every": 10}}


def case_runner(width, num_layers, rows, group):
    inputs = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    begun = []

    def make(group):
        model = nn.Sequential(
            *[
                layer
                for _ in range(num_layers)
                for layer in (nn.Linear(width, width), nn.ReLU())
            ]
        )
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
        return pipeline, optim.Adam(pipeline.parameters(), learning_rate=1e-3)

    def step(k, pipeline, optimiser):
        begun.append(time.perf_counter())
        pipeline.step(inputs, inputs)
        optimiser.step()

    def run(case, num_steps):
        begun.clear()
        elastic.train(make, step, group, num_steps, **CASES[case])
        return np.diff(begun)[10:].tolist()

    return run


def main(width=128, num_layers=8, rows=128, rounds=8, num_steps=60):
    with init_process_group() as group:
        run = case_runner(width, num_layers, rows, group)
        times = {case: [] for case in CASES}
        for _ in range(rounds):
            for case in CASES:
                times[case].append(run(case, num_steps))
        if group.rank == 0:
            print(
                f"{group.size} ranks, {num_layers} layers of {width} x {width}, "
                f"{rows} rows in 4 microbatches"
            )
            for case, found in times.items():
                # The mean of ten steps, since only one in ten makes copies; then what
                # is typical of all.
                steps = [
                    np.mean(part[i : i + 10])
                    for part in found
                    for i in range(0, len(part) - 9, 10)
                ]
                ratios = [
                    np.mean(part) / np.mean(plain)
                    for part, plain in zip(found, times["no copies"])
                ]
                print(
                    f"{case:15} {1000 * median(steps):7.2f} ms a step, x "
                    f"{median(ratios):.3f}"
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
