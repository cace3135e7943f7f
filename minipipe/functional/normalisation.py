"""Normalisation over the last axis, each kind one fused operation.

The normalised values are computed once, forward, and kept; the input itself is not. Every vjp works on its own, because
in a split backward that of the weight may run long after that of the input. Sums over rows are products with a vector,
which take a quarter of the time of a reduction.
"""

from __future__ import annotations

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.functional.precision import in_float32
from minipipe.tensor import Tensor, as_real, operands, record


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance over the last axis.

    Parameters
    ----------
    x : Tensor of shape (..., k)
    weight, bias : Tensor of shape (k,)
    epsilon : float
        Keeps the division from blowing up where all elements of a row are equal.

    Returns
    -------
    Tensor of shape (..., k)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    References
    ----------
    Ba, Kiros, Hinton 2016, "Layer normalization", equation 4.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> weight, bias = Tensor([1.0, 1.0]), Tensor([0.0, 0.0])
    >>> functional.layer_norm(Tensor([[1.0, 3.0], [5.0, 105.0]]), weight, bias).numpy().round(3)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    x, weight = _checked("layer_norm", "weight", x, weight)
    x, bias = _checked("layer_norm", "bias", x, bias)
    if backend.is_half(x.dtype):
        return in_float32(layer_norm, x, weight, bias, epsilon=epsilon)
    shape, width, w = x.shape, x.shape[-1], weight.data
    rows = backend.reshape(x.data, (-1, width))
    normalised = rows - _row_means(rows)
    normalised -= _row_means(normalised)  # what rounding left of a mean that is large beside the differences
    scale = _inverse_root(normalised, epsilon)
    normalised *= scale
    result = normalised * w
    result += bias.data

    def vjp(g: Array) -> Array:
        g = backend.reshape(g, (-1, width))
        gradient = g * w
        gradient -= (backend.product(g, w) / width)[:, None]
        gradient -= normalised * (backend.product(g * normalised, w) / width)[:, None]
        gradient *= scale
        return backend.reshape(gradient, shape)

    return record(
        backend.reshape(result, shape),
        (x, vjp),
        (weight, lambda g: backend.sum_of_rows(backend.reshape(g, (-1, width)) * normalised)),
        (bias, lambda g: backend.sum_of_rows(backend.reshape(g, (-1, width)))),
    )


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return x / sqrt(mean of x^2 + epsilon) * weight, the mean over the last axis.

    Parameters
    ----------
    x : Tensor of shape (..., k)
    weight : Tensor of shape (k,)
    epsilon : float
        Keeps the division from blowing up where all elements of a row are 0.

    Returns
    -------
    Tensor of shape (..., k)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    References
    ----------
    Zhang, Sennrich 2019, "Root mean square layer normalization", equation 4.

    Examples
    --------
    The mean of 1 and 49 is 25, whose root is 5.

    >>> from minipipe import Tensor, functional
    >>> functional.rms_norm(Tensor([[1.0, 7.0]]), Tensor([1.0, 1.0])).numpy().round(3)
    array([[0.2, 1.4]], dtype=float32)
    """
    x, weight = _checked("rms_norm", "weight", x, weight)
    if backend.is_half(x.dtype):
        return in_float32(rms_norm, x, weight, epsilon=epsilon)
    shape, width, w = x.shape, x.shape[-1], weight.data
    rows = backend.reshape(x.data, (-1, width))
    scale = _inverse_root(rows, epsilon)
    normalised = rows * scale

    def vjp(g: Array) -> Array:
        g = backend.reshape(g, (-1, width))
        gradient = g * w
        gradient -= normalised * (backend.product(g * normalised, w) / width)[:, None]
        gradient *= scale
        return backend.reshape(gradient, shape)

    return record(
        backend.reshape(normalised * w, shape),
        (x, vjp),
        (weight, lambda g: backend.sum_of_rows(backend.reshape(g, (-1, width)) * normalised)),
    )


def _row_means(rows: Array) -> Array:
    """Return the mean of each row, from shape (n, k) to (n, 1)."""
    width = rows.shape[1]
    return (backend.product(rows, backend.ones((width,), rows)) / width)[:, None]


def _inverse_root(rows: Array, epsilon: float) -> Array:
    """Return 1 / sqrt(mean square + epsilon) of each row, from shape (n, k) to (n, 1)."""
    return 1 / array_module(rows).sqrt(_row_means(rows * rows) + epsilon)


def _checked(operation: str, name: str, x: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input and its weight or bias in one dtype."""
    x, vector = operands(x, vector)
    x, vector = as_real(x), as_real(vector)
    if x.ndim == 0 or x.shape[-1] == 0 or vector.shape != x.shape[-1:]:
        raise TensorError(
            "shape",
            f"{operation}: the input has shape {x.shape} and the {name} {vector.shape}; "
            "the input's last axis must be as long as the only axis of the " + name + ", and not empty.",
        )
    return x, vector
