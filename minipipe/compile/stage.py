"""A stage whose computations are compiled, and whose row runs as in an eager step.

A run with updates (U) has one row for all its batches, and may run once: a program of
the whole row would never run again. So this class stands in for a stage. It records the
first microbatch of each form, and computes the others with the cache entry of their
form::

    microbatch          0      1         2 ...
    F                   eager  recorded  forward_0(slot0, x0, out0)
    B                   eager  recorded  backward_0(slot0, x0, g0, out0)

Sections read the parameters in each call, because an update may replace their arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minipipe.compile.cache_entry import CacheEntry, Held
from minipipe.compile.graphs import can_capture
from minipipe.compile.guards import MovingGuard
from minipipe.compile.reasons import refused, report_of
from minipipe.compile.recording import Recorded, Recorder, cache_key
from minipipe.compile.sections import Pool
from minipipe.compile.stage_program import action_kinds, suffix_of
from minipipe.compile.trace import key_of
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import current_place
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import SeededLoss, Stage
from minipipe.core.schedules.action import Action

MOST_ENTRIES = 32
"""Cache entries of a stage; microbatches of further forms run eagerly."""


class CompiledStage:
    """Stands in for a stage; it has the methods of one.

    Parameters
    ----------
    stage : Stage
    pool : Pool
        For the temporaries of all stages of a rank.
    is_strict : bool
        Whether a layer that cannot be compiled is an error. Otherwise the stage runs
        eagerly.

    Attributes
    ----------
    report : str
        Whether the stage is compiled, and why not.

    Raises
    ------
    ModelError
        Code ``unsupported``: a layer cannot be compiled.
    """

    def __init__(self, stage: Stage, pool: Pool, is_strict: bool) -> None:
        self._stage = stage
        self._pool = pool
        self._is_strict = is_strict
        self._action_kinds: Mapping[int, str] = {}
        self._is_filled = False  # the first forward creates lazy attributes
        self._recorder: Recorder | None = None
        self._entries: dict[int, CacheEntry | None] = {}  # by id of the recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    @property
    def report(self) -> str:
        """Return whether the stage is compiled, and why not."""
        stage = self._stage.index
        if self._recorder is None:
            return report_of(stage, "its first microbatch has not come")
        reason = self._recorder.first_reason
        report = report_of(stage, reason)
        if not reason and len(self.entries) == MOST_ENTRIES:
            report += f" for {MOST_ENTRIES} forms of microbatches; others run eagerly"
        entries = self.entries
        if entries and can_capture(entries[0].recorded.trace.dialect.xp):
            report += ", but without graphs: an update may replace its parameters"
        return report

    @property
    def entries(self) -> list[CacheEntry]:
        """All cache entries so far."""
        return [entry for entry in self._entries.values() if entry is not None]

    def begin_row(self, kinds: Mapping[int, str]) -> None:
        """Begin a row; drop the cache entries if a guard fails.

        Parameters
        ----------
        kinds : mapping of int to str
            By microbatch, the kinds of its actions.
        """
        self._action_kinds = kinds
        if self._recorder is not None and not self._recorder.guard.holds():
            self._recorder = None
            self._entries.clear()
        if self._recorder is not None:
            self._recorder.begin_row(kinds)
        for entry in self.entries:
            entry.begin_row()

    # -- the actions -------------------------------------------------------------------

    def forward(self, microbatch: int, received: Payload) -> tuple[Payload, Any]:
        """F: see :meth:`minipipe.core.execution.stage.Stage.forward`."""
        entry = self._entry(microbatch, received, received.arrays)
        if entry is None:
            return self._eager().forward(microbatch, received)
        result = entry.recorded.result
        assert result is not None
        held = _begun(entry, received.arrays)
        try:
            results = entry.run("forward", held)
        except Exception:
            self._stage.forward(microbatch, received)  # which adds notes of layers
            raise
        return result.payload(results), self._kept(held, results)

    def forward_with_loss(
        self, microbatch: int, received: Payload, objective: SeededLoss
    ) -> Any:
        """F and the loss: see :meth:`minipipe.core.execution.stage.Stage`."""
        of_microbatches = getattr(objective, "targets", None)
        if of_microbatches is None:
            return self._eager().forward_with_loss(microbatch, received, objective)
        targets: Payload = of_microbatches[microbatch]
        arrays = [*received.arrays, *targets.arrays]
        treedef = targets.treedef and repr(targets.treedef)
        entry = self._entry(microbatch, received, arrays, treedef)
        if entry is None:
            return self._eager().forward_with_loss(microbatch, received, objective)
        held = _begun(entry, arrays)
        try:
            results = entry.run("forward", held)
        except Exception:
            self._stage.forward_with_loss(microbatch, received, objective)
            raise
        loss = results[0]
        weight = objective.note(microbatch, backend.number(loss))  # type: ignore[attr-defined]
        held.arrays["g0"] = backend.filled((), weight, loss)
        return self._kept(held, results)

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """B: see :meth:`minipipe.core.execution.stage.Stage.backward`."""
        if isinstance(held, Held):
            return _computed_gradients("backward", held, gradient)
        return self._recording_stage().backward(microbatch, held, gradient)

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """I: see :meth:`minipipe.core.execution.stage.Stage.backward_input`."""
        if not isinstance(held, Held):
            stage = self._recording_stage()
            return stage.backward_input(microbatch, held, gradient)
        if not held.entry.has("backward_input"):  # of a frozen stage: there is no W
            return _computed_gradients("backward", held, gradient), None
        return _computed_gradients("backward_input", held, gradient), held

    def recompute(self, microbatch: int, held: Any) -> None:
        """R: see :meth:`minipipe.core.execution.stage.Stage.recompute`."""
        if isinstance(held, Held):
            held.entry.run("recompute", held)
        else:
            self._recording_stage().recompute(microbatch, held)

    def backward_weight(self, microbatch: int, work: Any) -> None:
        """W: see :meth:`minipipe.core.execution.stage.Stage.backward_weight`."""
        if isinstance(work, Held):
            work.entry.run("backward_weight", work)
        else:
            self._recording_stage().backward_weight(microbatch, work)

    def _kept(self, held: Held, results: Sequence[Array]) -> Held | None:
        """Return the values for a backward; None if the stage has none."""
        if not self._stage.has_backward:
            return None
        held.arrays.update((f"y{i}", array) for i, array in enumerate(results))
        return held

    # -- recording ---------------------------------------------------------------------

    def _entry(
        self, microbatch: int, received: Payload, arrays: Sequence[Array], *how: Any
    ) -> CacheEntry | None:
        """Return the cache entry of a microbatch; None before its form is recorded."""
        recorder = self._recorder
        if recorder is None or recorder.reason:
            return None
        key = cache_key(received, arrays, self._action_kinds[microbatch], *how)
        recorded = recorder.finished(key)
        if recorded is None:
            return None
        if id(recorded) not in self._entries:
            self._entries[id(recorded)] = self._new_entry(recorded, recorder)
        return self._entries[id(recorded)]

    def _new_entry(self, recorded: Recorded, recorder: Recorder) -> CacheEntry | None:
        """Return the cache entry of a recording; None if that cannot be compiled."""
        if recorded.reason:
            if self._is_strict:
                raise refused(self._stage.index, recorded.reason)
            return None
        name = f"{self._stage.index}{suffix_of(len(self.entries))}"
        return CacheEntry(recorded, name, recorder, self._pool)

    def _eager(self) -> Any:
        """Return the stage for the forward of a microbatch without a cache entry:
        recorded, if it is the first of its form.
        """
        if not self._is_filled:
            self._is_filled = True
            return self._stage
        if self._recorder is None:
            self._recorder = Recorder(self._stage, self._action_kinds, MovingGuard)
        if self._recorder.reason and self._is_strict:
            raise refused(self._stage.index, self._recorder.reason)
        if len(self._recorder.recordings) >= MOST_ENTRIES:
            return self._stage
        return self._recorder

    def _recording_stage(self) -> Any:
        """Return the stage for later actions of a microbatch without a cache entry."""
        return self._recorder or self._stage


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
        """Return a line for each stage: whether it is compiled, and why not."""
        return "\n".join(stage.report for stage in self._stages.values())

    @property
    def entries(self) -> list[CacheEntry]:
        """The cache entries of all stages so far."""
        return [entry for stage in self._stages.values() for entry in stage.entries]

    @property
    def sources(self) -> dict[int, str]:
        """The functions of each stage so far."""
        return {
            index: "\n\n".join(entry.source for entry in stage.entries)
            for index, stage in self._stages.items()
            if stage.entries
        }

    @property
    def latest(self) -> CompiledStages:
        """These stages, as the newest result of a compiler."""
        return self

    def begin_row(self, row: Sequence[Action]) -> Mapping[int, Any]:
        """Begin a row; return its stages."""
        for index, stage in self._stages.items():
            stage.begin_row(action_kinds(row, index))
        return self._stages


def _begun(entry: CacheEntry, arrays: Sequence[Array]) -> Held:
    place = current_place()
    return Held(entry, key_of(place.seed, place.step, place.microbatch), arrays)


def _computed_gradients(section: str, held: Held, gradient: Payload | None) -> Payload:
    """Return the gradients of the inputs, computed by a section."""
    if gradient is not None:
        form = held.entry.recorded.output_gradient
        assert form is not None
        for i, array in enumerate(form.arrays(gradient)):
            if array is not None:
                held.arrays[f"g{i}"] = backend.contiguous(array)
    results = held.entry.run(section, held)
    if len(results) == 1:
        return Payload(results, [True], None)
    return Payload(results, [True] * len(results), ())
