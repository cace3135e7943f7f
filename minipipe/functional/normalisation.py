"""Normalisation within each sample, over the last axis or over groups of channels; each
kind one fused operation.

The forward pass computes the normalised values once and keeps them; it does not keep
the input. Sums over rows are products with a vector, which take a quarter of the time
of a reduction.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module
from minipipe.core.specs import divisor
from minipipe.core.tensor import Operand, Tensor, op
from minipipe.errors import TensorError, counted, shape_error
from minipipe.functional.precision import real_operands
from minipipe.hints import with_hints


def _fitting(name: str, x: Operand, *vectors: Operand) -> list[Tensor]:
    """Return the input, its weight, and perhaps its bias, as tensors of one dtype whose
    shapes fit.
    """
    given = real_operands(x, *vectors)
    width = given[0].data.shape[-1:]
    fits = width not in ((), (0,))
    for vector in given[1:]:
        fits = fits and vector.data.shape == width
    if not fits:
        names = ("input", "weight", "bias")
        shapes = {what: each.shape for what, each in zip(names, given)}
        raise shape_error(name, "(..., k) and (k,), k above 0", **shapes)
    return given


@op(
    takes=partial(_fitting, "layer_norm"),
    attributes="epsilon",
    saves="normalised scale",
    in_float32=True,
)
def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float = 1e-5) -> Arrays:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance
    over the last axis.

    Parameters
    ----------
    x : Tensor of shape (..., k)
    weight, bias : Tensor of shape (k,)
    epsilon : float
        Bounds the division if all elements of a row are equal.

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
    >>> functional.layer_norm(
    ...     Tensor([[1.0, 3.0], [5.0, 105.0]]), weight, bias
    ... ).numpy().round(3)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    normalised, scale = _normalised(backend.rows_of(x), epsilon)
    result = normalised * weight
    result += bias
    return backend.reshape(result, x.shape), normalised, scale


def _gradient_of_rows(
    is_centred: bool,
    g: Array,
    products: Array,
    normalised: Array,
    scale: Array,
    weight: Array,
    shape: Shape,
) -> Array:
    rows = backend.rows_of(g)
    (count,) = backend.scalars(rows, shape[-1])
    gradient = rows * weight
    if is_centred:
        gradient -= _row_means(rows, weight, count)
    gradient -= normalised * _row_means(products, weight, count)
    gradient *= scale
    return backend.reshape(gradient, shape)


layer_norm.shared(products=lambda g, normalised: backend.rows_of(g) * normalised)
layer_norm.gradients(
    x=partial(_gradient_of_rows, True),
    weight=lambda g, products: backend.sum_of_rows(products),
    bias=lambda g: backend.sum_of_rows(backend.rows_of(g)),
)


@op(
    takes=partial(_fitting, "rms_norm"),
    attributes="epsilon",
    saves="normalised scale",
    in_float32=True,
)
def rms_norm(x: Array, weight: Array, epsilon: float = 1e-5) -> Arrays:
    """Return x / sqrt(mean of x^2 + epsilon) * weight, the mean over the last axis.

    Parameters
    ----------
    x : Tensor of shape (..., k)
    weight : Tensor of shape (k,)
    epsilon : float
        Bounds the division if all elements of a row are 0.

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
    rows = backend.rows_of(x)
    count, least, one = backend.scalars(rows, rows.shape[1], epsilon, 1)
    scale = _inverse_root(rows, backend.ones_of_row(rows), count, least, one)
    normalised = rows * scale
    return backend.reshape(normalised * weight, x.shape), normalised, scale


rms_norm.shared(products=lambda g, normalised: backend.rows_of(g) * normalised)
rms_norm.gradients(
    x=partial(_gradient_of_rows, False),
    weight=lambda g, products: backend.sum_of_rows(products),
)


@with_hints
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor, bias: Tensor, epsilon: float = 1e-5
) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance
    over each group of channels.

    Parameters
    ----------
    x : Tensor of shape ``(n, c, *spatial)``
    num_groups : int
        Divides c. Neighbouring channels form a group, with all their positions. One
        group of all channels, or as many groups as channels ("instance normalisation"),
        are the extremes.
    weight, bias : Tensor of shape (c,)
    epsilon : float
        Bounds the division if all elements of a group are equal.

    Returns
    -------
    Tensor of shape ``(n, c, *spatial)``

    Raises
    ------
    TensorError
        Codes ``shape``, ``out-of-range`` and ``dtype``.

    References
    ----------
    Wu, He 2018, "Group normalization", equations 1 to 3 and 7.

    Examples
    --------
    Four channels of one position, in two groups.

    >>> from minipipe import Tensor, functional
    >>> x, ones, zeros = (
    ...     Tensor([[[1.0], [3.0], [5.0], [105.0]]]),
    ...     Tensor([1.0] * 4),
    ...     Tensor([0.0] * 4),
    ... )
    >>> functional.group_norm(x, 2, ones, zeros).numpy().round(3).ravel()
    array([-1.,  1., -1.,  1.], dtype=float32)
    """
    return _group_norm(x, weight, bias, num_groups=num_groups, epsilon=epsilon)


@op(takes=real_operands, saves="normalised scale", in_float32=True)
def _group_norm(
    x: Array, weight: Array, bias: Array, *, num_groups: int, epsilon: float
) -> Arrays:
    _check_groups(x.shape, num_groups, weight.shape, bias.shape)
    by_channel = _by_channel(x)
    n, c, positions = by_channel.shape
    by_group = backend.reshape(x, (n * num_groups, c // num_groups * positions))
    normalised, scale = _normalised(by_group, epsilon)
    result = backend.reshape(normalised, by_channel.shape) * weight[:, None]
    result += bias[:, None]
    return backend.reshape(result, x.shape), normalised, scale


def _gradient_of_groups(
    g: Array, normalised: Array, scale: Array, weight: Array, shape: Shape
) -> Array:
    gradient = backend.reshape(_by_channel(g) * weight[:, None], normalised.shape)
    ones = backend.ones_of_row(gradient)
    (count,) = backend.scalars(gradient, gradient.shape[1])
    gradient -= _row_means(gradient, ones, count)
    gradient -= normalised * _row_means(gradient * normalised, ones, count)
    gradient *= scale
    return backend.reshape(gradient, shape)


def _sums_of_channels(array: Array) -> Array:
    """Return the sum over samples and positions."""
    n, c, positions = _by_channel(array).shape
    rows = backend.reshape(array, (n * c, positions))
    sums = backend.product(rows, backend.ones_of_row(rows))
    return backend.sum_of_rows(backend.reshape(sums, (n, c)))


_group_norm.gradients(
    x=_gradient_of_groups,
    weight=lambda g, normalised: _sums_of_channels(
        g * backend.reshape(normalised, g.shape)
    ),
    bias=lambda g: _sums_of_channels(g),
)


def _by_channel(array: Array) -> Array:
    """Return an array of shape (n, c, *spatial) as (n, c, positions)."""
    n, c, *spatial = array.shape
    return backend.reshape(array, (n, c, backend.prod(spatial)))


def _check_groups(shape: Shape, num_groups: int, weight: Shape, bias: Shape) -> None:
    if len(shape) < 2 or 0 in shape[1:] or not weight == bias == shape[1:2]:
        expected = "(n, c, *spatial), (c,) and (c,), no axis but the first empty"
        raise shape_error("group_norm", expected, input=shape, weight=weight, bias=bias)
    of = f"the {counted(shape[1], 'channel')}"
    divisor(
        "group_norm: num_groups",
        num_groups,
        shape[1],
        of=of,
        error=TensorError,
        code="out-of-range",
    )


def _normalised(rows: Array, epsilon: float) -> Arrays:
    """Return each row with mean 0 and variance 1, and its factor: shapes (n, k) and (n,
    1).
    """
    ones = backend.ones_of_row(rows)
    count, least, one = backend.scalars(rows, rows.shape[1], epsilon, 1)
    centred = rows - _row_means(rows, ones, count)
    # the rounding error of a mean that is large beside the differences
    centred -= _row_means(centred, ones, count)
    scale = _inverse_root(centred, ones, count, least, one)
    centred *= scale
    return centred, scale


def _inverse_root(
    rows: Array, ones: Array, count: Any, epsilon: Any, one: Any
) -> Array:
    """Return 1 / sqrt(mean square + epsilon) of each row, from shape (n, k) to (n,
    1).
    """
    return one / array_module(rows).sqrt(_row_means(rows * rows, ones, count) + epsilon)


def _row_means(rows: Array, weight: Array, count: Any) -> Array:
    """Return the mean of each row times a weight, element by element: from shapes (n,
    k) and (k,) to (n, 1).
    """
    sums = backend.product(rows, weight)
    sums /= count
    return sums[:, None]
