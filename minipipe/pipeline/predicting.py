"""Batches that run forward only: of ``evaluate`` and ``predict``."""

from __future__ import annotations

from collections.abc import Callable

from minipipe.errors import counted
from minipipe.execution.batch import Batch
from minipipe.execution.executor import Executor
from minipipe.execution.plan import Plan
from minipipe.nn.fully_sharded import kept_whole
from minipipe.nn.module import modes_of
from minipipe.pipeline.compiling import Compiling
from minipipe.pipeline.intake import Intake, gather_results
from minipipe.schedules import lower
from minipipe.schedules.sequential import forward_only_through


class Predictors:
    """The executors of forward-only batches, by their numbers of microbatches.

    Parameters
    ----------
    plan : Plan
    intake : Intake
    make : function
        ``(program, run_schedule=…) -> Executor``.
    compiling : Compiling
    """

    def __init__(
        self,
        plan: Plan,
        intake: Intake,
        make: Callable[..., Executor],
        compiling: Compiling,
    ) -> None:
        self._plan, self._intake, self._make, self._compiling = (
            plan,
            intake,
            make,
            compiling,
        )
        self._executors: dict[int, Executor] = {}

    def run(self, batch: Batch, is_training: bool) -> Batch:
        """Run a batch; return it with the results of all replicas. Collective.

        Parameters
        ----------
        batch : Batch
        is_training : bool
            Whether layers compute as in training.
        """
        executor = self._executor(len(batch.sizes))
        modules = [stage.module for stage in executor.stages.values()]
        with modes_of(*modules, is_training=is_training), kept_whole(*modules):
            executor.run(batch)
        gather_results(executor.group, self._intake.last_ranks, batch)
        return batch

    def _executor(self, count: int) -> Executor:
        known = self._executors.get(count)
        # a metric of evaluate() may predict
        if known is not None and not known.is_running:
            return known
        schedule = forward_only_through(
            self._plan.pipelines, count, self._plan.schedule.num_ranks
        )
        compiler = self._compiling.compiler(
            f"forward only, {counted(count, 'microbatch')}"
        )
        made = self._make(lower(schedule), run_schedule=compiler)
        self._executors.setdefault(count, made)
        return made
