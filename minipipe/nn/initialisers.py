"""First values of parameters. Each function returns ``(generator, shape) -> values``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

__all__ = ["Initialiser", "constant", "generator_for", "he_uniform"]

Initialiser = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def constant(value: float) -> Initialiser:
    """Fill with one value."""
    return lambda generator, shape: np.full(shape, value)


def he_uniform(fan_in: int) -> Initialiser:
    """Draw uniformly from ±sqrt(6 / fan_in), which keeps the variance of activations through ReLUs.

    References
    ----------
    He et al. 2015, "Delving deep into rectifiers", equation 10. (PyTorch's Linear uses ±1/sqrt(fan_in), too little
    for a deep plain network.)
    """
    bound = math.sqrt(6 / max(1, fan_in))
    return lambda generator, shape: generator.uniform(-bound, bound, shape)


def generator_for(seed: int, name: str) -> np.random.Generator:
    """Return a generator of its own for each (seed, parameter name), so that no partition changes first values."""
    key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype="<u8").astype(np.uint64)))
