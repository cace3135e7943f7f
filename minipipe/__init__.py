"""minipipe: pipeline-parallel training to learn from and to run.

A schedule is data: for each rank a list of actions, written by a pure function. The verifier proves it legal, the
simulator times it, the executor runs it on real ranks, the renderer draws it, and a person reads it as text.
"""

from minipipe import data, functional, nn, optim, render, schedules, testing
from minipipe.comm import ProcessGroup, init_process_group, spawn
from minipipe.pipeline import Pipeline, partition_by_cost, partition_evenly, split_microbatches
from minipipe.place import random_key
from minipipe.recording import no_grad, watch_everything
from minipipe.schedules import Action, ActionKind, Costs, Schedule, Timeline, simulate, verify
from minipipe.tensor import Tensor
from minipipe.version import __version__

__all__ = [
    "Action",
    "ActionKind",
    "Costs",
    "Pipeline",
    "ProcessGroup",
    "Schedule",
    "Tensor",
    "Timeline",
    "__version__",
    "data",
    "functional",
    "init_process_group",
    "nn",
    "no_grad",
    "optim",
    "partition_by_cost",
    "partition_evenly",
    "random_key",
    "render",
    "schedules",
    "simulate",
    "spawn",
    "split_microbatches",
    "testing",
    "verify",
    "watch_everything",
]
