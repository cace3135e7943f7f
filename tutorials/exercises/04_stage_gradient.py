"""04 stage gradient: find the bug; each stage learns something different.

Lesson 04. A model is divided into stages. Each stage works on the output of the stage
before it. No graph crosses the boundary between two stages, because the input arrives
as a plain array. So the gradient has to be passed back across the boundary: a stage
needs dL/d(output), the gradient of the loss with respect to its output, and only the
next stage can provide it.

The code below runs, and the loss of the last stage falls, but the model learns badly.
It trains every stage except the last on a separate loss, the sum of squares of its
output. Fix `train_step`.

`outputs.backward(gradient)` starts from the gradient of a result. Afterwards
`inputs.grad` is the gradient of an input that was created with `requires_grad=True`,
and `parameter.grad` the gradient of a parameter.

Example: with two stages that each double their input, and the sum as the loss, the
output of the first stage has gradient 2.

Checked: the gradients of all parameters have the bits of the model in one piece; two to
four stages; the loss.
"""

from collections.abc import Callable, Sequence

import numpy as np

from minipipe import Tensor, nn


def train_step(
    stages: Sequence[nn.Module],
    batch: np.ndarray,
    targets: np.ndarray,
    loss: Callable[[Tensor, np.ndarray], Tensor],
) -> float:
    """Run forward and backward through all stages; leave gradients in their parameters,
    and return the loss.
    """
    passed = []
    array = batch
    for stage in stages:
        # an array from a message has no graph
        inputs = Tensor(array, requires_grad=True)
        outputs = stage(inputs)
        passed.append((inputs, outputs))
        array = outputs.numpy()
    # SOLUTION
    received = Tensor(array, requires_grad=True)
    result = loss(received, targets)
    result.backward()
    gradient = received.grad
    for inputs, outputs in reversed(passed):
        outputs.backward(gradient)
        gradient = inputs.grad
    # STUB
    # result = loss(outputs, targets)
    # result.backward()
    # for inputs, outputs in passed[:-1]:
    #     (outputs * outputs).sum().backward()
    # END
    return result.item()
