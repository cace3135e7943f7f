"""What plan.memory() predicts of each rank, next to what a run takes.

    mpirun -n 2 python tests/benchmarks/memory.py
    mpirun -n 4 python tests/benchmarks/memory.py --schedule zb-v

A language model of transformer blocks, float32, Adam, one BLAS thread for each rank.
Each rank trains three steps, and looks at the most that its process had in memory, over
what it had before the pipeline was made ("resident", from Linux' VmHWM). It trains
three more steps of a new pipeline with tracemalloc, which counts what Python and NumPy
asked for ("traced"). Then rank 0 measures the layers, and the plan predicts. In MiB.

Aims: traced is what was predicted, within the temporary arrays of one operation;
resident at most a tenth above traced, for what the allocator keeps.

One schedule a run: memory that a process has once had stays with it.
"""

import argparse
import json
import tracemalloc
from pathlib import Path

import numpy as np

from minipipe import Pipeline, init_process_group, measure_layers, nn, optim

MIB = 2**20
PROCESS = Path("/proc/self")


def model_of(options):
    embedding = nn.Embedding(options.vocabulary, options.width)
    blocks = [
        nn.TransformerBlock(options.width, 4, is_causal=True)
        for _ in range(options.blocks)
    ]
    return nn.Sequential(
        embedding,
        *blocks,
        nn.LayerNorm(options.width),
        nn.Linear(options.width, options.vocabulary),
    )


def resident(name):
    """Return a line of /proc/self/status in bytes: VmRSS for now, VmHWM for the most so
    far. 0 where there is none.
    """
    if not PROCESS.exists():
        return 0
    lines = (PROCESS / "status").read_text().splitlines()
    return 1024 * int(
        next(line for line in lines if line.startswith(f"{name}:")).split()[1]
    )


def train(options, group, batch):
    """Make a pipeline, train three steps, and return its plan."""
    pipeline = Pipeline(
        model_of(options),
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=options.schedule,
        num_microbatches=options.microbatches,
        recompute=options.recompute,
    )
    optimiser = optim.Adam(pipeline.parameters())
    pipeline.run([(batch, batch)] * 3, optimiser)
    return pipeline.plan


def measure(options, group, batch):
    """Return (plan, bytes resident, bytes traced) of this rank."""
    before = resident("VmRSS")
    if PROCESS.exists():
        (PROCESS / "clear_refs").write_text("5")  # VmHWM begins again
    train(options, group, batch)
    most_resident = resident("VmHWM") - before
    tracemalloc.start()
    plan = train(options, group, batch)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return plan, most_resident, traced


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", default="1f1b", metavar="NAME")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument(
        "--samples", type=int, default=4, help="of a microbatch (default: %(default)s)"
    )
    parser.add_argument(
        "--length", type=int, default=128, help="of a sequence (default: %(default)s)"
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        shape = options.microbatches * options.samples, options.length
        batch = np.random.default_rng(0).integers(0, options.vocabulary, shape)
        plan, *mine = measure(options, group, batch)
        taken = group.all_gather(np.array(mine))
        if group.rank == 0:
            layers = measure_layers(
                plan.model,
                batch,
                batch,
                nn.CrossEntropyLoss(),
                num_microbatches=options.microbatches,
                repeats=1,
            )
            report(
                options,
                plan.memory(layers, optimiser=optim.Adam, recompute=options.recompute),
                taken,
            )


def report(options, predicted, taken):
    if options.json:
        rows = [
            {**own._asdict(), "resident": int(r), "traced": int(t)}
            for own, (r, t) in zip(predicted, taken)
        ]
        print(json.dumps({"schedule": options.schedule, "ranks": rows}))
        return
    print(
        f"{options.schedule}, MiB  "
        f"{'kept':>8}{'activations':>13}{'messages':>10}{'predicted':>11}",
        end="",
    )
    print(f"{'traced':>9}{'beyond':>8}{'resident':>10}{'over traced':>13}")
    for rank, (own, (most_resident, traced)) in enumerate(zip(predicted, taken)):
        kept = own.parameters + own.gradients + own.optimiser_state
        sizes = f"{kept / MIB:8.1f}{own.activations / MIB:13.1f}{own.messages / MIB:10.1f}{own.total / MIB:11.1f}"
        found = f"{traced / MIB:9.1f}{(traced - own.total) / MIB:8.1f}{most_resident / MIB:10.1f}"
        print(
            f"{f'rank {rank}':{len(options.schedule) + 7}}{sizes}{found}{most_resident / traced:13.2f}"
        )


if __name__ == "__main__":
    main()
