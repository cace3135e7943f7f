"""The executor: runs one rank's program on real tensors and real messages. It decides no order.

File 5 of 12 on the first path through the code (README.md):
after ``schedules/analysis/lowering.py``, before ``execution/stage.py``. Begin at ``_forward``, then return to ``run``.
Not on the path: a ``Batch`` has this rank's inputs and targets, and the ``objective``, which is the loss with the
weight of each microbatch; a ``Payload`` has the arrays of a value, which of them require a gradient, and the structure
of their pytree (None for one array); a ``Record`` is the result of a run, and ``activity`` the position of the rank,
for error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.modes import RandomKey, at, enable_grad, no_grad
from minipipe.comm import ProcessGroup, Request
from minipipe.errors import Code, ScheduleError
from minipipe.execution.payload import Payload
from minipipe.execution.record import Receipt, Record
from minipipe.execution.stage import Stage
from minipipe.schedules.action import RECV_B, RECV_F, SEND_B, SEND_F, Action, B, F, I, W
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.dependencies import Direction, Value

if TYPE_CHECKING:
    from minipipe.execution.batch import Batch

# The executor is an argument: a step that closed over it would keep all parameters alive after their last use.
Step = Callable[["Executor", "Batch"], None]


class Observer(Protocol):
    """Observes a run: its memory, its times on a core, its values. A run without observers pays nothing for them."""

    def watch(self, action: Action, step: Step) -> Step:
        """Return a handler that does the same, observed; or the handler itself, if there is nothing to observe."""


class Executor:
    """Runs one rank's program on its stages. Holds no reference to a batch after its run and its sends have completed.

    Each action is bound once to its stage, its value, its message: a list of functions, which every batch runs. A RECV
    only notes that a message is expected, and the action that needs it waits; a SEND is finished at the end of the
    run, or of the next one. Neighbouring stages on this rank hand over without a message. Here rank 1 holds stages 1
    and 2::

        rank 0    0F3 --[1]--> box --[2] SEND----.
        rank 1                                   `--> [3] RECV --> box --[4]--> 1F3 --[1]--> box --[4]--> 2F3

    [1] puts the value of a computation into the box, for its SEND or its consumer; [2] takes it out and sends it;
    [3] puts in the request for a message; [4] takes out the value, or waits for it. The tags are repeated at the code.

    Parameters
    ----------
    program : Program
        A legal one, of all ranks.
    stages : mapping of int to Stage
        This rank's stages, by index.
    group : ProcessGroup
    xp : module
        The array module to compute with.
    observers : sequence of Observer
        Of every run.

    Attributes
    ----------
    box : dict of Value to Payload or Request
        Values between their producer and their consumer, during a run. The remaining ones are gradients of the inputs.
    record : Record
        Of the current run.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage],
        group: ProcessGroup,
        xp: ModuleType,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.program = program
        self.stages = stages
        self.group = group
        self.xp = xp
        self._name, self._sent_at = group.name_of_program(), partial(_sent_at, program)
        self._allocate = xp.empty if group.takes_device_arrays else backend.empty_on_host(xp)
        self._row, self._actions = program.actions[group.rank], program.numbered[group.rank]
        self._steps = [_METHODS.get(action.kind, Executor._unhandled)(self, action) for action in self._actions]
        for observer in observers:
            self._steps = list(map(observer.watch, self._actions, self._steps))
        self._sends: list[Request] = []  # not finished
        self._forget()

    def run(self, batch: Batch, *observers: Observer, finishes_sends: bool = True) -> Record:
        """Run the program once. Collective: every rank runs its part, and exchanges messages with neighbouring stages.

        Sends that do not have to finish now finish, at the latest, at the end of the next run.
        """
        steps, num_earlier, activity = self._steps, len(self._sends), self.group.activity
        for observer in observers:
            steps = list(map(observer.watch, self._actions, steps))
        activity.begin(self._name, self._row, batch.step, self._sent_at)
        try:
            self.place = RandomKey(batch.seed, batch.training_step)
            with no_grad() if self.program.is_forward_only else enable_grad(), at(self.place):
                for step in steps:
                    step(self, batch)
                    activity.position += 1
            done = len(self._sends) if finishes_sends else num_earlier
            for send in self._sends[:done]:
                send.wait()
            del self._sends[:done]
            self.record.input_gradients = {value.microbatch: gradient for value, gradient in self.box.items()}
            return self.record  # before _forget makes a new one
        except BaseException as error:  # sys.exit and Ctrl-C in a layer have a place, too
            for stage in () if self.program.is_forward_only else self.stages.values():
                stage.begin()  # no half of a gradient, and no graph
            del self._sends[num_earlier:]
            if (action := activity.current) is not None:
                error.add_note(
                    f"on rank {self.group.name()}, stage {action.stage}, microbatch "
                    f"{action.microbatch}, action {action} of {self.program.name}, step {batch.step}"
                )
            raise
        finally:
            self._forget()

    def _forget(self) -> None:
        self.record, self.box = Record(), dict[Any, Any]()

    # -- computing ------------------------------------------------------------------------------------------

    def _forward(self, action: Action) -> Step:
        stage, k = self.stages[action.stage], action.microbatch
        consumed, produced = Value.consumed_by(action), Value.produced_by(action)

        def run(self: Executor, batch: Batch) -> None:
            received = batch.input(k) if stage.is_first else self._take(consumed)
            start = perf_counter()
            self.place.begin(k)
            if stage.is_last:
                stage.forward_with_loss(k, received, batch.objective)
            else:
                self.box[produced] = stage.forward(k, received)  # [1]
            self.note(stage, start)

        return run

    def _backward(self, action: Action) -> Step:
        stage, k = self.stages[action.stage], action.microbatch
        consumed, produced = Value.consumed_by(action), Value.produced_by(action)
        compute = stage.backward if action.kind is B else stage.backward_input

        def run(self: Executor, batch: Batch) -> None:
            received = None if stage.is_last else self._take(consumed)
            start = perf_counter()
            self.box[produced] = compute(k, received)  # [1]
            self.note(stage, start)

        return run

    def _backward_weight(self, action: Action) -> Step:
        stage, k = self.stages[action.stage], action.microbatch

        def run(self: Executor, batch: Batch) -> None:
            start = perf_counter()
            stage.backward_weight(k)
            self.note(stage, start)

        return run

    def _unhandled(self, action: Action) -> Step:
        def refuse(self: Executor, batch: Batch) -> None:
            message = f"{action} has no handler here: this run has no {action.kind.declaration.words}"
            raise ScheduleError.of(Code.NAME, f"{message}. Run the schedule without such actions.")

        return refuse

    def note(self, stage: Stage, start: float) -> None:
        """Record the times of a computation, and how many microbatches its stage holds after it."""
        if self.xp is not np:
            backend.synchronise(self.xp)  # otherwise this would time the launch of kernels on a GPU
        self.record.ran.append((start, perf_counter(), stage.num_held))

    # -- messages -------------------------------------------------------------------------------------------

    def _take(self, value: Any) -> Payload:
        """Return a value that an action consumes; wait if it is still to come."""
        item = self.box.pop(value)  # [4]
        if isinstance(item, Payload):
            return item
        awaited_from = perf_counter()
        message = item.wait()
        self.record.received[value] = Receipt(awaited_from, perf_counter(), backend.num_bytes(message))
        return Payload.from_message(message, self.xp)

    def _send(self, action: Action) -> Step:
        value = Value.carried_by(action)
        destination, tag = self.program.rank_of(value.consumer_stage, value.microbatch), self._tag(value)

        def run(self: Executor, batch: Batch) -> None:
            array = self.box.pop(value).to_message(self.group.takes_device_arrays)  # [2]
            self.record.sent[value] = perf_counter()
            self._sends.append(self.group.isend(array, destination, tag, step=batch.step))

        return run

    def _receive(self, action: Action) -> Step:
        value = Value.carried_by(action)
        noun = "activations" if value.direction is Direction.FORWARD else "gradient"
        words = f"the {noun} of microbatch {self.program.microbatches[value.microbatch]} from stage {value.stage}"
        source, tag = self.program.rank_of(value.stage, value.microbatch), self._tag(value)

        def run(self: Executor, batch: Batch) -> None:  # [3]
            self.box[value] = self.group.irecv(source, tag, step=batch.step, what=words, allocate=self._allocate)

        return run

    def _tag(self, value: Value) -> int:
        """Number a value: its consuming stage, its microbatch and its direction."""
        pair = value.consumer_stage * self.program.num_microbatches + value.microbatch
        return 2 * pair + (value.direction is Direction.BACKWARD)


_METHODS: dict[Any, Any] = {}  # observers have handlers for other kinds: sums.py, offloading.py, versions.py
_METHODS |= {F: Executor._forward, B: Executor._backward, I: Executor._backward, W: Executor._backward_weight}
_METHODS |= {SEND_F: Executor._send, SEND_B: Executor._send, RECV_F: Executor._receive, RECV_B: Executor._receive}


def _sent_at(program: Program, action: Action) -> int | None:
    """Return at which position of another rank's actions the value that an action consumes is sent."""
    value = Value.consumed_by(action)
    return next((row.index(value.send) for row in program.actions if value and value.send in row), None)
