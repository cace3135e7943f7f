"""The models of gpu_models.py in PyTorch, from the same first values."""

import numpy as np
import torch
from gpu_models import BETAS, DECAY, EPSILON, RATE, batch_of, model_of
from torch.nn import functional

from minipipe import nn

__all__ = ["eager_step", "graph_step", "torch"]


def parameter(ours, is_transposed=False):
    values = torch.from_numpy(ours.data)
    return torch.nn.Parameter((values.T if is_transposed else values).clone())


def linear(layer):
    """Return PyTorch's layer with the same values; its weight is the transpose."""
    twin = torch.nn.Linear(*layer.weight.shape, device="meta")
    twin.weight = parameter(layer.weight, is_transposed=True)
    twin.bias = parameter(layer.bias)
    return twin


def norm(layer):
    twin = torch.nn.LayerNorm(layer.weight.shape[0], layer.epsilon, device="meta")
    twin.weight, twin.bias = parameter(layer.weight), parameter(layer.bias)
    return twin


class Block(torch.nn.Module):
    """A block that normalises first, as nn.TransformerBlock does."""

    def __init__(self, block, heads):
        super().__init__()
        first, attention = block.attention.layers
        second, wide, _, narrow = block.network.layers
        self.first, self.second = norm(first), norm(second)
        self.projections = linear(attention.projections)
        self.output = linear(attention.output)
        self.wide, self.narrow = linear(wide), linear(narrow)
        self.heads = heads

    def forward(self, x):
        n, t, d = x.shape
        shape = n, t, 3, self.heads, d // self.heads
        parts = self.projections(self.first(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(n, t, d))
        wide = functional.gelu(self.wide(self.second(x)), approximate="tanh")
        return x + self.narrow(wide)


class Embeddings(torch.nn.Module):
    """The sum of the vectors of a token and of its position."""

    def __init__(self, tokens, positions):
        super().__init__()
        self.tokens, self.positions = parameter(tokens), parameter(positions)

    def forward(self, ids):
        return functional.embedding(ids, self.tokens) + self.positions[: ids.shape[1]]


def network_of(case, model):
    """Return PyTorch's network with the values of ours."""
    if not case.is_text:
        layers = [
            linear(each) if isinstance(each, nn.Linear) else torch.nn.ReLU()
            for each in model.layers
        ]
        return torch.nn.Sequential(*layers)
    table, positions, *blocks, last, scores = model.layers
    return torch.nn.Sequential(
        Embeddings(table.weight, positions.weight),
        *(Block(block, case.heads) for block in blocks),
        norm(last),
        linear(scores),
    )


class Training:
    """A network, its batch on the device, and its optimiser."""

    def __init__(self, case, device, dtype):
        self.case = case
        self.network = network_of(case, model_of(case, dtype)).to(device)
        arrays = (torch.from_numpy(array) for array in batch_of(case, dtype))
        size = case.batch // case.microbatches
        self.parts = [array.to(device).split(size) for array in arrays]
        options = {"lr": RATE, "fused": device == "cuda"}
        own = self.network.parameters()
        if case.is_text:
            options |= {"betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}
            self.optimiser = torch.optim.AdamW(own, **options)
        else:
            self.optimiser = torch.optim.SGD(own, **options)

    def gradients(self):
        """Compute the gradients of all microbatches; return the loss."""
        total = 0.0
        for x, y in zip(*self.parts):
            found = self.network(x)
            if self.case.is_text:
                loss = functional.cross_entropy(found.flatten(0, 1), y.flatten())
            else:
                loss = functional.mse_loss(found, y)
            loss = loss / self.case.microbatches
            loss.backward()
            total = total + loss.detach()
        return total


def eager_step(case, device="cuda", dtype=np.float32):
    """Return a function that trains for a step and returns its loss."""
    training = Training(case, device, dtype)

    def step():
        training.optimiser.zero_grad(set_to_none=True)
        total = training.gradients()
        training.optimiser.step()
        return total.item()

    return step


def graph_step(case):
    """Return the same, with forward and backward of all microbatches in one CUDA graph."""
    training = Training(case, "cuda", np.float32)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.optimiser.zero_grad(set_to_none=True)
            training.gradients()
    torch.cuda.current_stream().wait_stream(stream)
    training.optimiser.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = training.gradients()

    def step():
        graph.replay()
        training.optimiser.step()
        return total.item()

    return step
