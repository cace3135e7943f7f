"""A step of a compiled pipeline and of an eager one, over two steps by hand, and their
calls of Python functions.

    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python tests/benchmarks/compiled.py
    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/compiled.py --case d=32 --rounds 30

The cases are those of pipelining.py. All contenders take turns in one process for each
rank, and start from the same weights; compiled and eager pipelines must have the same
bits, and all nearly the same, before they are timed. Shown are the median and the
lowest time of a step over the rounds, the longest of all ranks; the median of the
ratios to each floor, round by round; and the calls of Python functions in one step of
rank 0, without the polls of a wait.

    floor       1F1B by hand: every array allocated once, every receive posted at the beginning of the step
    persistent  the same with persistent requests, and with views and slices that are made once
    1f1b, …     minipipe, eager and compiled, with these schedules; with one rank 1f1b alone
"""

import argparse
import json
import sys
from statistics import median

import numpy as np
from by_hand import persistent_1f1b, posted_1f1b, prepared, shares
from floor import mlp
from pipelining import CASES, RATE, check_alike, measure, parts_of

from minipipe import Pipeline, init_process_group, nn, optim

POLLS = ("has_arrived", "_is_sent", "is_over")  # their number depends on the other rank
FLOORS = {"floor": (shares, posted_1f1b), "persistent": (prepared, persistent_1f1b)}


def contenders(case, group, schedules, makers):
    """Return {name: (step, state_dict)}; ``state_dict`` is collective."""
    inputs, targets = batch_of(case)
    model = mlp(case.width, case.layers * group.size).initialise(0)
    size, found = case.batch // case.microbatches, {}
    for name, (divide, make) in FLOORS.items():
        layers = divide(model, group.rank, case.layers, size, case.microbatches, RATE)
        found[name] = (
            make(layers, group.rank, group.size, inputs, targets),
            layers.state_dict,
        )
    for schedule in schedules:
        for compiles in makers:
            name = f"{schedule}, {'compiled' if compiles else 'eager'}"
            found[name] = pipelined(case, group, model, schedule, compiles)
    return found


def batch_of(case):
    generator = np.random.default_rng(0)
    return tuple(
        generator.standard_normal((case.batch, case.width)).astype(np.float32)
        for _ in range(2)
    )


def pipelined(case, group, model, schedule, compiles):
    options = {
        "schedule": schedule,
        "num_microbatches": case.microbatches,
        "compile": compiles,
    }
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), partition=parts_of(case, group), **options
    )
    optimiser = optim.SGD(pipeline.parameters(), RATE)
    inputs, targets = batch_of(case)

    def step():
        pipeline.step(inputs, targets)
        optimiser.step()

    return step, pipeline.state_dict


def check_bits(found, schedules):
    """Compare the weights of compiled and eager pipelines, which have taken the same
    steps.
    """
    for schedule in schedules:
        eager, compiled = (
            found[f"{schedule}, {how}"][1]() for how in ("eager", "compiled")
        )
        different = [
            name for name in eager if eager[name].tobytes() != compiled[name].tobytes()
        ]
        if different:
            sys.exit(
                f"{schedule}: compiled and eager weights differ: {', '.join(different)}"
            )


def calls_of(step):
    """Return how many Python functions a step calls, in the step of several that waited
    least.
    """
    return min(_calls_of(step) for _ in range(20))


def _calls_of(step):
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call" and frame.f_code.co_name not in POLLS

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count - 1  # the step itself


def rows_of(found, times):
    """Return {name: figures} of a case."""
    rows = {}
    for name, (step, _) in found.items():
        ratios = {
            f"/ {floor}": median(map(np.divide, times[name], times[floor]))
            for floor in FLOORS
        }
        spent = {"ms": 1e3 * median(times[name]), "lowest": 1e3 * min(times[name])}
        rows[name] = {**spent, **ratios, "calls": calls_of(step)}
    return rows


def show(case, group, rows):
    print(
        f"\n{case}; {group.size} ranks\n{'':18}{'ms':>9}{'lowest':>9}{'/ floor':>10}{'/ persistent':>14}{'calls':>7}"
    )
    for name, row in rows.items():
        ms, lowest, *ratios, calls = row.values()
        print(
            f"{name:18}{ms:9.3f}{lowest:9.3f}{ratios[0]:10.2f}{ratios[1]:14.2f}{calls:7}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--case",
        action="append",
        help="only cases with this in their name; may be repeated",
    )
    parser.add_argument(
        "--schedule",
        action="append",
        help="by default 1f1b and, with several ranks, zb-h1",
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--steps", type=int, help="in each round; by default those of pipelining.py"
    )
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        schedules = options.schedule or ["1f1b", *(["zb-h1"] if group.size > 1 else [])]
        report = []
        for case in CASES:
            if options.case and not any(part in str(case) for part in options.case):
                continue
            found = contenders(case, group, schedules, (False, True))
            check_alike(found, group, case)
            check_bits(found, schedules)
            # compiled steps are among those that are timed, and no others
            for _ in range(2):
                for step, _ in found.values():
                    step()
            case = case._replace(steps=options.steps or case.steps)
            rows = rows_of(found, measure(found, group, case, options.rounds))
            report.append({"case": str(case), "ranks": group.size, "steps": rows})
            if group.rank == 0 and not options.json:
                show(case, group, rows)
        if group.rank == 0 and options.json:
            print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
