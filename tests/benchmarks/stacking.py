"""What one product for the weight gradients of several microbatches saves
(``stack_weight_gradients=True``).

    python tests/benchmarks/stacking.py
    python tests/benchmarks/stacking.py --json

An MLP of Linear and ReLU on one rank, in 8 microbatches: all F, all I, all W. The
contenders take turns; shown are medians in milliseconds, of the step and of its W
alone.

    whole      GPipe, backward not divided
    divided    I and W, each W a product of its own
    stacked    I and W, the W of a layer as one product

Aim: at d=1024, for batches up to 512, the W of ``stacked`` take at most 0.64 of those
of ``divided``.
"""

import argparse
import json
import time
from statistics import median

import numpy as np
from floor import mlp

from minipipe import Pipeline, Schedule, init_process_group, nn

M = 8
CASES = [
    (1024, 2, 64),
    (1024, 2, 256),
    (1024, 2, 512),
    (256, 4, 256),
    (128, 4, 256),
    (32, 4, 64),
]


def measure(group, width, layers, batch, rounds):
    """Return {contender: (seconds of a step, seconds of its W)}."""
    generator = np.random.default_rng(0)
    inputs, targets = (
        generator.standard_normal((batch, width)).astype(np.float32) for _ in range(2)
    )
    divided = Schedule.from_text(
        " ".join(f"{kind}{k}" for kind in "FIW" for k in range(M))
    )
    model, loss = mlp(width, layers).initialise(0), nn.MSELoss()
    pipelines = {
        "whole": Pipeline(
            model, group, loss=loss, schedule="gpipe", num_microbatches=M
        ),
        "divided": Pipeline(model, group, loss=loss, schedule=divided),
        "stacked": Pipeline(
            model, group, loss=loss, schedule=divided, stack_weight_gradients=True
        ),
    }
    times = {name: [] for name in pipelines}
    for _ in range(rounds + 1):
        for name, pipeline in pipelines.items():
            start = time.perf_counter()
            pipeline.step(inputs, targets)
            step = time.perf_counter() - start
            spans = pipeline.timeline().spans[0]
            times[name].append(
                (
                    step,
                    sum(
                        span.end - span.start
                        for span in spans
                        if span.action.kind == "W"
                    ),
                )
            )
    return {
        name: tuple(median(column) for column in zip(*rows[1:]))
        for name, rows in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--widest", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = []
    with init_process_group() as group:
        for width, layers, batch in CASES:
            if width <= options.widest:
                times = measure(group, width, layers, batch, options.rounds)
                report.append(
                    {"width": width, "layers": layers, "batch": batch, "seconds": times}
                )
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{'':32}{'a step, ms':>27}   {'its W, ms':>22}")
    print(
        f"{'':32}{'whole':>9}{'divided':>9}{'stacked':>9}   "
        f"{'divided':>9}{'stacked':>9}{'ratio':>7}"
    )
    for row in report:
        case = f"d={row['width']}, {row['layers']} layers, {row['batch']} in {M}"
        (whole, _), (divided, w), (stacked, stacked_w) = row["seconds"].values()
        ms = [1e3 * t for t in (whole, divided, stacked, w, stacked_w)]
        print(
            f"{case:32}{ms[0]:9.2f}{ms[1]:9.2f}{ms[2]:9.2f}   "
            f"{ms[3]:9.2f}{ms[4]:9.2f}{ms[4] / ms[3]:7.2f}"
        )


if __name__ == "__main__":
    main()
