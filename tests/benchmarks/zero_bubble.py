"""Does zero bubble pay? The speed of schedules next to GPipe's, measured and predicted,
over steps that overlap.

    mpirun -n 2 python tests/benchmarks/zero_bubble.py
    mpirun -n 2 python tests/benchmarks/zero_bubble.py --wait             steps that wait for their loss

An MLP with equally many Linear and Tanh layers on each stage, float32, one BLAS thread
for each rank, gradient descent. The costs are measured in each round (``measure_costs``
of 1F1B, and the time of an update); then the schedules take turns, several steps each.
Shown are medians over the rounds: milliseconds a step, the speed over that of GPipe in
the same round, the speed that the simulator predicts, and the one over the other.

Aims: the measured speed at least 0.95 of the predicted one; zb-h1 faster than 1F1B;
zb-h2 and zb-v faster than zb-h1.
"""

import argparse
import json
import time
from dataclasses import replace
from statistics import median

import numpy as np
from prediction import pipelines_of

from minipipe import Costs, init_process_group, optim, simulate


def measure(options, group):
    """Return {schedule: [(seconds of a step, predicted) of each round]}."""
    pipelines = pipelines_of(options, group)
    optimisers = {
        name: optim.SGD(pipeline.parameters(), 1e-3)
        for name, pipeline in pipelines.items()
    }
    generator = np.random.default_rng(0)
    batch = [
        generator.standard_normal((options.batch_size, options.width)).astype(
            np.float32
        )
        for _ in range(2)
    ]

    def train(name, steps):
        for _ in range(steps):
            pipelines[name].step(*batch, wait=options.wait)
            optimisers[name].step()

    found = {name: [] for name in pipelines}
    for _ in range(options.rounds + 1):
        costs = pipelines["1f1b"].measure_costs(*batch, num_steps=3)
        train("1f1b", 3)
        update = Costs.measured(pipelines["1f1b"].timeline(num_steps=3)).update
        costs = replace(costs, update=update)
        for name, pipeline in pipelines.items():
            group.barrier()
            start = time.perf_counter()
            train(name, options.steps)
            spent = float(
                group.all_reduce(np.array(time.perf_counter() - start), "max")
            )
            own_costs = costs.cut(pipeline.num_stages // group.size)
            predicted = simulate(
                pipeline.schedule, own_costs, options.steps, options.wait
            ).makespan
            found[name].append((spent / options.steps, predicted / options.steps))
    # the first round warms up
    return {name: rounds[1:] for name, rounds in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument(
        "--steps",
        type=int,
        default=4,
        help="of each schedule in a round (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--schedules",
        nargs="+",
        default=["1f1b", "zb-h1", "zb-h2", "zb-v"],
        metavar="NAME",
    )
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        options.schedules = list(dict.fromkeys(["gpipe", "1f1b", *options.schedules]))
        found = measure(options, group)
    if group.rank:
        return
    rows = []
    for name, rounds in found.items():
        both = list(zip(found["gpipe"], rounds))
        speeds = [median(gpipe[i] / own[i] for gpipe, own in both) for i in range(2)]
        rows.append(
            {
                "schedule": name,
                "ms": 1e3 * median(t for t, _ in rounds),
                "speed": speeds[0],
            }
        )
        rows[-1] |= {"predicted": speeds[1], "ratio": speeds[0] / speeds[1]}
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(
        f"{'schedule':18}{'ms a step':>10}{'over GPipe':>12}{'predicted':>11}{'ratio':>8}"
    )
    for row in rows:
        speeds = f"{row['speed']:12.3f}{row['predicted']:11.3f}{row['ratio']:8.3f}"
        print(f"{row['schedule']:18}{row['ms']:10.2f}{speeds}")


if __name__ == "__main__":
    main()
