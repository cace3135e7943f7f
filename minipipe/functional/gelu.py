"""The Gaussian error linear unit, with its slope."""

from __future__ import annotations

import math

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.functional.error_function import erf_of_array
from minipipe.functional.precision import in_float32
from minipipe.tensor import Operand, Tensor, as_real, record


def gelu(a: Operand, approximate: bool = False) -> Tensor:
    """Return a times the probability that a standard normal number is smaller than a.

    Parameters
    ----------
    a : Tensor of any shape
    approximate : bool
        Whether to take the form with tanh, as GPT-2 does, faster and up to 5e-4 away.

    Notes
    -----
    The slope is computed beside the value, so that one array waits for the backward pass and not two.

    References
    ----------
    Hendrycks, Gimpel 2016, "Gaussian error linear units (GELUs)", section 2.

    Examples
    --------
    A standard normal number is smaller than 1 with probability 0.8413.

    >>> from minipipe import Tensor, functional
    >>> functional.gelu(Tensor([0.0, 1.0])).numpy().round(4)
    array([0.    , 0.8413], dtype=float32)
    """
    a = as_real(a)
    if backend.is_half(a.dtype):
        return in_float32(gelu, a, approximate=approximate)
    result, slope = (_gelu_with_tanh if approximate else _gelu_with_erf)(a.data)
    return record(result, (a, lambda g: g * slope))


def _gelu_with_erf(x: Array) -> tuple[Array, Array]:
    """Return x P(x) and its slope P(x) + x p(x); P is the distribution function of a normal number, p its density."""
    probability = erf_of_array(x * math.sqrt(0.5))
    probability += 1
    probability *= 0.5
    slope = x * x
    slope *= -0.5
    slope = array_module(x).exp(slope)
    slope *= x
    slope *= math.sqrt(0.5 / math.pi)
    slope += probability
    probability *= x
    return probability, slope


def _gelu_with_tanh(x: Array) -> tuple[Array, Array]:
    """Return x P(x) and its slope P(x) + x P'(x), where P(x) = (1 + tanh(c (x + 0.044715 x^3))) / 2."""
    scale = math.sqrt(2 / math.pi)
    square = x * x
    inner = square * (0.044715 * scale)
    inner += scale
    inner *= x
    probability = array_module(x).tanh(inner)
    probability += 1
    probability *= 0.5
    # tanh' = 1 - tanh^2 = 4 P (1 - P), so P' = 2 P (1 - P) times the slope of what stands inside.
    slope = square
    slope *= 3 * 0.044715 * scale
    slope += scale
    slope *= x
    slope *= 2 * (1 - probability)
    slope += 1
    slope *= probability
    return x * probability, slope
