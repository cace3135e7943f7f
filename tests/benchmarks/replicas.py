"""How long a step takes on p ranks x R replicas, for each R that divides the ranks,
next to the same step by hand.

    mpirun -n 4 python tests/benchmarks/replicas.py

An MLP as large as that of `tutorials/train.py`: 8 Linear layers of width 192 with
ReLUs, a batch of 64 in 16 microbatches, mean squared error, gradient descent, float32,
one BLAS thread for each rank. By hand is 1F1B (by_hand.py) with one Allreduce of all
gradients of a rank at the end of a step, in whatever order MPI adds them. All take
turns in one run, minipipe eagerly and compiled. Shown are the median milliseconds of a
step, with its update, and the same over that by hand; and, of the last step of each
round, from its first action to its last sum, the median as measured and what `simulate`
predicts from `pipeline.measure_costs`.
"""

import argparse
import sys
import time
from statistics import median
from warnings import catch_warnings, simplefilter

import numpy as np
from by_hand import posted_1f1b, shares
from floor import mlp
from mpi4py import MPI

from minipipe import Pipeline, init_process_group, nn, optim, simulate

RATE = 1e-3
MINIPIPE = ("eager", "compiled")
SPANS = f"{'makespan':>11}{'predicted':>11}"


def by_hand(model, options, replicas, inputs, targets):
    """Return the step by hand, and a function that returns this rank's weights."""
    world = MPI.COMM_WORLD
    p, m = world.size // replicas, options.microbatches // replicas
    replica, rank = divmod(world.rank, p)
    part = slice(
        replica * len(inputs) // replicas, (replica + 1) * len(inputs) // replicas
    )
    size = len(inputs) // options.microbatches
    layers = shares(
        model, rank, options.layers // p, size, m, RATE, world.Split(rank, replica)
    )
    return posted_1f1b(
        layers, rank, p, inputs[part], targets[part], world.Split(replica, rank)
    ), layers.state_dict


def pipelined(model, group, options, replicas, inputs, targets, is_compiled):
    """Return minipipe's step, a function that returns all weights, the pipeline, and
    the predicted seconds.
    """
    p, of_rank = group.size // replicas, options.layers * replicas // group.size
    parts = [range(2 * of_rank * r, 2 * of_rank * (r + 1)) for r in range(p)]
    given = {
        "schedule": "1f1b",
        "num_microbatches": options.microbatches // replicas,
        "replicas": replicas,
    }
    pipeline = Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        partition=[*parts[:-1], parts[-1][:-1]],
        check_finite="off",
        compile=is_compiled,
        **given,
    )
    optimiser = optim.SGD(pipeline.parameters(), RATE)
    with catch_warnings():
        simplefilter("ignore")  # a busy machine
        costs = pipeline.measure_costs(inputs, targets, num_steps=10)

    def step():
        pipeline.step(inputs, targets)
        optimiser.step()

    return (
        step,
        pipeline.state_dict,
        pipeline,
        simulate(pipeline.schedule, costs).makespan,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    with init_process_group() as group:
        options = parser.parse_args()
        generator = np.random.default_rng(0)
        shape = options.batch_size, options.width
        inputs, targets = (
            generator.standard_normal(shape).astype(np.float32) for _ in range(2)
        )
        model = mlp(options.width, options.layers).initialise(0)
        found, predicted, pipelines, makespans = {}, {}, {}, {}
        for replicas in (n for n in range(1, group.size + 1) if group.size % n == 0):
            found["by hand", replicas] = by_hand(
                model, options, replicas, inputs, targets
            )
            for name in MINIPIPE:
                *found[name, replicas], pipeline, seconds = pipelined(
                    model, group, options, replicas, inputs, targets, name == "compiled"
                )
                pipelines[name, replicas] = pipeline
                predicted[name, replicas] = seconds
                makespans[name, replicas] = []
        check_alike(found)
        times = {name: [] for name in found}
        for _ in range(options.rounds):
            for name, (step, _) in found.items():
                group.barrier()
                start = time.perf_counter()
                for _ in range(options.steps):
                    step()
                spent = np.array((time.perf_counter() - start) / options.steps)
                times[name].append(1e3 * float(group.all_reduce(spent, "max")))
            for key, pipeline in pipelines.items():
                makespans[key].append(pipeline.timeline().makespan)
        if group.rank == 0:
            print(f"{'ranks x replicas':17}{'':9}{'ms':>8}{'ratio':>7}{SPANS}")
            for name, replicas in times:
                own = median(times[name, replicas])
                shape = f"{group.size // replicas} x {replicas}"
                ratio = own / median(times["by hand", replicas])
                line = f"{shape:17}{name:9}{own:8.3f}{ratio:7.2f}"
                if name in MINIPIPE:
                    seen = 1e3 * median(makespans[name, replicas])
                    seconds = predicted[name, replicas]
                    line += f"{seen:11.3f}{1e3 * seconds:11.3f}"
                print(line)


def check_alike(found):
    """Let all take the same steps; compare their weights."""
    states = {}
    for name, (step, state_dict) in found.items():
        for _ in range(3):
            step()
        MPI.COMM_WORLD.Barrier()
        states[name] = state_dict()
    whole = states["eager", 1]
    for name, state in states.items():
        for key, value in state.items():
            np.testing.assert_allclose(
                value, whole[key], rtol=1e-3, atol=1e-5, err_msg=f"{name}, {key}"
            )


if __name__ == "__main__":
    sys.exit(main())
