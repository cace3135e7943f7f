"""The executor: runs one rank's program on real tensors and real messages. It decides no order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from minipipe import backend
from minipipe.autograd import no_grad
from minipipe.backend import Array
from minipipe.comm import ProcessGroup, Request
from minipipe.errors import TensorError
from minipipe.pipeline.stage import Stage
from minipipe.schedules import Action, ActionKind, Schedule, Span, lower

__all__ = ["Batch", "Executor", "Record"]

_FORWARD, _BACKWARD = 0, 1  # which way a message goes


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
    """

    slices: list[slice]
    inputs: Array | None
    targets: Array | None
    step: int

    def weight(self, microbatch: int) -> float:
        """Return a microbatch's share of the batch."""
        part = self.slices[microbatch]
        return (part.stop - part.start) / self.slices[-1].stop


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
    peak_bytes : int
        What they took, if it was measured.
    """

    losses: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, Array] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    peak_activations: int = 0
    peak_bytes: int = 0


class Executor:
    """Runs one rank's program, action by action, through a table from kind to method.

    A RECV is noted, and waited for by the action that needs what it brings; a SEND is finished at the end at the
    latest, and its array is kept until then. Neighbouring stages on this rank hand over without a message.

    Parameters
    ----------
    schedule : Schedule
        A legal one.
    stages : mapping of int to Stage
        This rank's stages, by index.
    group : ProcessGroup
    timeout : float or None
        Seconds that a wait may last; the group's own by default.
    """

    def __init__(
        self, schedule: Schedule, stages: Mapping[int, Stage], group: ProcessGroup, timeout: float | None
    ) -> None:
        self._program = lower(schedule).actions[group.rank]
        self._schedule = schedule
        self._stages = stages
        self._group = group
        self._timeout = timeout
        self.measures_memory = False
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

    def run(self, batch: Batch) -> Record:
        """Run the program once. Collective: every rank runs its own, and talks to those of neighbouring stages."""
        self._batch, self._record = batch, Record()
        self._inbox: dict[tuple[int, int, int], Array | Request] = {}  # (way, stage that uses it, microbatch)
        self._outbox: dict[tuple[int, int, int], Array] = {}
        self._sends: list[Request] = []
        with no_grad() if self._schedule.is_forward_only else nullcontext():
            for action in self._program:
                try:
                    self._methods[action.kind](action)
                except Exception as error:
                    error.add_note(
                        f"on rank {self._group.rank}, stage {action.stage}, microbatch {action.microbatch}, "
                        f"action {action} of {self._schedule.name}, step {batch.step}"
                    )
                    raise
        for send in self._sends:
            send.wait(self._timeout)
        return self._record

    # -- computing ------------------------------------------------------------------------------------------

    def _forward(self, action: Action) -> None:
        stage, k = self._stages[action.stage], action.microbatch
        data = self._microbatch(self._batch.inputs, k) if stage.is_first else self._take(_FORWARD, action)
        start = self._group.time()
        if not stage.is_last:
            self._deliver(_FORWARD, stage.index + 1, k, stage.forward(k, data).data)
        elif self._batch.targets is None:
            self._record.outputs[k] = stage.predict(data)
        else:
            targets = self._microbatch(self._batch.targets, k)
            self._record.losses[k] = stage.forward_with_loss(k, data, targets, self._batch.weight(k))
        self._note(action, start)

    def _backward(self, action: Action) -> None:
        stage, k = self._stages[action.stage], action.microbatch
        received = None if stage.is_last else self._take(_BACKWARD, action)
        start = self._group.time()
        compute = stage.backward if action.kind is ActionKind.BACKWARD else stage.backward_input
        gradient = compute(k, received)
        if not stage.is_first:
            self._deliver(_BACKWARD, stage.index - 1, k, gradient)
        self._note(action, start)

    def _backward_weight(self, action: Action) -> None:
        start = self._group.time()
        self._stages[action.stage].backward_weight(action.microbatch)
        self._note(action, start)

    def _microbatch(self, array: Array | None, k: int) -> Array:
        assert array is not None
        return array[self._batch.slices[k]]

    def _note(self, action: Action, start: float) -> None:
        """Record when the action ran and what is held after it."""
        record, stages = self._record, self._stages.values()
        record.spans.append(Span(action, start, self._group.time()))
        record.peak_activations = max(record.peak_activations, sum(stage.num_held for stage in stages))
        if self.measures_memory:
            own = [array for array in (self._batch.inputs, self._batch.targets) if array is not None]
            record.peak_bytes = max(record.peak_bytes, sum(stage.held_bytes(own) for stage in stages))

    # -- handing over ---------------------------------------------------------------------------------------

    def _deliver(self, way: int, stage: int, k: int, array: Array | None) -> None:
        """Hand a result to the stage that uses it: here, or into the box from which its SEND takes it."""
        if array is None:
            raise _no_gradient(stage + 1)
        box: dict = self._inbox if stage in self._stages else self._outbox
        box[way, stage, k] = array

    def _take(self, way: int, action: Action) -> Array:
        """Return what the action needs from a neighbouring stage; wait if it is still to come."""
        item = self._inbox.pop((way, action.stage, action.microbatch))
        if isinstance(item, Request):
            return item.wait(self._timeout)
        return item

    def _send(self, action: Action) -> None:
        way, user = (_FORWARD, action.stage + 1) if action.kind is ActionKind.SEND_F else (_BACKWARD, action.stage - 1)
        array = backend.to_numpy(self._outbox.pop((way, user, action.microbatch)))
        destination, tag = self._schedule.placement[user], self._tag(way, user, action.microbatch)
        self._sends.append(self._group.isend(array, destination, tag, step=self._batch.step))

    def _receive(self, action: Action) -> None:
        is_forward = action.kind is ActionKind.RECV_F
        way, maker = (_FORWARD, action.stage - 1) if is_forward else (_BACKWARD, action.stage + 1)
        k = action.microbatch
        words = f"the {'activations' if is_forward else 'gradient'} of microbatch {k} from stage {maker}"
        source, tag = self._schedule.placement[maker], self._tag(way, action.stage, k)
        request = self._group.irecv(source, tag, step=self._batch.step, what=words)
        self._inbox[way, action.stage, k] = request

    def _tag(self, way: int, stage: int, k: int) -> int:
        """Name (way, stage, microbatch) by one number."""
        return (stage * self._schedule.num_microbatches + k) * 2 + way


def _no_gradient(stage: int) -> TensorError:
    return TensorError(
        "no-graph",
        f"Stage {stage} computed nothing from its input that has a gradient, so the stages before it cannot learn. "
        "Does a layer detach its input, or return whole numbers?",
    )
