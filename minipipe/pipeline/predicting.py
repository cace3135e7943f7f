"""Batches that run forward only: of ``evaluate`` and ``predict``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minipipe.core.execution.executor import Executor
from minipipe.core.nn.module import modes_of
from minipipe.errors import counted
from minipipe.pipeline.compiling import Compiling
from minipipe.pipeline.framing import Framing
from minipipe.pipeline.training_call import TrainingCall


class Predictors:
    """The executors of forward-only batches, by their numbers of microbatches.

    Parameters
    ----------
    framing : Framing
    make : function
        ``(program, handlers=…, run_schedule=…) -> Executor``.
    compiling : Compiling
    """

    def __init__(
        self, framing: Framing, make: Callable[..., Executor], compiling: Compiling
    ) -> None:
        self._framing = framing
        self._make = make
        self._compiling = compiling
        self._executors: dict[int, Executor] = {}

    def run(self, call: TrainingCall) -> None:
        """Run a call, in the mode that it asks for. Collective."""
        batch = self._framing.agree(call)
        executor = self._executor(len(batch.sizes))
        modules = [stage.module for stage in executor.stages.values()]
        with modes_of(*modules, is_training=call.is_training):
            executor.run(call)

    def _executor(self, count: int) -> Executor:
        known = self._executors.get(count)
        if (
            known is not None and not known.is_running
        ):  # a metric of evaluate() may predict
            return known
        compiler = self._compiling.compiler(
            f"forward only, {counted(count, 'microbatch')}"
        )
        make = partial(self._make, run_schedule=compiler)
        made = self._framing.predictor(make, count)
        self._executors.setdefault(count, made)
        return made
