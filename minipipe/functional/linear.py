"""The product of a linear layer: the result and its gradients.

File 7 of 12 on the first path through the code (README.md): after ``execution/stage.py``, before ``autograd/graph.py``.
Each operation ends in ``record``, which takes a vjp for each input: a function that turns the gradient of the result
into the gradient of the input.
"""

from __future__ import annotations

from functools import partial

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.errors import shape_error
from minipipe.functional.operands import operands
from minipipe.tensor import Tensor, record


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
        raise shape_error("linear", "(..., k) and (k, n)", input=x.shape, weight=w.shape)
    rows = _rows(data)  # one product of all rows instead of many small ones
    result = backend.product(rows, w)
    before, after = data.shape, (*data.shape[:-1], w.shape[1])

    def of_x(g: Array) -> Array:
        return backend.reshape(backend.product(_rows(g), w.T), before)

    # A named function, so that over_rows.py can recognise it and stack several W. Each vjp holds only the arrays that
    # it needs, so that the I of a split backward can free those that its W does not use.
    of_weight = partial(gradient_of_weight, rows)
    if bias is None:
        return record(backend.reshape(result, after), (x, of_x), (weight, of_weight))
    _, bias = operands(x, bias)
    if bias.data.shape != w.shape[1:]:
        raise shape_error("linear", str(w.shape[1:]), bias=bias.shape)
    result += bias.data
    return record(backend.reshape(result, after), (x, of_x), (weight, of_weight), (bias, gradient_of_bias))


def gradient_of_weight(rows: Array, g: Array) -> Array:
    """Return the gradient of the weight, from the rows of the input and the gradient of the result."""
    return backend.product(rows.T, _rows(g))


def gradient_of_bias(g: Array) -> Array:
    """Return the gradient of the bias."""
    return backend.sum_of_rows(_rows(g))


def _rows(array: Array) -> Array:
    """Return an array as a matrix whose rows are its last axis."""
    return array if array.ndim == 2 else backend.reshape(array, (backend.prod(array.shape[:-1]), array.shape[-1]))
