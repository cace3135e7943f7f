"""How well the time of each schedule is predicted from one profiled 1F1B run.

    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python tests/benchmarks/prediction.py
    OPENBLAS_NUM_THREADS=1 mpirun -n 4 python tests/benchmarks/prediction.py      more ranks than cores
    OPENBLAS_NUM_THREADS=1 mpirun -n 8 python tests/benchmarks/prediction.py

An MLP of 16 layers, d = 256, batch 512 in 8 microbatches, float32, one BLAS thread.
`measure_costs` of a 1F1B pipeline gives the costs; for schedules with several stages on
a rank they are cut into that many pieces. Then all schedules take turns, step by step.
That is one round; the error is the median, over the rounds, of predicted over measured
makespan of one round, so that a machine that is slower for a while disturbs both alike.
The fastest column compares the shortest makespan with the shortest prediction of all
rounds: it shows through where other programs run.

Aim: a median error of at most 10 % over all schedules, also where ranks share cores.
"""

import argparse
import json
import os
from statistics import median

import numpy as np

from minipipe import Pipeline, init_process_group, nn, schedules, simulate
from minipipe.tuning.weighing import candidates


def model_of(options):
    layers = [
        nn.Sequential(nn.Linear(options.width, options.width), nn.Tanh())
        for _ in range(options.layers)
    ]
    return nn.Sequential(*layers)


def pipelines_of(options, group):
    """Return {name: pipeline} for every schedule that trains; each stage has equally
    many layers.
    """
    found = {}
    for name in options.schedules:
        schedule = schedules.build(name, group.size, options.microbatches)
        size, rest = divmod(options.layers, schedule.num_stages)
        if rest:
            raise SystemExit(
                f"{options.layers} layers cannot be shared evenly by "
                f"{schedule.num_stages} stages"
            )
        partition = [
            range(stage * size, (stage + 1) * size)
            for stage in range(schedule.num_stages)
        ]
        found[name] = Pipeline(
            model_of(options),
            group,
            loss=nn.MSELoss(),
            schedule=schedule,
            partition=partition,
        )
    return found


def measure(options, group):
    """Return {name: [(measured, predicted) of each round]} in seconds, and the costs of
    the last round.
    """
    pipelines = pipelines_of(options, group)
    generator = np.random.default_rng(0)
    batch = [
        generator.standard_normal((options.batch_size, options.width)).astype(
            np.float32
        )
        for _ in range(2)
    ]
    found = {name: [] for name in pipelines}
    for _ in range(options.rounds + 1):
        costs = pipelines["1f1b"].measure_costs(*batch, num_steps=options.steps)
        makespans = {name: [] for name in pipelines}
        for _ in range(options.steps):
            for name, pipeline in pipelines.items():
                group.barrier()
                pipeline.step(*batch)
                makespans[name].append(pipeline.timeline().makespan)
        for name, pipeline in pipelines.items():
            predicted = simulate(
                pipeline.schedule, costs.cut(pipeline.num_stages // group.size)
            ).makespan
            found[name].append((median(makespans[name]), predicted))
    # the first round warms up
    return {name: rounds[1:] for name, rounds in found.items()}, costs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument(
        "--steps",
        type=int,
        default=5,
        help="of each schedule in a round (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=30, help="default: %(default)s")
    parser.add_argument(
        "--schedules",
        nargs="+",
        metavar="NAME",
        help="default: all that train on these ranks",
    )
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        known = candidates(group.size, options.layers, [options.microbatches])
        names = options.schedules or [candidate.schedule for candidate in known]
        options.schedules = list(dict.fromkeys(["1f1b", *names]))
        found, costs = measure(options, group)
        if group.rank == 0:
            report(found, costs, options)


def report(found, costs, options):
    errors = {
        name: median(predicted / measured for measured, predicted in found[name]) - 1
        for name in found
    }
    if options.json:
        print(
            json.dumps(
                {"errors": errors, "cores": costs.cores, "load": os.getloadavg()[0]}
            )
        )
        return
    print(
        f"overhead {1e6 * costs.overhead:.0f} us, latency "
        f"{1e6 * costs.latency:.0f} us in the last round"
    )
    if costs.cores is not None:
        print(
            f"ranks share cores; in the last round they got {costs.cores:.2f} of them"
        )
    print(f"load average {os.getloadavg()[0]:.1f} at the end")
    print(
        f"{'schedule':18}{'measured':>12}{'predicted':>12}{'error':>10}{'fastest':>10}"
    )
    for name, rounds in found.items():
        measured, predicted = (1000 * median(times) for times in zip(*rounds))
        shortest, least = map(min, zip(*rounds))
        fastest = 100 * (least / shortest - 1)
        print(
            f"{name:18}{measured:9.2f} ms{predicted:9.2f} "
            f"ms{100 * errors[name]:+8.1f} %{fastest:+8.1f} %"
        )
    worst = max(errors, key=lambda name: abs(errors[name]))
    print(
        f"median error {100 * median(map(abs, errors.values())):.1f} %, worst "
        f"{100 * errors[worst]:+.1f} % ({worst})"
    )


if __name__ == "__main__":
    main()
