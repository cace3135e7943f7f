"""Activation functions, which stand between the products of a network."""

from __future__ import annotations

import math

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.functional.error_function import erf_of_array
from minipipe.tensor import Operand, Tensor, as_real, as_tensor, record


def tanh(a: Operand) -> Tensor:
    """Return the hyperbolic tangent of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.tanh(Tensor([0.0, 100.0]))
    Tensor([0., 1.])
    """
    a = as_real(a)
    result = array_module(a.data).tanh(a.data)
    return record(result, (a, lambda g: g * (1 - result * result)))


def sigmoid(a: Operand) -> Tensor:
    """Return 1 / (1 + e^-a), from e^-|a|, so that nothing overflows and small results are exact, too.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.sigmoid(Tensor([-1000.0, 0.0]))
    Tensor([0. , 0.5])
    """
    a = as_real(a)
    result = _sigmoid(a.data)
    return record(result, (a, lambda g: g * (result * (1 - result))))


def _sigmoid(x: Array) -> Array:
    xp = array_module(x)
    small = xp.exp(-xp.abs(x))
    one_or_small = xp.maximum(small, xp.astype(x >= 0, x.dtype))  # np.where takes five times as long
    return one_or_small / (1 + small)


def relu(a: Operand) -> Tensor:
    """Return a where it is positive, and 0 elsewhere. The gradient at 0 is 0.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([-2.0, 0.0, 3.0], requires_grad=True)
    >>> functional.relu(x).sum().backward()
    >>> x.grad
    array([0., 0., 1.], dtype=float32)
    """
    a = as_tensor(a)
    xp = array_module(a.data)
    # A row of zeros, because NumPy takes twice as long over a large array and a number.
    result = xp.maximum(a.data, xp.zeros(a.shape[-1:], dtype=a.data.dtype))
    return record(result, (a, lambda g: backend.masked(g, result > 0)))


def silu(a: Operand) -> Tensor:
    """Return a times the sigmoid of a, also called swish.

    References
    ----------
    Elfwing, Uchibe, Doya 2018, "Sigmoid-weighted linear units", equation 1.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.silu(Tensor([0.0, 100.0]))
    Tensor([  0., 100.])
    """
    a = as_real(a)
    gate = _sigmoid(a.data)
    result = a.data * gate
    return record(result, (a, lambda g: g * (gate + result * (1 - gate))))


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
