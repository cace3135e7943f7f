"""The training that faults happen in: four stages, each of a linear layer and a trap,
1F1B over eight microbatches.

With four ranks rank r has 3 - r forwards of warm-up. Every rank runs the same script,
as a user's, and a layer or the script itself misbehaves on one of them.
"""

import numpy as np

from minipipe import Pipeline, nn, optim
from minipipe.core.autograd.modes import current_place
from minipipe.core.tensor import record
from tests.faults.deeds import Return

NUM_MICROBATCHES = 8
# the fault of this process; not an attribute of a layer, since the ranks agree about
# those
_due = None


class Trap(nn.Module):
    """Passes on activations and gradients, unless a fault is due."""

    def forward(self, x):
        place = current_place()
        step, microbatch = place.step + 1, place.microbatch
        array = _due.reach((step, "F", microbatch), x.data)
        return record(
            array, (x, lambda gradient: _due.reach((step, "B", microbatch), gradient))
        )


def model(width=4):
    return nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(width, width), Trap())]
    )


def train(group, due, num_steps=3):
    """Train; the fault may be due before the pipeline is made, in a forward or
    backward, and after a step.
    """
    global _due
    _due, due.group = due, group
    try:
        due.reach("construction")
        pipeline = Pipeline(
            model(),
            group,
            loss=nn.MSELoss(),
            partition=[range(2 * stage, 2 * stage + 2) for stage in range(4)],
            num_microbatches=NUM_MICROBATCHES,
        )
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.01)
        inputs, targets = np.ones((16, 4), np.float32), np.zeros((16, 4), np.float32)
        for step in range(1, num_steps + 1):
            pipeline.step(inputs, targets)
            optimiser.step()
            due.reach((step, "end", 0))
    except Return:
        pass
