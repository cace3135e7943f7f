"""First values of parameters: each function returns ``(generator, shape) -> values``.

The core has the initialisers of its own layers (``core/nn/initialisers.py``).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.random import Generator

from minipipe.core.autograd.backend import Shape
from minipipe.core.nn.initialisers import Initialiser as Initialiser
from minipipe.core.nn.initialisers import constant as constant
from minipipe.core.nn.initialisers import generator_for as generator_for
from minipipe.core.nn.initialisers import he_uniform as he_uniform
from minipipe.core.nn.initialisers import uniform as uniform
from minipipe.hints import names_of

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
__getattr__ = names_of(__name__, __all__)


def normal(std: float) -> Initialiser:
    """Draw from the normal distribution with mean 0 and this standard deviation.

    Examples
    --------
    >>> values = normal(std=0.02)(np.random.default_rng(0), (100, 100))
    >>> values.shape, round(float(values.std()), 3)
    ((100, 100), 0.02)
    """
    return partial(_drawn_normal, std)


def truncated_normal(std: float, bound: float = 2.0) -> Initialiser:
    """Draw as :func:`normal` does, and redraw values beyond ``bound`` times ``std``.

    The remaining values have a smaller standard deviation than ``std``: 0.88 of it for
    the default bound.

    References
    ----------
    Devlin et al. 2018, "BERT", whose published code draws so, with 0.02.

    Examples
    --------
    >>> values = truncated_normal(std=0.02, bound=2)(np.random.default_rng(0), (1000,))
    >>> bool((abs(values) <= 0.04).all())
    True
    """
    return partial(_drawn_within, std, bound)


def he_normal(fan_in: int) -> Initialiser:
    """Draw from a normal distribution of variance 2 / fan_in, which keeps the variance
    of activations through ReLUs.

    References
    ----------
    He et al. 2015, "Delving deep into rectifiers", equation 10.

    Examples
    --------
    The root of 2 / 50 is a fifth.

    >>> values = he_normal(fan_in=50)(np.random.default_rng(0), (100, 100))
    >>> round(float(values.std()), 2)
    0.2
    """
    return normal(math.sqrt(2 / max(1, fan_in)))


def glorot_uniform(fan_in: int, fan_out: int) -> Initialiser:
    """Draw uniformly from ±sqrt(6 / (fan_in + fan_out)), a compromise of forward and
    backward, for tanh and softmax.

    References
    ----------
    Glorot, Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks", equation 16.

    Examples
    --------
    The root of 6 / 24 is a half.

    >>> values = glorot_uniform(fan_in=16, fan_out=8)(np.random.default_rng(0), (1000,))
    >>> round(float(abs(values).max()), 2)
    0.5
    """
    bound = math.sqrt(6 / max(1, fan_in + fan_out))
    return uniform(-bound, bound)


def glorot_normal(fan_in: int, fan_out: int) -> Initialiser:
    """Draw from a normal distribution of variance 2 / (fan_in + fan_out), the variance
    of :func:`glorot_uniform`.

    References
    ----------
    Glorot, Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks", equation 12.

    Examples
    --------
    The root of 2 / 50 is a fifth.

    >>> values = glorot_normal(fan_in=30, fan_out=20)(
    ...     np.random.default_rng(0), (100, 100)
    ... )
    >>> round(float(values.std()), 2)
    0.2
    """
    return normal(math.sqrt(2 / max(1, fan_in + fan_out)))


def lecun_normal(fan_in: int) -> Initialiser:
    """Draw from a normal distribution of variance 1 / fan_in, which keeps the variance
    through linear layers.

    References
    ----------
    LeCun et al. 1998, "Efficient BackProp", equation 16.

    Examples
    --------
    The root of 1 / 25 is a fifth.

    >>> values = lecun_normal(fan_in=25)(np.random.default_rng(0), (100, 100))
    >>> round(float(values.std()), 2)
    0.2
    """
    return normal(math.sqrt(1 / max(1, fan_in)))


# -- functions of this module rather than closures, so that a parameter can be pickled -


def _drawn_normal(std: float, generator: Generator, shape: Shape) -> np.ndarray:
    return generator.normal(0.0, std, shape)


def _drawn_within(
    std: float, bound: float, generator: Generator, shape: Shape
) -> np.ndarray:
    values = np.asarray(generator.normal(0.0, std, shape))
    while (outside := np.abs(values) > bound * std).any():
        values[outside] = generator.normal(0.0, std, int(outside.sum()))
    return values
