"""The stages of a rank, built from a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd.modes import current_place
from minipipe.core.execution.stage import Stage, claimed
from minipipe.core.schedules.action import Action, R
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import RecomputingStage
from minipipe.nn import Module, Recompute
from minipipe.nn.collected_losses import carrying_losses


def build_stages(
    plan: Plan, rank: int, seed: int, recompute: bool = False, xp: ModuleType = np
) -> dict[int, Stage]:
    """Return the stages of a rank. Only their layers are copied, including existing
    values.

    Parameters without values are filled from the seed and their names in the whole
    model. A parameter that several of these stages share remains one parameter.

    Parameters
    ----------
    plan : Plan
        Its model is not changed.
    rank : int
    seed : int
    recompute : bool
        Whether stages keep only their inputs between forward and backward, and compute
        their activations again.
    xp : module
        The array module that holds their parameters.
    """
    names = {
        id(parameter.owner): name for name, parameter in plan.model.named_parameters()
    }
    modules = plan.model.modules()
    has_losses = any(getattr(module, "adds_losses", False) for module in modules)
    copies: dict = {}  # of everything that was copied, by the identity of the original
    kind = _kind_of_stages(plan, recompute)
    stages: dict[int, Stage] = {}
    for index in plan.schedule.stages_of(rank):
        part = plan.part(index)
        module, parameters = claimed(part, index, names, seed, copies, xp)
        forward: Callable = Recompute(module)
        if not recompute:
            forward = _recomputing(module, plan.schedule.numbered[rank], index)
        if has_losses:
            forward = carrying_losses(
                forward, index == 0, index == plan.schedule.num_stages - 1
            )
        stages[index] = kind(module, index, plan.schedule, parameters, forward)
    return stages


def _kind_of_stages(plan: Plan, recompute: bool) -> type[Stage]:
    """Return the class of the stages, after checking that their layers fit it."""
    if plan.schedule.num_slices == 1:
        return RecomputingStage
    from minipipe.execution.sliced import SlicedStage, check_sliceable

    check_sliceable(plan.model, plan.schedule, recompute, plan.inputs_require_grad)
    return SlicedStage


def _recomputing(
    module: Module, row: Iterable[Action], stage: int
) -> Callable[[Any], Any]:
    """Return a forward that keeps only the inputs of microbatches with an R in a row.

    Without such microbatches it is the module itself.
    """
    again = {k for s, kind, k in row if s == stage and kind is R}
    if not again:
        return module
    dropping = Recompute(module)

    def forward(x: Any) -> Any:
        if current_place().microbatch in again:
            return dropping(x)
        return module(x)

    return forward
