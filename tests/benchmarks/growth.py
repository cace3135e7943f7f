"""How time and memory of a step grow with microbatches and with layers.

    python tests/benchmarks/growth.py                 one rank
    mpirun -n 4 python tests/benchmarks/growth.py     more

An MLP of Linear and ReLU layers, d = 128, microbatches of 32 samples, float32, one BLAS
thread for each rank. Shown are medians: milliseconds a step; microseconds for each of
its m + p - 1 slots and each layer of a rank, which is what a microbatch costs while the
pipeline is full; and the largest of all ranks' peaks of activations in KiB.

Aims: the time of a microbatch and layer does not grow; 1F1B's memory does not grow with
microbatches, GPipe's does as they do.

How schedules grow, from 1 to 1024 ranks, is measured by schedule_scale.py.
"""

import argparse
import json
import time
from statistics import median

import numpy as np
from floor import mlp

from minipipe import Pipeline, init_process_group, nn

WIDTH, SAMPLES = 128, 32


def measure(group, schedule, m, layers, rounds):
    """Return (seconds of a step, peak bytes of a rank); ``layers`` on each rank."""
    total = layers * group.size
    parts = [
        range(2 * layers * r, min(2 * layers * (r + 1), 2 * total - 1))
        for r in range(group.size)
    ]
    pipeline = Pipeline(
        mlp(WIDTH, total),
        group,
        loss=nn.MSELoss(),
        schedule=schedule,
        num_microbatches=m,
        partition=parts,
    )
    batch = np.ones((m * SAMPLES, WIDTH), np.float32)
    times = []
    for _ in range(rounds + 1):
        group.barrier()
        start = time.perf_counter()
        pipeline.step(batch, batch)
        times.append(
            float(group.all_reduce(np.array(time.perf_counter() - start), "max"))
        )
    pipeline.measures_memory = True
    pipeline.step(batch, batch)
    return median(times[1:]), max(pipeline.timeline().peak_memory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--schedules", nargs="+", default=["1f1b", "gpipe"], metavar="NAME"
    )
    microbatches, layers = [8, 16, 32, 64, 128, 256], [2, 4, 8, 16, 32, 64]
    parser.add_argument(
        "--microbatches",
        nargs="+",
        type=int,
        default=microbatches,
        metavar="M",
        help="with 4 layers",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        type=int,
        default=layers,
        metavar="L",
        help="of a rank; in 8 microbatches",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        cases = [(m, 4) for m in options.microbatches] + [
            (8, layers) for layers in options.layers if layers != 4
        ]
        rows = []
        for schedule in options.schedules:
            for m, layers in cases:
                spent, peak = measure(group, schedule, m, layers, options.rounds)
                each = spent / (m + group.size - 1) / layers
                rows.append(
                    {
                        "schedule": schedule,
                        "microbatches": m,
                        "layers": layers,
                        "ms": 1e3 * spent,
                    }
                )
                rows[-1] |= {"us": 1e6 * each, "KiB": peak / 1024}
    if group.rank:
        return
    if options.json:
        print(json.dumps({"ranks": group.size, "rows": rows}, indent=1))
        return
    print(
        f"{'schedule':10}{'microbatches':>13}{'layers':>8}{'ms a step':>11}{'µs each':>9}{'peak KiB':>10}"
    )
    for row in rows:
        sizes = f"{row['schedule']:10}{row['microbatches']:13}{row['layers']:8}"
        print(f"{sizes}{row['ms']:11.2f}{row['us']:9.1f}{row['KiB']:10.0f}")


if __name__ == "__main__":
    main()
