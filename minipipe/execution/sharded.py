"""The handlers of GATHER and FREE: a stage of which each replica keeps a shard.

Its layers are whole between the two, and gather nothing themselves then (see
:mod:`minipipe.nn.fully_sharded`). A GATHER waits for nothing: the first computation of
a layer waits for the shards of the other replicas, so a pass may place it ahead.
"""

from __future__ import annotations

from collections.abc import Iterable

from minipipe.core.execution.executor import Executor, Handlers, Resource
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.values import gives, takes
from minipipe.nn.fully_sharded import WholeLayers


class WholeStage(WholeLayers, Resource):
    """The layers of a stage, whole until a FREE takes this value."""


@gives("whole")
def gather(executor: Executor, action: Action) -> WholeStage:
    """Run a GATHER."""
    return WholeStage(executor.stages[action.stage].module)


@takes("whole")
def free(executor: Executor, action: Action, whole: WholeStage) -> None:
    """Run a FREE."""
    whole.wait()  # if no layer has computed
    whole.release()


def give_shards(executor: Executor, action: Action, stages: Iterable[int]) -> None:
    """Give the other replicas this rank's shards of stages that its row has not.

    That is for a batch with fewer microbatches than replicas. Collective.
    """
    for index in sorted(executor.stages.keys() & {*stages}):
        if all(action.stage != index for action in executor.actions):
            whole = WholeLayers(executor.stages[index].module)
            whole.wait()
            whole.release()


HANDLERS: Handlers = {ActionKind("GATHER"): gather, ActionKind("FREE"): free}
"""The handlers of stages with shards."""
