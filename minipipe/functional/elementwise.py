"""Operations on each element. Each is defined together with its gradients, one vjp for each input.

============  =======================  ===================================================
operation     result                   gradients, for the gradient g of the result
============  =======================  ===================================================
add           a + b                    g; g
subtract      a - b                    g; -g
multiply      a * b                    g * b; g * a
divide        a / b                    g / b; -g * (a / b) / b
power         a ** b                   g * b * a**(b - 1); g * a**b * log(a)
negative      -a                       -g
exp           e ** a                   g * exp(a)
log           natural logarithm of a   g / a
sqrt          square root of a         g / (2 * sqrt(a))
============  =======================  ===================================================

Operands are tensors, arrays or numbers. Two of them are broadcast: counted from the last axis, lengths are equal or one
of them is 1, and the gradient is summed over the axes that were stretched. Shapes or dtypes that do not fit raise a
TensorError with code ``shape`` or ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.autograd.modes import next_key
from minipipe.errors import TensorError, shape_error
from minipipe.functional.operands import as_real, in_float32, operands
from minipipe.hints import with_hints
from minipipe.tensor import Operand, Tensor, as_tensor, op, record

unbroadcast = backend.unbroadcast


def _broadcast(name: str, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype, whose shapes fit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        x, y = a.data, b.data
        if x.dtype is y.dtype and x.shape == y.shape:
            return a, b
    left, right = operands(a, b)
    check_broadcast(name, left, right)
    return left, right


def check_broadcast(name: str, a: Tensor | Array, b: Tensor | Array) -> None:
    """Refuse operands whose shapes cannot be broadcast.

    Raises
    ------
    TensorError
        Code ``shape``.
    """
    for left, right in zip(reversed(a.shape), reversed(b.shape)):
        if left != right and left != 1 and right != 1:
            raise shape_error(name, "equal lengths or 1, counted from the last axis", left=a.shape, right=b.shape)


@op(takes=partial(_broadcast, "add"), is_broadcast=True)
def add(a: Array, b: Array) -> Array:
    """Return a + b, broadcast.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.add(Tensor([[1.0], [2.0]]), Tensor([10.0, 20.0]))
    Tensor([[11., 21.],
            [12., 22.]])
    """
    return a + b


add.gradients(a=lambda g: g, b=lambda g: g)


@op(takes=partial(_broadcast, "subtract"), is_broadcast=True)
def subtract(a: Array, b: Array) -> Array:
    """Return a - b, broadcast.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.subtract(10, Tensor([1.0, 2.0]))
    Tensor([9., 8.])
    """
    return a - b


subtract.gradients(a=lambda g: g, b=lambda g: -g)


@op(takes=partial(_broadcast, "multiply"), is_broadcast=True)
def multiply(a: Array, b: Array) -> Array:
    """Return a * b, broadcast.

    Examples
    --------
    The gradient of each factor is the other one.

    >>> from minipipe import Tensor, functional
    >>> a, b = Tensor(3.0, requires_grad=True), Tensor(4.0, requires_grad=True)
    >>> functional.multiply(a, b).backward()
    >>> float(a.grad), float(b.grad)
    (4.0, 3.0)
    """
    return a * b


multiply.gradients(a=lambda g, b: g * b, b=lambda g, a: g * a)


def divide(a: Operand, b: Operand) -> Tensor:
    """Return a / b, broadcast.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.divide(Tensor([3.0, 6.0]), 2)
    Tensor([1.5, 3. ])
    """
    a, b = map(as_real, _broadcast("divide", a, b))
    y, a_shape, b_shape = b.data, a.shape, b.shape
    result = a.data / y
    return record(
        result,
        (a, lambda g: unbroadcast(g / y, a_shape)),
        (b, lambda g: unbroadcast(-g * (result / y), b_shape)),  # y * y may be 0 or inf although the quotient is not
    )


def power(a: Operand, b: Operand) -> Tensor:
    """Return a ** b, broadcast. Squares are computed as products, three times as fast.

    The gradient of a base is 0 if the exponent is 0. The gradient of an exponent of at least 0 is 0 if the base is 0.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.power(Tensor([2.0, 3.0]), 3)
    Tensor([ 8., 27.])
    """
    if isinstance(b, int | float) and b == 2:
        a = as_tensor(a)
        x = a.data
        return record(x * x, (a, lambda g: g * (2 * x)))
    a, b = _broadcast("power", a, b)
    xp, x, y, a_shape, b_shape = array_module(a.data), a.data, b.data, a.shape, b.shape
    result = x**y

    def of_base(g: Array) -> Array:
        """Return the gradient of x. At y = 0 the result is 1 for all x, but x ** (y - 1) may be infinite."""
        is_constant = y == 0
        slope = x ** xp.where(is_constant, y, y - 1)
        return unbroadcast(backend.masked(g, ~is_constant) * y * slope, a_shape)

    def of_exponent(g: Array) -> Array:
        """Return the gradient of y. At x = 0 the result is 0 for all y above 0, but log(x) is infinite."""
        is_constant = (x == 0) & (y >= 0)
        logarithm = xp.log(xp.where(is_constant, 1, x))
        return unbroadcast(backend.masked(g, ~is_constant) * result * logarithm, b_shape)

    return record(result, (a, of_base), (b, of_exponent))


def negative(a: Operand) -> Tensor:
    """Return -a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.negative(Tensor([1.0, -2.0]))
    Tensor([-1.,  2.])
    """
    a = as_tensor(a)
    return record(-a.data, (a, lambda g: -g))


def exp(a: Operand) -> Tensor:
    """Return e to the power of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.exp(Tensor([0.0, 1.0])).numpy().round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    a = as_real(a)
    result = array_module(a.data).exp(a.data)
    return record(result, (a, lambda g: g * result))


def log(a: Operand) -> Tensor:
    """Return the natural logarithm of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 4.0], requires_grad=True)
    >>> functional.log(x).sum().backward()
    >>> x.grad
    array([1.  , 0.25], dtype=float32)
    """
    a = as_real(a)
    x = a.data
    return record(array_module(x).log(x), (a, lambda g: g / x))


def sqrt(a: Operand) -> Tensor:
    """Return the square root of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.sqrt(Tensor([4.0, 9.0]))
    Tensor([2., 3.])
    """
    a = as_real(a)
    if backend.is_half(a.dtype):
        return in_float32(sqrt, a)
    result = array_module(a.data).sqrt(a.data)
    return record(result, (a, lambda g: g * 0.5 / result))


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
    """Return ``1 / (1 + e^-a)``, from ``e^-|a|``, so that nothing overflows and small results are exact.

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


@op()
def relu(a: Array) -> Array:
    """Return max(a, 0), element by element. The gradient at 0 is 0.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([-2.0, 0.0, 3.0], requires_grad=True)
    >>> functional.relu(x).sum().backward()
    >>> x.grad
    array([0., 0., 1.], dtype=float32)
    """
    return array_module(a).maximum(a, backend.zeros_of_row(a))


relu.gradients(a=lambda g, result: backend.masked(g, result != 0))  # > 0 would hide NaN


@with_hints
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


@with_hints
def dropout(a: Operand, probability: float) -> Tensor:
    """Return a with each element set to 0 with a probability, and the others scaled up so that the mean stays.

    The mask depends on (seed, layer, step, microbatch) alone; see :func:`minipipe.random_key`.

    Parameters
    ----------
    a : Tensor of any shape
    probability : float
        At least 0, less than 1.

    Raises
    ------
    TensorError
        Codes ``range`` and ``no-random-key``.

    References
    ----------
    Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional, random_key
    >>> with random_key(seed=0, step=3):
    ...     y = functional.dropout(Tensor(np.ones(100)), 0.5)
    >>> sorted(set(y.numpy().tolist()))
    [0.0, 2.0]
    """
    a = as_real(a)
    if backend.is_half(a.dtype) and probability:
        return in_float32(dropout, a, probability=probability)
    drop = drawn("dropout", a.data, probability)
    return a if drop is None else record(drop(a.data), (a, drop))


def drawn(
    name: str, like: Array, probability: float, part: tuple[int, int] = (0, 1)
) -> Callable[[Array], Array] | None:
    """Return a function that drops elements of arrays like ``like``, or of their gradients; None for no dropout.

    With ``part`` (i, count) these are part i of all heads, the last axis but two, for which it draws.
    """
    if not 0 <= probability < 1:
        raise TensorError("range", f"{name}: the probability is {probability}; expected at least 0 and less than 1.")
    if probability == 0:
        return None
    keep = backend.uniform(like, next_key(), part) >= probability
    scale = 1 / (1 - probability)
    return lambda array: backend.masked(array, keep) * scale
