"""minipipe: pipeline-parallel training to learn from and to run.

A schedule is data: for each rank a list of actions, written by a pure function. The verifier proves it legal, the
simulator times it, the executor runs it on real ranks, the renderer draws it, and a person reads it as text.

Public names load when they are first asked for: schedules, their pictures and the command line need no NumPy.
"""

from minipipe.lazy import names_on_demand

TYPE_CHECKING = False  # not imported: `python -m minipipe` gets here before __main__ leaves the current folder

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from minipipe import (
        autograd,
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
        tensor,
        testing,
    )
    from minipipe.autograd.grad_mode import no_grad
    from minipipe.autograd.random_key import random_key
    from minipipe.autograd.watch import watch_everything
    from minipipe.comm import ProcessGroup, init_process_group, spawn
    from minipipe.execution import BatchLoss, Microbatches, Replicated, split_microbatches
    from minipipe.execution.partition import partition_by_cost, partition_evenly
    from minipipe.pipeline import Pipeline, Plan
    from minipipe.schedules import Action, ActionKind, Costs, Program, Schedule, Timeline, simulate, verify
    from minipipe.tensor import Tensor
    from minipipe.tuning import (
        Advice,
        LayerCosts,
        MeasuredLayers,
        MemoryPrediction,
        RankMemory,
        advise,
        balance,
        measure_layers,
    )
    from minipipe.version import __version__

__getattr__, __dir__, __all__ = names_on_demand(
    __name__,
    {
        "minipipe.execution": ["BatchLoss", "Microbatches", "Replicated", "split_microbatches"],
        "minipipe.comm": ["ProcessGroup", "init_process_group", "spawn"],
        "minipipe.execution.partition": ["partition_by_cost", "partition_evenly"],
        "minipipe.pipeline": ["Pipeline", "Plan"],
        "minipipe.tuning": [
            "Advice",
            "LayerCosts",
            "MeasuredLayers",
            "MemoryPrediction",
            "RankMemory",
            "advise",
            "balance",
            "measure_layers",
        ],
        "minipipe.autograd.random_key": ["random_key"],
        "minipipe.autograd.grad_mode": ["no_grad"],
        "minipipe.autograd.watch": ["watch_everything"],
        "minipipe.schedules.action": ["Action", "ActionKind"],
        "minipipe.schedules.action_table": ["Program", "Schedule"],
        "minipipe.schedules.analysis.verifier": ["verify"],
        "minipipe.schedules.simulation.costs": ["Costs"],
        "minipipe.schedules.simulation.simulator": ["simulate"],
        "minipipe.schedules.simulation.timeline": ["Timeline"],
        "minipipe.functional.operators": ["Tensor"],  # it attaches the arithmetic
        "minipipe.version": ["__version__"],
    },
    modules=[
        "minipipe.autograd",
        "minipipe.checkpoint",
        "minipipe.comm",
        "minipipe.data",
        "minipipe.elastic",
        "minipipe.errors",
        "minipipe.functional",
        "minipipe.nn",
        "minipipe.optim",
        "minipipe.pipeline",
        "minipipe.render",
        "minipipe.schedules",
        "minipipe.tensor",
        "minipipe.testing",
    ],
)
