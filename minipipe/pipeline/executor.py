"""The executor: runs one rank's program on real tensors and real messages. It decides no order.

File 5 of 12 on the first path through the code (README.md):
after ``analysis/lowering.py``, before ``pipeline/stage.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from minipipe import backend
from minipipe.analysis.dependencies import Direction, Value
from minipipe.autograd.grad_mode import enable_grad, no_grad
from minipipe.autograd.random_key import random_key
from minipipe.comm import ProcessGroup, Request
from minipipe.pipeline.memory_meter import MemoryMeter
from minipipe.pipeline.microbatch import Batch
from minipipe.pipeline.payload import Payload
from minipipe.pipeline.record import Receipt, Record
from minipipe.pipeline.stage import Stage
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.program import Program
from minipipe.simulation.span import Span


class Executor:
    """Runs one rank's program on its stages. Keeps nothing of a batch once it has run.

    A RECV is noted, and waited for by the action that needs the value; a SEND is finished at the end at the latest.
    Neighbouring stages on this rank hand over without a message. Here rank 1 holds stages 1 and 2::

        rank 0    0F3 --[1]--> outbox --[2] SEND----.
        rank 1                                       `--> [3] RECV --> inbox --[4]--> 1F3 --[1]--> inbox --[4]--> 2F3

    [1] hands the value of a computation to the inbox, where its consumer is on this rank, and to the outbox otherwise;
    [3] only notes that a message is expected; [4] waits for it. The tags are repeated at the code.

    Parameters
    ----------
    program : Program
        A legal one, of all ranks.
    stages : mapping of int to Stage
        This rank's stages, by index.
    group : ProcessGroup
    seed : int
        Of the random numbers in the model.
    xp : module
        The array module to compute with.

    Attributes
    ----------
    measures_memory : bool
        Whether to measure the bytes held after each action. Slow.
    """

    def __init__(
        self, program: Program, stages: Mapping[int, Stage], group: ProcessGroup, seed: int, xp: ModuleType = np
    ) -> None:
        self.program = program
        self.stages = stages
        self.group = group
        self.seed = seed
        self.xp = xp
        self.allocate = xp.empty if group.takes_device_arrays else backend.empty_on_host(xp)
        self.measures_memory = False
        self._begin(None)

    def run(self, batch: Batch) -> Record:
        """Run the program once. Collective: every rank runs its own, and talks to those of neighbouring stages."""
        self._begin(batch)
        try:
            with no_grad() if self.program.is_forward_only else enable_grad():
                for action in self.program.actions[self.group.rank]:
                    self._run_one(action, batch)
            for send in self._sends:
                send.wait()
            return self.record  # before _begin gives this rank a new one
        finally:
            self._begin(None)

    def _begin(self, batch: Batch | None) -> None:
        """Forget the last batch, and get ready for another one."""
        self.batch = batch
        self.record = Record()
        self._inbox: dict[Value, Payload | Request] = {}
        self._outbox: dict[Value, Payload] = {}
        self._sends: list[Request] = []
        self._meter = MemoryMeter(batch.arrays) if batch is not None and self.measures_memory else None

    def _run_one(self, action: Action, batch: Batch) -> None:
        try:
            _METHODS[action.kind](self, action, batch)
        except Exception as error:
            error.add_note(
                f"on rank {self.group.rank}, stage {action.stage}, microbatch {action.microbatch}, "
                f"action {action} of {self.program.name}, step {batch.step}"
            )
            raise

    # -- computing ------------------------------------------------------------------------------------------

    def _forward(self, action: Action, batch: Batch) -> None:
        stage, k = self.stages[action.stage], action.microbatch
        received = Payload([batch.part(batch.inputs, k)], [False]) if stage.is_first else self._take(action)
        start = self.group.time()
        with random_key(self.seed, batch.training_step, k):
            if not stage.is_last:
                self._deliver(action, stage.forward(k, received))
            elif batch.targets is None:
                self.record.outputs[k] = stage.predict(received)
            else:
                targets = batch.part(batch.targets, k)
                self.record.losses[k] = stage.forward_with_loss(k, received, targets, batch.weight(k))
        self._note(action, start)

    def _backward(self, action: Action, batch: Batch) -> None:
        stage, k = self.stages[action.stage], action.microbatch
        received = None if stage.is_last else self._take(action)
        start = self.group.time()
        if self._meter is not None:  # the bytes of a recomputation count, too
            self._meter.observe(stage, k)
        compute = stage.backward if action.kind is ActionKind.BACKWARD else stage.backward_input
        gradient = compute(k, received)
        if stage.returns_gradient:
            self._deliver(action, gradient)
        self._note(action, start)

    def _backward_weight(self, action: Action, batch: Batch) -> None:
        start = self.group.time()
        self.stages[action.stage].backward_weight(action.microbatch)
        self._note(action, start)

    def _note(self, action: Action, start: float) -> None:
        """Record the times of the action, and the activations held after it; those of a frozen F, while it ran."""
        record, only_now = self.record, action.kind is ActionKind.FORWARD and not self.stages[action.stage].has_backward
        num_held = sum(stage.num_held for stage in self.stages.values()) + only_now
        backend.synchronise(self.xp)  # otherwise this would time the launch of kernels on a GPU
        record.spans.append(Span(action, start, self.group.time()))
        record.peak_activations = max(record.peak_activations, num_held)
        if self._meter is not None:
            stage_bytes, all_bytes = self._meter.measure(action, self.stages[action.stage])
            record.held_bytes.append((action, *stage_bytes))
            record.memory.append(all_bytes)

    # -- handing over ---------------------------------------------------------------------------------------

    def _deliver(self, action: Action, payload: Payload) -> None:
        """Hand the value of an action to its consumer: on this rank, or through the outbox of its SEND."""
        value = Value.produced_by(action)
        assert value is not None
        box: dict = self._inbox if value.consumer_stage in self.stages else self._outbox  # [1]
        box[value] = payload

    def _take(self, action: Action) -> Payload:
        """Return the value that an action consumes; wait if it is still to come."""
        value = Value.consumed_by(action)
        assert value is not None
        item = self._inbox.pop(value)  # [4]
        if isinstance(item, Payload):
            return item
        awaited_from = self.group.time()
        message = item.wait()
        assert message is not None
        self.record.received[value] = Receipt(awaited_from, self.group.time(), backend.num_bytes(message))
        return Payload.from_message(message, self.xp)

    def _send(self, action: Action, batch: Batch) -> None:
        value = Value.carried_by(action)
        array = self._outbox.pop(value).to_message(self.group.takes_device_arrays)  # [2]
        destination = self.program.placement[value.consumer_stage]
        self.record.sent[value] = self.group.time()
        self._sends.append(self.group.isend(array, destination, self._tag(value), step=batch.step))

    def _receive(self, action: Action, batch: Batch) -> None:
        value = Value.carried_by(action)
        noun = "activations" if value.direction is Direction.FORWARD else "gradient"
        words = f"the {noun} of microbatch {value.microbatch} from stage {value.stage}"
        source, tag = self.program.placement[value.stage], self._tag(value)  # [3]
        self._inbox[value] = self.group.irecv(source, tag, step=batch.step, what=words, allocate=self.allocate)

    def _tag(self, value: Value) -> int:
        """Number a value: its consuming stage, its microbatch and its direction."""
        pair = value.consumer_stage * self.program.num_microbatches + value.microbatch
        return 2 * pair + (value.direction is Direction.BACKWARD)


_METHODS = {
    ActionKind.FORWARD: Executor._forward,
    ActionKind.BACKWARD: Executor._backward,
    ActionKind.BACKWARD_INPUT: Executor._backward,
    ActionKind.BACKWARD_WEIGHT: Executor._backward_weight,
    ActionKind.SEND_F: Executor._send,
    ActionKind.SEND_B: Executor._send,
    ActionKind.RECV_F: Executor._receive,
    ActionKind.RECV_B: Executor._receive,
}
