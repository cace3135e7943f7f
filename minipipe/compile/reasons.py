"""Reasons why a stage or a loss cannot be compiled."""

from __future__ import annotations

from typing import Any

from minipipe.compile.guards import Attributes, is_foreign
from minipipe.core.autograd.modes import mode
from minipipe.core.execution.executor import Executor
from minipipe.core.nn.module import is_exactly
from minipipe.errors import ModelError
from minipipe.execution.batch import Batch
from minipipe.execution.objective import BatchObjective
from minipipe.nn import Function, Module, Sequential
from minipipe.nn.auxiliary_loss import AuxiliaryLoss


def refused(stage: int, reason: str) -> ModelError:
    """Return the error for a stage that cannot be compiled, with ``compile=True``."""
    message = f"Stage {stage} cannot be compiled: {reason}. Compute with operations of"
    message += " minipipe.functional, and declare a class of your own with"
    message += " is_compilable = True (see Pipeline); or pass"
    message += ' compile="where-possible", which runs such a stage eagerly.'
    return ModelError("unsupported", message)


def report_of(stage: int, reason: str) -> str:
    """Return the line about a stage in a report; without a reason, it is compiled."""
    if reason:
        return f"stage {stage} runs eagerly: {reason}"
    return f"stage {stage} is compiled"


def is_declared(part: Any, default: bool) -> bool:
    """Return whether the author of a class or function allows to record it."""
    return bool(getattr(part, "is_compilable", getattr(part, "is_replayable", default)))


def _code_of(part: Module) -> Any:
    """Return the class of a layer, or the function that it calls."""
    if isinstance(part, AuxiliaryLoss) and not isinstance(part.function, Module):
        return part.function
    return type(part)


def reason_against(module: Sequential) -> str:
    """Return why these layers cannot be recorded; empty if they can."""
    first = module.first_layer
    for i, layer in enumerate(module.layers):
        for part in layer.modules():
            is_ours = not is_foreign(part) and not isinstance(part, Function)
            is_allowed = is_declared(_code_of(part), default=is_ours)
            if not is_allowed or not is_exactly(part, type(part)):
                name = type(part).__name__
                return f"layer {first + i}, {name}, runs code of its own"
    return ""


def reason_against_loss(objective: BatchObjective) -> str:
    """Return why the loss of a call cannot be recorded; empty if it can."""
    loss = objective.loss
    is_ours = type(loss).__module__ == "minipipe.core.nn.losses"
    replaced = {"forward", "compute", "__call__"} & getattr(loss, "__dict__", {}).keys()
    if not is_declared(loss, default=is_ours) or replaced:
        return "the loss runs code of its own"
    if objective.targets is None:
        return "the loss has no targets"
    if not objective.is_whole:
        return "tensor-parallel ranks compare or gather outputs"
    return attributes_of_loss(loss).reason


def attributes_of_loss(loss: Any) -> Attributes:
    """Return the attributes of a loss, on which its lines depend."""
    if isinstance(loss, Module):
        return Attributes(loss.modules())
    return Attributes([loss])


def reason_for_eager(executor: Executor) -> str:
    """Return why this call cannot run compiled; empty if it can."""
    batch: Batch = executor.batch
    objective = batch.objective
    if (objective.where or objective.metrics) and not objective.is_for_outputs:
        return "runs eagerly: the call asks for more than the loss"
    if not all(getattr(each, "is_printed", False) for each in executor.observers):
        return (
            "runs eagerly: its actions are observed, as measures_memory, "
            "stack_weight_gradients and MINIPIPE_DEBUG do"
        )
    if getattr(executor.call, "accumulates", False):
        return "runs eagerly: gradients are accumulated"
    if mode().watch is not None:
        return "runs eagerly: changes in place are watched"
    return ""
