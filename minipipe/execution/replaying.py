"""A stage that captures its computation of a microbatch, and replays it for later ones (``autograd/replay``).

Two captures of different steps and different inputs must leave the same lines and the same constants before anything is
replayed; if no other inputs come, a program serves only the inputs that it has seen. Everything that is not captured is
computed as in any stage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, count
from operator import attrgetter
from typing import Any
from weakref import ref

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import changed_in_place
from minipipe.autograd.modes import current_place, mode, next_order
from minipipe.autograd.replay import NotingLeaf, Script, Trace, have_changed, key_of, noticing_conversions
from minipipe.errors import ArgumentError, MessageError
from minipipe.execution import replayed
from minipipe.execution.objective import BatchObjective
from minipipe.execution.payload import Payload
from minipipe.execution.replayed import Attributes, Capture, Kind, Kinds, Look, Replayed, Same, reason_against
from minipipe.execution.stage import Held, SeededLoss, Stage
from minipipe.nn import Module, Parameter, Sequential
from minipipe.nn.sequential import parameters_of
from minipipe.schedules.action import I
from minipipe.schedules.action_table import Schedule
from minipipe.tensor import Tensor

_PATIENCE = 3  # a capture takes as long as some ten steps: not in the first steps in which its kind comes
_data_of, _is_trained = attrgetter("data"), attrgetter("needs_gradient")
_OTHER_LOSS = "the loss is custom, or results other than the loss were requested"


class ReplayingStage(Stage):
    """A :class:`Stage` that replays a captured program if it has one; results, gradients and bits are the same.

    Attributes
    ----------
    is_observed, is_halved : bool
        Whether graphs are inspected, and whether all backwards are in halves.
    """

    is_observed = is_halved = False

    def __init__(self, module: Sequential, index: int, schedule: Schedule, *given: Any, **options: Any) -> None:
        super().__init__(module, index, schedule, *given, **options)
        actions = chain.from_iterable(schedule.numbered)
        self._halved = {action.microbatch for action in actions if action.stage == index and action.kind is I}
        self._kinds = Kinds()
        self._captures: dict[int, Capture] = {}
        self._numbers: dict[Any, int] = {}  # by fingerprint of layers, parameters and losses; numbers are not reused
        self._next_number = count()
        self._step, self._order, self._is_eager, self._eager_loss = 0, 0, True, ""
        self._place: Any = None  # of the current run
        self._why_not = reason_against(self.module)  # nothing is replayed, in any step
        uses = {id(p): p for layer in self.module.layers for p in parameters_of(layer)}
        owners = {id(p.owner): p.owner for p in uses.values()}
        self._uses, self._owners = list(uses.values()), list(owners.values())
        self._leaves_of_uses, self._look, self._looks = [p.node for p in self._uses], Look(), list[Look]()
        self._objective: Callable[[], Any] = lambda: None
        self._loss, self._loss_attributes, self._loss_number = None, Attributes(()), 0

    # -- the actions ----------------------------------------------------------------------------------------

    def forward(self, microbatch: int, received: Payload) -> tuple[Payload, Any]:
        """F: see :meth:`Stage.forward`."""
        kind = self._kind_of(microbatch, received, received.arrays)
        if kind is None:
            return super().forward(microbatch, received)
        if kind.serves(received.arrays) and (found := self._replay(kind, received.arrays)) is not None:
            result, replayed = found
            return Payload([result], [kind.is_wanted]), replayed
        self._begin_capture(microbatch, kind, received.arrays)
        with self._capturing(microbatch, "forward", received.arrays, "x") as (trace, given):
            payload, held = super().forward(microbatch, received._replace(arrays=given))
        if trace is None:
            return payload, held
        kind.is_wanted = payload.requires_grad[0]
        if payload.treedef is not None or (held is not None and not kind.is_wanted):
            trace.spoil("the stage passes on a pytree, or a tensor without gradient")
        return payload._replace(arrays=self._returned(microbatch, payload.arrays, is_over=held is None)), held

    def forward_with_loss(self, microbatch: int, received: Payload, objective: SeededLoss) -> Any:
        """F and the loss: see :meth:`Stage.forward_with_loss`."""
        if isinstance(objective, BatchObjective) and objective.is_for_outputs and self._returns_outputs:
            outputs, held = self.forward(microbatch, received)
            objective.outputs[microbatch] = outputs._replace(requires_grad=[True] * len(outputs.arrays))
            return held
        targets = self._targets(microbatch, objective)
        if targets is None or not isinstance(objective, BatchObjective):
            return super().forward_with_loss(microbatch, received, objective)
        arrays, treedef = [*received.arrays, *targets.arrays], targets.treedef and repr(targets.treedef)
        kind = self._kind_of(microbatch, received, arrays, self._loss_number, treedef)
        if kind is None:
            return super().forward_with_loss(microbatch, received, objective)
        if kind.serves(arrays) and (found := self._replay(kind, arrays)) is not None:
            value, replayed = found
            share = objective.note(microbatch, value.item())
            if replayed is not None:
                replayed.seed = kind.seed_of(share, value.shape, value.dtype)
            return replayed
        self._begin_capture(microbatch, kind, arrays)
        with self._capturing(microbatch, "forward", arrays, "x") as (trace, given):
            num_inputs, losses = len(received.arrays), list[Array]()

            def noting(k: int, outputs: Any) -> tuple[Tensor | None, float]:
                loss, share = objective.of(k, outputs, given[num_inputs:])
                losses.extend([] if loss is None else [loss.data])
                return loss, share

            held = super().forward_with_loss(microbatch, received._replace(arrays=given[:num_inputs]), noting)
        if trace is not None:
            self._returned(microbatch, losses, is_over=held is None)
        return held

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """B: see :meth:`Stage.backward`."""
        if type(held) is Replayed:
            return self._replay_backward("backward", held, gradient)
        if microbatch not in self._captures:
            return super().backward(microbatch, held, gradient)
        with self._capturing_backward("backward", microbatch, held, gradient) as given:
            payload = super().backward(microbatch, *given)
        return payload._replace(arrays=self._returned(microbatch, payload.arrays))

    def backward_input(self, microbatch: int, held: Any, gradient: Payload | None) -> tuple[Payload, Any]:
        """I: see :meth:`Stage.backward_input`."""
        if self.is_frozen:
            return self.backward(microbatch, held, gradient), None
        if type(held) is Replayed:
            return self._replay_backward("backward_input", held, gradient), held
        if microbatch not in self._captures:
            return super().backward_input(microbatch, held, gradient)
        with self._capturing_backward("backward_input", microbatch, held, gradient) as given:
            payload, work = super().backward_input(microbatch, *given)
        return payload._replace(arrays=self._returned(microbatch, payload.arrays, is_over=False)), work

    def backward_weight(self, microbatch: int, work: Any) -> None:
        """W: see :meth:`Stage.backward_weight`."""
        if type(work) is Replayed:
            self._run("backward_weight", work)
            return
        with self._capturing(microbatch, "backward_weight", [], ""):
            super().backward_weight(microbatch, work)
        self._returned(microbatch, [])

    def begin(self, accumulate: bool = False) -> None:
        """Begin a step: see :meth:`Stage.begin`."""
        super().begin(accumulate)
        self._place = None

    def _begin_run(self) -> None:
        """Begin a step, forward only or not. The state of layers and parameters determines which programs are valid."""
        self._step, self._order = self._step + 1, next_order()
        for capture in self._captures.values():
            capture.kind.is_captured_now = False
        self._captures.clear()
        is_looked_at = self.is_observed or mode().watch is not None or self.module.layer_hook is not None
        self._is_eager = is_looked_at or bool(self._why_not)
        if self._is_eager:
            self._looks.clear()
            return
        arrays = list(map(_data_of, self._owners))
        trained = list(map(_is_trained, self._leaves_of_uses))
        for look in self._looks:
            if look.still_holds(arrays, trained):
                self._look = look
                return
        self._look = look = Look(list(map(ref, arrays)), trained, Attributes(self.module.modules()))
        self._why_not = look.attributes.reason or reason_against(self.module)
        self._is_eager = bool(self._why_not)
        look.number = self._number_of(*look.key)
        self._looks = [look, *self._looks[:1]]  # of training and of evaluation, alternately

    def note_update(self) -> None:
        """Begin a step within a run: a microbatch after an update gives more information than one before it."""
        self._step += 1

    @property
    def _returns_outputs(self) -> bool:
        return self._forward is self.module and not mode().is_enabled

    @property
    def _is_foreign(self) -> bool:
        return self._look.attributes.is_foreign or self._loss_attributes.is_foreign

    # -- fingerprints and cache entries ---------------------------------------------------------------------

    def _number_of(self, *what: Any) -> int:
        """Return a number for the fingerprint of layers, parameters or a loss: the same for the same."""
        if what not in self._numbers:
            if len(self._numbers) >= 2 * replayed.MOST_SCRIPTS:
                self._numbers.clear()
            self._numbers[what] = next(self._next_number)
        return self._numbers[what]

    def _targets(self, microbatch: int, objective: SeededLoss) -> Payload | None:
        """Return the targets of a microbatch, if the loss may be replayed."""
        if objective is not self._objective():
            if not isinstance(objective, BatchObjective):
                return None
            loss, self._objective = objective.replayable_loss, ref(objective)
            if loss is None:
                self._eager_loss = _OTHER_LOSS
            elif loss is not self._loss or not self._loss_attributes.still_hold():
                self._loss_attributes = Attributes(loss.modules() if isinstance(loss, Module) else [loss])
                self._loss_number = self._number_of(Same(loss), self._loss_attributes.key)
                if self._loss_attributes.reason:
                    loss, self._eager_loss = None, f"the loss {self._loss_attributes.reason}"
            self._loss = loss
        return None if self._loss is None else objective.targets[microbatch]

    def _kind_of(self, microbatch: int, received: Payload, arrays: Sequence[Array], *loss: Any) -> Kind | None:
        """Return the cache entry of such microbatches; None if this one is to be computed without a program."""
        if self._place is not current_place():  # each run has one of its own
            self._place = current_place()
            self._begin_run()
        if self._is_eager:
            return None
        is_halved = self.is_halved or microbatch in self._halved
        how = self._look.number, mode().is_enabled, loss, is_halved
        kind = self._kinds.of(microbatch, how, received, arrays, self._step)
        is_early = not self.is_halved and kind.num_steps < _PATIENCE
        return None if is_early or kind.reason else kind

    # -- capture --------------------------------------------------------------------------------------------

    def _begin_capture(self, microbatch: int, kind: Kind, arrays: Sequence[Array]) -> None:
        """Begin to capture a microbatch, unless one of its kind is captured now, or it adds no information."""
        if kind.script is not None:  # replaying it has just raised
            kind.script, kind.reason = None, "replaying raised an error that the layers may not raise"
            return
        if kind.is_captured_now or (self._is_foreign and sys.getprofile() is not None):
            return
        inputs = kind.news_in(arrays, self._step)
        if inputs is None:
            return
        place = current_place()
        trace = Trace(key_of(place.seed, place.step, place.microbatch))
        leaves = {id(use): NotingLeaf(use.node, f"l{i}", trace) for i, use in enumerate(self._uses)}
        self._captures[microbatch] = Capture(trace, kind, inputs, leaves)
        kind.is_captured_now = True

    @contextmanager
    def _capturing(
        self, microbatch: int, section: str, arrays: Sequence[Array | None], letter: str
    ) -> Iterator[tuple[Trace | None, list[Any]]]:
        """Compute with traced parameters inside this block, and with these arrays traced; or nothing of the kind."""
        capture = self._captures.get(microbatch)
        if capture is None:
            yield None, list(arrays)
            return
        trace = capture.trace
        trace.begin(section)
        nodes: list[tuple[Parameter, Any]] = [(use, use.node) for use in self._uses]
        attributes = Attributes(self.module.modules()).key
        arrays_before = [owner.data for owner in self._owners]
        for i, (owner, data) in enumerate(zip(self._owners, arrays_before)):
            owner.data = trace.named(f"p{i}", data)
        for use in self._uses:
            use.node = capture.leaves[id(use)]
        try:
            with noticing_conversions(trace) if self._is_foreign else nullcontext():
                yield trace, [trace.given(f"{letter}{i}", array) for i, array in enumerate(arrays)]
        finally:
            for owner, data in zip(self._owners, arrays_before):
                owner.data = data
            for use, node in nodes:
                use.node = node
        if attributes != Attributes(self.module.modules()).key:
            trace.spoil("a module sets an attribute during its forward")

    @contextmanager
    def _capturing_backward(
        self, section: str, microbatch: int, held: Held, gradient: Payload | None
    ) -> Iterator[tuple[Held, Payload | None]]:
        array = held.seed if gradient is None else gradient.arrays[0]
        array = None if array is None else backend.contiguous(array)
        with self._capturing(microbatch, section, [array], "g") as (trace, given):
            if gradient is None:
                yield held._replace(seed=given[0]), None
                return
            if trace is not None and array is None:
                trace.spoil("no gradient came back")
            else:
                gradient = gradient._replace(arrays=[*given, *gradient.arrays[1:]])
            yield held, gradient

    def _returned(self, microbatch: int, arrays: Sequence[Array | None], is_over: bool = True) -> list[Any]:
        """Return the results of a section, plain; after the last section keep or compare the capture."""
        capture = self._captures.get(microbatch)
        if capture is None:
            return list(arrays)
        plain = [capture.trace.returned(array) for array in arrays]
        if is_over:
            del self._captures[microbatch]
            self._keep(capture)
        return plain

    def _keep(self, capture: Capture) -> None:
        """Keep a complete capture, or compare it with the first one of its kind."""
        trace, kind = capture.trace, capture.kind
        kind.is_captured_now = False
        if trace.reason is None and have_changed(trace):
            trace.spoil("a constant was changed")
        if trace.reason is not None:
            kind.reason, kind.first = trace.reason, None
            return
        try:
            kind.keep(Script(trace, f"script of stage {self.index}"), self._step, capture.inputs)
        except SyntaxError as error:
            kind.reason = f"has a line that is not valid Python: {error.text}"

    # -- replay ---------------------------------------------------------------------------------------------

    def _replay(self, kind: Kind, arrays: Sequence[Array]) -> tuple[Any, Replayed | None] | None:
        """Return the result, and what is held for the backward.

        None after an error, which computing without the program also raises, with its layer.
        """
        script, key = kind.script, None
        if script is None:
            return None
        if script.draws:
            place = current_place()
            key = key_of(place.seed, place.step, place.microbatch)
        try:
            (result,), kept = script.sections["forward"](list(map(_data_of, self._owners)), key, *arrays)
        except Exception:
            return None
        if len(script.sections) == 1:
            return result, None
        return result, Replayed(script, kept, self._order, kind.num_inputs, result.shape, result.dtype)

    def _replay_backward(self, section: str, held: Replayed, gradient: Payload | None) -> Payload:
        array, shape, dtype = held.seed, held.shape, held.dtype
        if gradient is not None:
            array = gradient.arrays[0]
            if array is None:  # nothing that follows depends on the result
                held.kept = None
                return Payload([None] * held.num_inputs, [True] * held.num_inputs)
            if array.shape != shape or len(gradient.arrays) != 1:
                self._roots(0, Held([], [(None, shape)], None), gradient)  # raises
            if array.dtype != dtype:
                given = f"a gradient of {array.dtype} came back"
                raise MessageError("dtype", f"Stage {self.index} passed on a tensor of {dtype}; {given}.")
            array = backend.contiguous(array)
        results = self._run(section, held, array)
        return Payload(list(results), [True] * len(results), None if len(results) == 1 else ())

    def _run(self, section: str, held: Replayed, *gradient: Array | None) -> tuple[Any, ...]:
        """Run a section of the backward; return the gradients of the inputs."""
        if held.kept is None:
            return ()
        for leaf in self._leaves_of_uses:
            if leaf.changed > held.order:
                raise changed_in_place("A parameter")
        function = held.script.sections[section]
        results, held.kept = function(list(map(_data_of, self._owners)), self._leaves_of_uses, held.kept, *gradient)
        return results

    def settle(self) -> bool:
        """Let programs serve any inputs, if no others come; return whether no new program is expected.

        For measurements: comparing the inputs with those that a program has seen would be timed as well.
        """
        for kind in self._kinds:
            kind.inputs = kind.inputs if kind.script is None else None
        return self._is_eager or all(kind.script or kind.reason for kind in self._kinds)

    # -- report ---------------------------------------------------------------------------------------------

    def source(self) -> str:
        """Return the source of the program that was used last."""
        scripts = [kind.script for kind in sorted(self._kinds, key=lambda kind: kind.used) if kind.script]
        if not scripts:
            raise ArgumentError("value", f"Stage {self.index} replays nothing: {self.report()}.")
        return scripts[-1].source

    def report(self) -> str:
        """Return a message: whether the stage replays, or why it does not."""
        return replayed.words_about(list(self._kinds), self._why_not, self._eager_loss, has_run=self._step > 0)
