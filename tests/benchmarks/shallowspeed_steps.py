"""ShallowSpeed as a contender of pipelining.py: its own layers, worker and schedules
(github.com/siboehm/ShallowSpeed), read from a clone.

It trains the same model on the same batch, and computes no loss. Its naive schedule,
one microbatch after another, gives the same weights to rounding. Its GPipe receives all
microbatches into one buffer, to which the first layer of a stage keeps a reference for
its backward: on several ranks the gradient of that layer is wrong (commit d638359), so
only its time is compared.
"""

import sys
from types import ModuleType

from mpi4py import MPI

from minipipe import nn

__all__ = ["SCHEDULES", "shallowspeed_step"]

SCHEDULES = {"shallow naive": "NaiveParallelSchedule", "shallow gpipe": "GPipeSchedule"}


def shallowspeed_step(clone, name, model, parts, group, case, inputs, targets, rate):
    """Return the step of ShallowSpeed over the layers of each rank, and its
    state_dict.

    Parameters
    ----------
    clone : path
        A folder with a clone of ShallowSpeed.
    name : str
        Of SCHEDULES.
    """
    sys.path.insert(0, str(clone))
    # Its data set imports pandas, to read MNIST; the batch is at hand.
    sys.modules.setdefault("pandas", ModuleType("pandas"))
    from shallowspeed import layers, optimizer, pipe

    numbers = [i for i in parts[group.rank] if isinstance(model[i], nn.Linear)]
    own = {i: linear_like(model, i, layers) for i in numbers}
    stage = layers.Sequential(list(own.values()))
    if group.rank == group.size - 1:
        # It divides by what it is told is the batch; ours is the mean over all numbers.
        stage.layers.append(layers.MSELoss(targets.size))
    stage.in_dim = stage.out_dim = case.width
    stage.train()
    worker = pipe.Worker(
        MPI.COMM_SELF,
        MPI.COMM_WORLD,
        stage,
        Batch(inputs, targets, case.microbatches),
        optimizer.SGD(stage.parameters(), rate),
    )

    schedule = getattr(pipe, SCHEDULES[name])

    def step():
        worker.execute(schedule(case.microbatches, group.size, group.rank), 0)

    def state_dict():
        state = {}
        for i, layer in own.items():
            weight, bias = layer.parameters()
            state[f"{i}.weight"] = weight.data.T
            state[f"{i}.bias"] = bias.data.reshape(-1)
        return state

    return step, state_dict


def linear_like(model, number, layers):
    """Return ShallowSpeed's layer with the values of a Linear layer of a model, and its
    ReLU if it has one.
    """
    linear = model[number]
    activation = "relu" if number + 1 < len(model) else None
    layer = layers.Linear(*linear.weight.shape, activation=activation)
    weight, bias = layer.parameters()
    weight.data = linear.weight.data.T.copy()
    bias.data = linear.bias.data.reshape(1, -1).copy()
    return layer


class Batch:
    """One batch, as ShallowSpeed's data set.

    Parameters
    ----------
    inputs, targets : array
    num_microbatches : int
    """

    def __init__(self, inputs, targets, num_microbatches):
        self.inputs = inputs
        self.targets = targets
        self.mubatch_size = len(inputs) // num_microbatches

    def load_micro_batch_input(self, batch_id, mubatch_id):
        return self.inputs[self._rows(mubatch_id)]

    def load_micro_batch_target(self, batch_id, mubatch_id):
        return self.targets[self._rows(mubatch_id)]

    def _rows(self, mubatch_id):
        start = mubatch_id * self.mubatch_size
        return slice(start, start + self.mubatch_size)
