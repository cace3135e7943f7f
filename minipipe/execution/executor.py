"""The executor: runs one rank's program on real tensors and real messages. It decides no order.

File 5 of 12 on the first path through the code (README.md):
after ``schedules/analysis/lowering.py``, before ``execution/stage.py``. Not on the path: a ``Batch`` has this rank's
inputs and targets, a ``Payload`` the arrays of a value, a ``Record`` what a run leaves behind, a ``Place`` the key of
random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from types import ModuleType
from typing import Any, cast

from minipipe.autograd import backend
from minipipe.autograd.grad_mode import enable_grad, no_grad
from minipipe.autograd.random_key import Place, at, current_place
from minipipe.comm import ProcessGroup, Request
from minipipe.execution.journal import sending_in, told
from minipipe.execution.microbatch import Batch
from minipipe.execution.payload import Payload
from minipipe.execution.record import Receipt, Record
from minipipe.execution.stage import Stage
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.dependencies import Direction, Value
from minipipe.schedules.transforms import neighbouring_weights

# It is given the executor: a step that knew its own would keep it, and all parameters, after the last use.
Step = Callable[["Executor", Batch], None]


class Executor:
    """Runs one rank's program on its stages. Keeps nothing of a batch once it has run and its sends are finished.

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
    stacks : bool
        Whether the last of several neighbouring W of a stage computes the weight gradients of all of them.

    Attributes
    ----------
    measures_memory : bool
        Whether to measure the bytes held after each action. Slow.
    """

    def __init__(
        self, program: Program, stages: Mapping[int, Stage], group: ProcessGroup, xp: ModuleType, stacks: bool = False
    ) -> None:
        self.program = program
        self.stages = stages
        self.group = group
        self.xp = xp
        self._name = group.name_of_program()
        self._allocate = xp.empty if group.takes_device_arrays else backend.empty_on_host(xp)
        self.measures_memory = False
        self._stacked = neighbouring_weights(program.actions[group.rank]) if stacks else {}
        self._steps = told([_METHODS[action.kind](self, action) for action in program.actions[group.rank]], group)
        self._earlier_sends: list[Request] = []
        self._forget()

    def run(self, batch: Batch, finishes_sends: bool = True) -> Record:
        """Run the program once. Collective: every rank runs its own, and talks to those of neighbouring stages.

        Sends that are not finished now are, at the latest, at the end of the next run.
        """
        if self.measures_memory:
            from minipipe.tuning.memory_meter import MemoryMeter  # a door to a room above

            self._meter = cast(Any, MemoryMeter(batch.arrays))
        place, activity = Place(batch.seed, batch.training_step), self.group.activity
        activity.begin(self._name, self.program.actions[self.group.rank], batch.step, sending_in(self.program))
        try:
            with no_grad() if self.program.is_forward_only else enable_grad(), at(place):
                for step in self._steps:
                    step(self, batch)
                    activity.position += 1
            for send in (*self._earlier_sends, *(self._sends if finishes_sends else ())):
                send.wait()
            self._earlier_sends = [] if finishes_sends else self._sends
            return self._record  # before _forget makes a new one
        except BaseException as error:  # sys.exit and Ctrl-C in a layer have a place, too
            for stage in () if self.program.is_forward_only else self.stages.values():
                stage.begin()  # no half of a gradient, and no graph
            if (action := activity.current) is not None:
                error.add_note(
                    f"on rank {self.group.name()}, stage {action.stage}, microbatch "
                    f"{action.microbatch}, action {action} of {self.program.name}, step {batch.step}"
                )
            raise
        finally:
            self._forget()

    def _forget(self) -> None:
        self._record = Record()
        self._box: dict[Value, Any] = {}  # Payload or Request
        self._sends: list[Request] = []
        self._meter = None

    # -- computing ------------------------------------------------------------------------------------------

    def _forward(self, action: Action) -> Step:
        stage, k = self.stages[action.stage], action.microbatch
        consumed, produced = cast(Value, Value.consumed_by(action)), cast(Value, Value.produced_by(action))

        def run(self: Executor, batch: Batch) -> None:
            received = batch.input(k) if stage.is_first else self._take(consumed)
            start = perf_counter()
            current_place().begin(k)
            if stage.is_last:
                stage.forward_with_loss(k, received, batch.objective)
            else:
                self._box[produced] = stage.forward(k, received)  # [1]
            self._note(action, stage, start)

        return run

    def _backward(self, action: Action) -> Step:
        stage, k = self.stages[action.stage], action.microbatch
        consumed, produced = cast(Value, Value.consumed_by(action)), cast(Value, Value.produced_by(action))
        compute = stage.backward if action.kind is ActionKind.BACKWARD else stage.backward_input

        def run(self: Executor, batch: Batch) -> None:
            received = None if stage.is_last else self._take(consumed)
            start = perf_counter()
            if self._meter is not None:  # the bytes of a recomputation count, too
                self._meter.observe(stage, k)
            gradient = compute(k, received)
            if stage.returns_gradient:
                self._box[produced] = gradient  # [1]
            else:
                self._record.input_gradients[k] = gradient
            self._note(action, stage, start)

        return run

    def _backward_weight(self, action: Action) -> Step:
        stage, microbatches = self.stages[action.stage], self._stacked.get(action, [action.microbatch])

        def run(self: Executor, batch: Batch) -> None:
            start = perf_counter()
            if microbatches:
                stage.backward_weight(*microbatches)
            self._note(action, stage, start)
            if len(microbatches) > 1:
                self._record.share_time_of_last(len(microbatches))

        return run

    def _note(self, action: Action, stage: Stage, start: float) -> None:
        """Record the times of the action, and what is held after it."""
        backend.synchronise(self.xp)  # otherwise this would time the launch of kernels on a GPU
        self._record.ran.append((start, perf_counter(), stage.num_held))
        if self._meter is not None:
            stage_bytes, all_bytes = self._meter.measure(action, stage)
            self._record.held_bytes.append((action, *stage_bytes))
            self._record.memory.append(all_bytes)

    # -- messages -------------------------------------------------------------------------------------------

    def _take(self, value: Value) -> Payload:
        """Return a value that an action consumes; wait if it is still to come."""
        item = self._box.pop(value)  # [4]
        if isinstance(item, Payload):
            return item
        awaited_from = perf_counter()
        message = item.wait()
        self._record.received[value] = Receipt(awaited_from, perf_counter(), backend.num_bytes(message))
        return Payload.from_message(message, self.xp)

    def _send(self, action: Action) -> Step:
        value = Value.carried_by(action)
        destination, tag = self.program.placement[value.consumer_stage], self._tag(value)

        def run(self: Executor, batch: Batch) -> None:
            array = self._box.pop(value).to_message(self.group.takes_device_arrays)  # [2]
            self._record.sent[value] = perf_counter()
            self._sends.append(self.group.isend(array, destination, tag, step=batch.step))

        return run

    def _receive(self, action: Action) -> Step:
        value = Value.carried_by(action)
        noun = "activations" if value.direction is Direction.FORWARD else "gradient"
        words = f"the {noun} of microbatch {value.microbatch} from stage {value.stage}"
        source, tag = self.program.placement[value.stage], self._tag(value)

        def run(self: Executor, batch: Batch) -> None:  # [3]
            self._box[value] = self.group.irecv(source, tag, step=batch.step, what=words, allocate=self._allocate)

        return run

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
