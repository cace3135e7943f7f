"""Stages to compile, rows to run them in, and losses."""

from functools import partial

import numpy as np

from minipipe import functional, nn
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.tensor import record
from tests.compile.driver import Job, seeds

WIDTH, CLASSES = 8, 5
FLAT, OF_TOKENS = (6, WIDTH), (3, 4, WIDTH)
ROWS = {
    "1f1b": [("F", 0), ("B", 0), ("F", 1), ("B", 1), ("F", 2), ("B", 2)],
    "gpipe": [("F", 0), ("F", 1), ("F", 2), ("B", 2), ("B", 1), ("B", 0)],
    "interleaved": [("F", 1), ("F", 0), ("B", 0), ("F", 2), ("B", 1), ("B", 2)],
}
HALVES = {
    "zb-h1": [(kind, k) for k in range(3) for kind in "FIW"],
    "late": [(kind, k) for kind in "FIW" for k in range(3)],
    "mixed": [
        *[("F", 0), ("F", 1), ("I", 1), ("F", 2), ("I", 0)],
        *[("W", 0), ("I", 2), ("W", 2), ("W", 1)],
    ],
}


def chain(*layers):
    """Return a function that makes a sequence of layers."""
    return lambda: nn.Sequential(*(make() for make in layers))


def linear(first=WIDTH, last=WIDTH):
    """Return a function that makes a linear layer."""
    return partial(nn.Linear, first, last)


def tied():
    """Return layers of which two have one weight, and one is used twice."""
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), first, nn.ReLU(), last)


class Twice(nn.Module):
    """Uses its weight twice, and its input three times."""

    def __init__(self):
        self.weight = nn.Parameter((WIDTH, WIDTH), nn.initialisers.he_uniform(WIDTH))

    def forward(self, x):
        return functional.tanh(x @ self.weight) @ self.weight + x * x


class Scaled(nn.Module):
    """Has a parameter without axes, and hands on a view."""

    def __init__(self):
        self.scale = nn.Parameter((), nn.initialisers.constant(0.5))

    def forward(self, x):
        return (x * self.scale + self.scale)[:, ::-1]


class WeightSide(nn.Module):
    """Computes with weights before they meet the activations."""

    def __init__(self):
        uniform = nn.initialisers.he_uniform(WIDTH)
        self.left = nn.Parameter((WIDTH, WIDTH), uniform)
        self.right = nn.Parameter((WIDTH, WIDTH), uniform)

    def forward(self, x):
        weight = self.left * self.left.exp() + self.left @ self.right
        return functional.concatenate([x @ weight, x[:, :1]], axis=1)[:, 1:]


class Own(nn.Module):
    """Records an operation with vjps of its own."""

    def forward(self, x):
        data = x.data
        return record(data * data, (x, lambda g: g * data * 2), (x, lambda g: g * 0.0))


class Half(nn.Module):
    """Computes with weights and activations of two bytes."""

    def __init__(self):
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=np.float16)

    def forward(self, x):
        return functional.astype(
            self.linear(functional.astype(x, "float16")), "float32"
        )


def half():
    """Return a layer in half precision."""
    return Half()


def residual():
    """Return a layer with a skip connection."""
    return nn.Residual(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2))


def recomputed():
    """Return layers whose activations are computed twice."""
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh())
    return nn.Recompute(inner)


causal = partial(nn.TransformerBlock, WIDTH, 2, is_causal=True)
MODELS = {
    "mlp": (chain(linear(), nn.ReLU, linear(), nn.ReLU, linear()), FLAT),
    "dropout": (
        chain(
            linear(), partial(nn.Dropout, 0.3), nn.GELU, partial(nn.LayerNorm, WIDTH)
        ),
        FLAT,
    ),
    "tied": (tied, FLAT),
    "twice": (chain(Twice, nn.Sigmoid, Scaled), FLAT),
    "weights alone": (chain(WeightSide, linear(), WeightSide), FLAT),
    "own vjp": (chain(linear(), Own, linear()), FLAT),
    "residual": (chain(residual, nn.SiLU, residual), FLAT),
    "half": (chain(half, nn.ReLU, half, nn.GELU), FLAT),
    "norm": (chain(linear(), partial(nn.RMSNorm, WIDTH), nn.Tanh), FLAT),
    "recomputed": (chain(linear(), recomputed, linear()), FLAT),
    "block": (chain(causal), OF_TOKENS),
    "block with dropout": (chain(partial(causal, dropout=0.2)), OF_TOKENS),
    "blocks": (chain(causal, causal, causal), OF_TOKENS),
    "blocks with dropout": (chain(*[partial(causal, dropout=0.2)] * 3), OF_TOKENS),
    "attention": (chain(partial(nn.MultiHeadAttention, WIDTH, 2)), OF_TOKENS),
    "recurrent": (chain(partial(nn.LSTM, WIDTH, WIDTH)), OF_TOKENS),
    "convolution": (
        chain(
            partial(nn.Conv2d, 2, 2, 3, padding=1), nn.ReLU, partial(nn.MaxPool2d, 2)
        ),
        (3, 2, 4, 4),
    ),
    "line": (chain(partial(nn.Conv1d, 2, 3, 3), partial(nn.AvgPool1d, 2)), (3, 2, 6)),
    "view": (chain(partial(nn.Function, lambda x: x.transpose(1, 0))), FLAT),
    "same": (chain(nn.Identity), FLAT),
}


def job_of(model, shape, loss=None):
    """Return a stage that computes a model, and perhaps the loss."""
    model = model().initialise()

    def inputs(k):
        random = np.random.default_rng(k)
        x = random.normal(size=shape).astype(np.float32)
        if loss is None:
            return [(x, True)]
        if isinstance(loss, nn.CrossEntropyLoss):
            return [(x, True), (random.integers(0, CLASSES, shape[:-1]), False)]
        return [(x, True), (random.normal(size=shape).astype(np.float32), False)]

    def compute(tensors):
        result = model(tensors[0])
        return [result if loss is None else loss(result, tensors[1])]

    parameters = {id(p): p for layer in model for p in parameters_of(layer)}
    return Job(compute, list(parameters.values()), inputs, seeds)


def language_model():
    """Return a first stage: of whole numbers, which have no gradient."""
    layers = nn.Embedding(CLASSES, WIDTH), nn.PositionalEmbedding(4, WIDTH), causal()
    model = nn.Sequential(*layers).initialise()

    def inputs(k):
        ids = np.random.default_rng(k).integers(0, CLASSES, (3, 4))
        return [(ids, False)]

    parameters = {id(p): p for layer in model for p in parameters_of(layer)}
    made = list(parameters.values())
    return Job(lambda tensors: [model(tensors[0])], made, inputs, seeds)


def job_of_function(compute, *shapes):
    """Return a stage without parameters."""

    def inputs(k):
        random = np.random.default_rng(k)
        return [
            (random.normal(size=shape).astype(np.float32), True) for shape in shapes
        ]

    return Job(compute, [], inputs, seeds)
