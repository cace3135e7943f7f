"""Follows a training program until its steps are compiled, and records some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup, spawn
from minipipe.compile.export.rank_file import RankFile
from minipipe.compile.export.recorded import RecordedStep, Recording, digest_of
from minipipe.compile.export.texts import UPDATES
from minipipe.compile.program import CompiledRow, Compiler
from minipipe.core.comm.host import blas_threads
from minipipe.core.execution.executor import Executor, Step
from minipipe.errors import ArgumentError, ModelError
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline

MOST_EAGER_STEPS = 8
"""Steps that may run before the first compiled one."""


class Follower:
    """Follows the training steps of a pipeline on one rank. Local; sends no messages.

    Parameters
    ----------
    pipeline : Pipeline
        One that compiles.
    program : str
        The name of its program, for a reader.
    num_steps : int
        The number of compiled steps to record.
    fail : function, optional
        Called with the error of a step, for example if it cannot be compiled.

    Attributes
    ----------
    rank : int

    Raises
    ------
    ArgumentError, ModelError
        Codes ``value`` and ``unsupported``: from :meth:`begin_step`, for a program that
        cannot be exported.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        program: str,
        num_steps: int,
        fail: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._fail = fail
        self.rank = pipeline.group.rank
        self._pipeline = pipeline
        self._recording = Recording(program)
        self._num_steps = num_steps
        trainer = pipeline._trainer
        compiler = getattr(trainer, "_run_schedule", None)
        if trainer is None or not isinstance(compiler, Compiler):
            message = "This pipeline is not compiled"
            raise ModelError(
                "unsupported", f"{message}; expected one of a schedule without updates."
            )
        self._executor = trainer
        self._compiler = compiler
        self._compiled: CompiledRow | None = None
        self._problem = ""
        self._num_eager = 0
        self._parameters = {
            name: each.owner
            for stage in trainer.stages.values()
            for name, each in stage.parameters.items()
        }
        trainer._run_schedule = self._run

    @property
    def is_complete(self) -> bool:
        """Whether all steps are recorded, and their updates."""
        return len(self._recording.steps) == self._num_steps

    def begin_step(self) -> bool:
        """Check the program before a step; return whether the recording is complete."""
        self._check()
        self._pipeline._compiling.stop_repeating()  # it would bypass this object
        return self.is_complete

    def finished(self) -> RankFile:
        """Return the file of this rank."""
        self._check()
        recording = self._recording
        if self._compiled is None or not self.is_complete:
            count = f"{len(recording.steps)} of {self._num_steps}"
            message = f"The program ended after {count} compiled steps"
            advice = "let it take more steps, or pass a smaller --steps"
            raise ArgumentError(f"{message}; {advice}.")
        values = {name: np.asarray(p.data) for name, p in self._parameters.items()}
        recording.digest = digest_of(values)
        plan = self._pipeline._plan
        return RankFile(self._executor, self._compiled, plan, recording)

    def _check(self) -> None:
        """Refuse a program that cannot be exported."""
        problem = self._problem or _problem_between(self._recording.steps)
        if problem:
            raise ModelError("unsupported", f"{problem}.")

    # -- steps -------------------------------------------------------------------------

    def _run(self, executor: Executor, steps: Sequence[Step]) -> None:
        step = None
        if self._compiled is not None:
            step = self._begun(executor)
        try:
            self._compiler(executor, steps)
        except Exception as error:
            self._fail(error)
            raise
        program = self._compiler.program
        if step is not None:
            if program is not self._compiled:
                actual = f"step {step.number} {self._compiler.report}"
                advice = "expected equal compiled steps; pass fewer --steps"
                self._problem = f"The batches differ: {actual}; {advice}"
            self._end(executor, step)
        elif program is not None:
            self._compiled = program
            if any("eagerly" in line for line in program.report.splitlines()):
                self._problem = f"A stage is not compiled: {program.report}"
        else:
            self._num_eager += 1
            if self._num_eager > MOST_EAGER_STEPS:
                self._problem = (
                    f"No step is compiled as a whole: {self._compiler.report}"
                )

    def _begun(self, executor: Executor) -> RecordedStep:
        if not self._recording.steps:
            values = {name: np.array(p.data) for name, p in self._parameters.items()}
            self._recording.parameters = values
        batch = executor.batch
        if batch.objective.scale != 1:
            self._problem = (
                "The program scales its loss; export does not support loss scales"
            )
        step = RecordedStep(batch.training_step, {"x": {}, "y": {}})
        if 0 in executor.stages:
            step.batch["x"] = self._arrays(batch.inputs)
        if executor.program.num_stages - 1 in executor.stages:
            step.batch["y"] = self._arrays(batch.objective.targets)
        return step

    def _end(self, executor: Executor, step: RecordedStep) -> None:
        """Note a step that has run."""
        batch = executor.batch
        self._recording.seed = batch.seed
        self._recording.num_threads = blas_threads()
        self._recording.sizes = batch.sizes
        if executor.program.num_stages - 1 in executor.stages:
            step.weights = list(batch.objective.shares)
        self._recording.steps.append(step)

    def _arrays(self, parts: Any) -> dict[int, np.ndarray]:
        """Return copies of the arrays of microbatches."""
        copies: dict[int, np.ndarray] = {}
        for k, part in enumerate(parts or ()):
            if len(part.arrays) > 1:
                message = "A batch has several arrays of inputs or of targets"
                self._problem = f"{message}; expected one of each"
            if part.arrays:
                copies[k] = np.array(part.arrays[0])
        return copies

    # -- between steps -----------------------------------------------------------------

    def note_limit(self, limit: float) -> None:
        """Note that the gradients are clipped."""
        if self._recording.steps:
            self._recording.steps[-1].limits.append(float(limit))

    def note_update(self, optimiser: Optimiser) -> None:
        """Note an update, before it is made."""
        recording = self._recording
        if not recording.steps:
            return
        names = {id(owner): name for name, owner in self._parameters.items()}
        updated = [names.get(id(each.owner)) for each in optimiser.parameters]
        if updated and not any(updated):
            return  # of another model
        trained = {
            name for name, each in self._parameters.items() if each.requires_grad
        }
        self._problem = _problem_with(optimiser) or self._problem
        if missing := sorted(trained - {*updated}):
            message = f"The optimiser does not have {', '.join(missing)}"
            self._problem = f"{message}; expected all that are trained"
        if self._problem:
            return
        if not recording.optimiser:
            recording.optimiser = type(optimiser).__name__
            states = optimiser.state_dict()["states"]
            recording.states = {n: state for n, state in zip(updated, states) if n}
        numbers = dict(optimiser.groups[0].hyper_parameters)
        recording.steps[-1].updates.append(numbers)


def _problem_with(optimiser: Optimiser) -> str:
    """Return why an optimiser cannot be exported; empty if it can."""
    cls = type(optimiser)
    if cls.__module__ != Optimiser.__module__.replace("optimiser", "rules"):
        return f"The optimiser is {cls.__name__}; expected {', '.join(UPDATES)}"
    if len(optimiser.groups) > 1:
        advice = "expected one, of pipeline.parameters()"
        return f"The optimiser has several groups of parameters; {advice}"
    return ""


def _problem_between(steps: Sequence[RecordedStep]) -> str:
    """Return why the updates after some steps cannot be exported; empty if they can."""
    for step in steps:
        if len(step.updates) != 1 or len(step.limits) > 1:
            actual = f"{len(step.updates)} updates and {len(step.limits)} clippings"
            expected = "expected one update, and at most one clipping"
            return f"Step {step.number} is followed by {actual}; {expected}"
        if step.limits != steps[0].limits:
            return "Gradients are clipped to several norms; expected one norm"
        fixed = [{**each.updates[0], "learning_rate": 0} for each in (step, steps[0])]
        if fixed[0] != fixed[1]:
            message = "Numbers of the optimiser besides the learning rate change"
            return f"{message}: {fixed[1]}, then {fixed[0]}; expected the same"
    return ""


@contextmanager
def noting(followers: dict[int, Follower]) -> Iterator[None]:
    """Let followers note updates and clippings inside this block."""
    step = Optimiser.step
    clip = Pipeline.clip_grad_norm

    def noted_step(self: Optimiser) -> None:
        for follower in list(followers.values()):
            follower.note_update(self)
        step(self)

    def noted_clip(self: Pipeline, max_norm: float) -> float:
        if id(self) in followers:
            followers[id(self)].note_limit(max_norm)
        return clip(self, max_norm)

    Optimiser.step, Pipeline.clip_grad_norm = noted_step, noted_clip  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimiser.step, Pipeline.clip_grad_norm = step, clip  # type: ignore[method-assign]


class Watcher:
    """Follows the pipelines of a program on its ranks; see :attr:`Pipeline.watcher`.

    Parameters
    ----------
    program : str
    num_steps : int

    Attributes
    ----------
    followers : dict of int to Follower
        By id of the pipeline.
    files : dict of int to RankFile
        The finished files, by rank.
    """

    def __init__(self, program: str, num_steps: int) -> None:
        self._program = program
        self._num_steps = num_steps
        self.followers: dict[int, Follower] = {}
        self.files: dict[int, RankFile] = {}

    def begin(
        self, pipeline: Pipeline, model: Any, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Let a pipeline of the program compile."""
        return model, {**options, "compile": True}

    def step(self, pipeline: Pipeline, inputs: Any, targets: Any) -> None:
        """Look at a step before it begins."""
        self.follow(pipeline)

    def follow(self, pipeline: Pipeline, *fail: Callable[[Exception], None]) -> bool:
        """Follow the step that begins; return whether the file of the rank is finished."""
        key = id(pipeline)
        rank = pipeline.group.rank
        if key not in self.followers:
            followed = pipeline, self._program, self._num_steps
            self.followers[key] = Follower(*followed, *fail)
        if rank not in self.files and self.followers[key].begin_step():
            self.files[rank] = self.followers[key].finished()
        return rank in self.files

    def finish(self) -> list[RankFile]:
        """Return the files of all ranks, behind the program."""
        for follower in self.followers.values():
            if follower.rank not in self.files:
                self.files[follower.rank] = follower.finished()
        return [self.files[rank] for rank in sorted(self.files)]


def files_of(
    train: Callable[[ProcessGroup], Any], num_ranks: int, num_steps: int = 3
) -> list[RankFile]:
    """Return the stand-alone files of a training function, which runs on thread ranks.

    Parameters
    ----------
    train : function
        Takes a group, makes a pipeline, and takes at least ``num_steps + 3`` steps.
    num_ranks, num_steps : int

    Returns
    -------
    list of RankFile
        By rank. ``source`` is the program, ``write(folder)`` writes it and its arrays.

    Raises
    ------
    ArgumentError, ModelError, ScheduleError
        Codes ``value`` and ``unsupported``: the program cannot be exported.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, optim
    >>> def train(group):
    ...     model = nn.Sequential(nn.Linear(2, 1))
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    ...     optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
    ...     for _ in range(6):
    ...         pipeline.step(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))
    ...         optimiser.step()
    >>> (file,) = files_of(train, num_ranks=1)
    >>> print(file.source.partition("def forward_0")[2].partition("    kept")[0])
    (k, x, y):
        v0 = x.dot(w["0.weight"])  # layer 0: Linear
        v0 += w["0.bias"]
        v1 = v0 - y
        v2 = v1.ravel()
        v3 = v2.dot(v2) / 2
    <BLANKLINE>
    """
    watcher = Watcher("a function", num_steps)
    Pipeline.watcher = watcher
    try:
        with noting(watcher.followers):
            spawn(train, num_ranks)
        return watcher.finish()
    finally:
        Pipeline.watcher = None
