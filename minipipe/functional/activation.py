"""Activation functions, which stand between the products of a network."""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
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
    if backend.is_half(x.dtype):
        return backend.as_array(_sigmoid(backend.as_array(x, xp.float32)), x.dtype)
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
