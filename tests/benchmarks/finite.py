"""What it costs to look whether losses and gradients are finite: steps with
``check_finite`` on and off, by turns.

    mpirun -n 2 python tests/benchmarks/finite.py                      d=32 and d=128
    mpirun -n 4 python tests/benchmarks/finite.py --width 32

An MLP of Linear and ReLU by turns, with as many Linear layers on each rank, mean
squared error, SGD, float32, one BLAS thread. Both pipelines take turns of some steps in
one run; the time of a turn is that of the slowest rank. Shown are the median time of a
step, and the median of the ratios of neighbouring turns with their quartiles.

Aim: below 1.02 on 2 ranks.
"""

import argparse
import time
from statistics import median, quantiles

import numpy as np
from floor import mlp

from minipipe import Pipeline, init_process_group, nn, optim

# by width: samples, microbatches, Linear layers on each rank
CASES = {32: (64, 4, 2), 128: (256, 8, 4)}


def stepping(group, width, layers, check):
    samples, microbatches, usual = CASES.get(width, CASES[32])
    generator = np.random.default_rng(0)
    inputs, targets = (
        generator.standard_normal((samples, width)).astype(np.float32) for _ in range(2)
    )
    model = mlp(width, (layers or usual) * group.size)
    pipeline = Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        num_microbatches=microbatches,
        check_finite=check,
    )
    optimiser = optim.SGD(pipeline.parameters(), 1e-3)

    def step():
        pipeline.step(inputs, targets)
        optimiser.step()

    return step


def seconds_of_a_turn(group, step, steps):
    """Return the seconds of a step on the slowest rank; the first step of a turn does
    not count.
    """
    step()
    group.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    spent = time.perf_counter() - start
    return float(group.all_reduce(np.array(spent / steps), "max"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, nargs="*", default=list(CASES))
    parser.add_argument("--layers", type=int, help="Linear layers on each rank")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--steps", type=int, default=20)
    with init_process_group() as group:
        options = parser.parse_args()
        for width in options.width:
            steps = {
                check: stepping(group, width, options.layers, check)
                for check in ("off", "stop")
            }
            times = {check: [] for check in steps}
            for number in range(options.rounds + 1):
                for check, step in list(steps.items())[:: 1 if number % 2 else -1]:
                    times[check].append(seconds_of_a_turn(group, step, options.steps))
            if group.rank == 0:
                report(width, group.size, times)


def report(width, num_ranks, times):
    ratios = [stop / off for stop, off in zip(times["stop"], times["off"])]
    low, _, high = quantiles(ratios, n=4)
    off, stop = (1e3 * median(times[check]) for check in ("off", "stop"))
    print(f"d={width}, {num_ranks} ranks: off {off:.3f} ms, stop {stop:.3f} ms", end="")
    print(f"   stop / off {median(ratios):.4f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
