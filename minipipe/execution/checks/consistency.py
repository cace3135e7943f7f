"""What a pipeline refuses, or warns of, when it is made and before a step. Local."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError, ModelError, ScheduleCode, ScheduleError
from minipipe.execution.stage import Stage
from minipipe.nn import Module, Parameter
from minipipe.schedules.action_table import Schedule


def check_loss(loss: Any) -> None:
    """Refuse a loss that is no function, or has parameters, which no stage would own.

    Raises
    ------
    ModelError
        Codes ``loss`` and ``loss-with-parameters``.
    """
    if not (loss is None or callable(loss)) or isinstance(loss, type):
        raise ModelError("loss", f"The loss is {loss!r}; expected a function or an object such as nn.MSELoss().")
    if isinstance(loss, Module) and loss.num_parameters:
        raise ModelError("loss-with-parameters", "The loss has parameters of its own; make them a layer of the model.")


def check_backward(schedule: Schedule, call: str) -> None:
    """Refuse to train over a schedule that only predicts. Local.

    Raises
    ------
    ScheduleError
        Code ``forward-only``.
    """
    if schedule.is_forward_only and not schedule.frozen:
        raise ScheduleError.of(
            ScheduleCode.FORWARD_ONLY,
            f"{schedule.name} has no backward, which {call}() needs: "
            "choose another schedule to train, or evaluate() and predict().",
        )


def check_num_steps(num_steps: Any, taken: int, kept: int) -> None:
    """Refuse to show steps that were not taken, or are not kept. Local.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """
    if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < 1:
        raise ArgumentError("value", f"timeline: num_steps is {num_steps!r}; expected a whole number, at least 1.")
    if num_steps > taken:
        known = f"{taken} steps are known since the last error, if any; at most {kept} are kept"
        raise ArgumentError("value", f"timeline: num_steps is {num_steps}; {known}. Call step() before.")


def check_inputs_require_grad(is_asked: bool) -> None:
    """Refuse gradients of the inputs that nobody has asked for. Local.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """
    if not is_asked:
        raise ArgumentError("value", "Gradients of the inputs are kept by Pipeline(…, inputs_require_grad=True) alone.")


def check_frozen(stage: Stage) -> None:
    """Refuse parameters that were frozen when the plan was made, and are to be trained now. Local.

    Raises
    ------
    ModelError
        Code ``frozen``.
    """
    if stage.is_frozen and any(parameter.requires_grad for parameter in stage.parameters.values()):
        raise ModelError(
            "frozen",
            f"All parameters of stage {stage.index} were frozen when the pipeline was made, so its schedule has no W; "
            "now some of them require gradients. Make another pipeline, with these values: "
            "model.load_state_dict(pipeline.state_dict()), model.freeze(False), Pipeline(model, …).",
        )


def warn_of_another_order(schedule: Schedule, group: ProcessGroup) -> None:
    """Warn, on rank 0, of a schedule whose gradients may have other last bits than those of one process."""
    if not schedule.is_reproducible and group.rank == 0:
        warnings.warn(
            f"{schedule.name} adds gradients of some stage in another order than ascending microbatches; "
            "it runs as written, but its last bits may differ from those of one process.",
            stacklevel=3,
        )


def warn_of_missing_gradients(parameters: Mapping[str, Parameter]) -> None:
    """Warn of parameters of this rank that got no gradient: unused, or cut off from the loss. Local."""
    names = [name for name, parameter in parameters.items() if parameter.grad is None and parameter.requires_grad]
    if names:
        warnings.warn(
            f"The first step left no gradient for {', '.join(names)}. Either no layer uses them, or a layer behind "
            "them cuts the graph, as Tensor(np.maximum(x.numpy(), 0)) does; compute with minipipe's own operations.",
            stacklevel=3,
        )
