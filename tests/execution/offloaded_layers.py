"""Layers whose graphs refer to parameters in many ways, for tests of offloading and of
fully sharded replicas.
"""

from types import SimpleNamespace

import numpy as np

from minipipe import Tensor, functional, nn
from minipipe.core.tensor import record

X = np.random.default_rng(0).standard_normal((8, 6))
IDS = np.random.default_rng(1).integers(0, 6, (8, 4))
IMAGES = np.random.default_rng(2).standard_normal((8, 2, 4, 4))
SEQUENCES = np.random.default_rng(3).standard_normal((8, 4, 6))


def linear():
    return nn.Linear(6, 6, dtype=np.float64)


class Of(nn.Module):
    """A layer of two parameters, and a function of it and its input."""

    def __init__(self, function):
        self.a = nn.Parameter(1.5 + np.arange(36.0).reshape(6, 6) / 36)
        self.b = nn.Parameter(2.5 - np.arange(36.0).reshape(6, 6) / 36)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def of_views(layer, x):
    """Use views of views of a parameter."""
    turned = layer.a.transpose().reshape(4, 9)[1:3].reshape(3, 6).T[:, ::-1]
    return (x @ turned) @ turned.T * layer.b[2:4][1]


def of_products(layer, x):
    """Compute with parameters alone, so that W needs the values of both."""
    return x @ (layer.a * layer.b) + functional.linear(layer.a, layer.b)[0]


def strided(layer, x):
    """Look at a parameter through an array that refers to it by an object of another
    class.
    """
    w = np.lib.stride_tricks.as_strided(layer.a.data, (6, 6), layer.a.data.strides)
    both = record(
        layer.a.data * layer.b.data,
        (layer.a, lambda g: g * layer_b),
        (layer.b, lambda g: g * w),
    )
    layer_b = np.asarray(memoryview(layer.b.data))
    return (
        record(x.data @ w, (x, lambda g: g @ w.T), (layer.a, lambda g: x.data.T @ g))
        @ both
    )


def by_defaults(layer, x):
    """Keep values in the defaults of vjps."""
    a, b = layer.a.data, layer.b.data
    return x @ record(
        a * b, (layer.a, lambda g, b=b: g * b), (layer.b, lambda g, *, a=a: g * a)
    )


def by_an_object(layer, x):
    """Keep values in an object."""
    kept = SimpleNamespace(a=layer.a.data, b=layer.b.data)
    return x @ record(
        kept.a * kept.b,
        (layer.a, lambda g: g * kept.b),
        (layer.b, lambda g: g * kept.a),
    )


def by_a_method(layer, x):
    """Keep values in what a method of an array belongs to."""
    a, b = layer.a.data, layer.b.data
    return x @ record(a * b, (layer.a, b.__mul__), (layer.b, a.__mul__))


def by_itself(layer, x):
    """Refer to a function that refers to itself, and to a variable that has no value
    yet.
    """
    a, b = layer.a.data, layer.b.data

    def times(g, factors):
        return g if not factors else times(g * factors[0], factors[1:])

    def later():
        return never

    product = record(
        a * b,
        (layer.a, lambda g: times(g, [b]) if later else g),
        (layer.b, lambda g: times(g, [a])),
    )
    if layer is None:
        never = 1
    return x @ product


class Scaled(nn.Module):
    """Has constants of its own, which all of its graphs refer to: a tensor, an array,
    and one that a function keeps.
    """

    def __init__(self):
        self.tensor, self.array = Tensor(np.full(6, 1.5)), np.full(6, 0.5)
        self.factor = _keeping(np.full(6, 1.25))

    def forward(self, x):
        tensor, array, factor = self.tensor, self.array, self.factor
        data = x.data * tensor.data * array * factor()
        return record(data, (x, lambda g: g * tensor.data * array * factor()))


def _keeping(array):
    return lambda: array


GLOBAL = _keeping(np.full(6, 1.75))  # which no layer refers to


def scaled_by(x, factor):
    return record(x.data * factor(), (x, lambda g: g * factor()))


def tied():
    embedding = nn.Embedding(6, 6, dtype=np.float64)
    return [embedding, linear(), nn.Tanh(), nn.Unembedding(embedding)]


def attention():
    return nn.MultiHeadAttention(6, 2, is_causal=True, dtype=np.float64)


# By name: the layers, and a batch of inputs.
LAYERS = {
    "linear": (lambda: [linear(), nn.Tanh(), linear(), nn.GELU()], X),
    "block": (
        lambda: [linear(), nn.TransformerBlock(6, 2, dtype=np.float64), linear()],
        SEQUENCES,
    ),
    "attention": (
        lambda: [
            linear(),
            nn.Residual(nn.LayerNorm(6, dtype=np.float64), attention()),
            linear(),
        ],
        SEQUENCES,
    ),
    "tied": (tied, IDS),
    "convolution": (
        lambda: [
            nn.Conv2d(2, 3, 3, padding=1, dtype=np.float64),
            nn.ReLU(),
            nn.Conv2d(3, 2, 1, dtype=np.float64),
        ],
        IMAGES,
    ),
    "lstm": (lambda: [linear(), nn.LSTM(6, 5, dtype=np.float64)], SEQUENCES),
    "views": (lambda: [linear(), Of(of_views), linear()], X),
    "products": (lambda: [linear(), Of(of_products), linear()], X),
    "strided": (lambda: [linear(), Of(strided), linear()], X),
    "defaults": (lambda: [linear(), Of(by_defaults), linear()], X),
    "object": (lambda: [linear(), Of(by_an_object), linear()], X),
    "method": (lambda: [linear(), Of(by_a_method), linear()], X),
    "itself": (lambda: [linear(), Of(by_itself), linear()], X),
    "constants": (
        lambda: [
            linear(),
            Scaled(),
            nn.Function(lambda x: scaled_by(x, GLOBAL)),
            linear(),
        ],
        X,
    ),
    "recomputed": (
        lambda: [
            nn.Recompute(nn.Sequential(linear(), nn.Tanh(), linear())),
            Of(of_views),
        ],
        X,
    ),
}
