"""A compiled training step for a batch like the last one, without what cannot have
changed since.

An ordinary step reads its batch, agrees on it, sets the modes of computing, runs its
row and judges the result. If the last one was compiled and its batch was plain, most of
that is known::

    step             handshake | modes | schedule | sums | check | loss
    repeated step    forms, guards, agreement | compiled schedule | check | loss

Any change makes it an ordinary step.
"""

from __future__ import annotations

from collections import deque
from math import isfinite

from minipipe.autograd.modes import mode
from minipipe.compile.arrivals import OtherForm
from minipipe.compile.program import CompiledRow, Compiler
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.finite import FiniteCheck
from minipipe.execution.executor import Executor
from minipipe.execution.record import Record
from minipipe.pipeline.delivery import exchange_loss
from minipipe.pipeline.intake import Intake
from minipipe.pipeline.training_call import TrainingCall

_BEHIND = {"FINITE", "LOSS"}
"""The instructions behind a schedule that a repeated step runs."""


def repeated(
    executor: Executor,
    compiler: Compiler,
    intake: Intake,
    finite: FiniteCheck,
    pending: deque[PendingLoss],
) -> RepeatedStep | None:
    """Return what runs steps like the last one, of an executor; None if no other can be
    like it.
    """
    program = compiler.program
    if (
        program is None
        or not program.is_whole
        or intake.last is None
        or finite.grid is not None
    ):
        return None
    row = executor.program.actions[executor.group.rank]
    behind = {str(action.kind) for action in row if action.kind.declaration.of_rank} - {
        "HANDSHAKE"
    }
    if behind - _BEHIND:
        return None
    return RepeatedStep(
        executor, compiler, intake, finite, intake.last, program, pending
    )


class RepeatedStep:
    """Runs steps like the last one.

    Parameters
    ----------
    executor : Executor
        Of training steps.
    compiler : Compiler
    intake : Intake
    finite : FiniteCheck
    like : object
        The form of the last batch.
    program : CompiledRow
        That ran last.
    pending : deque of PendingLoss
        The losses of earlier steps that nothing has waited for.
    """

    def __init__(
        self,
        executor: Executor,
        compiler: Compiler,
        intake: Intake,
        finite: FiniteCheck,
        like: object,
        program: CompiledRow,
        pending: deque[PendingLoss],
    ) -> None:
        self._executor, self._compiler, self._program = executor, compiler, program
        self._intake, self._finite, self._like = intake, finite, like
        self._leaves = [
            leaf for stage in executor.stages.values() for leaf in stage.leaves
        ]
        self._is_alone = intake.calls.is_alone
        self._checks = finite.when_not_finite != "off"
        self._pending = pending

    def run(self, call: TrainingCall) -> Record | None:
        """Run a step, if it is like the last one. Collective.

        Returns
        -------
        Record or None
            None if the step has to be an ordinary one, which goes on from what the call
            is then.

        Raises
        ------
        NotFiniteError
            Any of its codes, as of an ordinary step.
        """
        executor, objective = self._executor, call.objective
        if (
            not call.waits
            or call.accumulates
            or objective.where
            or objective.metrics
            or self._pending
        ):
            return None
        if self._compiler.program is not self._program or mode().watch is not None:
            return None
        if not self._compiler.still_holds(executor):
            return None
        given = call.inputs, call.targets, objective, call.is_training, call.num_steps
        call.batch = self._intake.batch(call.name, *given)
        if call.batch.form is not self._like:
            return None
        call.is_agreed = True
        for leaf in self._leaves:
            leaf.grad = None

        def compute(executor: Executor) -> None:
            try:
                self._program.run(executor)
            except OtherForm as error:
                self._compiler.begin_again(executor, error)
                raise
            executor.finish_sends()
            call.is_computed = True
            own = executor.record.input_gradients
            call.input_gradients = self._intake.input_gradients(executor.batch, own)
            call.loss = self._loss_of(executor.batch)

        try:
            return executor.repeat(call.batch, compute)
        except OtherForm as error:
            if self._compiler.program is self._program:  # it cannot begin again
                raise
            executor.early[error.value] = error.arrived
            return None

    def _loss_of(self, batch: Batch) -> BatchLoss:
        """Return the loss of a batch, after checking it and the gradients.
        Collective.
        """
        if not self._is_alone:
            check = self._finite.of_step(batch, waits=True)
            return exchange_loss(self._intake.delivery, batch, check)
        objective, total, losses = batch.objective, 0.0, []
        for k, share in enumerate(objective.shares):
            loss = objective.losses[k]
            losses.append(loss)
            total += share * loss if share else 0.0
        found = BatchLoss(total, losses)
        if self._checks and not (
            isfinite(total) and self._finite.looks_finite(objective.scale)
        ):
            check = self._finite.of_step(batch, waits=True)
            assert check is not None
            check.judge(found, [check.findings])
        return found
