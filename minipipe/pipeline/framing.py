"""The rows of a pipeline's calls, and the handlers of the instructions that frame them.

`passes/kinds.py` declares these instructions. A call is run from its arguments: the
handshake makes the batch of them, the other handlers leave their results in the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from minipipe.comm import ProcessGroup
from minipipe.core.execution.executor import Executor, Handlers
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Program
from minipipe.core.values import Handler, gives, takes
from minipipe.execution import PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.calls import check_frozen, warn_of_missing_gradients
from minipipe.execution.checks.finite import FiniteCheck, StepCheck
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import and_then, handlers_of, journal
from minipipe.passes.framing import frame
from minipipe.pipeline.delivery import deliver_loss, deliver_outputs, exchange_loss
from minipipe.pipeline.intake import Intake, gather_results
from minipipe.pipeline.parameters import AllParameters
from minipipe.pipeline.training_call import TrainingCall
from minipipe.schedules import lower

if TYPE_CHECKING:
    from minipipe.execution.sums import GradientSums
    from minipipe.pipeline.repeating import RepeatedStep


class Framing:
    """The rows of a pipeline's steps, evaluations and predictions, with handlers.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    intake : Intake
    parameters : AllParameters
    sums : GradientSums or None
        If gradients are added by blocks of microbatches, as replicas do.
    finite : FiniteCheck
    pending : deque of PendingLoss
        The losses of earlier steps that nothing has waited for.
    gathers_stages : bool
        Whether a training step gathers fully sharded layers once, stage by stage.
    """

    def __init__(
        self,
        plan: Plan,
        group: ProcessGroup,
        intake: Intake,
        parameters: AllParameters,
        sums: GradientSums | None,
        finite: FiniteCheck,
        pending: deque[PendingLoss],
        gathers_stages: bool = False,
    ) -> None:
        self._plan = plan
        self._group = group
        self._intake = intake
        self._parameters = parameters
        self._sums = sums
        self._finite = finite
        self._pending = pending
        self._gathered: Collection[int] = ()
        if gathers_stages:
            self._gathered = plan.sharded_stages

    def program(self, clip: bool = False, update: bool = False) -> Program:
        """Return the program of a training step with everything that its ranks do in
        it.

        Parameters
        ----------
        clip, update : bool
            Whether to include what the program of the user calls after the step.
        """
        plan = self._plan
        tied = set[tuple[int, ...]]()
        if self._parameters.shared is not None:  # no rank has all uses itself
            tied = {tuple(sorted({*uses.values()})) for uses in plan.uses.values()}
        return frame(
            plan.program,
            tied=sorted(stages for stages in tied if len(stages) > 1),
            check_finite=self._finite.when_not_finite != "off",
            input_gradients=plan.inputs_require_grad,
            clip=clip,
            update=update,
            sharded=self._gathered,
        )

    def forward_program(self, num_microbatches: int) -> Program:
        """Return the program of an evaluation or a prediction."""
        plan = self._plan
        num_ranks = plan.schedule.num_ranks
        from minipipe.schedules.sequential import forward_only_through

        table = forward_only_through(plan.pipelines, num_microbatches, num_ranks)
        return frame(lower(table), sharded=plan.sharded_stages)

    def trainer(
        self, make: Callable[..., Executor], stacks_weights: bool
    ) -> Executor | None:
        """Return the executor of training steps.

        None if the schedule updates weights itself, which needs a run, or has no
        backward.

        Parameters
        ----------
        make : function
            ``(program, handlers=…, observers=…) -> Executor``.
        stacks_weights : bool
            Whether neighbouring W of a stage are computed together.
        """
        schedule = self._plan.schedule
        if ActionKind.UPDATE in schedule.kinds or (
            schedule.is_forward_only and not schedule.frozen
        ):
            return None
        row = self._plan.program.numbered[self._group.rank]
        handlers = handlers_of(row, self._plan.is_half)
        observers = journal()
        if stacks_weights:
            from minipipe.execution.stacking import StackedWeights

            stacking = StackedWeights(row)
            handlers = stacking.handlers(handlers)
            observers = (*observers, stacking)
        if self._gathered:
            from minipipe.execution import sharded

            handlers = {**handlers, **sharded.HANDLERS}
        handlers = self._plan.with_handlers(self.handlers(handlers))
        return make(self.program(), handlers=handlers, observers=observers)

    def repeated(
        self, trainer: Executor, compiler: Any, last: RepeatedStep | None
    ) -> RepeatedStep | None:
        """Return what runs steps like the last one; None without a compiler, or if it
        ran eagerly.
        """
        if compiler is None or compiler.program is None:
            return None
        if last is not None and last.serves(compiler, self._intake):
            return last
        # most programs do not compile
        from minipipe.pipeline.repeating import repeated

        return repeated(
            trainer, compiler, self._intake, self._finite, self._pending, self._sums
        )

    def predictor(self, make: Callable[..., Executor], count: int) -> Executor:
        """Return the executor of evaluations and predictions.

        Parameters
        ----------
        make : function
            ``(program, handlers=…) -> Executor``.
        count : int
            How many microbatches they have.
        """
        handlers: Handlers = self.around(handlers_of(()), self._deliver_results)
        if stages := self._plan.sharded_stages:
            from minipipe.execution import sharded  # most models have no shards

            give_shards = partial(sharded.give_shards, stages=stages)
            begin = and_then(self._begin, give_shards)
            handlers = {**handlers, **sharded.HANDLERS, "HANDSHAKE": begin}
        handlers = self._plan.with_handlers(handlers, trains=False)
        return make(self.forward_program(count), handlers=handlers)

    def around(self, handlers: Handlers, deliver: Handler) -> dict[str, Handler]:
        """Return handlers that also run the frame of a row without a finite check.

        Parameters
        ----------
        handlers : mapping of str to function
            For the schedule.
        deliver : function
            Runs its LOSS.
        """
        return {
            **handlers,
            "HANDSHAKE": self._begin,
            "GATHER_RESULTS": self._gather_results,
            "LOSS": deliver,
        }

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers that also add gradients up, and run the frame of a step."""
        behind: Handlers = {
            "REDUCE_TIED": self._reduce_tied,
            "GATHER_INPUT_GRADS": self._gather_input_gradients,
            "GATHER_RESULTS": self._gather_results,
            "FINITE": self._check,
            "LOSS": self._deliver_loss,
        }
        sums = self._sums
        if sums is not None:
            behind = {kind: _after(sums, each) for kind, each in behind.items()}
            handlers = sums.handlers(handlers)
        return {**handlers, "HANDSHAKE": self._handshake, **behind}

    def agree(self, call: TrainingCall) -> Batch:
        """Compare a call on all ranks, and make its batch. Collective."""
        call.batch = self._intake.batch(
            call.label,
            call.inputs,
            call.targets,
            call.objective,
            call.is_training,
            call.num_steps,
        )
        return call.batch

    def _begin(self, executor: Executor, action: Action) -> None:
        """Run the HANDSHAKE of any call.

        All ranks may have agreed already: on the number of microbatches, which
        determines the row, or on a compiled step that could not be repeated.
        """
        call = executor.call
        executor.batch = call.batch or self.agree(call)

    def _handshake(self, executor: Executor, action: Action) -> None:
        """Run the HANDSHAKE of a training step."""
        self._begin(executor, action)
        call = executor.call
        for stage in executor.stages.values():
            check_frozen(stage)
            stage.begin(call.accumulates)
        shared = self._parameters.shared
        call.earlier = {}
        if shared is not None and call.accumulates:
            call.earlier = shared.take_gradients()
        if self._sums is not None:
            self._sums.begin(call.accumulates)
        call.is_agreed = True

    def _reduce_tied(self, executor: Executor, action: Action) -> None:
        program = executor.program
        shared = self._parameters.shared
        tag = 2 * program.num_stages * program.num_microbatches  # after the executor's
        if self._sums is not None:
            tag = self._sums.last_tag
        if shared is not None:  # otherwise each rank has all stages that share one
            shared.exchange_gradients(executor.batch.step, tag, executor.call.earlier)

    def _gather_input_gradients(self, executor: Executor, action: Action) -> None:
        self._intake.gather_input_gradients(executor.record.input_gradients)

    def _gather_results(self, executor: Executor, action: Action) -> None:
        program = executor.program
        # Replicas without a microbatch, of a small batch, are not among them.
        ranks = program.ranks_of(program.num_stages - 1)
        gather_results(self._group, ranks, executor.batch)

    @gives("finite")
    def _check(self, executor: Executor, action: Action) -> StepCheck | None:
        return self._finite.of_step(executor.batch, executor.call.waits)

    @takes("finite")
    def _deliver_loss(
        self, executor: Executor, action: Action, finite: StepCheck | None = None
    ) -> None:
        call = executor.call
        batch = executor.batch
        if call.num_steps == 0:
            warn_of_missing_gradients(self._parameters.own)
        call.is_computed = True
        call.input_gradients = self._intake.input_gradients(
            batch, executor.record.input_gradients
        )
        if call.waits and not self._pending:
            call.result = exchange_loss(self._intake.delivery, batch, finite)
            return
        loss = deliver_loss(self._intake.delivery, batch, finite)
        while self._pending:  # no rank is far behind
            self._pending.popleft().wait()
        call.result = loss.wait() if call.waits else loss

    def _deliver_results(self, executor: Executor, action: Action) -> None:
        """Run the LOSS of a row that trains nothing."""
        call = executor.call
        batch = executor.batch
        if batch.objective.has_loss:
            call.result = exchange_loss(self._intake.delivery, batch)
        else:
            root = self._intake.last_rank
            call.result = deliver_outputs(self._group, root, batch)


def _after(sums: GradientSums, handler: Handler) -> Handler:
    """Return a handler that first waits for the gradient all-reduces: only the first
    one of a row has to.
    """

    @wraps(handler)
    def run(executor: Executor, action: Action, *values: Any) -> Any:
        sums.finish()
        return handler(executor, action, *values)

    return run
