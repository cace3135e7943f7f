"""The product of a linear layer: the result and its gradients.

File 8 of 13 on the first path through the code (README.md): after
``core/execution/stage.py``, before ``core/autograd/graph.py``. Each operation is a function of
arrays; called with tensors, it notes itself in the graph (``tensor.py``). It has a
gradient for each input, computed from the gradient g of the result and the values that
its other parameters name.
"""

from __future__ import annotations

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.errors import shape_error
from minipipe.core.functional.operands import operands
from minipipe.core.tensor import Operand, Tensor, op


def _fitting(
    x: Operand, weight: Operand, bias: Operand | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the operands as tensors of one dtype, whose shapes fit."""
    if (
        not isinstance(x, Tensor)
        or not isinstance(weight, Tensor)
        or x.data.dtype is not weight.data.dtype
    ):
        x, weight = operands(x, weight)
    shape = x.data.shape
    of_weight = weight.data.shape
    if not shape or len(of_weight) != 2 or shape[-1] != of_weight[0]:
        expected = "(..., k) and (k, n)"
        raise shape_error("linear", expected, input=shape, weight=of_weight)
    if bias is not None:
        if not isinstance(bias, Tensor) or bias.data.dtype is not x.data.dtype:
            _, bias = operands(x, bias)
        if bias.data.shape != of_weight[1:]:
            raise shape_error("linear", str(of_weight[1:]), bias=bias.shape)
    return x, weight, bias


@op(takes=_fitting)
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
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
    >>> weight, bias = (
    ...     Tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
    ...     Tensor([0.0, 0.0, 10.0]),
    ... )
    >>> functional.linear(Tensor([[1.0, 2.0]]), weight, bias)
    Tensor([[ 1.,  2., 13.]])
    """
    result = _times(x, weight)
    if bias is not None:
        result += bias
    return result


def _times(x: Array, matrix: Array) -> Array:
    """Return the products of the rows of x with a matrix, as one product instead of
    many small ones.
    """
    if x.ndim == 2:
        return backend.product(x, matrix)
    products = backend.product(backend.rows_of(x), matrix)
    return backend.reshape(products, (*x.shape[:-1], matrix.shape[1]))


linear.gradients(
    x=lambda g, weight: _times(g, weight.T),
    weight=lambda g, x: backend.product(backend.rows_of(x).T, backend.rows_of(g)),
    bias=lambda g: backend.sum_of_rows(backend.rows_of(g)),
)
linear.operation.sums_over_rows |= {"weight", "bias"}
