"""This rank's stages: copies of the model's layers, with values."""

from __future__ import annotations

import copy
from types import ModuleType

import numpy as np

from minipipe.nn import Parameter, Sequential
from minipipe.nn.sequential import shared_parameters
from minipipe.pipeline.plan import Plan
from minipipe.pipeline.stage import Loss, Stage

__all__ = ["build_stages"]


def build_stages(
    plan: Plan, rank: int, loss: Loss, seed: int, recompute: bool = False, xp: ModuleType = np
) -> dict[int, Stage]:
    """Return the stages of a rank. Only their layers are copied, values too where they have them.

    Parameters without values are filled from the seed and their names in the whole model. A parameter that several of
    these stages share is one parameter here, too.

    Parameters
    ----------
    plan : Plan
        Its model is left as it was.
    rank : int
    loss : function
    seed : int
    recompute : bool
    xp : module
        The array module that holds their parameters.
    """
    model = plan.model
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shared = shared_parameters(model.layers)
    copies: dict = {}  # of everything that was copied, by the identity of the original
    stages = {}
    for index in plan.schedule.stages_of(rank):
        layers = plan.partition[index]
        module = Sequential(*copy.deepcopy(model.layers[layers.start : layers.stop], copies))
        module.first_layer = model.first_layer + layers.start
        module.is_training = model.is_training
        module.shared = {i - layers.start: [copies[id(p)] for p in shared[i]] for i in layers if i in shared}
        originals = [parameter for i in layers for parameter in model.layers[i].parameters()]
        parameters: dict[str, Parameter] = {names[id(p)]: copies[id(p)] for p in originals}
        for name, parameter in parameters.items():
            parameter.move(xp)
            if not parameter.is_filled:
                parameter.fill(seed, name)
        stages[index] = Stage(module, index, index == len(plan.partition) - 1, loss, parameters, recompute)
    return stages
