"""First values of parameters. Each function returns ``(generator, shape) -> values``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

__all__ = [
    "Initialiser",
    "constant",
    "generator_for",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "normal",
    "truncated_normal",
    "uniform",
]

Initialiser = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def constant(value: float) -> Initialiser:
    """Fill with one value."""
    return lambda generator, shape: np.full(shape, value)


def normal(std: float) -> Initialiser:
    """Draw from the normal distribution with mean 0 and this standard deviation."""
    return lambda generator, shape: generator.normal(0.0, std, shape)


def uniform(low: float, high: float) -> Initialiser:
    """Draw uniformly from low to high."""
    return lambda generator, shape: generator.uniform(low, high, shape)


def truncated_normal(std: float, bound: float = 2.0) -> Initialiser:
    """Draw as :func:`normal` does, and again whatever lies beyond ``bound`` times ``std``.

    What remains has a smaller standard deviation than ``std``: 0.88 of it for the default bound.

    References
    ----------
    Devlin et al. 2018, "BERT", whose published code draws so, with 0.02.
    """

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = np.asarray(generator.normal(0.0, std, shape))
        while (outside := np.abs(values) > bound * std).any():
            values[outside] = generator.normal(0.0, std, int(outside.sum()))
        return values

    return draw


def he_uniform(fan_in: int) -> Initialiser:
    """Draw uniformly from ±sqrt(6 / fan_in), which keeps the variance of activations through ReLUs.

    References
    ----------
    He et al. 2015, "Delving deep into rectifiers", equation 10. (PyTorch's Linear uses ±1/sqrt(fan_in), too little
    for a deep plain network.)
    """
    bound = math.sqrt(6 / max(1, fan_in))
    return uniform(-bound, bound)


def he_normal(fan_in: int) -> Initialiser:
    """Draw from a normal distribution of variance 2 / fan_in, which keeps the variance of activations through ReLUs.

    References
    ----------
    He et al. 2015, "Delving deep into rectifiers", equation 10.
    """
    return normal(math.sqrt(2 / max(1, fan_in)))


def glorot_uniform(fan_in: int, fan_out: int) -> Initialiser:
    """Draw uniformly from ±sqrt(6 / (fan_in + fan_out)): forward and backward weigh alike, for tanh and softmax.

    References
    ----------
    Glorot, Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", equation 16.
    """
    bound = math.sqrt(6 / max(1, fan_in + fan_out))
    return uniform(-bound, bound)


def glorot_normal(fan_in: int, fan_out: int) -> Initialiser:
    """Draw from a normal distribution of variance 2 / (fan_in + fan_out), that of :func:`glorot_uniform`.

    References
    ----------
    Glorot, Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", equation 12.
    """
    return normal(math.sqrt(2 / max(1, fan_in + fan_out)))


def lecun_normal(fan_in: int) -> Initialiser:
    """Draw from a normal distribution of variance 1 / fan_in, which keeps the variance through linear layers.

    References
    ----------
    LeCun et al. 1998, "Efficient BackProp", equation 16.
    """
    return normal(math.sqrt(1 / max(1, fan_in)))


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Return a generator of its own for each (seed, parameter name), so that no partition changes first values."""
    key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype="<u8").astype(np.uint64)))
