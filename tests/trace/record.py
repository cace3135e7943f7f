"""Runs PyTorch's pipeline schedules over gloo, one process for each rank, and records
each with the profiler: ``record.py RANK FOLDER [NAME…]``.

FOLDER receives NAME.RANK.json.gz, the trace of two steps, and NAME.RANK.truth.json: the
actions that PyTorch ran, and their seconds by a clock beside the profiler.
"""

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

RANKS, MICROBATCHES, WIDTH, ROWS, STEPS = 4, 8, 192, 48, 2
# By name: PyTorch's class, and the stages of a rank.
RUNS = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, lambda rank: [rank, rank + 4]),
    "zb-v": (schedules.ScheduleZBVZeroBubble, lambda rank: [rank, 7 - rank]),
    "dualpipe-v": (schedules.ScheduleDualPipeV, lambda rank: [rank, 7 - rank]),
    "csv": (schedules._PipelineScheduleRuntime, lambda rank: [rank]),
    # labels of its own: Forward 0, Backward 0
    "gpipe": (schedules.ScheduleGPipe, lambda rank: [rank]),
}


def layers(stage):
    torch.manual_seed(stage)
    linear = partial(torch.nn.Linear, WIDTH, WIDTH)
    # the stages differ, so that a stage that is taken for another is found
    depth = 2 + stage % 3
    return torch.nn.Sequential(*(module() for _ in range(depth) for module in (linear, torch.nn.Tanh)))


def timed(stage, times):
    """Let a stage note the seconds of each action."""
    names = {"forward_one_chunk": "F", "backward_weight_one_chunk": "W"}
    for name in (*names, "backward_one_chunk"):

        def measured(number, *args, name=name, function=getattr(stage, name), **options):
            begun = time.perf_counter()
            result = function(number, *args, **options)
            whole = options.get("full_backward", True)
            kind = names.get(name, "B" if whole else "I")
            took = time.perf_counter() - begun
            times.append([f"{stage.stage_index}{kind}{number}", took])
            return result

        setattr(stage, name, measured)


def pipeline(name, rank, folder, times):
    kind, stages_of = RUNS[name]
    numbers = stages_of(rank)
    count = RANKS * len(numbers)
    device = torch.device("cpu")
    stages = [PipelineStage(layers(s), s, count, device) for s in numbers]
    for stage in stages:
        timed(stage, times)
    one_stage = name == "gpipe"
    schedule = kind(
        stages[0] if one_stage else stages, MICROBATCHES, loss_fn=torch.nn.MSELoss()
    )
    if name == "csv":
        schedule._load_csv(str(folder / "1f1b.csv"))
    data = torch.ones(MICROBATCHES * ROWS, WIDTH)

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


def main(rank, folder, names):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS
    )
    for name in names:
        times = []
        schedule, step = pipeline(name, rank, folder, times)
        step()  # which allocates, and agrees on shapes
        times.clear()
        torch.distributed.barrier()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(STEPS):
                step()
        profiler.export_chrome_trace(str(folder / f"{name}.{rank}.json.gz"))
        truth = {"times": times}
        if name != "gpipe":
            truth["actions"] = actions_of(schedule, rank)
        (folder / f"{name}.{rank}.truth.json").write_text(json.dumps(truth))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # destructors of gloo may wait for ranks that have left


if __name__ == "__main__":
    chosen = sys.argv[3:] or list(RUNS)
    main(int(sys.argv[1]), Path(sys.argv[2]), chosen)
