"""How fast the engine is: against NumPy by hand, against PyTorch, the split backward
against the whole, page faults.

    python tests/benchmarks/engine.py                                  everything, about five minutes
    python tests/benchmarks/engine.py --case "d=32" --case block       what has one of these in its name
    python tests/benchmarks/engine.py --json                           for machines

Seconds differ from machine to machine and from minute to minute; only ratios are shown.
Contenders take turns in one process with one BLAS thread, and medians of many steps are
compared. That is repeated; shown are the median, the lowest and the highest ratio.
First of all the contenders' results are compared, so that nobody is fast at something
else.

A step of an MLP (Linear and ReLU by turns, mean squared error, SGD, float32) is
everything from forgetting the last gradients to the optimiser. Its floor is the same
step by hand, every array allocated once (floor.py). A step of a transformer block
(causal, pre-norm, GELU with tanh) is forward and backward, as it is of what is split.

Aims, at most:

    MLP, plain autograd / floor      d=32: 1.3 (64x1), 1.5 (16x4); d=128: 1.05 (256x1), 1.12 (32x8); d=1024: 1.03
    MLP, plain autograd / PyTorch    d=32: 0.4; d=128, 32x8: 0.7
    block / PyTorch                  0.8, 0.9, 1.2
    split / fused                    1.03 everywhere
    page faults in a steady step     0, on Linux, where keep_freed_memory sees to it
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from cases import (
    CASES,
    FAULTS,
    LEARNING_RATE,
    OVER_FLOOR,
    OVER_TORCH,
    SPLIT,
    Block,
    autograd_step,
    batch_of,
    block_of,
    block_step,
    mlp_of,
    split_case,
)
from floor import Floor

from minipipe import Pipeline, autograd, nn, optim
from minipipe.comm import OneRankGroup
from minipipe.core.comm.host import keep_freed_memory, limit_blas_threads
from minipipe.testing import same_bits

try:
    import in_torch
except ImportError:
    in_torch = None

TURNS = 20  # of each contender in one measurement
COMMON_AIMS = {SPLIT: 1.03, FAULTS: 0}


class Figure(NamedTuple):
    """One line of the table; ``aim`` is None where there is none."""

    case: str
    name: str
    value: float
    lowest: float
    highest: float
    aim: float | None

    @property
    def verdict(self):
        """Whether the aim is met, to the digits that are shown."""
        return (
            ""
            if self.aim is None
            else "pass"
            if round(self.value, 2) <= self.aim
            else "short"
        )


# -- measuring -------------------------------------------------------------------------


def seconds_by_turns(contenders, steps):
    """Return the median seconds of a step by contender.

    A turn is several steps where they are short, and the first does not count then: it
    brings back into the caches what the others have driven out.
    """
    times = {name: [] for name in contenders}
    for _ in range(min(steps, TURNS)):
        for name, step in contenders.items():
            if steps > TURNS:
                step()
            for _ in range(max(1, steps // TURNS)):
                start = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def ratios(case, contenders, pairs, options):
    """Return a figure for each pair of contenders, (its name, above, below)."""
    steps = options.steps or case.steps
    found = [seconds_by_turns(contenders, steps) for _ in range(options.repeats)]
    for name, above, below in pairs:
        if above in contenders and below in contenders:
            values = [seconds[above] / seconds[below] for seconds in found]
            yield figure(case, name, values)


def figure(case, name, values):
    aim = {**COMMON_AIMS, **case.aims}.get(name)
    return Figure(str(case), name, median(values), min(values), max(values), aim)


def check_close(what, given, expected):
    scale = float(np.max(np.abs(expected)))
    error = float(np.max(np.abs(given - expected)))
    if error > 1e-4 * scale:
        raise SystemExit(
            f"{what} differs by {error:.1e} (largest {scale:.1e}): these are not "
            "the same computation."
        )


# -- the MLP ---------------------------------------------------------------------------


def pipeline_step(model, case):
    inputs, targets = batch_of(case)
    pipeline = Pipeline(
        model, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=case.microbatches
    )
    optimiser = optim.SGD(pipeline.parameters(), LEARNING_RATE)

    def step():
        loss = pipeline.step(inputs, targets)
        optimiser.step()
        return loss

    return step


def floor_step(model, case):
    inputs, targets = batch_of(case)
    floor = Floor(model, len(inputs), case.microbatches, LEARNING_RATE)
    return lambda: floor.step(inputs, targets)


def mlp_figures(case, options):
    contenders = {
        "floor": floor_step(mlp_of(case), case),
        "autograd": autograd_step(mlp_of(case), case),
        "pipeline": pipeline_step(mlp_of(case), case),
    }
    if in_torch:
        contenders["PyTorch"] = in_torch.mlp_step(mlp_of(case), case)
    for when in ("first", "second", "third"):
        losses = {name: step() for name, step in contenders.items()}
        for name, loss in losses.items():
            check_close(f"{case}: the {when} loss of {name}", loss, losses["floor"])
    pairs = [
        (OVER_FLOOR, "autograd", "floor"),
        ("pipeline / floor", "pipeline", "floor"),
        ("PyTorch / floor", "PyTorch", "floor"),
        (OVER_TORCH, "autograd", "PyTorch"),
    ]
    yield from ratios(case, contenders, pairs, options)


# -- the transformer block -------------------------------------------------------------


def block_figures(case, options):
    if not in_torch:
        return
    contenders = {
        "minipipe": block_step(block_of(case), case),
        "PyTorch": in_torch.block_step(block_of(case), case),
    }
    results = {name: step() for name, step in contenders.items()}
    whats = (
        "the result",
        "the gradient of the input",
        "the gradient of the projections",
    )
    for what, given, expected in zip(whats, results["minipipe"], results["PyTorch"]):
        check_close(f"{case}: {what}", given, expected)
    yield from ratios(case, contenders, [(OVER_TORCH, "minipipe", "PyTorch")], options)


# -- the split backward ----------------------------------------------------------------


def split_figures(case, options):
    """Forward and backward, the same for both but for the way back."""
    model, run = split_case(case)
    contenders = {
        "fused": lambda: run(autograd.backward),
        "split": lambda: run(lambda roots: autograd.backward_input(roots).run()),
    }
    gradients = {}
    for name, step in contenders.items():
        step()
        gradients[name] = [parameter.grad for parameter in model.parameters()]
    if not all(map(same_bits, gradients["fused"], gradients["split"])):
        raise SystemExit(
            f"{case}: the split backward gives other bits than the fused one."
        )
    yield from ratios(case, contenders, [(SPLIT, "split", "fused")], options)


# -- page faults -----------------------------------------------------------------------


def fault_figures(case, options):
    if not sys.platform.startswith("linux"):
        return
    for name, setting in ((FAULTS, "kept"), ("page faults, memory not kept", "freed")):
        script = Path(__file__).with_name("page_faults.py")
        command = [sys.executable, str(script), str(CASES.index(case)), setting]
        values = [
            float(
                subprocess.run(
                    command, capture_output=True, text=True, check=True
                ).stdout
            )
        ]
        yield figure(case, name, values)


# -- the table -------------------------------------------------------------------------


def figures(options):
    for case in CASES:
        if any(part in str(case) for part in options.case or [""]):
            yield from (block_figures if isinstance(case, Block) else mlp_figures)(
                case, options
            )
            yield from split_figures(case, options)
            yield from fault_figures(case, options)


def print_table(lines):
    print(f"{'case':30}{'figure':30}{'median':>8}{'lowest':>8}{'highest':>9}{'aim':>7}")
    last = None
    for line in lines:
        case, last = line.case if line.case != last else "", line.case
        print(
            f"{case:30}{line.name:30}{line.value:8.2f}{line.lowest:8.2f}{line.highest:9.2f}",
            end="",
        )
        print(
            "" if line.aim is None else f"{line.aim:7.2f}  {line.verdict}", flush=True
        )


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--case",
        action="append",
        help="measure cases with this in their name; may be repeated",
    )
    parser.add_argument(
        "--steps",
        type=int,
        help="of each contender in one measurement; by default as the case needs",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="measurements of each ratio"
    )
    parser.add_argument("--json", action="store_true", help="print one list of objects")
    return parser.parse_args()


def main():
    options = parsed()
    keep_freed_memory()
    if in_torch:
        in_torch.torch.set_num_threads(1)
    with limit_blas_threads(1):
        if options.json:
            print(
                json.dumps(
                    [
                        {**line._asdict(), "verdict": line.verdict}
                        for line in figures(options)
                    ],
                    indent=1,
                )
            )
            return
        other = (
            f"PyTorch {in_torch.torch.__version__}"
            if in_torch
            else "no PyTorch here, so nothing beside it"
        )
        print(f"{sys.platform}, NumPy {np.__version__}, {other}; one thread")
        print_table(figures(options))


if __name__ == "__main__":
    main()
