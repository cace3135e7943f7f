"""What engine.py measures: the cases, their data, and the steps that minipipe takes."""

from typing import NamedTuple

import numpy as np
from floor import mlp

from minipipe import Tensor, autograd, nn, optim, split_microbatches

__all__ = [
    "CASES",
    "FAULTS",
    "LEARNING_RATE",
    "OVER_FLOOR",
    "OVER_TORCH",
    "SPLIT",
    "Block",
    "arrays_of",
    "autograd_step",
    "batch_of",
    "block_of",
    "block_step",
    "mlp_of",
    "split_case",
]

LEARNING_RATE = 1e-3
OVER_FLOOR, OVER_TORCH, SPLIT, FAULTS = (
    "autograd / floor",
    "minipipe / PyTorch",
    "split / fused",
    "page faults",
)


class MLP(NamedTuple):
    """Layers of one width, and microbatches of one size."""

    width: int
    layers: int
    size: int
    microbatches: int
    steps: int
    aims: dict

    def __str__(self):
        return (
            f"MLP d={self.width}, {self.layers} layers, {self.size}x{self.microbatches}"
        )


class Block(NamedTuple):
    """A transformer block, and the shape of its input."""

    samples: int
    length: int
    width: int
    heads: int
    steps: int
    aims: dict

    def __str__(self):
        return f"block {self.samples}x{self.length}, d={self.width}, {self.heads} heads"


CASES = [
    MLP(32, 4, 64, 1, 1000, {OVER_FLOOR: 1.3, OVER_TORCH: 0.4}),
    MLP(32, 4, 16, 4, 1000, {OVER_FLOOR: 1.5, OVER_TORCH: 0.4}),
    MLP(128, 8, 256, 1, 100, {OVER_FLOOR: 1.05}),
    MLP(128, 8, 32, 8, 100, {OVER_FLOOR: 1.12, OVER_TORCH: 0.7}),
    MLP(1024, 8, 512, 1, 3, {OVER_FLOOR: 1.03}),
    MLP(1024, 8, 64, 8, 3, {OVER_FLOOR: 1.03}),
    Block(4, 16, 32, 4, 1000, {OVER_TORCH: 0.8}),
    Block(8, 64, 128, 4, 100, {OVER_TORCH: 0.9}),
    Block(4, 128, 512, 8, 10, {OVER_TORCH: 1.2}),
]


def mlp_of(case):
    return mlp(case.width, case.layers).initialise(0)


def batch_of(case):
    generator = np.random.default_rng(0)
    shape = (case.size * case.microbatches, case.width)
    return tuple(generator.standard_normal(shape).astype(np.float32) for _ in range(2))


def autograd_step(model, case):
    """Return the step of somebody who writes the loop with minipipe's tensors."""
    inputs, targets = batch_of(case)
    loss, optimiser = nn.MSELoss(), optim.SGD(model.parameters(), LEARNING_RATE)
    parts = split_microbatches(len(inputs), case.microbatches)

    def step():
        optimiser.zero_grad()
        total = 0.0
        for part in parts:
            value = loss(model(Tensor(inputs[part])), Tensor(targets[part]))
            value.backward(1 / case.microbatches)
            total += value.item()
        optimiser.step()
        return total / case.microbatches

    return step


def block_of(case):
    return nn.TransformerBlock(case.width, case.heads, is_causal=True).initialise(0)


def arrays_of(case):
    """Return an input of the block, and a gradient of its result."""
    generator = np.random.default_rng(0)
    shape = (case.samples, case.length, case.width)
    return tuple(generator.standard_normal(shape).astype(np.float32) for _ in range(2))


def block_step(block, case):
    """Return a step that returns the result, the input's gradient, and that of the
    first product's weight.
    """
    array, gradient = arrays_of(case)
    weight = block.attention.layers[1].projections.weight
    parameters = list(block.parameters())

    def step():
        for parameter in parameters:
            parameter.zero_grad()
        x = Tensor(array, requires_grad=True)
        result = block(x)
        result.backward(gradient)
        return result.data, x.grad, weight.grad

    return step


def split_case(case):
    """Return a model, and a function that runs it forward and then back with the walk
    that is given.
    """
    if isinstance(case, Block):
        model, (array, gradient) = block_of(case), arrays_of(case)

        def run(walk):
            model.zero_grad()
            walk({model(stage_input(array)).node: gradient})

        return model, run
    model, (inputs, targets), loss = mlp_of(case), batch_of(case), nn.MSELoss()

    def run(walk):
        model.zero_grad()
        for part in split_microbatches(len(inputs), case.microbatches):
            value = loss(model(stage_input(inputs[part])), Tensor(targets[part]))
            walk({value.node: value.seed_gradient(1 / case.microbatches)})

    return model, run


def stage_input(array):
    """Return a tensor as a pipeline's stage makes it of what it receives: what depends
    on it is an activation.
    """
    tensor = Tensor(array)
    tensor.node = autograd.StageInput(True, tensor.data)
    return tensor
