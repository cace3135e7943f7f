"""The executor: runs one rank's program on real tensors and real messages. It decides no order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np

from minipipe import backend
from minipipe.analysis.dependencies import Direction, Value
from minipipe.autograd import Node, WeightWork
from minipipe.autograd.grad_mode import enable_grad, no_grad
from minipipe.autograd.memory import held_bytes, observe_recomputation
from minipipe.autograd.random_key import random_key
from minipipe.backend import Array
from minipipe.comm import ProcessGroup, Request
from minipipe.pipeline.parcel import Parcel
from minipipe.pipeline.stage import Stage
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.program import Program
from minipipe.simulation.span import Span

__all__ = ["Batch", "Executor", "Receipt", "Record"]


@dataclass
class Batch:
    """One batch, as far as this rank has it.

    Attributes
    ----------
    slices : list of slice
        The microbatches, along the first axis.
    inputs, targets : array or None
        Of shape (samples, ...), where this rank has the first (the last) stage.
    step : int
        Counts the calls; travels with every message.
    training_step : int
        Counts the steps that were taken before; what is random in the model depends on it.
    """

    slices: list[slice]
    inputs: Array | None
    targets: Array | None
    step: int
    training_step: int

    def weight(self, microbatch: int) -> float:
        """Return a microbatch's share of the batch."""
        part = self.slices[microbatch]
        return (part.stop - part.start) / self.slices[-1].stop


class Receipt(NamedTuple):
    """How a message came: since when it was awaited, when it was there, in the group's time, and its bytes."""

    awaited_from: float
    arrived: float
    size: int


@dataclass
class Record:
    """What one run left behind on this rank.

    Attributes
    ----------
    losses : dict
        Mean loss by microbatch, on the rank of the last stage.
    outputs : dict
        Outputs by microbatch, there, where there were no targets.
    spans : list of Span
        Every computation, in the group's time.
    peak_activations : int
        The most (stage, microbatch) pairs held at once.
    held_bytes : list of (Action, int, int)
        The bytes that the stage of an action held after it, and at most while it computed something again (0 where it
        did not), if it was measured.
    memory : list of (int, int)
        The bytes that all stages held after each action, and at most while it ran, if it was measured. An array that
        two stages on this rank hold counts for both.
    sent : dict of Value to float
        When each SEND began.
    received : dict of Value to Receipt
    """

    losses: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, Array] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    peak_activations: int = 0
    held_bytes: list[tuple[Action, int, int]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[Value, float] = field(default_factory=dict)
    received: dict[Value, Receipt] = field(default_factory=dict)


class Executor:
    """Runs one rank's program on its stages. Keeps nothing of a batch once it has run.

    Parameters
    ----------
    program : Program
        A legal one, of all ranks.
    stages : mapping of int to Stage
        This rank's stages, by index.
    group : ProcessGroup
    timeout : float or None
        Seconds that a wait may last; the group's own by default.
    seed : int
        Of what is random in the model.
    xp : module
        The array module to compute with.

    Attributes
    ----------
    allocate : function
        ``(shape, dtype) -> array`` for messages that arrive.
    measures_memory : bool
        Whether to measure the bytes held after each action. Slow.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage],
        group: ProcessGroup,
        timeout: float | None,
        seed: int,
        xp: ModuleType = np,
    ) -> None:
        self.program = program
        self.stages = stages
        self.group = group
        self.timeout = timeout
        self.seed = seed
        self.xp = xp
        self.allocate = xp.empty if group.takes_device_arrays else backend.empty_on_host(xp)
        self.measures_memory = False

    def run(self, batch: Batch) -> Record:
        """Run the program once. Collective: every rank runs its own, and talks to those of neighbouring stages."""
        with no_grad() if self.program.is_forward_only else enable_grad():
            return _Run(self, batch).all_actions()


class _Run:
    """One run: goes through the program, action by action, with a table from kind to method.

    A RECV is noted, and waited for by the action that needs what it brings; a SEND is finished at the end at the
    latest. Neighbouring stages on this rank hand over without a message.
    """

    def __init__(self, executor: Executor, batch: Batch) -> None:
        self._executor = executor
        self._batch = batch
        self.record = Record()
        self._inbox: dict[Value, Parcel | Request] = {}
        self._outbox: dict[Value, Parcel] = {}
        self._sends: list[Request] = []
        self._held_bytes: dict[int, int] = {}  # by stage
        self._recomputed_bytes = 0  # the most that the present action's stage held when something was computed again
        self._methods: dict[ActionKind, Callable[[Action], None]] = {
            ActionKind.FORWARD: self._forward,
            ActionKind.BACKWARD: self._backward,
            ActionKind.BACKWARD_INPUT: self._backward,
            ActionKind.BACKWARD_WEIGHT: self._backward_weight,
            ActionKind.SEND_F: self._send,
            ActionKind.SEND_B: self._send,
            ActionKind.RECV_F: self._receive,
            ActionKind.RECV_B: self._receive,
        }

    def all_actions(self) -> Record:
        """Run every action in its order, finish the sends, and return the record."""
        for action in self._executor.program.actions[self._executor.group.rank]:
            try:
                self._methods[action.kind](action)
            except Exception as error:
                error.add_note(
                    f"on rank {self._executor.group.rank}, stage {action.stage}, microbatch {action.microbatch}, "
                    f"action {action} of {self._executor.program.name}, step {self._batch.step}"
                )
                raise
        for send in self._sends:
            send.wait(self._executor.timeout)
        return self.record

    # -- computing ------------------------------------------------------------------------------------------

    def _forward(self, action: Action) -> None:
        stage, k = self._executor.stages[action.stage], action.microbatch
        inputs = self._batch.inputs
        received = Parcel([self._microbatch(inputs, k)], [False]) if stage.is_first else self._take(action)
        start = self._executor.group.time()
        with random_key(self._executor.seed, self._batch.training_step, k):
            if not stage.is_last:
                self._deliver(action, stage.forward(k, received))
            elif self._batch.targets is None:
                self.record.outputs[k] = stage.predict(received)
            else:
                targets = self._microbatch(self._batch.targets, k)
                self.record.losses[k] = stage.forward_with_loss(k, received, targets, self._batch.weight(k))
        self._note(action, start)

    def _backward(self, action: Action) -> None:
        stage, k = self._executor.stages[action.stage], action.microbatch
        received = None if stage.is_last else self._take(action)
        start = self._executor.group.time()
        if self._executor.measures_memory:
            graph = stage.graph_of(k)
            observe_recomputation(graph, partial(self._observe, stage, graph))
        compute = stage.backward if action.kind is ActionKind.BACKWARD else stage.backward_input
        gradient = compute(k, received)
        if not stage.is_first:
            self._deliver(action, gradient)
        self._note(action, start)

    def _backward_weight(self, action: Action) -> None:
        start = self._executor.group.time()
        self._executor.stages[action.stage].backward_weight(action.microbatch)
        self._note(action, start)

    def _microbatch(self, array: Array | None, k: int) -> Array:
        assert array is not None
        return array[self._batch.slices[k], ...]

    def _note(self, action: Action, start: float) -> None:
        """Record when the action ran and what is held after it."""
        record, stages = self.record, self._executor.stages.values()
        backend.synchronise(self._executor.xp)  # else it would be the time of telling a GPU what to do
        record.spans.append(Span(action, start, self._executor.group.time()))
        record.peak_activations = max(record.peak_activations, sum(stage.num_held for stage in stages))
        if self._executor.measures_memory:
            before = self._held_bytes.get(action.stage, 0)
            stage = self._executor.stages[action.stage]
            after = self._held_bytes[action.stage] = self._bytes_of(stage.held, stage)
            recomputed, self._recomputed_bytes = self._recomputed_bytes, 0
            record.held_bytes.append((action, after, recomputed))
            others = sum(self._held_bytes.values()) - after
            record.memory.append((others + after, others + max(before, after, recomputed)))

    def _observe(self, stage: Stage, graph: list[Node], recomputed: list[Node]) -> None:
        """Note the bytes that a stage holds now that its backward has computed a part of a graph again."""
        held = self._bytes_of([*stage.held, *graph, *recomputed], stage)
        self._recomputed_bytes = max(self._recomputed_bytes, held)

    def _bytes_of(self, graphs: Iterable[Node | WeightWork], stage: Stage) -> int:
        """Return the bytes that graphs of a stage hold, without parameters and the batch itself. Slow."""
        not_counted = [parameter.data for parameter in stage.parameters.values()]
        not_counted += [array for array in (self._batch.inputs, self._batch.targets) if array is not None]
        return held_bytes(graphs, not_counted)

    # -- handing over ---------------------------------------------------------------------------------------

    def _deliver(self, action: Action, parcel: Parcel) -> None:
        """Hand the value of an action to its consumer: on this rank, or through the outbox of its SEND."""
        value = Value.produced_by(action)
        assert value is not None
        box: dict = self._inbox if value.consumer_stage in self._executor.stages else self._outbox
        box[value] = parcel

    def _take(self, action: Action) -> Parcel:
        """Return the value that an action consumes; wait if it is still to come."""
        value = Value.consumed_by(action)
        assert value is not None
        item = self._inbox.pop(value)
        if isinstance(item, Parcel):
            return item
        awaited_from = self._executor.group.time()
        message = item.wait(self._executor.timeout)
        assert message is not None
        self.record.received[value] = Receipt(awaited_from, self._executor.group.time(), backend.num_bytes(message))
        return Parcel.from_message(message, self._executor.xp)

    def _send(self, action: Action) -> None:
        value = Value.carried_by(action)
        array = self._outbox.pop(value).to_message(self._executor.group.takes_device_arrays)
        destination = self._executor.program.placement[value.consumer_stage]
        self.record.sent[value] = self._executor.group.time()
        self._sends.append(self._executor.group.isend(array, destination, self._tag(value), step=self._batch.step))

    def _receive(self, action: Action) -> None:
        value = Value.carried_by(action)
        noun = "activations" if value.direction is Direction.FORWARD else "gradient"
        words = f"the {noun} of microbatch {value.microbatch} from stage {value.stage}"
        source, tag = self._executor.program.placement[value.stage], self._tag(value)
        self._inbox[value] = self._executor.group.irecv(
            source, tag, step=self._batch.step, what=words, allocate=self._executor.allocate
        )

    def _tag(self, value: Value) -> int:
        """Number a value: its consuming stage, its microbatch and its direction."""
        pair = value.consumer_stage * self._executor.program.num_microbatches + value.microbatch
        return 2 * pair + (value.direction is Direction.BACKWARD)
