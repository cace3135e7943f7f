"""This rank's stages: copies of the model's layers, with values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType

import numpy as np

from minipipe.autograd import backend
from minipipe.errors import ModelError
from minipipe.execution.plan import Plan
from minipipe.execution.stage import Stage
from minipipe.nn import AuxiliaryLoss, Parameter, Recompute
from minipipe.nn.auxiliary_loss import carrying_losses


class HalfStage(Stage):
    """A stage of a model in half precision, whose gradients may overflow: a loss scale notices, NumPy does not warn."""

    backward = backend.quietly(Stage.backward)
    backward_input = backend.quietly(Stage.backward_input)
    backward_weight = backend.quietly(Stage.backward_weight)


def build_stages(plan: Plan, rank: int, seed: int, recompute: bool = False, xp: ModuleType = np) -> dict[int, Stage]:
    """Return the stages of a rank. Only their layers are copied, values too where they have them.

    Parameters without values are filled from the seed and their names in the whole model. A parameter that several of
    these stages share is one parameter here, too.

    Parameters
    ----------
    plan : Plan
        Its model is left as it was.
    rank : int
    seed : int
    recompute : bool
        Whether stages keep only their inputs between forward and backward, and compute their activations again.
    xp : module
        The array module that holds their parameters.
    """
    names = {id(parameter.owner): name for name, parameter in plan.model.named_parameters()}
    has_losses = any(isinstance(module, AuxiliaryLoss) for module in plan.model.modules())
    copies: dict = {}  # of everything that was copied, by the identity of the original
    is_half = any(backend.is_half(parameter.dtype) for parameter in plan.model.parameters())
    kind, stages = HalfStage if is_half else Stage, {}
    for index in plan.schedule.stages_of(rank):
        part = plan.part(index)
        try:
            module = copy.deepcopy(part, copies)
        except TypeError as error:  # an open file, a lock
            what = f"A layer of stage {index} cannot be copied: {error}"
            raise ModelError("not-copyable", f"{what}. Open files and the like when they are used.") from None
        parameters: dict[str, Parameter] = {names[id(p.owner)]: copies[id(p)] for p in part.parameters()}
        for name, parameter in parameters.items():
            parameter.move(xp)
            if not parameter.is_filled:
                parameter.fill(seed, name)
        forward: Callable = Recompute(module) if recompute else module
        if has_losses:
            forward = carrying_losses(forward, index == 0, index == plan.schedule.num_stages - 1)
        stages[index] = kind(module, index, plan.schedule, parameters, forward)
    return stages
