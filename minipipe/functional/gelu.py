"""The sigmoid, Gaussian and sigmoid-weighted linear units, and the error function, which
NumPy does not have.
"""

from __future__ import annotations

import math

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.core.functional.operands import one_real
from minipipe.core.tensor import op


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


# Coefficients of polynomials, the constant first. float64: Cody's tables, a ratio of
# each pair.
_NEAR_TOP = _numbers(
    """
    3.20937758913846947e3 3.77485237685302021e2 1.13864154151050156e2
    3.16112374387056560 1.85777706184603153e-1
    """
)
_NEAR_BOTTOM = _numbers(
    """
    2.84423683343917062e3 1.28261652607737228e3 2.44024637934444173e2
    2.36012909523441209e1 1.0
    """
)
_FAR_TOP = _numbers(
    """
    1.23033935479799725e3 2.05107837782607147e3 1.71204761263407058e3
    8.81952221241769090e2 2.98635138197400131e2 6.61191906371416295e1
    8.88314979438837594 5.64188496988670089e-1 2.15311535474403846e-8
    """
)
_FAR_BOTTOM = _numbers(
    """
    1.23033935480374942e3 3.43936767414372164e3 4.36261909014324716e3
    3.29079923573345963e3 1.62138957456669019e3 5.37181101862009858e2
    1.17693950891312499e2 1.57449261107098347e1 1.0
    """
)
# float32: one ratio for all x, as in Eigen and XLA.
_SINGLE_TOP = _numbers(
    """
    -1.60960333262415e-2 -2.95459980854025e-3 -7.34990630326855e-4 -5.69250639462346e-5
    -2.10102402082508e-6 2.77068142495902e-8 -2.72614225801306e-10
    """
)
_SINGLE_BOTTOM = _numbers(
    """
    -1.42647390514189e-2 -7.37332916720468e-3 -1.68282697438203e-3 -2.13374055278905e-4
    -1.45660718464996e-5
    """
)


@op(takes=one_real, in_float32=True)
def erf(a: Array) -> Array:
    """Return the error function of a, 2 / sqrt(pi) times the integral of e^(-t^2) from
    0 to a.

    The error is at most 3e-16 in float64 and 5e-7 in float32.

    References
    ----------
    Cody 1969, "Rational Chebyshev approximations for the error function", for float64;
    the function ``generic_fast_erf_float`` of Eigen 3.3 for float32.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.erf(Tensor([0.0, 1.0, 10.0])).numpy().round(4)
    array([0.    , 0.8427, 1.    ], dtype=float32)
    """
    return erf_of_array(a)


erf.gradients(a=lambda g, a: g * (2 / math.sqrt(math.pi) * array_module(a).exp(-a * a)))


def erf_of_array(x: Array) -> Array:
    """Return the error function of an array of real numbers; see :func:`erf`."""
    if x.dtype == array_module(x).float64:
        return _erf_double(x)
    return _erf_single(x)


def _erf_single(x: Array) -> Array:
    x = array_module(x).clip(x, -4.0, 4.0)  # erf(4) is 1 to 1.5e-8
    square = x * x
    result = _polynomial(square, _SINGLE_TOP)
    result *= x
    result /= _polynomial(square, _SINGLE_BOTTOM)
    return result


def _erf_double(x: Array) -> Array:
    """Compute both of Cody's forms everywhere, each within its bounds, and choose.
    Beyond 6 erf is 1 to 3e-17.
    """
    xp = array_module(x)
    border = 0.46875
    size = xp.clip(xp.abs(x), 0.0, 6.0)
    small = xp.clip(size, 0.0, border)
    large = xp.clip(size, border, 6.0)
    square = small * small
    near = small * _polynomial(square, _NEAR_TOP) / _polynomial(square, _NEAR_BOTTOM)
    top = _polynomial(large, _FAR_TOP)
    bottom = _polynomial(large, _FAR_BOTTOM)
    far = 1 - xp.exp(-large * large) * top / bottom
    return xp.copysign(xp.where(size <= border, near, far), x)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return c0 + c1 x + c2 x^2 + …, in place except for the first product (Horner's
    scheme).
    """
    *others, last = backend.scalars(x, *coefficients)
    result = x * last
    for coefficient in reversed(others[1:]):
        result += coefficient
        result *= x
    result += others[0]
    return result


@op(takes=one_real, attributes="approximate", saves="slope", in_float32=True)
def gelu(a: Array, approximate: bool = False) -> Arrays:
    """Return a times the probability that a standard normal number is smaller than a.

    Parameters
    ----------
    a : Tensor of any shape
    approximate : bool
        Whether to take the form with tanh, as GPT-2 does, faster and up to 5e-4 away.

    Notes
    -----
    The slope is computed together with the value, so that one array waits for the
    backward pass and not two.

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
    if approximate:
        return _gelu_with_tanh(a)
    return _gelu_with_erf(a)


gelu.gradients(a=lambda g, slope: g * slope)


def _gelu_with_erf(x: Array) -> Arrays:
    """Return x P(x) and its slope P(x) + x p(x); P is the distribution function of a
    normal number, p its density.
    """
    root, half, minus_half, one, factor = backend.scalars(
        x, math.sqrt(0.5), 0.5, -0.5, 1, math.sqrt(0.5 / math.pi)
    )
    probability = erf_of_array(x * root)
    probability += one
    probability *= half
    slope = x * x
    slope *= minus_half
    slope = array_module(x).exp(slope)
    slope *= x
    slope *= factor
    slope += probability
    probability *= x
    return probability, slope


_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _SCALE


def _gelu_with_tanh(x: Array) -> Arrays:
    """Return x P(x) and its slope P(x) + x P'(x), where P(x) = (1 + tanh(c (x +
    0.044715 x^3))) / 2.
    """
    scale, cubic, slope_of_cubic, half, one, two = backend.scalars(
        x, _SCALE, _CUBIC, 3 * _CUBIC, 0.5, 1, 2
    )
    slope = x * x
    inner = slope * cubic
    inner += scale
    inner *= x
    twice = array_module(x).tanh(inner)
    twice += one
    # tanh' = 1 - tanh^2 = 4 P (1 - P), so P' = P (2 - 2 P) times the slope of the
    # argument.
    slope *= slope_of_cubic
    slope += scale
    slope *= x
    slope *= two - twice
    slope += one
    twice *= half
    slope *= twice
    return x * twice, slope


@op(takes=one_real)
def sigmoid(a: Array) -> Array:
    """Return ``1 / (1 + e^-a)``, from ``e^-|a|``, so that nothing overflows and small
    results are exact.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.sigmoid(Tensor([-1000.0, 0.0]))
    Tensor([0. , 0.5])
    """
    return sigmoid_of_array(a)


sigmoid.gradients(a=lambda g, result: g * (result * (1 - result)))


def sigmoid_of_array(x: Array) -> Array:
    """Return the sigmoid of an array, element by element."""
    xp = array_module(x)
    if backend.is_half(x.dtype):
        return backend.as_array(
            sigmoid_of_array(backend.as_array(x, xp.float32)), x.dtype
        )
    zero, one = backend.scalars(x, 0, 1)
    small = xp.exp(-xp.abs(x))
    # np.where takes five times as long
    one_or_small = xp.maximum(small, xp.astype(x >= zero, x.dtype))
    return one_or_small / (one + small)


@op(takes=one_real, saves="gate")
def silu(a: Array) -> Arrays:
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
    gate = sigmoid_of_array(a)
    return a * gate, gate


silu.gradients(a=lambda g, result, gate: g * (gate + result * (1 - gate)))
