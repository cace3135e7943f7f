"""Runs PyTorch's pipeline schedules over gloo, one process for each rank, and records
each with the profiler.

The folder receives NAME.RANK.json.gz, the trace of two steps, and NAME.RANK.truth.json:
the actions that PyTorch ran, and their seconds by a clock beside the profiler. It must
have 1f1b.csv, the schedule of the run ``csv``.

The files in ``recorded/`` are of one step on two ranks with four microbatches. Of their
events that are no labels, only some are kept::

    record.py RANK FOLDER zb-v dualpipe-v gpipe --ranks 2 --microbatches 4 --steps 1 --small
"""

import argparse
import gzip
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

WIDTH, ROWS = 192, 48


def in_v(rank, ranks):
    return [rank, 2 * ranks - 1 - rank]


def looped(rank, ranks):
    return [rank, rank + ranks]


def one(rank, ranks):
    return [rank]


# By name: PyTorch's class, and the stages of a rank.
RUNS = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, looped),
    "zb-v": (schedules.ScheduleZBVZeroBubble, in_v),
    "dualpipe-v": (schedules.ScheduleDualPipeV, in_v),
    "csv": (schedules._PipelineScheduleRuntime, one),
    "gpipe": (schedules.ScheduleGPipe, one),  # labels: Forward 0, Backward 0
}


def layers(stage):
    torch.manual_seed(stage)
    linear = partial(torch.nn.Linear, WIDTH, WIDTH)
    # the stages differ, so that a stage that is taken for another is found
    depth = 2 + stage % 3
    return torch.nn.Sequential(
        *(module() for _ in range(depth) for module in (linear, torch.nn.Tanh))
    )


def timed(stage, times):
    """Let a stage note the seconds of each action."""
    kinds = {"forward_one_chunk": "F", "backward_weight_one_chunk": "W"}
    for name in (*kinds, "backward_one_chunk"):
        kind = kinds.get(name)
        setattr(stage, name, noting(getattr(stage, name), kind, stage, times))


def noting(function, kind, stage, times):
    def measured(number, *args, **options):
        begun = time.perf_counter()
        result = function(number, *args, **options)
        took = time.perf_counter() - begun
        letter = kind or "IB"[options.get("full_backward", True)]
        times.append([f"{stage.stage_index}{letter}{number}", took])
        return result

    return measured


def pipeline(name, options, times):
    kind, stages_of = RUNS[name]
    numbers = stages_of(options.rank, options.ranks)
    count = options.ranks * len(numbers)
    device = torch.device("cpu")
    stages = [PipelineStage(layers(s), s, count, device) for s in numbers]
    for stage in stages:
        timed(stage, times)
    one_stage = name == "gpipe"
    number = options.microbatches
    loss = torch.nn.MSELoss()
    schedule = kind(stages[0] if one_stage else stages, number, loss_fn=loss)
    if name == "csv":
        schedule._load_csv(str(options.folder / "1f1b.csv"))
    data = torch.ones(number * ROWS, WIDTH)

    def step():
        target = {"target": data} if count - 1 in numbers else {}
        schedule.step(*[data] * (0 in numbers), **target)
        for stage in stages:
            stage.submod.zero_grad()

    return schedule, step


def actions_of(schedule, rank):
    """Return the computations of a rank in the order in which PyTorch runs them."""
    row = schedule.pipeline_order_with_comms[rank]
    return [str(action) for action in row if action.is_compute_op]


def reduce_trace(path):
    """Leave out most events of a trace that are no labels."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    del trace["traceName"]  # a path
    kept = [
        it
        for number, it in enumerate(trace["traceEvents"])
        if it.get("cat") in ("user_annotation", None)
        or it["name"].startswith("c10d")
        or number % 50 == 0
    ]
    content = json.dumps({**trace, "traceEvents": kept}).encode()
    path.write_bytes(gzip.compress(content, mtime=0))


def record(name, options):
    times = []
    schedule, step = pipeline(name, options, times)
    step()  # which allocates, and agrees on shapes
    times.clear()
    torch.distributed.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(options.steps):
            step()
    path = options.folder / f"{name}.{options.rank}.json.gz"
    profiler.export_chrome_trace(str(path))
    if options.small:
        reduce_trace(path)
        return
    truth = {"times": times}
    if name != "gpipe":
        truth["actions"] = actions_of(schedule, options.rank)
    path.with_name(f"{name}.{options.rank}.truth.json").write_text(json.dumps(truth))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(RUNS))
    for name, usual in ("ranks", 4), ("microbatches", 8), ("steps", 2):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = {"rank": options.rank, "world_size": options.ranks}
    meeting = f"file://{options.folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=meeting, **place)
    for name in options.names:
        record(name, options)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # destructors of gloo may wait for ranks that have left


if __name__ == "__main__":
    main()
