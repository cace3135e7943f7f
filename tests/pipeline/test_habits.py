"""What people who know PyTorch's distributed packages write: an error names the
equivalent.
"""

import linecache
import warnings

import numpy as np

import minipipe
from minipipe import Pipeline, checkpoint, nn, optim, schedules, spawn
from minipipe.comm import OneRankGroup
from tests.launch import for_each

X = np.ones((8, 4), dtype=np.float32)
Y = np.ones((8, 1), dtype=np.float32)
INSTEAD = {
    "loss.backward()": "step() has run backward already",
    "loss.detach().cpu()": "float(loss)",
    "pipeline.zero_grad()": "step() overwrites the gradients",
    "pipeline(X)": "pipeline.step(x, y)",
    "pipeline.step(X, target=Y)": "targets=",
    "pipeline.step(X)": "Pipeline.step: missing a required argument: 'targets'",
    "pipeline.step(X, Y, Y)": "Pipeline.step(inputs, targets, *, wait=True",
    "pipeline.cuda()": 'device="gpu"',
    "pipeline.module": "pipeline.model",
    "pipeline.num_microbatches": "pipeline.schedule.num_microbatches",
    "pipeline.load_state_dict(pipeline.state_dict(), strict=False)": "every parameter must be there",
    "Pipeline(model)": (
        "Pipeline: missing a required argument: 'group'. Expected Pipeline(model, "
        "group, *, loss="
    ),
    "Pipeline(model, group, nn.MSELoss())": "Expected Pipeline(model, group, *, loss=",
    "Pipeline(model, 4, loss=nn.MSELoss())": "the group that init_process_group() returns",
    "Pipeline(model, group, loss_fn=nn.MSELoss())": "did you mean loss=?",
    "Pipeline(model, group, n_microbatches=4)": "did you mean num_microbatches=?",
    "Pipeline(model, group, dtype=np.float16)": "nn.Linear(…, dtype=…)",
    "Pipeline(model, group, stage_index=0)": "group.rank and group.size",
    "Pipeline(model, group, lr=0.1)": "optim.SGD(pipeline.parameters(), …)",
    "Pipeline(model, group, schedule='ScheduleGPipe')": "did you mean gpipe?",
    "Pipeline(model, group, device='mps')": "expected 'cpu', 'gpu'",
    "torch.PipelineStage": "minipipe.Pipeline",
    "torch.pipelining": "minipipe.Pipeline",
    "schedules.Schedule1F1B": 'schedule="1f1b"',
    "torch.init_process_group(backend='nccl')": "mpirun starts the ranks",
    "torch.init_process_group(rank=0, world_size=2)": "group.rank and group.size tell them",
    "torch.get_rank()": "group.rank",
    "torch.all_reduce(X)": "group.all_reduce",
    "torch.barrier()": "group.barrier",
    "torch.multiprocessing.spawn(print)": "minipipe.spawn(function, num_ranks)",
    "spawn(print, nprocs=2)": "num_ranks=",
    "spawn(print, 2, args=(1,))": "lambda group:",
    "group.all_reduce(X, op='sum')": "operation=",
    "group.broadcast(X, src=0)": "root=",
    "group.send(X, dst=0)": "destination=",
    "group.recv(src=0)": "source=",
    "group.get_world_size()": "group.size",
    "group.new_group([0])": "group.split(color)",
    "group.reduce_scatter(X)": "group.all_reduce(array)",
    "torch.comm.get_rank()": "group.rank",
    "checkpoint.checkpoint(model, X)": "recompute=True",
    "from minipipe.distributed.pipelining import ScheduleGPipe": "minipipe.init_process_group()",
    "from minipipe.pipeline import PipelineStage": "minipipe.Pipeline",
}


@for_each(case={idiom: (idiom, names) for idiom, names in INSTEAD.items()})
def test_an_idiom_of_pytorch_ends_with_an_error_that_names_the_equivalent(case):
    idiom, names = case
    model, group = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), OneRankGroup()
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    scope = {
        "torch": minipipe,
        "Pipeline": Pipeline,
        "nn": nn,
        "np": np,
        "schedules": schedules,
        "spawn": spawn,
    }
    scope |= {
        "checkpoint": checkpoint,
        "model": model,
        "group": group,
        "pipeline": pipeline,
        "X": X,
        "Y": Y,
    }
    message = None
    try:
        exec(idiom, {**scope, "loss": pipeline.step(X, Y)})
    except Exception as error:
        message = str(error)
    assert message is not None and names in message, message


def test_warnings_of_functions_with_hints_name_the_line_of_the_program():
    class Unused(nn.Module):
        def __init__(self):
            self.used, self.unused = nn.Parameter([1.0]), nn.Parameter([1.0])

        def forward(self, x):
            return x * self.used

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = nn.Sequential(Unused(), nn.Linear(4, 1))
        # adds gradients in another order
        schedule = minipipe.Schedule.from_text("F0 F1 B1 B0")
        Pipeline(model, OneRankGroup(), loss=nn.MSELoss(), schedule=schedule).step(X, Y)
        optim.SGD(model.initialise(0).parameters(), 0.1).step()
    assert [warning.filename for warning in caught] == [__file__] * 3


def lines_warned_of(program):
    """Return the lines to which the warnings of a program on one rank point."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(OneRankGroup())
    return [linecache.getline(one.filename, one.lineno).strip() for one in caught]


def test_warnings_of_steps_point_to_the_call():
    class Unused(nn.Module):
        def __init__(self):
            self.used, self.unused, self.constant = (
                nn.Parameter([1.0]),
                nn.Parameter([1.0]),
                np.ones(2),
            )

        def forward(self, x):
            return x * self.used

    bad = np.full_like(X, np.nan)

    def program(group):
        pipeline = Pipeline.from_modules(
            [Unused()], group, loss=nn.MSELoss(), check_finite="warn"
        )
        pipeline.step(X, X)
        pipeline.step(bad, X)
        loss = pipeline.step(bad, X, wait=False)
        loss.wait()
        loss = pipeline.step(bad, X, wait=False)
        pipeline.wait()
        loss = pipeline.step(bad, X, wait=False)
        pipeline.forward_backward(X, X)

    assert lines_warned_of(program) == [
        "pipeline = Pipeline.from_modules(",
        "pipeline.step(X, X)",
        "pipeline.step(bad, X)",
        "loss.wait()",
        "pipeline.wait()",
        # which waits for the loss of the step before it
        "pipeline.forward_backward(X, X)",
    ]


def test_a_flag_may_be_any_value_that_is_false_or_true():
    for flag in ([], [1]):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(4, 4)),
            OneRankGroup(),
            loss=nn.MSELoss(),
            inputs_require_grad=flag,
        )
        assert np.isfinite(
            pipeline.step(X, X)
        ) and pipeline.plan.inputs_require_grad is bool(flag)
