"""Are the losses and gradients of a step finite? Checked at its end; all ranks know
before one of them updates.

Each rank checks its own gradients, and sends the result along with the loss
(``intake.py``). If something is not finite, the step is run once more, to locate the
first such value (``culprit.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from types import ModuleType
from typing import TYPE_CHECKING, Literal
from weakref import ref

import numpy as np

from minipipe.autograd import Leaf
from minipipe.comm import Grid, ProcessGroup
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.errors import Code, NotFiniteError, warn_caller
from minipipe.execution import BatchLoss

if TYPE_CHECKING:
    from minipipe.core.execution.stage import Stage
    from minipipe.execution.batch import Batch
    from minipipe.execution.plan import Plan
    from minipipe.nn.arena import Arena

WhenNotFinite = Literal["stop", "warn", "off"]


class FiniteCheck:
    """Checks the gradients of this rank after every step.

    On a device mesh, tensor-parallel ranks check together, so that all of them stop, or
    none.

    Attributes
    ----------
    is_shared : bool
        Whether there are other tensor-parallel ranks.
    """

    def __init__(
        self,
        when_not_finite: WhenNotFinite,
        plan: Plan,
        stages: Mapping[int, Stage],
        group: ProcessGroup,
        xp: ModuleType,
        grid: Grid | None = None,
    ) -> None:
        self.when_not_finite = when_not_finite
        self.plan = plan
        self.grid = grid
        self.is_shared = grid is not None and grid.tensor.size > 1
        self.stages = stages
        self.group = group
        self.xp = xp
        self.names = list(plan.owners)
        self._parameters = {
            name: p for stage in stages.values() for name, p in stage.parameters.items()
        }
        self._trained = next(
            (each for each in self._parameters.values() if each.requires_grad), None
        )
        self._arena: ref[Arena] | None = None
        # the leaves whose gradients are not in the arena
        self._outside: list[Leaf] = []
        self._leaves = [
            leaf
            for parameter in self._parameters.values()
            for leaf in parameter.leaves.values()
        ]
        dtypes = {
            backend.numpy_dtype(parameter.dtype)
            for parameter in plan.model.parameters()
        }
        self.may_overflow = np.dtype(np.float16) in dtypes

    def of_step(self, batch: Batch, waits: bool) -> StepCheck | None:
        """Check the gradients that a step has left here; ``waits`` is whether this rank
        waits for its loss.

        Local, except among tensor-parallel ranks.
        """
        if self.when_not_finite == "off":
            return None
        return StepCheck(
            self, batch, waits, not self.may_overflow and batch.objective.scale <= 1
        )

    def first_not_finite(self) -> int:
        """Return which parameter of the model has the first gradient that is not finite
        here; -1 without one.
        """
        gradients = self._gradients()
        # without a context: vdot does not warn of what this looks for
        if self.xp is np and all(isfinite(np.vdot(each, each)) for each in gradients):
            return -1
        from minipipe.optim.scaling import are_finite, gradients_are_finite

        # large gradients have squares that overflow
        if gradients and not are_finite(*gradients):
            for name, parameter in self._parameters.items():
                if not gradients_are_finite([parameter]):
                    return self.names.index(name)
        return -1

    def _gradients(self) -> list[Array]:
        """Return all gradients: in a few arrays if they lie side by side."""
        reference = None if self._trained is None else self._trained.arena
        arena = None if reference is None else reference()
        if arena is not None and (joined := arena.joined_gradients()) is not None:
            if reference is not self._arena:
                self._arena, self._outside = (
                    reference,
                    arena.leaves_outside(self._leaves),
                )
            return [
                *joined,
                *(leaf.grad for leaf in self._outside if leaf.grad is not None),
            ]
        return [leaf.grad for leaf in self._leaves if leaf.grad is not None]


class StepCheck:
    """The findings of this rank after one step, and the diagnosis once all ranks have
    sent theirs.

    Attributes
    ----------
    findings : tuple of float
        The number of a parameter whose gradient is not finite here, or -1; and 1, if
        this rank waits for the loss.
    """

    def __init__(
        self, check: FiniteCheck, batch: Batch, waits: bool, with_gradients: bool
    ) -> None:
        number = -1
        if with_gradients:
            number = check.first_not_finite()
        busy = -waits
        if check.is_shared:
            assert check.grid is not None
            found = np.array([number, busy], np.float64)
            number, busy = check.grid.tensor.all_reduce(found, "max").tolist()
        self.findings = (float(number), float(-busy))
        self._check = check
        self._batch = batch
        self._with_gradients = with_gradients

    def judge(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> None:
        """Stop or warn, if the loss or a gradient is not finite. Collective, if all
        ranks wait for the loss.

        Parameters
        ----------
        loss : BatchLoss
        findings : sequence of (float, float)
            The findings of all ranks.

        Raises
        ------
        NotFiniteError
            Any of its codes, for the place of the first value that is not finite.
        """
        losses: tuple[float, ...] = ()
        if not self._batch.objective.is_given:
            losses = (loss, *loss.losses)
        is_finite = all(map(isfinite, losses))
        for parameter, _ in findings:
            is_finite = is_finite and parameter < 0
        if is_finite:
            return
        check = self._check
        step = self._batch.training_step + 1
        if all(waits for _, waits in findings):
            from minipipe.execution.checks.culprit import culprit_of

            code, found = culprit_of(check, self._batch, self._with_gradients)
            words = f"Step {step}: {found}"
            end = "No parameter was changed: every rank has stopped before the update."
        else:
            code = Code.NOT_FOUND
            words = f"Step {step}: {self._symptom(loss, findings)} not finite."
            end = (
                "Nothing waited for the loss, so parameters may have changed; step(…, "
                "wait=True) finds the place."
            )
        if check.when_not_finite == "stop":
            for stage in check.stages.values():
                stage.begin()  # a step that fails leaves no gradients
            is_given = code in (Code.INPUTS, Code.TARGETS, Code.PARAMETER)
            advice = "Pipeline(…, check_finite='warn') continues with a warning."
            if not is_given:
                advice = f"A smaller learning rate often helps; {advice}"
            raise NotFiniteError(code, f"{words} {end} {advice}")
        if (check.grid or check).group.rank == 0:
            warn_caller(f"{words} Training continues, because of check_finite='warn'.")

    def _symptom(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> str:
        microbatches = [
            str(k) for k, value in enumerate(loss.losses) if not isfinite(value)
        ]
        if microbatches and not self._batch.objective.is_given:
            more = ""
            if len(microbatches) > 1:
                more = f" and of {len(microbatches) - 1} more"
            return f"the loss of microbatch {microbatches[0]}{more} is"
        ranks = [rank for rank, (parameter, _) in enumerate(findings) if parameter >= 0]
        if not ranks:
            return "the loss of the batch is"
        name = self._check.names[int(findings[ranks[0]][0])]
        rank = self._check.group.name(ranks[0])
        return f"the gradient of {name} (rank {rank}) is"
