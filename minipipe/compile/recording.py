"""The recording of one step: the NumPy calls of a stage, for each form of microbatches.

A stage in a recorded step computes as in an eager one, but the first microbatch of each
form computes with traced arrays (`trace.py`): its inputs, targets, parameters and
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minipipe.compile.guards import (
    Attributes,
    StageGuard,
    form_of_array,
    is_foreign,
)
from minipipe.compile.places import needed_lines
from minipipe.compile.reasons import reason_against, reason_against_loss
from minipipe.compile.slices import passed_by
from minipipe.compile.trace import NotingLeaf, Trace, key_of, noticing_conversions
from minipipe.compile.value_form import Form
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import current_place
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import SeededLoss, Stage
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.tensor import Tensor
from minipipe.execution.objective import BatchObjective


@dataclass
class Recorded:
    """The trace of the first microbatch of a form, on one stage.

    Attributes
    ----------
    trace : Trace
    microbatch : int
        The microbatch that was traced.
    num_inputs : int
        The number of arrays of the stage's input; further inputs are targets.
    received : Form
        The form of the stage's input.
    result : Form or None
        The form of the stage's result; None on the last stage, unless the call returns
        outputs.
    loss_dtype : dtype or None
        The dtype of the loss, on the last stage.
    output_gradient : Form or None
        The form of the gradient of the result.
    gradient : Form or None
        The form of the gradients of the inputs, if any.
    is_over : bool
        Whether its last section has been recorded.
    twin : Recorded or None
        The trace of another microbatch, with which a trace of user code is compared.
    passed : object
        The structure of its arrays for later microbatches.
    """

    trace: Trace
    microbatch: int
    num_inputs: int
    received: Form
    result: Form | None = None
    loss_dtype: Any = None
    output_gradient: Form | None = None
    gradient: Form | None = None
    is_over: bool = False
    leaves: dict[int, NotingLeaf] = field(default_factory=dict)
    twin: Recorded | None = None
    passed: Any = None

    @property
    def reason(self) -> str | None:
        """Why it cannot be compiled, if it cannot."""
        if self.twin is None or self.trace.reason is not None:
            return self.trace.reason
        trace = self.trace
        other = self.twin.trace
        if (
            needed_lines(trace) == needed_lines(other)
            and trace.functions == other.functions
            and trace.constants.keys() == other.constants.keys()
        ):
            return None
        return other.reason or "two microbatches of a kind compute differently"

    @property
    def outputs(self) -> Form:
        """The form of the stage's result as outputs of the call."""
        assert self.result is not None
        requires_grad = (True,) * len(self.result.shapes)
        return self.result._replace(requires_grad=requires_grad)

    @property
    def contributes(self) -> list[int]:
        """The uses of parameters that get a gradient, by number."""
        sections = self.trace.sections.values()
        leaves = {line.leaf for lines in sections for line in lines}
        return sorted(leaf for leaf in leaves if leaf is not None)


class Recorder:
    """Stands in for a stage during a recorded step; it has the methods of one.

    Parameters
    ----------
    stage : Stage
    kinds : mapping of int to str
        By microbatch, the kinds of its actions: a row may split some backwards.
    guard : type
        The class of its guard.

    Attributes
    ----------
    recordings : dict of object to Recorded
        By cache key.
    recording_of : dict of int to Recorded
        By microbatch.
    guard : StageGuard
    reason : str
        Why the stage cannot be recorded; empty if it can.
    """

    def __init__(
        self,
        stage: Stage,
        kinds: Mapping[int, str],
        guard: type[StageGuard] = StageGuard,
    ) -> None:
        self._stage = stage
        self._action_kinds = kinds
        uses = {id(p): p for layer in stage.module.layers for p in parameters_of(layer)}
        owners = {id(p.owner): p.owner for p in uses.values()}
        self.uses = list(uses.values())
        self.owners = list(owners.values())
        self.guard = guard(stage.module, self.owners, self.uses)
        self.recordings: dict[Any, Recorded] = {}
        self.recording_of: dict[int, Recorded] = {}
        self._recording: dict[int, Recorded] = {}  # by microbatch
        self.passed = passed_by(stage)
        self.reason = reason_against(stage.module) or self.guard.attributes.reason
        self.reason = self.reason or self._reason_against_parameters()
        self._is_foreign = self.guard.attributes.is_foreign

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def begin_row(self, kinds: Mapping[int, str]) -> None:
        """Begin another row; drop recordings that are not over."""
        self._action_kinds = kinds
        self.recording_of = {}
        self._recording = {}
        self.recordings = {
            key: each for key, each in self.recordings.items() if each.is_over
        }
        for each in self.recordings.values():
            if each.twin is not None and not each.twin.is_over:
                each.twin = None

    @property
    def first_reason(self) -> str:
        """Why the stage or one of its recordings cannot be compiled; empty if all can."""
        reasons = (recorded.reason for recorded in self.recordings.values())
        return self.reason or next(filter(None, reasons), "")

    def finished(self, key: Any) -> Recorded | None:
        """Return a recording that is over, and so is its twin; None before."""
        recorded = self.recordings.get(key)
        if recorded is None or not recorded.is_over:
            return None
        twin = recorded.twin
        if self._is_foreign and (twin is None or not twin.is_over):
            return None
        return recorded

    def _reason_against_parameters(self) -> str:
        modules = {backend.array_module(owner.data) for owner in self.owners}
        if len(modules) > 1:
            return "its parameters are arrays of several modules"
        if any(not _is_listed(owner.data) for owner in self.owners):
            return "its parameters are arrays of a custom class"
        return ""

    # -- the actions -------------------------------------------------------------------

    def forward(self, microbatch: int, received: Payload) -> tuple[Payload, Any]:
        """F: see :meth:`minipipe.core.execution.stage.Stage.forward`."""
        arrays = [*received.arrays, *self.passed.inputs(microbatch)]
        form = self.passed.form(microbatch)
        recorded = self._begin(microbatch, received, arrays, *form)
        if recorded is None:
            return self._stage.forward(microbatch, received)
        count = recorded.num_inputs
        with self._tracing(recorded, "forward", arrays, "x") as inputs:
            self.passed.compute_with(inputs[count:])
            traced = received._replace(arrays=inputs[:count])
            payload, held = self._stage.forward(microbatch, traced)
        arrays = self._returned_by_forward(recorded, payload.arrays, held is None)
        payload = payload._replace(arrays=arrays)
        recorded.result = Form.of(payload)
        return payload, held

    def forward_with_loss(
        self, microbatch: int, received: Payload, objective: SeededLoss
    ) -> Any:
        """F and the loss: see :meth:`minipipe.core.execution.stage.Stage`."""
        if isinstance(objective, BatchObjective) and objective.is_for_outputs:
            outputs, held = self.forward(microbatch, received)
            requires_grad = [True] * len(outputs.arrays)
            outputs = outputs._replace(requires_grad=requires_grad)
            objective.outputs[microbatch] = outputs
            return held
        targets = self._targets(microbatch, objective)
        if targets is None:
            return self._stage.forward_with_loss(microbatch, received, objective)
        assert isinstance(objective, BatchObjective)
        arrays = [*received.arrays, *targets.arrays, *self.passed.inputs(microbatch)]
        recorded = self._begin(
            microbatch,
            received,
            arrays,
            targets.treedef and repr(targets.treedef),
            *self.passed.form(microbatch),
        )
        if recorded is None:
            return self._stage.forward_with_loss(microbatch, received, objective)
        losses: list[Array] = []
        with self._tracing(recorded, "forward", arrays, "x") as inputs:
            num_inputs = len(received.arrays)
            end = num_inputs + len(targets.arrays)
            self.passed.compute_with(inputs[end:])

            def noting(k: int, outputs: Any) -> tuple[Tensor | None, float]:
                loss, weight = objective.of(k, outputs, inputs[num_inputs:end])
                if loss is not None:
                    losses.append(loss.data)
                return loss, weight

            traced = received._replace(arrays=inputs[:num_inputs])
            held = self._stage.forward_with_loss(microbatch, traced, noting)
        if any(loss.ndim for loss in losses):
            recorded.trace.graph_break("returns a loss that has axes, so is no number,")
        self._returned_by_forward(recorded, losses, held is None)
        recorded.loss_dtype = losses[0].dtype
        return held

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """B: see :meth:`minipipe.core.execution.stage.Stage.backward`."""
        recorded = self._active(microbatch)
        if recorded is None:
            return self._stage.backward(microbatch, held, gradient)
        with self._tracing_backward(recorded, "backward", held, gradient) as inputs:
            payload = self.passed.backward(microbatch, *inputs)
        return self._with_gradients(recorded, payload, is_over=True)

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """I: see :meth:`minipipe.core.execution.stage.Stage.backward_input`."""
        if self._stage.is_frozen:
            return self.backward(microbatch, held, gradient), None
        recorded = self._active(microbatch)
        if recorded is None:
            return self._stage.backward_input(microbatch, held, gradient)
        section = "backward_input"
        with self._tracing_backward(recorded, section, held, gradient) as inputs:
            payload, work = self.passed.backward_input(microbatch, *inputs)
        return self._with_gradients(recorded, payload, is_over=False), work

    def recompute(self, microbatch: int, held: Any) -> None:
        """R: see :meth:`minipipe.core.execution.stage.Stage.recompute`."""
        stage: Any = self._stage
        recorded = self._active(microbatch)
        if recorded is None:
            stage.recompute(microbatch, held)
            return
        with self._tracing(recorded, "recompute", [], ""):
            stage.recompute(microbatch, held)

    def backward_weight(self, microbatch: int, work: Any) -> None:
        """W: see :meth:`minipipe.core.execution.stage.Stage.backward_weight`."""
        recorded = self._active(microbatch)
        if recorded is None:
            self._stage.backward_weight(microbatch, work)
            return
        with self._tracing(recorded, "backward_weight", [], ""):
            self._stage.backward_weight(microbatch, work)
        self._returned(recorded, [], is_over=True)

    # -- recordings --------------------------------------------------------------------

    def _begin(
        self, microbatch: int, received: Payload, arrays: Sequence[Array], *how: Any
    ) -> Recorded | None:
        """Return a new recording, if this microbatch is the first of its form."""
        if self.reason:
            return None
        key = cache_key(received, arrays, self._action_kinds[microbatch], *how)
        recorded = self.recordings.get(key)
        if recorded is not None:
            self.recording_of[microbatch] = recorded
            if not self._is_foreign or recorded.twin is not None:
                return None
        new = self._new(microbatch, received, arrays)
        if recorded is None:
            self.recordings[key] = self.recording_of[microbatch] = new
        else:
            recorded.twin = new
        self._recording[microbatch] = new
        return new

    def _new(
        self, microbatch: int, received: Payload, arrays: Sequence[Array]
    ) -> Recorded:
        place = current_place()
        module = self._stage.module
        names = [type(layer).__name__ for layer in module.layers]
        layers = dict(enumerate(names, module.first_layer))
        parameters = [owner.data for owner in self.owners]
        modules = {backend.array_module(array) for array in [*parameters, *arrays]}
        xp = np
        if arrays:
            xp = backend.array_module(arrays[0])
        trace = Trace(key_of(place.seed, place.step, place.microbatch), layers, xp)
        form = Form.of(received)
        recorded = Recorded(trace, microbatch, len(received.arrays), form)
        for i, use in enumerate(self.uses):
            recorded.leaves[id(use)] = NotingLeaf(use.node, f"l{i}", trace)
        if len(modules) > 1:
            trace.graph_break("gets arrays of another module than its parameters")
        if any(not _is_listed(a) for a in arrays):
            trace.graph_break("gets arrays that are not NumPy's own")
        return recorded

    def _active(self, microbatch: int) -> Recorded | None:
        """Return the recording of a microbatch, unless there is none or it is over."""
        recorded = self._recording.get(microbatch)
        if recorded is None or recorded.is_over:
            return None
        return recorded

    def _targets(self, microbatch: int, objective: SeededLoss) -> Payload | None:
        """Return the targets of a microbatch, if the loss can be recorded."""
        assert isinstance(objective, BatchObjective)
        if not self.reason:
            self.reason = reason_against_loss(objective)
            self._is_foreign = self._is_foreign or is_foreign(objective.loss)
        if self.reason or objective.targets is None:
            return None
        return objective.targets[microbatch]

    # -- traces ------------------------------------------------------------------------

    @contextmanager
    def _tracing(
        self,
        recorded: Recorded,
        section: str,
        arrays: Sequence[Array | None],
        letter: str,
    ) -> Iterator[list[Any]]:
        """Compute with traced parameters inside this block; return traced arrays."""
        trace = recorded.trace
        trace.begin(section)
        nodes = [(use, use.node) for use in self.uses]
        attributes = Attributes(self._stage.module.modules()).key
        before = [owner.data for owner in self.owners]
        for i, (owner, data) in enumerate(zip(self.owners, before)):
            owner.data = trace.named(f"p{i}", data)
        for use in self.uses:
            use.node = recorded.leaves[id(use)]
        is_watched = self._is_foreign and trace.dialect.is_numpy  # others notice it
        watching = noticing_conversions(trace) if is_watched else nullcontext()
        try:
            with watching:
                yield [trace.input(f"{letter}{i}", a) for i, a in enumerate(arrays)]
        finally:
            for owner, data in zip(self.owners, before):
                owner.data = data
            for use, node in nodes:
                use.node = node
        if attributes != Attributes(self._stage.module.modules()).key:
            trace.graph_break("sets an attribute of a module during its forward")

    @contextmanager
    def _tracing_backward(
        self, recorded: Recorded, section: str, held: Any, gradient: Payload | None
    ) -> Iterator[tuple[Any, Payload | None]]:
        arrays = [held.seed]
        if gradient is not None:
            arrays = gradient.arrays
        count = len(arrays)
        k = recorded.microbatch
        arrays = [*arrays, *self.passed.gradients(k)]
        # The seed of another module than NumPy is a traced array.
        plain = map(backend.plain, arrays)
        arrays = [None if a is None else backend.contiguous(a) for a in plain]
        with self._tracing(recorded, section, arrays, "g") as traced:
            self.passed.take(k, traced[count:])
            if gradient is None:
                yield held._replace(seed=traced[0]), None
                return
            is_trained = recorded.result is None or any(recorded.result.requires_grad)
            if is_trained and all(array is None for array in arrays):
                recorded.trace.graph_break("gets no gradient back")
            recorded.output_gradient = Form.of(gradient)
            yield held, gradient._replace(arrays=traced[:count])

    def _with_gradients(
        self, recorded: Recorded, payload: Payload, is_over: bool
    ) -> Payload:
        count = len(payload.arrays)
        k = recorded.microbatch
        further = self.passed.input_gradients(k)
        arrays = self._returned(recorded, [*payload.arrays, *further], is_over)
        payload = payload._replace(arrays=arrays[:count])
        self.passed.hand_back(k, arrays[count:])
        # The stage before waits for the message, even if it has no gradient.
        is_sent = not self._stage.is_first
        if is_sent or any(array is not None for array in payload.arrays):
            recorded.gradient = Form.of(payload)
        return payload

    def _returned_by_forward(
        self,
        recorded: Recorded,
        arrays: Sequence[Array],
        is_over: bool,
    ) -> list[Array]:
        self.passed.compute_with(None)
        k = recorded.microbatch
        recorded.passed = self.passed.structure(k)
        further = self.passed.results(k)
        returned = self._returned(recorded, [*arrays, *further], is_over)
        return returned[: len(arrays)]

    def _returned(
        self,
        recorded: Recorded,
        arrays: Sequence[Array | None],
        is_over: bool,
    ) -> list[Any]:
        """Return the results of a section, plain."""
        recorded.is_over = is_over
        return list(map(recorded.trace.returned, arrays))


def _is_listed(array: Array) -> bool:
    """Return whether an array is of another module, or of exactly ``numpy.ndarray``."""
    return type(array) is np.ndarray or not isinstance(array, np.ndarray)


def cache_key(received: Payload, arrays: Sequence[Array], *how: Any) -> tuple[Any, ...]:
    """Return everything but its values on which the lines of a microbatch depend.

    Parameters
    ----------
    received : Payload
        The input of the stage.
    arrays : sequence of array
        All that its lines read: the input, and perhaps the targets.
    *how : object
        Anything else, such as the treedef of the targets.
    """
    forms = map(form_of_array, arrays)
    treedef = received.treedef and repr(received.treedef)
    return (treedef, *received.requires_grad, *forms, *how)
