"""17 pipeline step: train a model on several ranks with 1F1B, from sends and receives.

Lesson 06. Data parallelism copies a model to each rank and adds gradients up. Pipeline
parallelism gives each rank other layers, and sends activations forward and gradients
back. Here you write all of it: your own classes and functions, called through the three
functions below. These adapters are the interface that the tests know; everything behind
them is yours.

`make_pipeline(group, layers, loss, num_microbatches)` returns an object of your choice.
All ranks get equal layers, and each trains some of them, in order: rank 0 the first
ones. Each rank has at least one layer, and the numbers of layers differ by at most one.
`local_layers(pipeline)` returns the indices of the layers of this rank.
`run_step(pipeline, inputs, targets)` runs one step: `inputs` is the batch on rank 0,
`targets` the targets on the last rank, and on other ranks they are None. It adds the
gradients to the parameters of the local layers, and returns the loss on the last rank,
None on the others.

The batch has `num_microbatches` equal microbatches, one after the other. `loss(outputs,
targets)` is a mean over its samples, so the loss of the batch is the mean over its
microbatches. Add gradients in the order of microbatches.

Use the order of 1F1B: rank r of p runs p - 1 - r forwards, then one forward and one
backward in turn, then the other backwards. `group.rank` and `group.size` describe the
rank; `group.send(array, destination)` and `group.recv(source)` are the only messages. A
send may block until its receive is reached. Then 1F1B as in a textbook deadlocks: one
rank sends an activation to the next, which sends a gradient back. Which of the two has
to receive first?

Example: on one rank, a step is a loop over microbatches: forward, loss divided by their
number, backward.

Checked: layers, losses, and gradients, compared with one process; microbatches in
flight by rank; messages to neighbours only; blocking sends; fewer microbatches than
ranks; a second step. No GPU is needed: ranks are threads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minipipe import Tensor

# SOLUTION


class PipelineRank:
    """One rank of a pipeline: its layers, and the microbatches in flight."""

    def __init__(self, group, layers, loss, count):
        first = len(layers) * group.rank // group.size
        end = len(layers) * (group.rank + 1) // group.size
        self.indices = [*range(first, end)]
        self.layers = layers[first:end]
        self.group, self.loss, self.count = group, loss, count
        self.is_first = group.rank == 0
        self.is_last = group.rank == group.size - 1

    def step(self, inputs, targets):
        """Run a step in the order of 1F1B."""
        self.arrays = [*np.split(inputs, self.count)] if self.is_first else []
        self.targets = np.split(targets, self.count) if self.is_last else []
        self.received = 0
        self.in_flight, self.losses = [], []
        warmup = min(self.group.size - 1 - self.group.rank, self.count)
        for k in range(warmup):
            self.forward(k)
        for k in range(self.count):
            if warmup + k < self.count:
                self.forward(warmup + k)
            self.backward()
        return sum(self.losses) if self.is_last else None

    def receive(self):
        """Receive the next activation, if there is one."""
        if not self.is_first and self.received < self.count:
            self.arrays.append(self.group.recv(self.group.rank - 1))
            self.received += 1

    def forward(self, k):
        if not self.arrays:
            self.receive()
        inputs = outputs = Tensor(self.arrays.pop(0), requires_grad=True)
        for layer in self.layers:
            outputs = layer(outputs)
        if self.is_last:
            outputs = self.loss(outputs, self.targets[k]) * (1 / self.count)
            self.losses.append(outputs.item())
        else:
            self.group.send(outputs.numpy(), self.group.rank + 1)
        self.in_flight.append((inputs, outputs))

    def backward(self):
        inputs, outputs = self.in_flight.pop(0)
        if self.is_last:
            outputs.backward()
        else:
            outputs.backward(self.group.recv(self.group.rank + 1))
        if not self.is_first:
            self.receive()  # the previous rank sends it before it waits for a gradient
            self.group.send(inputs.grad, self.group.rank - 1)


# STUB
# END


def make_pipeline(
    group: Any,
    layers: Sequence[Callable[[Tensor], Tensor]],
    loss: Callable[[Tensor, np.ndarray], Tensor],
    num_microbatches: int,
) -> Any:
    """Return this rank's part of a pipeline, of any type."""
    # SOLUTION
    return PipelineRank(group, layers, loss, num_microbatches)
    # STUB
    # raise NotImplementedError("an object of your own that knows its layers")
    # END


def local_layers(pipeline: Any) -> list[int]:
    """Return the indices of this rank's layers, in order."""
    # SOLUTION
    return pipeline.indices
    # STUB
    # raise NotImplementedError("the part of range(len(layers)) of this rank")
    # END


def run_step(
    pipeline: Any, inputs: np.ndarray | None, targets: np.ndarray | None
) -> float | None:
    """Run forward and backward of all microbatches in the order of 1F1B; return the
    loss on the last rank.
    """
    # SOLUTION
    return pipeline.step(inputs, targets)
    # STUB
    # raise NotImplementedError("warm-up, pairs, and the remaining backwards")
    # END
