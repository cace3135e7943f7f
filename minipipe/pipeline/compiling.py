"""Which calls of a pipeline are compiled: the option ``compile=``, the programs and
what is told of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from minipipe.core.execution.executor import Executor
from minipipe.core.execution.stage import Stage
from minipipe.core.schedules.action import ActionKind
from minipipe.errors import ArgumentError
from minipipe.execution.plan import Plan

if TYPE_CHECKING:
    from minipipe.compile.program import Compiler
    from minipipe.compile.stage import CompiledStages
    from minipipe.pipeline.framing import Framing
    from minipipe.pipeline.repeating import Repeated, RepeatedStep

How = bool | Literal["where-possible"]


def _ordinary(pipeline: Any, inputs: Any, targets: Any, scale: float) -> None:
    """Run no step: none can be like the last one."""


class Compiling:
    """The compilers of the executors of a pipeline.

    Parameters
    ----------
    how : bool or "where-possible"
    plan : Plan
    stacks_weights : bool
        Whether neighbouring W are computed together.

    Attributes
    ----------
    repeated : function
        Runs a training step that is like the last one, collectively, and returns its
        loss; or what an ordinary step has to begin with (``repeating.py``).

    Raises
    ------
    ArgumentError
        Code ``value``: with stacked weight gradients.
    ModelError
        Code ``unsupported``, on every rank: a layer that cannot be compiled. A step
        refuses the rest.
    """

    def __init__(self, how: How, plan: Plan, stacks_weights: bool = False) -> None:
        self._how = how
        self._compilers: dict[str, Compiler | CompiledStages] = {}
        self._repeated: RepeatedStep | None = None
        self.repeated: Repeated = _ordinary
        self._has_updates = ActionKind.UPDATE in plan.schedule.kinds
        if how is True and stacks_weights and not self._has_updates:
            message = (
                "compile=True does not work with stack_weight_gradients=True: a "
                "compiled W has one microbatch."
            )
            advice = (
                "Leave one of them out, or pass compile='where-possible', which runs "
                "such steps eagerly."
            )
            raise ArgumentError(f"{message} {advice}")
        if how is True:
            from minipipe.compile.reasons import reason_against, refused

            for stage in range(plan.schedule.num_stages):
                reason = reason_against(plan.part(stage))
                if reason:
                    raise refused(stage, reason)

    def compiler(self, call: str = "") -> Compiler | None:
        """Return a compiler for the executor of a call, which runs schedules in its
        way; None without compilation.

        Parameters
        ----------
        call : str
            What it runs, for the report; by default it is not there. A later executor
            of the same call replaces an earlier one.
        """
        if not self._how:
            return None
        from minipipe.compile.program import Compiler  # most programs do not compile

        compiler = Compiler(is_strict=self._how is True)
        if call:
            self._compilers[call] = compiler
        return compiler

    def stages(self, stages: Mapping[int, Stage]) -> CompiledStages | None:
        """Return stages that compile themselves, for runs that update weights; None
        without these or compilation.
        """
        if not self._how or not self._has_updates:
            return None
        from minipipe.compile.stage import CompiledStages

        compiled = CompiledStages(stages, is_strict=self._how is True)
        self._compilers = {"run": compiled}
        return compiled

    def note(self, framing: Framing, trainer: Executor) -> None:
        """Note that an ordinary training step has ended: others may be like it."""
        compiler = self._compilers.get("step")
        if compiler is not None:
            self._repeated = framing.repeated(trainer, compiler, self._repeated)
        self.repeated = _ordinary
        if self._repeated is not None:
            self.repeated = self._repeated.run

    def stop_repeating(self) -> None:
        """Make the next training step an ordinary one."""
        self._repeated = None
        self.repeated = _ordinary

    def report(self) -> str:
        """Return a line for each call and stage: compiled or not, and why."""
        if not self._how:
            return "all stages run eagerly: compile=False"
        reports = (
            (call, compiler.report) for call, compiler in self._compilers.items()
        )
        return "\n".join(
            f"{call}: {line}"
            for call, report in reports
            for line in report.splitlines()
        )

    def source(self, trainer: Executor) -> str:
        """Return the program of a training step: the compiled one, or the row that runs
        until there is one.
        """
        from minipipe.execution.source import source_of

        program = self._latest()
        if program is None:
            return source_of(trainer)
        if not hasattr(program, "source"):  # stages that compile themselves
            return "\n\n".join([*program.sources.values(), source_of(trainer)])
        step = "" if self._repeated is None else self._repeated.source
        step = step or source_of(trainer, calls_schedule=True)
        return f"{program.source}\n\n{step}\n"

    def source_of_stage(self, stage: int, local: tuple[int, ...]) -> str:
        """Return the compiled sections of a stage.

        Raises
        ------
        ArgumentError
            Code ``value``: the stage is not on this rank, or is not compiled.
        """
        if stage not in local:
            raise ArgumentError(
                f"source({stage!r}): stage {stage!r} is not on this rank; its stages: "
                f"{[*local]}."
            )
        program = self._latest()
        if program is None or stage not in program.sources:
            raise ArgumentError(
                f"source({stage}): stage {stage} is not compiled; compile_report() "
                f"says:\n{self.report()}"
            )
        return program.sources[stage]

    def _latest(self) -> Any:
        call = "run" if self._has_updates else "step"
        compiler = self._compilers.get(call)
        if compiler is None:
            return None
        return compiler.latest
