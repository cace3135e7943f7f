"""How long a training step takes, as a ratio to a hand-written NumPy step in the same
run.

    python tests/benchmarks/step_time.py              one rank: plain autograd, Pipeline, and the floor
    mpirun -n 2 python tests/benchmarks/step_time.py  two ranks against one

An MLP of 8 layers, d = 128, batch 256 in 8 microbatches, float32, one BLAS thread. The
floor is the same step by hand (floor.py). Contenders take turns, step by step, and
medians are compared, so a noisy machine disturbs all of them alike.
"""

import argparse
import sys
import time
from statistics import median

import numpy as np
from floor import Floor, mlp

from minipipe import Pipeline, init_process_group, nn, optim
from minipipe.comm import OneRankGroup
from minipipe.testing import one_process_step


def contenders(options, group):
    """Return {name: step function}; with several ranks, the pipeline over all of them
    against that on one.
    """
    width, batch, m, rate = (
        options.width,
        options.batch_size,
        options.microbatches,
        1e-3,
    )
    generator = np.random.default_rng(0)
    inputs, targets = (
        generator.standard_normal((batch, width)).astype(np.float32) for _ in range(2)
    )
    model = mlp(width, options.layers).initialise(0)

    def pipelined(pipeline):
        optimiser = optim.SGD(pipeline.parameters(), rate)

        def step():
            loss = pipeline.step(inputs, targets)
            optimiser.step()
            return loss

        return step

    def plain():
        loss = one_process_step(model, nn.MSELoss(), inputs, targets, m).loss
        plain_optimiser.step()
        return loss

    plain_optimiser = optim.SGD(model.parameters(), rate)
    floor = Floor(model, batch, m, rate)
    arguments = {
        "loss": nn.MSELoss(),
        "num_microbatches": m,
        "schedule": options.schedule,
    }
    found = {
        "floor": lambda: floor.step(inputs, targets),
        "autograd": plain,
        "pipeline, 1 rank": pipelined(Pipeline(model, OneRankGroup(), **arguments)),
    }
    if group.size > 1:
        found[f"pipeline, {group.size} ranks"] = pipelined(
            Pipeline(model, group, **arguments)
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", type=int, default=200)
    with init_process_group() as group:
        options = parser.parse_args()
        found = contenders(options, group)
        times = {name: [] for name in found}
        losses = {}
        for _ in range(options.steps + 20):
            for name, step in found.items():
                is_alone = not name.endswith("ranks")
                group.barrier()
                # rank 0 measures what runs alone while the others wait
                if is_alone and group.rank:
                    continue
                start = time.perf_counter()
                losses[name] = step()
                times[name].append(time.perf_counter() - start)
        if group.rank == 0:
            report(times, losses, options)


def report(times, losses, options):
    medians = {name: median(values[20:]) for name, values in times.items()}
    print(
        f"width {options.width}, {options.layers} layers, batch "
        f"{options.batch_size} in {options.microbatches}, "
        f"{options.schedule}, {sys.platform}, NumPy {np.__version__}"
    )
    for name, value in medians.items():
        print(
            f"{name:20} {1000 * value:8.3f} ms   {value / medians['floor']:6.3f} "
            f"of the floor   loss {losses[name]:.6f}"
        )
    one, many = (
        medians["pipeline, 1 rank"],
        [v for n, v in medians.items() if n.endswith("ranks")],
    )
    if many:
        print(f"speed-up over one rank: {one / many[0]:.2f}")


if __name__ == "__main__":
    main()
