"""First values of parameters. Each function returns ``(generator, shape) ->
values``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.random import Generator

from minipipe.core.autograd.backend import Shape
from minipipe.core.specs import INDEX

Initialiser = Callable[[Generator, Shape], np.ndarray]


def constant(value: float) -> Initialiser:
    """Fill with one value.

    Examples
    --------
    >>> constant(0.5)(np.random.default_rng(0), (2,))
    array([0.5, 0.5])
    """
    return partial(_filled, value)


def uniform(low: float, high: float) -> Initialiser:
    """Draw uniformly from low to high.

    Examples
    --------
    >>> values = uniform(-0.5, 0.5)(np.random.default_rng(0), (1000,))
    >>> bool((abs(values) <= 0.5).all()), round(float(values.max()), 1)
    (True, 0.5)
    """
    return partial(_drawn_uniform, low, high)


def he_uniform(fan_in: int) -> Initialiser:
    """Draw uniformly from ±sqrt(6 / fan_in), which keeps the variance of activations
    through ReLUs.

    References
    ----------
    He et al. 2015, "Delving deep into rectifiers", equation 10. (PyTorch's Linear uses
    ±1/sqrt(fan_in), too little for a deep plain network.)

    Examples
    --------
    The root of 6 / 24 is a half.

    >>> values = he_uniform(fan_in=24)(np.random.default_rng(0), (1000,))
    >>> round(float(abs(values).max()), 2)
    0.5
    """
    bound = math.sqrt(6 / max(1, fan_in))
    return uniform(-bound, bound)


def generator_for(seed: int, name: str) -> Generator:
    """Return a separate generator for each (seed, parameter name), so that no partition
    changes first values.

    Examples
    --------
    >>> first, again, other = (
    ...     generator_for(0, name).random()
    ...     for name in ("0.weight", "0.weight", "1.weight")
    ... )
    >>> first == again, first == other
    (True, False)
    """
    INDEX.check("seed", seed)
    key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    numbers = np.frombuffer(key, dtype="<u8").astype(np.uint64)
    return Generator(np.random.Philox(key=numbers))


# -- functions of this module rather than closures, so that a parameter can be pickled -


def _filled(value: float, generator: Generator, shape: Shape) -> np.ndarray:
    return np.full(shape, value)


def _drawn_uniform(
    low: float, high: float, generator: Generator, shape: Shape
) -> np.ndarray:
    return generator.uniform(low, high, shape)
