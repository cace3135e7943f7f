"""One step on one rank, compiled over eager: ``OPENBLAS_NUM_THREADS=1 python tests/benchmarks/compiled.py``."""

from statistics import median
from time import perf_counter

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim


def main():
    """Print the ratio of interleaved steps for some sizes."""
    with init_process_group() as group:
        for width, num_layers, rows in ((32, 4, 16), (32, 16, 16), (128, 8, 32)):
            model = nn.Sequential(*(part for _ in range(num_layers) for part in (nn.Linear(width, width), nn.ReLU())))
            options = {"loss": nn.MSELoss(), "num_microbatches": 4}
            both = [Pipeline(model, group, **options, compile=how) for how in (True, False)]
            optimisers = [optim.SGD(pipeline.parameters(), 1e-4) for pipeline in both]
            x, ratios = np.random.default_rng(0).normal(size=(4 * rows, width)).astype(np.float32), []
            for _ in range(200):
                times = []
                for pipeline, optimiser in zip(both, optimisers):
                    begun = perf_counter()
                    pipeline.step(x, x)
                    times.append(perf_counter() - begun)
                    optimiser.step()
                ratios.append(times[0] / times[1])
            print(f"d={width}, {num_layers} layers, 4 x {rows}: compiled / eager {median(ratios[20:]):.2f}")
            print(f"    {both[0].compile_report()}")


if __name__ == "__main__":
    main()
