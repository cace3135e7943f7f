"""One object of each public class, by what copies of it are."""

import importlib
import inspect
from functools import cache, partial
from pathlib import Path

import numpy as np

import minipipe
from minipipe import (
    Grid,
    Pipeline,
    Plan,
    Tensor,
    checkpoint,
    comm,
    data,
    elastic,
    errors,
    functional,
    nn,
    optim,
    pipeline,
    render,
    schedules,
    simulate,
    testing,
    tuning,
)
from minipipe.autograd import Leaf, Node, StageInput, WeightWork
from minipipe.comm import OneRankGroup, ProcessGroup
from minipipe.core.autograd import split
from minipipe.core.values import KINDS, NOUNS, Value
from minipipe.coursework import Level, Report, Task, TaskReport, Unexpected
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.errors import MinipipeError
from minipipe.execution import BatchLoss, Microbatches, PendingLoss, Replicated
from minipipe.nn.fully_sharded import Workspace
from minipipe.schedules import Action, ActionKind, Costs, IdleCause, Objective

TOP = Path(minipipe.__file__).parent
STUBS = [
    ".".join(stub.parent.relative_to(TOP.parent).parts)
    for stub in sorted(TOP.rglob("__init__.pyi"))
]
MODULES_OF_MINIPIPE = [
    f"minipipe.{name}"
    for name in minipipe.__all__
    if inspect.ismodule(getattr(minipipe, name))
]
PACKAGES = sorted({*STUBS, *MODULES_OF_MINIPIPE, "minipipe.execution"})
# the classes made of them are there
ABSTRACT = {nn.Module, optim.Optimiser, MinipipeError}


def public_classes():
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value):
                found[value] = f"{package.__name__}.{name}"
    return found


# -- one of each -----------------------------------------------------------------------


@cache
def group():
    return OneRankGroup()


@cache
def timeline():
    return simulate(schedules.gpipe(2, 2), Costs(1, 1, 1, latency=0.5))


@cache
def measured():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), np.ones((4, 2), np.float32)
    return tuning.measure_layers(model, x, x, nn.MSELoss(), num_microbatches=2)


@cache
def advice():
    model, x = (
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        np.ones((8, 2), np.float32),
    )
    return tuning.advise(
        model, x, x, loss=nn.MSELoss(), num_ranks=2, messages="assumed", seconds=0
    )


@cache
def refereed():
    return testing.referee({"loss": np.ones(3)}, {"loss": np.full(3, 2.0)})


def small_pipeline():
    return Pipeline(
        nn.Sequential(nn.Linear(2, 2)), group(), loss=nn.MSELoss(), num_microbatches=2
    )


def pending():
    x = np.ones((4, 2), np.float32)
    return small_pipeline().step(x, x, wait=False)


def trained(rule):
    """Return an optimiser after a step, with what it keeps for a parameter in half
    precision among them.
    """
    parameters = [
        nn.Parameter(np.ones(3, np.float32)),
        nn.Parameter(np.ones(2, np.float16)),
    ]
    optimiser = rule(parameters, learning_rate=0.25)
    for parameter in parameters:
        parameter.grad = np.full(parameter.shape, 0.5, np.float32)
    optimiser.step()
    return optimiser


def leaf():
    x = Tensor([1.0, 2.0], requires_grad=True)
    x.grad = np.ones(2, np.float32)
    return x


def weight_work():
    layer, x = nn.Linear(2, 2).initialise(0), Tensor(np.ones((1, 2), np.float32))
    x.node = StageInput(needs_gradient=True, array=x.data)
    y = layer(x).sum()
    return split.backward_input({y.node: y.seed_gradient()})


def error(kind):
    if kind is errors.ScheduleError:
        return kind.of(errors.Code.ORDER, "a sentence")
    return kind(errors.Code.VALUE, "a sentence")


def filled(layer):
    return layer.initialise(1).eval()


def table_reports():
    exercise = exercises_in(find_source(None))[4]
    return TaskReport(exercise, ())


MODULES = {
    nn.AuxiliaryLoss: lambda: nn.AuxiliaryLoss(functional.mean, 0.5),
    nn.On: lambda: nn.On("x", nn.Linear(2, 2)),
    nn.Take: lambda: nn.Take(["x", "y"]),
    nn.Function: lambda: nn.Function(functional.relu),
    nn.Dropout: lambda: nn.Dropout(0.5),
    nn.Embedding: lambda: nn.Embedding(5, 3),
    nn.GELU: lambda: nn.GELU(approximate=True),
    nn.GroupNorm: lambda: nn.GroupNorm(2, 4),
    nn.LSTM: lambda: nn.LSTM(3, 2),
    nn.LayerNorm: lambda: nn.LayerNorm(3),
    nn.Linear: lambda: nn.Linear(
        3, 2, initialiser=nn.initialisers.truncated_normal(0.1)
    ),
    nn.PositionalEmbedding: lambda: nn.PositionalEmbedding(4, 3),
    nn.RMSNorm: lambda: nn.RMSNorm(3),
    nn.Residual: lambda: nn.Residual(nn.Linear(3, 3), nn.Tanh()),
    nn.Unembedding: lambda: nn.Unembedding(nn.Embedding(5, 3)),
    nn.CrossEntropyLoss: lambda: nn.CrossEntropyLoss(-1, 0.1, np.ones(4)),
    nn.Recompute: lambda: nn.Recompute(nn.Linear(3, 3)),
    nn.Sequential: lambda: nn.Sequential(
        nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2).freeze())
    ),
    nn.AvgPool1d: lambda: nn.AvgPool1d(2),
    nn.AvgPool2d: lambda: nn.AvgPool2d(2),
    nn.Conv1d: lambda: nn.Conv1d(2, 2, 3),
    nn.Conv2d: lambda: nn.Conv2d(2, 2, 3),
    nn.MaxPool1d: lambda: nn.MaxPool1d(2),
    nn.MaxPool2d: lambda: nn.MaxPool2d(2),
    nn.CrossAttention: lambda: nn.CrossAttention(4, 2),
    nn.DecoderBlock: lambda: nn.DecoderBlock(4, 2),
    nn.MultiHeadAttention: lambda: nn.MultiHeadAttention(4, 2, is_causal=True),
    nn.TransformerBlock: lambda: nn.TransformerBlock(4, 2),
    **dict.fromkeys(
        [
            nn.Flatten,
            nn.Identity,
            nn.ReLU,
            nn.SiLU,
            nn.Sigmoid,
            nn.Tanh,
            nn.GlobalAvgPool,
            nn.MSELoss,
        ]
    ),
}
# A group of ranks is shared by deep copies, and not pickled.
OVER_RANKS = {
    nn.ColumnParallelLinear: lambda: nn.ColumnParallelLinear(
        filled(nn.Linear(3, 2)), group()
    ),
    nn.RowParallelLinear: lambda: nn.RowParallelLinear(
        filled(nn.Linear(3, 2)), group()
    ),
    nn.ParallelAttention: lambda: nn.ParallelAttention(
        filled(nn.MultiHeadAttention(4, 2)), group()
    ),
    nn.ParallelEmbedding: lambda: nn.ParallelEmbedding(
        filled(nn.Embedding(4, 2)), group()
    ),
    nn.ParallelUnembedding: lambda: nn.ParallelUnembedding(
        nn.ParallelEmbedding(nn.Embedding(4, 2), group())
    ),
    nn.ParallelCrossEntropyLoss: lambda: nn.ParallelCrossEntropyLoss(group()),
    nn.FullySharded: lambda: nn.FullySharded(
        filled(nn.Linear(3, 2)), Workspace(group())
    ),
    Grid: lambda: Grid(group()),
    ProcessGroup: group,
    comm.ThreadGroup: group,
    OneRankGroup: group,
    elastic.Trained: lambda: elastic.Trained(group(), None, (), []),
}
VALUES = {
    Tensor: leaf,
    nn.Parameter: lambda: nn.Linear(3, 2).initialise(0).weight,
    nn.AuxiliaryLosses: lambda: nn.AuxiliaryLosses([Tensor(1.0), Tensor(2.0)]),
    optim.ParameterGroup: lambda: trained(optim.Adam).groups[0],
    optim.LossScale: lambda: optim.LossScale(8.0, factor=4.0),
    BatchLoss: lambda: BatchLoss(2.0, [1.0, 3.0], {"error": 0.5}, np.ones((2, 1))),
    Microbatches: lambda: Microbatches([np.ones((2, 1)), np.ones((3, 1))]),
    Replicated: lambda: Replicated(np.ones(2)),
    data.Share: lambda: data.Share(np.ones((4, 2)), slice(4, 8), 8),
    data.Alphabet: lambda: data.Alphabet("banana"),
    Plan: lambda: Plan(
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()), schedules.gpipe(2, 2)
    ),
    Unexpected: lambda: Unexpected("f(1)", "2", "3", "a drawing"),
    Report: lambda: Report("mine", (table_reports(),)),
    TaskReport: table_reports,
    Level: lambda: Level(2, 4, Costs([1, 2], 1, 1, latency=1), 2, 19),
    checkpoint.Restored: lambda: checkpoint.Restored(3, {"epoch": 1}, "runs/3"),
    testing.StepResult: lambda: testing.StepResult(1.0, {"0.bias": np.ones(2)}),
    render.Bar: lambda: render.Bar({"actions": 3}, "4 ms", mark=3.5),
    Action: lambda: Action.parse("2F0"),
    ActionKind: lambda: ActionKind.FORWARD,
    IdleCause: lambda: next(iter(IdleCause)),
    Objective: lambda: Objective.SPAN,
    errors.Code: lambda: errors.Code.ORDER,
    errors.Problem: lambda: error(errors.ScheduleError).problems[0],
    schedules.Schedule: lambda: schedules.zb_h1(2, 4),
    schedules.Program: lambda: schedules.lower(schedules.zb_h1(2, 4)),
    schedules.Certificate: lambda: schedules.find_schedule(Costs().workload((0, 1), 3)),
    Costs: lambda: Costs([1, 2], 1, 1, latency=1),
    schedules.Timeline: timeline,
    schedules.BuildingBlock: lambda: schedules.BuildingBlock.from_text("0F@0 0B@1", 3),
    schedules.Span: lambda: timeline().spans[0][0],
    schedules.Kind: lambda: KINDS["F"],
    schedules.Noun: lambda: NOUNS["x"],
    schedules.Site: lambda: schedules.Site(None, 0, 0, 1, 2),
    schedules.Uses: lambda: schedules.Uses(gives=(Value("x", 1, 0),)),
    schedules.Meeting: lambda: schedules.Meeting(("sum", 0), 2),
    schedules.Message: lambda: timeline().messages[0],
    schedules.Idle: lambda: timeline().idle[0][0],
    schedules.GradientSum: lambda: schedules.GradientSum(0, 0, 1.0, 2.0),
    schedules.StepChange: lambda: schedules.StepChange(0, 1.0, 2.0),
    testing.Variation: lambda: testing.Variation(1),
    testing.Verdict: lambda: testing.Verdict.BUG,
    testing.Report: refereed,
    testing.Difference: lambda: refereed().differences[0],
    tuning.MeasuredLayers: measured,
    tuning.LayerCosts: lambda: measured()[0],
    tuning.RankMemory: lambda: tuning.RankMemory(8, 8, 16, 1000, 20),
    tuning.MemoryPrediction: lambda: tuning.MemoryPrediction(
        [tuning.RankMemory(8, 8, 16, 1000, 20)]
    ),
    tuning.Messages: lambda: tuning.Messages(latency=2e-5, bandwidth=1e9),
    tuning.CostModel: lambda: advice().measured,
    tuning.Choice: lambda: advice().best,
    tuning.Candidate: lambda: advice().best.candidate,
    tuning.Advice: advice,
}
OPTIMISERS = {
    rule: partial(trained, rule)
    for rule in (optim.SGD, optim.Adam, optim.AdamW, optim.Muon)
}
REFUSED = {
    Pipeline: small_pipeline,
    pipeline.Stage: lambda: next(iter(small_pipeline()._stages.values())),
    checkpoint.BackgroundSaver: lambda: checkpoint.BackgroundSaver(
        "runs", small_pipeline()
    ),
    comm.Request: lambda: group().irecv(0),
    Task: lambda: Task(print),
    Node: lambda: (leaf() * 2).node,
    Leaf: lambda: leaf().node,
    StageInput: lambda: StageInput(needs_gradient=True),
}
OTHERWISE = {
    WeightWork: "test_a_graph_is_not_copied",
    PendingLoss: "test_a_pending_loss_becomes_its_number",
    optim.LearningRateSchedule: "test_a_shallow_copy_of_a_learning_rate_schedule_sets_the_same_optimiser",
}


def modules():
    for kind, make in MODULES.items():
        yield kind, lambda kind=kind, make=make: filled((make or kind)())


def errors_of_the_package():
    for kind in public_classes():
        if issubclass(kind, MinipipeError) and kind not in ABSTRACT:
            yield kind, partial(error, kind)


COPIED = [*modules(), *VALUES.items(), *errors_of_the_package()]
