"""04 stage gradient: find the bug; each stage minds its own business.

Lesson 04. A model was cut into stages. Each stage computes from what the one before it sent, and no graph reaches
across the cut: what arrives is a plain array. So the gradient must cross the cut, too: a stage needs dL/d(output), the
gradient of the loss by its output, which only the next stage can tell it.

The code below runs, the loss of the last stage falls, and yet the model learns badly: it trains every stage but the
last on a loss of its own, the sum of squares of its output. Mend `train_step`.

`outputs.backward(gradient)` starts from the gradient of a result; afterwards `inputs.grad` is that of an input that was
made with `requires_grad=True`, and `parameter.grad` that of every parameter.

Example: in two stages that each double their input, trained on the sum, a first stage's output has the gradient 2.

Checked: gradients of all parameters have the bits of the model that was not cut; two to four stages; the loss.
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
    """Go forward and backward through all stages; leave gradients in their parameters, and return the loss."""
    passed = []
    array = batch
    for stage in stages:
        inputs = Tensor(array, requires_grad=True)  # what arrives in a message has no graph behind it
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
