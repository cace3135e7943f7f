"""A stage whose computations are compiled, and whose row runs as in an eager step.

A run with updates (U) has one row for all its batches, and may run once: no program of
it would run again. Its handlers see a stage with the methods of every stage. It records
the first microbatch of each kind, and computes the others with the sections of that
kind::

    microbatch          0      1         2 ...
    F                   eager  recorded  forward_0(slot0, x0, out0)
    B                   eager  recorded  backward_0(slot0, x0, g0, out0)

Parameters are read in each call, so that they may be other arrays each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minipipe.compile.guards import MovingGuard
from minipipe.compile.kind import Held, KindProgram
from minipipe.compile.reasons import refused
from minipipe.compile.recording import Recorded, Recorder, kind_of
from minipipe.compile.sections import Pool
from minipipe.compile.stage_program import kinds_in
from minipipe.compile.trace import key_of
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import current_place
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import SeededLoss, Stage
from minipipe.core.schedules.action import Action

MOST_KINDS = 32
"""Kinds of microbatches that are compiled for a stage; others run eagerly."""


class CompiledStage:
    """Stands in for a stage; it has the methods of one.

    Parameters
    ----------
    stage : Stage
    pool : Pool
        For the temporaries of all stages of a rank.
    is_strict : bool
        Whether what cannot be compiled is an error. Otherwise it runs eagerly.

    Attributes
    ----------
    report : str
        What the last row did, and why.

    Raises
    ------
    ModelError
        Code ``unsupported``, when it meets what it cannot compile.
    """

    def __init__(self, stage: Stage, pool: Pool, is_strict: bool) -> None:
        self._stage = stage
        self._pool = pool
        self._is_strict = is_strict
        self._kinds: Mapping[int, str] = {}
        self._is_filled = False  # a first forward fills in parameters and the like
        self._recorder: Recorder | None = None
        self._programs: dict[int, KindProgram | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    @property
    def report(self) -> str:
        """Return what happens on this stage, and why."""
        reason = "its first microbatch has not come" if self._recorder is None else ""
        if self._recorder is not None:
            reasons = (each.reason for each in self._recorder.kinds.values())
            reason = self._recorder.reason or next(filter(None, reasons), "")
        what = f"runs eagerly: {reason}" if reason else "is compiled"
        if not reason and len(self.programs) == MOST_KINDS:
            what += f" for {MOST_KINDS} kinds of microbatches; others run eagerly"
        return f"stage {self._stage.index} {what}"

    @property
    def programs(self) -> list[KindProgram]:
        """Those of all kinds so far."""
        return [program for program in self._programs.values() if program is not None]

    def begin_row(self, kinds: Mapping[int, str]) -> None:
        """Begin a row, after looking whether everything is what it was.

        Parameters
        ----------
        kinds : mapping of int to str
            By microbatch, the kinds of its actions.
        """
        self._kinds = kinds
        recorder = self._recorder
        if recorder is not None and not recorder.guard.holds():
            self._recorder = None
            recorder = None
            self._programs.clear()
        if recorder is not None:
            recorder.begin_row(kinds)
        for program in self.programs:
            program.begin_row()

    # -- the actions -------------------------------------------------------------------

    def forward(self, microbatch: int, received: Payload) -> tuple[Payload, Any]:
        """F: see :meth:`minipipe.core.execution.stage.Stage.forward`."""
        arrays = received.arrays
        program = self._program(microbatch, received, arrays)
        if program is None:
            return self._eager().forward(microbatch, received)
        result = program.recorded.result
        assert result is not None
        held = _begun(program, arrays)
        try:
            results = program.run("forward", held)
        except Exception:
            self._stage.forward(microbatch, received)  # which adds notes of layers
            raise
        return result.payload(results), self._kept(held, results)

    def forward_with_loss(
        self, microbatch: int, received: Payload, objective: SeededLoss
    ) -> Any:
        """F and the loss: see :meth:`minipipe.core.execution.stage.Stage`."""
        given = getattr(objective, "targets", None)
        if given is None:
            return self._eager().forward_with_loss(microbatch, received, objective)
        targets: Payload = given[microbatch]
        arrays = [*received.arrays, *targets.arrays]
        how = targets.treedef and repr(targets.treedef)
        program = self._program(microbatch, received, arrays, how)
        if program is None:
            return self._eager().forward_with_loss(microbatch, received, objective)
        held = _begun(program, arrays)
        try:
            results = program.run("forward", held)
        except Exception:
            self._stage.forward_with_loss(microbatch, received, objective)
            raise
        loss = results[0]
        share = objective.note(microbatch, backend.number(loss))  # type: ignore[attr-defined]
        held.arrays["g0"] = backend.filled((), share, loss)
        return self._kept(held, results)

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """B: see :meth:`minipipe.core.execution.stage.Stage.backward`."""
        if not isinstance(held, Held):
            return self._recorded("backward")(microbatch, held, gradient)
        return self._compute_gradients(microbatch, "backward", held, gradient)

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """I: see :meth:`minipipe.core.execution.stage.Stage.backward_input`."""
        if not isinstance(held, Held):
            return self._recorded("backward_input")(microbatch, held, gradient)
        if not held.program.has("backward_input"):  # of a frozen stage: there is no W
            return self._compute_gradients(microbatch, "backward", held, gradient), None
        return self._compute_gradients(
            microbatch, "backward_input", held, gradient
        ), held

    def recompute(self, microbatch: int, held: Any) -> None:
        """R: see :meth:`minipipe.core.execution.stage.Stage.recompute`."""
        if isinstance(held, Held):
            held.program.run("recompute", held)
        else:
            self._recorded("recompute")(microbatch, held)

    def backward_weight(self, microbatch: int, work: Any) -> None:
        """W: see :meth:`minipipe.core.execution.stage.Stage.backward_weight`."""
        if isinstance(work, Held):
            work.program.run("backward_weight", work)
        else:
            self._recorded("backward_weight")(microbatch, work)

    def _compute_gradients(
        self, microbatch: int, section: str, held: Held, gradient: Payload | None
    ) -> Payload:
        own = [held.arrays["g0"]] if gradient is None else gradient.arrays
        held.program.take_gradients(held, own)
        results = held.program.run(section, held)
        count = len(results)
        return Payload(results, [True] * count, None if count == 1 else ())

    def _kept(self, held: Held, results: Sequence[Array]) -> Held | None:
        """Return what a backward needs."""
        held.arrays.update((f"y{i}", array) for i, array in enumerate(results))
        return held if self._stage.has_backward else None

    # -- recording ---------------------------------------------------------------------

    def _program(
        self, microbatch: int, received: Payload, arrays: Sequence[Array], *how: Any
    ) -> KindProgram | None:
        """Return the program of a microbatch; None if its kind has none yet."""
        recorder = self._recorder
        if recorder is None or recorder.reason:
            return None
        key = kind_of(received, arrays, self._kinds[microbatch], *how)
        recorded = recorder.finished(key)
        if recorded is None:
            return None
        if id(recorded) not in self._programs:
            self._programs[id(recorded)] = self._made(recorded, recorder)
        return self._programs[id(recorded)]

    def _made(self, recorded: Recorded, recorder: Recorder) -> KindProgram | None:
        if recorded.reason:
            if self._is_strict:
                raise refused(self._stage.index, recorded.reason)
            return None
        number = len(self.programs)
        suffix = chr(ord("a") + number) if number else ""
        name = f"{self._stage.index}{suffix}"
        return KindProgram(recorded, name, recorder, self._pool)

    def _eager(self) -> Any:
        """Return who computes the forward of a microbatch without a program."""
        if not self._is_filled:
            self._is_filled = True
            return self._stage
        if self._recorder is None:
            self._recorder = Recorder(self._stage, self._kinds, MovingGuard)
        if self._recorder.reason and self._is_strict:
            raise refused(self._stage.index, self._recorder.reason)
        is_full = len(self._recorder.kinds) >= MOST_KINDS
        return self._stage if is_full else self._recorder

    def _recorded(self, method: str) -> Any:
        return getattr(self._recorder or self._stage, method)


class CompiledStages:
    """The stages of a rank, compiled, for rows that run as in an eager step.

    Parameters
    ----------
    stages : mapping of int to Stage
    is_strict : bool
        As for :class:`CompiledStage`.
    """

    def __init__(self, stages: Mapping[int, Stage], is_strict: bool) -> None:
        pool = Pool()
        self._stages = {
            index: CompiledStage(stage, pool, is_strict)
            for index, stage in stages.items()
        }

    @property
    def report(self) -> str:
        """Return a line for each stage: compiled or not, and why."""
        return "\n".join(stage.report for stage in self._stages.values())

    @property
    def programs(self) -> list[KindProgram]:
        """Those of all stages so far."""
        stages = self._stages.values()
        return [program for stage in stages for program in stage.programs]

    @property
    def sources(self) -> dict[int, str]:
        """The functions of each stage so far."""
        return {
            index: "\n\n".join(program.source for program in stage.programs)
            for index, stage in self._stages.items()
            if stage.programs
        }

    @property
    def latest(self) -> CompiledStages:
        """These, as what a compiler has made last."""
        return self

    def begin_row(self, row: Sequence[Action]) -> Mapping[int, Any]:
        """Begin a row; return its stages."""
        for index, stage in self._stages.items():
            stage.begin_row(kinds_in(row, index))
        return self._stages


def _begun(program: KindProgram, arrays: Sequence[Array]) -> Held:
    place = current_place()
    return Held(program, key_of(place.seed, place.step, place.microbatch), arrays)
