"""A stage that captures what it computes for a microbatch, and replays it for those that follow (``autograd/replay``).

Two captures of different steps and different inputs must leave the same lines and the same constants before anything is
replayed. Whatever is not captured is computed as by any stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import Leaf
from minipipe.autograd.modes import current_place, mode, next_order
from minipipe.autograd.replay import NotingLeaf, Tape, Trace, have_changed, key_of
from minipipe.errors import ArgumentError, MessageError
from minipipe.execution.objective import BatchObjective
from minipipe.execution.payload import Payload
from minipipe.execution.replayed import (
    LaterLeaf,
    ReplayedMicrobatch,
    StageCapture,
    TapeEntry,
    as_node,
    attributes_of,
    kind_of,
    reason_against,
    walk_of,
)
from minipipe.execution.stage import Held, SeededLoss, Stage
from minipipe.nn import Parameter, Recompute
from minipipe.nn.sequential import parameters_of
from minipipe.tensor import Tensor

_MOST_TAPES = 16  # of one stage; the one that was not used for longest goes


class ReplayingStage(Stage):
    """A :class:`Stage` that replays a tape where it has one; results, gradients and bits are the same."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._recomputes = isinstance(self._forward, Recompute)
        self._entries: dict[Any, TapeEntry] = {}
        self._captures: dict[int, StageCapture] = {}
        self._replayed: dict[int, ReplayedMicrobatch] = {}
        self._weights_to_come: dict[int, ReplayedMicrobatch] = {}
        self._attributes = -1
        self._numbers: dict[Any, int] = {}  # of what layers and parameters were like
        self._step, self._splits, self._why_not, self._eager_loss = 0, False, "has not run yet", ""
        self._uses: list[Parameter] = []
        self._owners: list[Parameter] = []

    # -- the actions ----------------------------------------------------------------------------------------

    def forward(self, microbatch: int, received: Payload) -> Payload:
        """F: see :meth:`Stage.forward`."""
        entry = self._entry(received, ())
        if entry is not None and entry.tape is not None:
            result = self._replay_forward(microbatch, entry, received.arrays)
            if result is not None:
                return Payload([result], [True], None)
        capture = self._begin_capture(microbatch, entry, received.arrays)
        if capture is None:
            return super().forward(microbatch, received)
        trace = capture.trace
        with self._traced(capture):
            given = [trace.given(f"x{i}", array) for i, array in enumerate(received.arrays)]
            payload = super().forward(microbatch, received._replace(arrays=given))
        arrays = [trace.returned(array) for array in payload.arrays]
        if payload.form is not None or not payload.wanted[0]:
            trace.spoil("the stage hands on a bundle, or what needs no gradient")
        if microbatch not in self._held:
            self._finish_capture(microbatch)
        return payload._replace(arrays=arrays)

    def forward_with_loss(self, microbatch: int, received: Payload, objective: SeededLoss) -> None:
        """F and the loss: see :meth:`Stage.forward_with_loss`."""
        loss = objective.replayable(microbatch) if isinstance(objective, BatchObjective) else None
        if loss is None or not isinstance(objective, BatchObjective):
            self._eager_loss = "the loss is not minipipe's own, or more than the loss was asked for"
            return super().forward_with_loss(microbatch, received, objective)
        entry = self._entry(received, loss.targets, loss.loss)
        if entry is not None and entry.tape is not None:
            value = self._replay_forward(microbatch, entry, [*received.arrays, *loss.targets])
            if value is not None:
                share = objective.note(microbatch, value.item())
                self._replayed[microbatch].seed = np.full(np.shape(value), share, value.dtype)
                return
        capture = self._begin_capture(microbatch, entry, [*received.arrays, *loss.targets])
        if capture is None:
            return super().forward_with_loss(microbatch, received, objective)
        trace, count = capture.trace, len(received.arrays)

        def noting(k: int, outputs: Any) -> tuple[Tensor | None, float]:
            result, share = objective.of(k, outputs, targets)
            if result is not None:
                trace.returned(result.data)
            return result, share

        with self._traced(capture):
            given = [trace.given(f"x{i}", array) for i, array in enumerate(received.arrays)]
            targets = [trace.given(f"x{count + i}", array) for i, array in enumerate(loss.targets)]
            super().forward_with_loss(microbatch, received._replace(arrays=given), noting)
        if microbatch not in self._held:
            self._finish_capture(microbatch)

    def backward(self, microbatch: int, gradient: Payload | None) -> Payload:
        """B: see :meth:`Stage.backward`."""
        self._splits = self._splits and self.is_frozen
        held = self._replayed.pop(microbatch, None)
        if held is None:
            return self._capture_backward("backward", super().backward, microbatch, gradient)
        if "backward" in held.tape.sections:
            return self._replay_backward("backward", held, gradient)
        result = self._replay_backward("backward_input", held, gradient)
        held.run("backward_weight", self._leaves_of_uses())
        return result

    def backward_input(self, microbatch: int, gradient: Payload | None) -> Payload:
        """I: see :meth:`Stage.backward_input`."""
        if self.is_frozen:
            return self.backward(microbatch, gradient)
        self._splits = True
        held = self._replayed.pop(microbatch, None)
        if held is None:
            return self._capture_backward("backward_input", super().backward_input, microbatch, gradient)
        self._weights_to_come[microbatch] = held
        if "backward" not in held.tape.sections:
            return self._replay_backward("backward_input", held, gradient)
        return self._replay_backward("backward", held, gradient, postpones=True)

    def backward_weight(self, microbatch: int) -> None:
        """W: see :meth:`Stage.backward_weight`."""
        held, capture = self._weights_to_come.pop(microbatch, None), self._captures.get(microbatch)
        if held is not None and "backward" in held.tape.sections:
            walk = walk_of(held.order)
            for leaf, contribution in held.postponed:
                leaf.add(contribution, walk)
        elif held is not None:
            held.run("backward_weight", self._leaves_of_uses())
        elif capture is not None:
            capture.trace.begin("backward_weight")
            with self._traced(capture):
                super().backward_weight(microbatch)
            self._finish_capture(microbatch)
        else:
            super().backward_weight(microbatch)

    def begin(self, accumulate: bool = False) -> None:
        """Begin a step: see :meth:`Stage.begin`. What layers and parameters are like now says which tapes serve."""
        super().begin(accumulate)
        for entry in self._entries.values():
            entry.is_captured_now = False
        self._captures.clear()
        self._replayed.clear()
        self._weights_to_come.clear()
        self._step += 1
        parts = attributes_of(*self.module.modules())
        self._why_not = reason_against(self.module) or (parts if isinstance(parts, str) else "")
        if not self._why_not:
            uses = {id(p): p for layer in self.module.layers for p in parameters_of(layer)}
            self._uses, owners = list(uses.values()), {id(p.owner): p.owner for p in uses.values()}
            self._owners = list(owners.values())
            arrays = [(p.data.shape, p.data.strides, p.data.dtype) for p in self._owners]
            attributes = tuple(arrays), tuple(p.requires_grad for p in self._uses), parts
            if attributes not in self._numbers and len(self._numbers) >= _MOST_TAPES:
                self._numbers.clear()
                self._entries.clear()  # whose keys have the numbers
            self._attributes = self._numbers.setdefault(attributes, len(self._numbers))

    # -- what is known --------------------------------------------------------------------------------------

    def _entry(self, received: Payload, targets: tuple[Array, ...] | list[Array], loss: Any = None) -> TapeEntry | None:
        """Return what is known of such microbatches; None if this one is none of replaying's business."""
        here = mode()
        is_looked_at = self.is_observed or here.watch is not None or self.module.layer_hook is not None
        if self._why_not or is_looked_at or not here.is_enabled:
            return None
        arrays = [*received.arrays, *targets]
        if any(type(array) is not np.ndarray or array.itemsize == 2 for array in arrays):
            return None
        key = kind_of(arrays, received, loss), self._splits, self._attributes
        if isinstance(key[0], str):
            self._eager_loss = key[0]
            return None
        entry = self._entries.pop(key, None)
        if entry is None:
            entry = TapeEntry()
            if len(self._entries) >= _MOST_TAPES:
                self._entries.pop(next(iter(self._entries)))
            self._entries[key] = entry
            return None  # a kind of microbatch that comes once is not worth a capture
        self._entries[key] = entry  # used last
        return entry

    # -- capture --------------------------------------------------------------------------------------------

    def _begin_capture(self, microbatch: int, entry: TapeEntry | None, arrays: list[Array]) -> StageCapture | None:
        if entry is None or entry.is_captured_now or entry.reason or entry.tape is not None:
            return None
        inputs = blake2b(b"".join(array.tobytes() for array in arrays)).digest()
        if entry.first is not None and (entry.first_step == self._step or entry.first_inputs == inputs):
            return None
        place = current_place()
        trace = Trace(key_of(place.seed, place.step, place.microbatch))
        capture = self._captures[microbatch] = StageCapture(trace, entry, inputs)
        entry.is_captured_now = True
        for i, parameter in enumerate(self._uses):
            capture.leaves[id(parameter)] = NotingLeaf(parameter.node, f"l{i}", trace)
        trace.begin("forward")
        return capture

    @contextmanager
    def _traced(self, capture: StageCapture) -> Iterator[None]:
        """Compute with traced parameters inside this block."""
        trace = capture.trace
        before = [(owner, owner.data) for owner in self._owners]
        nodes = [(parameter, parameter.node) for parameter in self._uses]
        attributes = attributes_of(*self.module.modules())
        for i, (owner, data) in enumerate(before):
            owner.data = trace.named(f"p{i}", data)
        for parameter in self._uses:
            parameter.node = capture.leaves[id(parameter)]
        try:
            yield
        finally:
            for owner, data in before:
                owner.data = data
            for parameter, node in nodes:
                parameter.node = node
        if attributes != attributes_of(*self.module.modules()):
            trace.spoil("a module sets an attribute during its forward")

    def _capture_backward(
        self, section: str, compute: Callable[..., Payload], microbatch: int, gradient: Payload | None
    ) -> Payload:
        capture = self._captures.get(microbatch)
        if capture is None:
            return compute(microbatch, gradient)
        trace, held = capture.trace, self._held[microbatch]
        trace.begin(section)
        with self._traced(capture):
            if gradient is None:
                self._held[microbatch] = Held(held.inputs, held.results, trace.given("g0", held.seed))
            elif gradient.arrays[0] is None:
                trace.spoil("no gradient came back")
            else:
                given = [trace.given("g0", backend.contiguous(gradient.arrays[0])), *gradient.arrays[1:]]
                gradient = gradient._replace(arrays=given)
            payload = compute(microbatch, gradient)
        arrays = [trace.returned(array) for array in payload.arrays]
        if section == "backward":
            self._finish_capture(microbatch)
        return payload._replace(arrays=arrays)

    def _finish_capture(self, microbatch: int) -> None:
        """Compare with an earlier capture, or keep this one for that."""
        capture = self._captures.pop(microbatch)
        entry, trace = capture.entry, capture.trace
        entry.is_captured_now = False
        if trace.reason is None and have_changed(trace):
            trace.spoil("a constant was changed")
        if trace.reason is not None:
            entry.reason, entry.first = trace.reason, None
            return
        tape = Tape(trace, f"tape of stage {self.index}")
        if entry.first is None:
            entry.first, entry.first_step, entry.first_inputs = tape, self._step, capture.inputs
        elif entry.first.is_like(tape):
            entry.tape, entry.first = tape, None
        else:
            entry.reason, entry.first = "two microbatches left different lines or constants", None

    # -- replay ---------------------------------------------------------------------------------------------

    def _replay_forward(self, microbatch: int, entry: TapeEntry, arrays: list[Array]) -> Any:
        """Return the result; None after an error, which computing without the tape raises as well, with its layer."""
        place, tape = current_place(), entry.tape
        assert tape is not None
        parameters = [owner.data for owner in self._owners]
        key = key_of(place.seed, place.step, place.microbatch)
        try:
            (result,), kept = tape.sections["forward"](parameters, key, *arrays)
        except Exception as error:
            entry.tape, entry.reason = None, f"replaying raised {type(error).__name__}"
            return None
        if len(tape.sections) > 1:
            like = np.shape(result), result.dtype, len(arrays)
            self._replayed[microbatch] = ReplayedMicrobatch(tape, kept, parameters, *like, next_order())
        return result

    def _replay_backward(
        self, section: str, held: ReplayedMicrobatch, gradient: Payload | None, postpones: bool = False
    ) -> Payload:
        array = held.seed
        if gradient is not None:
            self._roots(Held([], [(None, held.shape)], None), gradient)  # raises if the shape does not fit
            array = gradient.arrays[0]
        results: list[Any] = [None] * held.num_inputs
        if array is None:  # nothing that follows depends on the result
            held.is_over = True
        elif array.dtype != held.dtype:
            given = f"a gradient of {array.dtype} came back"
            raise MessageError("dtype", f"Stage {self.index} passed on a tensor of {held.dtype}; {given}.")
        else:
            leaves: list[Any] = self._leaves_of_uses()
            if postpones:
                leaves = [LaterLeaf(leaf, held.postponed) for leaf in leaves]
            results = list(held.run(section, leaves, backend.contiguous(array)))
        return Payload(results, [True] * len(results), None if len(results) == 1 else ())

    def _leaves_of_uses(self) -> list[Leaf]:
        return [parameter.node for parameter in self._uses]

    # -- memory and report ----------------------------------------------------------------------------------

    @property
    def num_held(self) -> int:
        """How many microbatches hold activations: see :attr:`Stage.num_held`."""
        return super().num_held + len(self._replayed) + len(self._weights_to_come)

    @property
    def held(self) -> list[Any]:
        """The graphs that are kept for backwards to come; for a tape a node that holds what the tape keeps."""
        replayed = [*self._replayed.values(), *self._weights_to_come.values()]
        return [*super().held, *map(as_node, replayed)]

    def source(self) -> str:
        """Return the source of the tape that was used last."""
        for entry in reversed(self._entries.values()):
            if entry.tape is not None:
                return entry.tape.source
        raise ArgumentError("value", f"Stage {self.index} replays nothing: {self.report()}.")

    def report(self) -> str:
        """Return in words whether the stage replays, or why it does not."""
        count = sum(entry.tape is not None for entry in self._entries.values())
        reasons = dict.fromkeys(entry.reason for entry in self._entries.values() if entry.reason)
        words = [f"replays {count} kind{'s' * (count > 1)} of microbatch"] if count else []
        words += [self._why_not] if self._why_not else [*reasons, *([self._eager_loss] if self._eager_loss else [])]
        return "; ".join(words) or "nothing captured twice yet"


def report_of(stages: Mapping[int, Stage]) -> str:
    """Return in words which stages of a rank replay, and why others do not."""
    off = "replaying is off for this stage"
    lines = [f"stage {i}: {s.report() if isinstance(s, ReplayingStage) else off}" for i, s in stages.items()]
    return "\n".join(lines)


def source_of(stages: Mapping[int, Stage], index: int) -> str:
    """Return the straight-line NumPy that a stage of a rank replays."""
    stage = stages.get(index)
    if stage is None:
        raise ArgumentError("value", f"source({index}): stage {index} is not on this rank; its stages: {[*stages]}.")
    if not isinstance(stage, ReplayingStage):
        message = f"source({index}): replaying is off for this stage; make it with Pipeline(…, replay=True)."
        raise ArgumentError("value", message)
    return stage.source()
