"""The training steps of a pipeline, one at a time, and the records of the last ones."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from minipipe.core.execution.executor import Executor
from minipipe.core.execution.record import Record
from minipipe.core.specs import COUNT
from minipipe.errors import ArgumentError, counted
from minipipe.execution import PendingLoss
from minipipe.execution.checks.calls import check_backward
from minipipe.pipeline.compiling import Compiling
from minipipe.pipeline.framing import Framing
from minipipe.pipeline.training_call import TrainingCall
from minipipe.schedules import Schedule

_KEPT = 8  # for timeline()


class Steps:
    """Runs training steps, and keeps what the last ones left.

    Parameters
    ----------
    schedule : Schedule
    trainer : Executor or None
        Runs a step; None if the schedule has no step.
    framing : Framing
    compiling : Compiling
    pending : deque of PendingLoss
        The losses of steps that did not wait for them.

    Attributes
    ----------
    records : deque of Record
        The records of the last steps.
    input_gradients : array, pytree or None
        The gradients of the inputs of the last step.
    """

    def __init__(
        self,
        schedule: Schedule,
        trainer: Executor | None,
        framing: Framing,
        compiling: Compiling,
        pending: deque[PendingLoss],
    ) -> None:
        self._schedule = schedule
        self._trainer = trainer
        self._framing = framing
        self._compiling = compiling
        self._pending = pending
        self.records = deque[Record](maxlen=_KEPT)
        self.input_gradients: Any = None

    def trainer(self, call: str) -> Executor:
        """Return the executor of a step; refuse a call that needs one without.

        Raises
        ------
        ScheduleError
            Code ``unsupported``.
        """
        check_backward(self._schedule, call)
        assert self._trainer is not None
        return self._trainer

    def run(self, call: TrainingCall, measures_memory: bool) -> None:
        """Run a step, and keep its record; its results are in the call.

        Parameters
        ----------
        call : TrainingCall
        measures_memory : bool
            Whether the record also has the bytes held after each action.

        Raises
        ------
        ArgumentError
            Code ``unsupported``, inside another step, whose gradients would mix with
            these.
        """
        trainer = self._trainer or self.trainer(call.name)
        if trainer.call is not None and trainer.is_running:
            raise ArgumentError(
                "unsupported",
                f"{call.name}() was called during another training step of this pipeline, "
                "by a metric, a loss or a layer, and their gradients would mix. Call "
                "it after that step; evaluate() and predict() may be called there on "
                "one rank.",
            )
        begun = perf_counter()
        try:
            record = self._run(trainer, call, measures_memory)
        except BaseException:
            # a call that was refused leaves the steps before it as they are
            if call.is_agreed:
                self.records.clear()
            raise
        finally:
            if call.is_computed:  # perhaps it is not finite
                self.input_gradients = call.input_gradients
        if isinstance(call.result, PendingLoss):
            self._pending.append(call.result)
        record.begun = begun
        record.left = perf_counter()
        self.records.append(record)

    def _run(
        self, trainer: Executor, call: TrainingCall, measures_memory: bool
    ) -> Record:
        meters = []
        if measures_memory:
            from minipipe.execution.meter import MemoryMeter

            meters.append(MemoryMeter())
        # Frozen stages get no gradient back that shows that their sends, perhaps of the
        # inputs themselves, have finished.
        finishes_sends = call.waits or self._schedule.first_backward_stage > 0
        record = trainer.run(call, *meters, finishes_sends=finishes_sends)
        self._compiling.note(self._framing, trainer)
        return record

    def wait(self) -> None:
        """Wait for the losses of all steps, and raise their errors."""
        while self._pending:
            self._pending.popleft().wait()

    def last(self, num_steps: int) -> list[Record]:
        """Return the records of the last steps.

        Raises
        ------
        ArgumentError
            Code ``value``, for steps that were not taken, or are not kept.
        """
        COUNT.check("timeline: num_steps", num_steps)
        taken = len(self.records)
        if num_steps > taken:
            raise ArgumentError(
                f"timeline: num_steps is {num_steps}; {counted(taken, 'step')} are "
                f"known since the last error, if any; at most {_KEPT} are kept. Call "
                "step() first.",
            )
        return list(self.records)[-num_steps:]
