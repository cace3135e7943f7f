"""The product of a linear layer: the result and its gradients.

File 7 of 12 on the first path through the code (README.md): after ``execution/stage.py``, before ``autograd/graph.py``.
Each operation is a function of arrays; called with tensors, it notes itself in the graph (``tensor.py``). It has a
gradient for each input, computed from the gradient g of the result and the values that its other parameters name.
"""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.errors import shape_error
from minipipe.functional.operands import operands
from minipipe.tensor import Operand, Tensor, op


def _fitting(x: Operand, weight: Operand, bias: Operand | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the operands as tensors of one dtype, whose shapes fit."""
    x, weight = operands(x, weight)
    shape = x.data.shape
    of_weight = weight.data.shape
    if not shape or len(of_weight) != 2 or shape[-1] != of_weight[0]:
        raise shape_error("linear", "(..., k) and (k, n)", input=shape, weight=of_weight)
    if bias is not None:
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
    >>> weight, bias = Tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), Tensor([0.0, 0.0, 10.0])
    >>> functional.linear(Tensor([[1.0, 2.0]]), weight, bias)
    Tensor([[ 1.,  2., 13.]])
    """
    result = backend.product(_rows(x), weight)  # one product of all rows instead of many small ones
    if bias is not None:
        result += bias
    return _shaped(result, x)


def _rows(array: Array) -> Array:
    """Return an array as a matrix whose rows are its last axis."""
    return array if array.ndim == 2 else backend.reshape(array, (backend.prod(array.shape[:-1]), array.shape[-1]))


def _shaped(rows: Array, like: Array) -> Array:
    """Return rows in the shape of another array, except for the last axis."""
    return rows if like.ndim == 2 else backend.reshape(rows, (*like.shape[:-1], rows.shape[-1]))


linear.gradients(
    x=lambda g, weight: _shaped(backend.product(_rows(g), weight.T), g),
    weight=lambda g, x: backend.product(_rows(x).T, _rows(g)),
    bias=lambda g: backend.sum_of_rows(_rows(g)),
)
linear.operation.sums_over_rows |= {"weight", "bias"}
