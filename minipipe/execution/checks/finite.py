"""Are the losses and gradients of a step finite? Asked at its end; all ranks know before one of them updates.

Each rank looks at its gradients alone, and tells all others with the loss (``delivery.py``). Where something is not
finite the step is run once more, to find where that began (``culprit.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import isfinite
from typing import Literal

import numpy as np

from minipipe.autograd import backend
from minipipe.errors import ArgumentError, NotFiniteCode, NotFiniteError
from minipipe.execution import BatchLoss
from minipipe.execution.checks.culprit import culprit_of
from minipipe.execution.executor import Executor
from minipipe.execution.microbatch import Batch
from minipipe.execution.plan import Plan
from minipipe.optim import gradients_are_finite

WhenNotFinite = Literal["stop", "warn", "off"]


class FiniteCheck:
    """Looks at the gradients of this rank after every step.

    Parameters
    ----------
    when_not_finite : {"stop", "warn", "off"}
    plan : Plan
    executor : Executor
        Has run the step, with the stages of this rank.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """

    def __init__(self, when_not_finite: WhenNotFinite, plan: Plan, executor: Executor) -> None:
        if when_not_finite not in ("stop", "warn", "off"):
            raise ArgumentError("value", f"check_finite is {when_not_finite!r}; expected 'stop', 'warn' or 'off'.")
        self.when_not_finite = when_not_finite
        self.plan = plan
        self.executor = executor
        self.names = list(plan.owners)
        stages = executor.stages.values()
        self._parameters = {name: p for stage in stages for name, p in stage.parameters.items()}
        dtypes = {backend.numpy_dtype(parameter.dtype) for parameter in plan.model.parameters()}
        self._may_overflow = np.dtype(np.float16) in dtypes

    def of_step(self, batch: Batch, waits: bool) -> StepCheck | None:
        """Look at the gradients that a step has left here. Local.

        Parameters
        ----------
        batch : Batch
            That of the step.
        waits : bool
            Whether this rank waits for the loss before it goes on.
        """
        if self.when_not_finite == "off":
            return None
        return StepCheck(self, batch, waits, not self._may_overflow and batch.objective.scale <= 1)

    @backend.quietly  # NumPy would warn of what is looked for
    def first_not_finite(self) -> int:
        """Return which parameter of the model has the first gradient that is not finite here; -1 without one."""
        gradients = (parameter.grad for parameter in self._parameters.values())
        total = sum(float(backend.sum_of_squares(gradient)) for gradient in gradients if gradient is not None)
        if not isfinite(total):  # large gradients have squares that overflow: look again
            for name, parameter in self._parameters.items():
                if not gradients_are_finite([parameter]):
                    return self.names.index(name)
        return -1


class StepCheck:
    """What was found on this rank after one step, and what follows once all ranks have told.

    Attributes
    ----------
    findings : tuple of float
        The number of a parameter whose gradient is not finite here, or -1; and 1, if this rank waits for the loss.
    """

    def __init__(self, check: FiniteCheck, batch: Batch, waits: bool, with_gradients: bool) -> None:
        self.findings = (float(check.first_not_finite() if with_gradients else -1), float(waits))
        self._check, self._batch, self._with_gradients = check, batch, with_gradients

    def judge(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> None:
        """Stop or warn, if the loss or a gradient is not finite. Collective, if all ranks wait for the loss.

        Parameters
        ----------
        loss : BatchLoss
        findings : sequence of (float, float)
            Those of all ranks.

        Raises
        ------
        NotFiniteError
            Any of its codes: where the first value was made that is not finite.
        """
        losses = () if self._batch.objective.is_given else (loss, *loss.losses)
        if all(map(isfinite, losses)) and all(parameter < 0 for parameter, _ in findings):
            return
        check, step = self._check, self._batch.training_step + 1
        if all(waits for _, waits in findings):
            code, found = culprit_of(check.plan, check.executor, self._batch, self._with_gradients)
            words = f"Step {step}: {found}"
            end = "No parameter was changed: every rank has stopped before the update."
        else:
            code, words = NotFiniteCode.NOT_FOUND, f"Step {step}: {self._symptom(loss, findings)} not finite."
            end = "It was not waited for, so parameters may have been changed; step(…, wait=True) finds where it began."
        if check.when_not_finite == "stop":
            for stage in check.executor.stages.values():
                stage.begin()  # a step that fails leaves no gradients
            is_given = code in (NotFiniteCode.INPUTS, NotFiniteCode.TARGETS, NotFiniteCode.PARAMETER)
            advice = "" if is_given else "A smaller learning rate often helps; "
            advice += "Pipeline(…, check_finite='warn') would go on."
            raise NotFiniteError(code, f"{words} {end} {advice}")
        if check.executor.group.rank == 0:
            warnings.warn(f"{words} The step goes on, because of check_finite='warn'.", stacklevel=6)

    def _symptom(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> str:
        microbatches = [str(k) for k, value in enumerate(loss.losses) if not isfinite(value)]
        if microbatches and not self._batch.objective.is_given:
            more = f" and of {len(microbatches) - 1} more" if len(microbatches) > 1 else ""
            return f"the loss of microbatch {microbatches[0]}{more} is"
        ranks = [rank for rank, (parameter, _) in enumerate(findings) if parameter >= 0]
        if not ranks:
            return "the loss of the batch is"
        name, rank = self._check.names[int(findings[ranks[0]][0])], self._check.executor.group.name(ranks[0])
        return f"the gradient of {name} (rank {rank}) is"
