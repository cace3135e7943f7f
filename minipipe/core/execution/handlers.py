"""The handlers of computations and messages: what each instruction does on its rank.

File 6 of 13 on the first path through the code (README.md):
after ``core/execution/executor.py``, before ``core/execution/stage.py``.

The executor takes the values that an instruction needs, which ``@takes`` names, calls
its handler with them, and keeps the values that it returns, which ``@gives`` names. Not
on the path: a ``Batch`` has this rank's inputs and targets, and the ``objective``,
which is the loss with the weight of each microbatch; a ``Payload`` has the arrays of a
value, which of them require a gradient, and the structure of their pytree (None for one
array).

Two tags of ``core/execution/executor.py`` stand here, too: [2] sends a value, [3] gives a
message that is still to come.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.execution.executor import Executor, Handlers, Pending, Route
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.record import Receipt
from minipipe.core.schedules.action import (
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    Action,
    B,
    F,
    I,
    W,
)
from minipipe.core.values import gives, takes

# -- computing --------------------------------------------------------------------------------------------------------


@takes("x")
@gives("x", "graph")
def forward(
    executor: Executor, action: Action, x: Payload | None = None
) -> tuple[Payload | None, Any]:
    """Run an F; on the last stage, with its loss."""
    stage = executor.stages[action.stage]
    k = action.microbatch
    received = executor.batch.input(k) if x is None else x
    executor.place.begin(k)
    if stage.is_last:
        return None, stage.forward_with_loss(k, received, executor.batch.objective)
    return stage.forward(k, received)


@takes("graph", "g")
@gives("g")
def backward(
    executor: Executor, action: Action, graph: Any, g: Payload | None = None
) -> Payload:
    """Run a B."""
    stage = executor.stages[action.stage]
    k = action.microbatch
    gradient = stage.backward(k, graph, g)
    if stage.is_first:
        executor.record.input_gradients[k] = gradient
    return gradient


@takes("graph", "g")
@gives("g", "rest")
def backward_input(
    executor: Executor, action: Action, graph: Any, g: Payload | None = None
) -> tuple[Payload, Any]:
    """Run an I."""
    stage = executor.stages[action.stage]
    k = action.microbatch
    gradient, rest = stage.backward_input(k, graph, g)
    if stage.is_first:
        executor.record.input_gradients[k] = gradient
    return gradient, rest


@takes("rest")
def backward_weight(executor: Executor, action: Action, rest: Any) -> None:
    """Run a W."""
    executor.stages[action.stage].backward_weight(action.microbatch, rest)


# -- messages --------------------------------------------------------------------------


class Received(Pending):
    """A message from a neighbouring stage, which may still be under way."""

    def __init__(self, executor: Executor, route: Route) -> None:
        self._value = route.value
        self._record = executor.record
        self._xp = executor.xp
        self.request = executor.early.pop(route.value, None) or executor.group.irecv(
            route.peer,
            route.tag,
            step=executor.batch.step,
            what=route.words,
            allocate=executor.allocate,
        )

    def wait(self) -> Payload:
        """Return the value, and note the times of the message."""
        awaited_from = perf_counter()
        message = self.request.wait()
        self._record.received[self._value] = Receipt(
            awaited_from, perf_counter(), backend.num_bytes(message)
        )
        return Payload.from_message(message, self._xp)


@takes("x")
def send_activation(executor: Executor, action: Action, x: Payload) -> None:
    """Run a SEND_F."""
    route = executor.routes[action]
    message = x.to_message(executor.group.takes_device_arrays)
    executor.record.sent[route.value] = perf_counter()
    executor.send(message, route.peer, route.tag)  # [2]


@takes("g")
def send_gradient(executor: Executor, action: Action, g: Payload) -> None:
    """Run a SEND_B."""
    send_activation(executor, action, g)


@gives("x")
def receive_activation(executor: Executor, action: Action) -> Pending:
    """Run a RECV_F, which waits for nothing."""
    return Received(executor, executor.routes[action])  # [3]


@gives("g")
def receive_gradient(executor: Executor, action: Action) -> Pending:
    """Run a RECV_B, which waits for nothing."""
    return Received(executor, executor.routes[action])  # [3]


HANDLERS: Handlers = {
    F: forward,
    B: backward,
    I: backward_input,
    W: backward_weight,
    SEND_F: send_activation,
    SEND_B: send_gradient,
    RECV_F: receive_activation,
    RECV_B: receive_gradient,
}
"""The handlers of computations and messages."""
