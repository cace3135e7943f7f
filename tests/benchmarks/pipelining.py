"""How long a training step through ranks takes, next to the same step by hand and to a
framework without autograd.

    mpirun -n 2 python tests/benchmarks/pipelining.py                 every case and contender
    mpirun -n 4 python tests/benchmarks/pipelining.py --case d=32     the cases that have this in their name
    mpirun -n 2 python tests/benchmarks/pipelining.py --json --torch --picture steps.svg

An MLP of Linear and ReLU by turns, mean squared error, gradient descent, float32, one
BLAS thread for each rank. The contenders take turns in one run, so a noisy machine
disturbs all alike; shown are the median, the lowest and the highest time of a step over
the rounds, and the median over that of the floor.

    floor      1F1B by hand (by_hand.py): every array allocated once, every receive posted at the beginning of the step
    peer       GPipe by hand, as small frameworks without autograd have it: blocking messages, two buffers, no loss
    1f1b, …    minipipe, with these schedules
    compiled   minipipe's 1f1b with compile=True
    torch      with --torch: PyTorch's own 1F1B (torch.distributed.pipelining) over gloo, in the same processes
    shallow …  with --shallowspeed CLONE: ShallowSpeed's schedules, in the same processes

Before they are timed all have taken the same steps, and their weights are compared.

Aims, at most, over the floor on 2 and 4 ranks: d=128 1.25; d=1024 1.03 and 1.05; d=32
1.9. Compiled, on 2: 1.0, 1.0 and 1.10. Never slower than the peer and ShallowSpeed.
Over PyTorch, compiled: d=128 0.28, d=1024 0.93, d=32 0.08.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from bars import bars
from by_hand import blocking_gpipe, posted_1f1b, shares
from floor import mlp

from minipipe import Pipeline, init_process_group, nn, optim

RATE = 1e-3


class Case(NamedTuple):
    """Widths and sizes; layers are Linear layers on each rank."""

    width: int
    batch: int
    microbatches: int
    layers: int
    steps: int

    def __str__(self):
        return (
            f"d={self.width}, batch {self.batch} in {self.microbatches}, "
            f"{self.layers} layers a rank"
        )


CASES = [Case(32, 64, 4, 2, 200), Case(128, 256, 8, 4, 40), Case(1024, 512, 8, 2, 2)]


def pipelined(case, group, schedule, inputs, targets, compiles=False):
    """Return minipipe's step, and a function that returns this rank's weights."""
    model, parts = (
        mlp(case.width, case.layers * group.size).initialise(0),
        parts_of(case, group),
    )
    chunks = {} if schedule != "zb-v" else {"partition": halves(parts)}
    partition = chunks or {"partition": parts}
    pipeline = Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        schedule=schedule,
        num_microbatches=case.microbatches,
        compile=compiles,
        **partition,
    )
    optimiser = optim.SGD(pipeline.parameters(), RATE)

    def step():
        pipeline.step(inputs, targets)
        optimiser.step()

    return step, pipeline.state_dict


def parts_of(case, group):
    """Return the layers of each rank: as many Linear layers on each, and a ReLU behind
    all but the last of all.
    """
    parts = [
        range(2 * case.layers * r, 2 * case.layers * (r + 1)) for r in range(group.size)
    ]
    return [*parts[:-1], parts[-1][:-1]]


def halves(parts):
    """Cut each part of the layers in two, for two stages on each rank."""
    return [
        piece
        for part in parts
        for piece in (part[: len(part) // 2], part[len(part) // 2 :])
    ]


def contenders(case, group, schedules, with_torch, shallowspeed):
    """Return {name: (step, state_dict)}; ``state_dict`` is collective."""
    generator = np.random.default_rng(0)
    inputs, targets = (
        generator.standard_normal((case.batch, case.width)).astype(np.float32)
        for _ in range(2)
    )
    model = mlp(case.width, case.layers * group.size).initialise(0)
    found = {}
    for name, make in (("floor", posted_1f1b), ("peer", blocking_gpipe)):
        layers = shares(
            model,
            group.rank,
            case.layers,
            case.batch // case.microbatches,
            case.microbatches,
            RATE,
        )
        found[name] = (
            make(layers, group.rank, group.size, inputs, targets),
            layers.state_dict,
        )
    for schedule in schedules:
        found[schedule] = pipelined(case, group, schedule, inputs, targets)
    found["compiled"] = pipelined(case, group, "1f1b", inputs, targets, compiles=True)
    parts = parts_of(case, group)
    same = model, parts, group, case, inputs, targets, RATE
    if with_torch:
        from torch_over_gloo import torch_1f1b

        found["torch"] = torch_1f1b(*same)
    if shallowspeed is not None:
        from shallowspeed_steps import SCHEDULES, shallowspeed_step

        for name in SCHEDULES:
            found[name] = shallowspeed_step(shallowspeed, name, *same)
    return found


def check_alike(found, group, case):
    """Let all take the same steps; compare the weights of this rank."""
    states = {}
    for name, (step, state_dict) in found.items():
        for _ in range(3):
            step()
        group.barrier()
        if name != "shallow gpipe":  # shallowspeed_steps.py says why
            states[name] = state_dict()
    for name, state in states.items():
        for key, value in states["floor"].items():
            np.testing.assert_allclose(
                state[key],
                value,
                rtol=1e-3,
                atol=1e-5,
                err_msg=f"{name}, {key}, {case}",
            )


def measure(found, group, case, rounds):
    """Return {name: seconds of a step, by round}: the longest of all ranks."""
    times = {name: [] for name in found}
    for _ in range(rounds):
        for name, (step, _) in found.items():
            group.barrier()
            start = time.perf_counter()
            for _ in range(case.steps):
                step()
            spent = np.array((time.perf_counter() - start) / case.steps)
            times[name].append(float(group.all_reduce(spent, "max")))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--case",
        action="append",
        help="only cases with this in their name; may be repeated",
    )
    parser.add_argument(
        "--schedule", action="append", help="by default 1f1b, zb-h1 and gpipe"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--steps",
        type=int,
        help="in each round; by default what takes some tenths of a second",
    )
    parser.add_argument(
        "--torch", action="store_true", help="PyTorch over gloo, too: pip install torch"
    )
    parser.add_argument(
        "--shallowspeed", type=Path, metavar="CLONE", help="a clone of ShallowSpeed"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE.svg", help="draw the times over the floor"
    )
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        report = []
        for case in CASES:
            if options.case and not any(part in str(case) for part in options.case):
                continue
            found = contenders(
                case,
                group,
                options.schedule or ["1f1b", "zb-h1", "gpipe"],
                options.torch,
                options.shallowspeed,
            )
            check_alike(found, group, case)
            if options.steps:
                case = case._replace(steps=options.steps)
            times = measure(found, group, case, options.rounds)
            floor = median(times["floor"])
            rows = {
                name: {
                    "ms": 1e3 * median(t),
                    "lowest": 1e3 * min(t),
                    "highest": 1e3 * max(t),
                    "ratio": median(t) / floor,
                }
                for name, t in times.items()
            }
            report.append({"case": str(case), "ranks": group.size, "steps": rows})
            if group.rank == 0 and not options.json:
                print(
                    f"\n{case}; {group.size} ranks\n{'':13} ms a step   lowest  "
                    "highest  / floor"
                )
                for name, row in rows.items():
                    print(
                        f"{name:13} {row['ms']:9.3f} {row['lowest']:8.3f} "
                        f"{row['highest']:8.3f} {row['ratio']:8.2f}"
                    )
        if group.rank == 0 and options.json:
            print(json.dumps(report, indent=1))
        if group.rank == 0 and options.picture:
            rows = {
                entry["case"]: [
                    (name, row["ratio"]) for name, row in entry["steps"].items()
                ]
                for entry in report
            }
            options.picture.write_text(
                bars(f"A step on {group.size} ranks, over the floor", rows)
            )


if __name__ == "__main__":
    sys.exit(main())
