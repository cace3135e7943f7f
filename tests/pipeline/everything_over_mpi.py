"""Every rank prints what it got of a step: run by test_everything_out.py through
mpirun.
"""

import numpy as np

from minipipe import init_process_group
from tests.pipeline.test_everything_out import accuracy, batch, made

with init_process_group() as group:
    pipeline = made(group, "zb-h1", 4, inputs_require_grad=True)
    x, y = batch(8)
    pipeline.step(x, y)
    loss = pipeline.step(
        x,
        y,
        accumulate=True,
        scale=0.5,
        outputs="everywhere",
        metrics={"accuracy": accuracy},
    )
    outputs = pipeline.forward_backward(x, np.ones((8, 3)), outputs="everywhere")
    gradients = group.broadcast(pipeline.input_gradients, 0)
    print(
        f"loss {loss!r} {loss.losses} {loss.metrics} {loss.outputs.sum()!r} "
        f"{outputs.sum()!r} {gradients.sum()!r}"
    )
