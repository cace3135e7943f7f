"""Matrix products: the result, and beside it the gradients.

File 7 of 12 on the first path through the code (README.md): after ``execution/stage.py``, before ``tensor.py``. Each
operation ends in ``record``, which takes for each input a vjp: a function from the gradient of the result to its own.
"""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.errors import TensorError
from minipipe.functional.over_rows import OverRows
from minipipe.tensor import Operand, Tensor, operands, record


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight + bias as one operation, over the last axis of x.

    Parameters
    ----------
    x : Tensor of shape (..., k)
    weight : Tensor of shape (k, n)
    bias : Tensor of shape (n,), optional

    Returns
    -------
    Tensor of shape (..., n)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> weight, bias = Tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), Tensor([0.0, 0.0, 10.0])
    >>> functional.linear(Tensor([[1.0, 2.0]]), weight, bias)
    Tensor([[ 1.,  2., 13.]])
    """
    x, weight = operands(x, weight)
    data, w = x.data, weight.data
    if data.ndim == 0 or w.ndim != 2 or data.shape[-1] != w.shape[0]:
        raise TensorError(
            "shape",
            f"linear: the input has shape {x.shape} and the weight {w.shape}; "
            "the input's last axis must be as long as the weight's first.",
        )
    rows = _rows(data)  # one product of all rows instead of many small ones
    result = backend.product(rows, w)
    before, after = data.shape, (*data.shape[:-1], w.shape[1])

    # The vjps (see autograd/graph.py): from the gradient g of the result to that of an input. Each holds only the
    # arrays that it needs. Those of weights sum over rows, so several microbatches may be one (over_rows.py).
    def of_x(g: Array) -> Array:
        return backend.reshape(backend.product(_rows(g), w.T), before)

    of_weight = OverRows(_gradient_of_weight, rows)
    if bias is None:
        return record(backend.reshape(result, after), (x, of_x), (weight, of_weight))
    _, bias = operands(x, bias)
    if bias.data.shape != w.shape[1:]:
        raise TensorError("shape", f"linear: the bias has shape {bias.shape}; expected {w.shape[1:]}.")
    result += bias.data
    return record(backend.reshape(result, after), (x, of_x), (weight, of_weight), (bias, OverRows(_gradient_of_bias)))


def _gradient_of_weight(rows: Array, g: Array) -> Array:
    return backend.product(rows.T, _rows(g))


def _gradient_of_bias(g: Array) -> Array:
    return backend.sum_of_rows(_rows(g))


def _rows(array: Array) -> Array:
    """Return an array as a matrix whose rows are its last axis."""
    return array if array.ndim == 2 else backend.reshape(array, (backend.prod(array.shape[:-1]), array.shape[-1]))


def matmul(a: Operand, b: Operand) -> Tensor:
    """Return the matrix product a @ b over the last two axes; the axes before them are broadcast.

    A vector counts as a row on the left and as a column on the right, as in NumPy.

    Parameters
    ----------
    a : Tensor of shape (..., n, k), or (k,)
    b : Tensor of shape (..., k, m), or (k,)

    Returns
    -------
    Tensor of shape (..., n, m)
        Without n where a is a vector, and without m where b is.

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.matmul(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([1.0, 10.0]))
    Tensor([21., 43.])
    """
    a, b = operands(a, b)
    _check_product(a.shape, b.shape)
    x = backend.reshape(a.data, (1, -1)) if a.ndim == 1 else a.data
    y = backend.reshape(b.data, (-1, 1)) if b.ndim == 1 else b.data
    product = backend.matmul(x, y)
    full = product.shape
    shape = full[:-2] + full[-2:-1] * (a.ndim > 1) + full[-1:] * (b.ndim > 1)
    a_shape, b_shape = a.shape, b.shape
    x_shape, y_shape = x.shape, y.shape  # so that a vjp holds only the other operand's array, not both
    return record(
        backend.reshape(product, shape),
        (a, lambda g: backend.reshape(_sum_batch(backend.matmul(backend.reshape(g, full), y.mT), x_shape), a_shape)),
        (b, lambda g: backend.reshape(_sum_batch(backend.matmul(x.mT, backend.reshape(g, full)), y_shape), b_shape)),
    )


def _check_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    if not left or not right or left[-1] != right[-2 if len(right) > 1 else 0]:
        raise TensorError(
            "shape",
            f"matmul: shapes {left} and {right} do not fit; the last axis of the first must be as long as "
            "the second's last axis but one (its only axis, if it is a vector).",
        )
    for one, other in zip(reversed(left[:-2]), reversed(right[:-2])):
        if one != other and one != 1 and other != 1:
            raise TensorError(
                "shape",
                f"matmul: shapes {left} and {right} do not fit; before the last two axes, "
                "lengths must be equal, or one of them 1.",
            )


def _sum_batch(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the leading axes along which an operand of shape ``shape`` was broadcast."""
    extra = gradient.ndim - len(shape)
    axes = tuple(i for i in range(gradient.ndim - 2) if i < extra or (shape[i - extra] == 1 and gradient.shape[i] != 1))
    return backend.reshape(backend.reduce_sum(gradient, axes, True), shape) if axes else gradient
