"""Errors of a compiled forward: the layers raise them again, with their notes."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from minipipe.core.autograd.modes import at, enable_grad, no_grad
from minipipe.core.execution.executor import Executor
from minipipe.core.execution.payload import Payload


def place_of(error: Exception, function: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the callees through which an error came, and the caller's
    variables.
    """
    assert isinstance(function, FunctionType)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not function.__code__:
        trace = trace.tb_next
    if trace is None:
        return [], {}
    names, values = list[str](), trace.tb_frame.f_locals
    while trace := trace.tb_next:
        names.append(trace.tb_frame.f_code.co_name)
    return names, values


def compute_again(
    executor: Executor,
    received_by: Callable[[int, int], Payload],
    pass_on: Callable[[int, int], None],
) -> None:
    """Compute the failed forward with its layers, as an eager step does.

    Parameters
    ----------
    executor : Executor
    received_by : function
        ``(stage, microbatch) ->`` the input of the forward from another stage.
    pass_on : function
        ``(stage, microbatch)``: gives the stage the arrays of earlier slices.
    """
    action = executor.actions[executor.group.activity.position]
    stage = executor.stages[action.stage]
    k = action.microbatch
    if stage.is_first:
        received = executor.batch.input(k)
    else:
        received = received_by(action.stage, k)
    pass_on(action.stage, k)
    executor.place.begin(k)
    # As in `Running`: a repeated step sets no modes.
    gradients = no_grad() if executor.program.is_forward_only else enable_grad()
    with at(executor.place), gradients:
        if stage.is_last:
            stage.forward_with_loss(k, received, executor.batch.objective)
        else:
            stage.forward(k, received)
