"""The steps of cases.py in PyTorch, from the same first values."""

import torch
from cases import LEARNING_RATE, arrays_of, batch_of

from minipipe import nn

__all__ = ["block_step", "mlp_step", "torch"]


def mlp_step(model, case):
    parts = [torch.from_numpy(array).split(case.size) for array in batch_of(case)]
    layers = [
        linear(layer) if isinstance(layer, nn.Linear) else torch.nn.ReLU()
        for layer in model
    ]
    network, loss = torch.nn.Sequential(*layers), torch.nn.MSELoss()
    optimiser = torch.optim.SGD(network.parameters(), LEARNING_RATE)
    weight = torch.tensor(1 / case.microbatches)

    def step():
        optimiser.zero_grad()
        total = 0.0
        for x, y in zip(*parts):
            value = loss(network(x), y)
            value.backward(weight)
            total += value.item()
        optimiser.step()
        return total / case.microbatches

    return step


def linear(layer):
    """Return PyTorch's layer with the same values; its weight is the transpose."""
    twin = torch.nn.Linear(*layer.weight.shape)
    with torch.no_grad():
        twin.weight.copy_(torch.from_numpy(layer.weight.data.T))
        twin.bias.copy_(torch.from_numpy(layer.bias.data))
    return twin


def block_step(block, case):
    first, attention = block.attention.layers
    second, wide, _, narrow = block.network.layers
    projections, output, wide, narrow = map(
        linear, (attention.projections, attention.output, wide, narrow)
    )
    first, second = map(norm, (first, second))
    parameters = [
        p
        for layer in (first, projections, output, second, wide, narrow)
        for p in layer.parameters()
    ]
    array, gradient = map(torch.from_numpy, arrays_of(case))
    shape = (case.samples, case.length, 3, case.heads, case.width // case.heads)

    def forward(x):
        heads = projections(first(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + output(mixed.transpose(1, 2).reshape(x.shape))
        return x + narrow(torch.nn.functional.gelu(wide(second(x)), approximate="tanh"))

    def step():
        for parameter in parameters:
            parameter.grad = None
        x = array.detach().requires_grad_()
        result = forward(x)
        result.backward(gradient)
        return (
            result.detach().numpy(),
            x.grad.numpy(),
            projections.weight.grad.numpy().T,
        )

    return step


def norm(layer):
    """Return PyTorch's layer; both begin with ones and zeros."""
    return torch.nn.LayerNorm(layer.weight.shape[0], eps=layer.epsilon)
