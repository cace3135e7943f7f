"""Operations on each element. Each is defined together with its gradients, one function
for each input.

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

Operands are tensors, arrays or numbers. Two of them are broadcast: counted from the
last axis, lengths are equal or one of them is 1, and the gradient is summed over the
axes that were stretched. Shapes or dtypes that do not fit raise a TensorError with code
``shape`` or ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.errors import shape_error
from minipipe.core.functional.operands import as_real, one_real, operands
from minipipe.core.tensor import Operand, Tensor, op


def _broadcast(name: str, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype, whose shapes fit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        x = a.data
        y = b.data
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
            expected = "equal lengths or 1, counted from the last axis"
            raise shape_error(name, expected, left=a.shape, right=b.shape)


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


def _real_broadcast(a: Operand, b: Operand) -> Sequence[Tensor]:
    """Return both operands as tensors of one real dtype, whose shapes fit."""
    return [*map(as_real, _broadcast("divide", a, b))]


@op(takes=_real_broadcast, is_broadcast=True)
def divide(a: Array, b: Array) -> Array:
    """Return a / b, broadcast.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.divide(Tensor([3.0, 6.0]), 2)
    Tensor([1.5, 3. ])
    """
    return a / b


divide.gradients(
    a=lambda g, b: g / b,
    # b * b may be 0 or inf although the quotient is not
    b=lambda g, b, result: -g * (result / b),
)


def power(a: Operand, b: Operand) -> Tensor:
    """Return a ** b, broadcast. Squares are computed as products, three times as fast.

    The gradient of a base is 0 if the exponent is 0. The gradient of an exponent of at
    least 0 is 0 if the base is 0.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.power(Tensor([2.0, 3.0]), 3)
    Tensor([ 8., 27.])
    """
    if isinstance(b, int | float) and b == 2:
        return _square(a)
    return _power(a, b)


@op()
def _square(a: Array) -> Array:
    return a * a


_square.gradients(a=lambda g, a: g * (2 * a))


@op(takes=partial(_broadcast, "power"), is_broadcast=True)
def _power(a: Array, b: Array) -> Array:
    return a**b


def _power_base(g: Array, a: Array, b: Array) -> Array:
    """Return the gradient of a. At b = 0 the result is 1 for all a, but a ** (b - 1)
    may be infinite.
    """
    is_constant = b == 0
    slope = a ** array_module(a).where(is_constant, b, b - 1)
    return backend.masked(g, ~is_constant) * b * slope


def _power_exponent(g: Array, a: Array, b: Array, result: Array) -> Array:
    """Return the gradient of b. At a = 0 the result is 0 for all b above 0, but log(a)
    is infinite.
    """
    xp = array_module(a)
    is_constant = (a == 0) & (b >= 0)
    logarithm = xp.log(xp.where(is_constant, 1, a))
    return backend.masked(g, ~is_constant) * result * logarithm


_power.gradients(a=_power_base, b=_power_exponent)


@op()
def negative(a: Array) -> Array:
    """Return -a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.negative(Tensor([1.0, -2.0]))
    Tensor([-1.,  2.])
    """
    return -a


negative.gradients(a=lambda g: -g)


@op(takes=one_real)
def exp(a: Array) -> Array:
    """Return e to the power of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.exp(Tensor([0.0, 1.0])).numpy().round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    return array_module(a).exp(a)


exp.gradients(a=lambda g, result: g * result)


@op(takes=one_real)
def log(a: Array) -> Array:
    """Return the natural logarithm of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 4.0], requires_grad=True)
    >>> functional.log(x).sum().backward()
    >>> x.grad
    array([1.  , 0.25], dtype=float32)
    """
    return array_module(a).log(a)


log.gradients(a=lambda g, a: g / a)


@op(takes=one_real, in_float32=True)
def sqrt(a: Array) -> Array:
    """Return the square root of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.sqrt(Tensor([4.0, 9.0]))
    Tensor([2., 3.])
    """
    return array_module(a).sqrt(a)


sqrt.gradients(a=lambda g, result: g * 0.5 / result)


@op(takes=one_real)
def tanh(a: Array) -> Array:
    """Return the hyperbolic tangent of a.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.tanh(Tensor([0.0, 100.0]))
    Tensor([0., 1.])
    """
    return array_module(a).tanh(a)


tanh.gradients(a=lambda g, result: g * (1 - result * result))


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
    return backend.positive_part(a)


# if the result is above 0, or NaN
relu.gradients(a=lambda g, result: backend.masked_like(g, result))


# -- the operators of Tensor -----------------------------------------------------------


_Operator = Callable[[Operand, Operand], Tensor]


def swapped(operation: _Operator) -> _Operator:
    """Return an operation of two operands with these exchanged."""
    return lambda self, other: operation(other, self)


class Operators:
    """The operators of Tensor, whose own file defines no operations: this one attaches
    them. ``self`` is a Tensor.
    """

    __slots__ = ()

    __add__ = add
    __radd__ = swapped(add)
    __sub__ = subtract
    __rsub__ = swapped(subtract)
    __mul__ = multiply
    __rmul__ = swapped(multiply)
    __truediv__ = divide
    __rtruediv__ = swapped(divide)
    __pow__ = power
    __rpow__ = swapped(power)
    __neg__ = negative


for _name, _method in vars(Operators).items():
    if callable(_method):
        setattr(Tensor, _name, _method)
