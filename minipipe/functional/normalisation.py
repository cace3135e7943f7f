"""Normalisation within each sample, over the last axis or over groups of channels; each kind one fused operation.

The forward pass computes the normalised values once and keeps them; it does not keep the input. The vjps are
independent of each other: in a split backward, the vjp of the weight may run long after the vjp of the input. Sums over
rows are products with a vector, which take a quarter of the time of a reduction.
"""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError, counted, divisor, shape_error
from minipipe.functional.operands import as_real, in_float32, operands
from minipipe.hints import with_hints
from minipipe.tensor import Tensor, record

Shape = tuple[int, ...]


@with_hints
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance over the last axis.

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
    >>> functional.layer_norm(Tensor([[1.0, 3.0], [5.0, 105.0]]), weight, bias).numpy().round(3)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    return _norm_of_rows("layer_norm", x, (weight, bias), epsilon)


@with_hints
def group_norm(x: Tensor, num_groups: int, weight: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance over each group of channels.

    Parameters
    ----------
    x : Tensor of shape ``(n, c, *spatial)``
    num_groups : int
        Divides c. Neighbouring channels form a group, with all their positions. One group of all channels, or as many
        groups as channels ("instance normalisation"), are the extremes.
    weight, bias : Tensor of shape (c,)
    epsilon : float
        Bounds the division if all elements of a group are equal.

    Returns
    -------
    Tensor of shape ``(n, c, *spatial)``

    Raises
    ------
    TensorError
        Codes ``shape``, ``range`` and ``dtype``.

    References
    ----------
    Wu, He 2018, "Group normalization", equations 1 to 3 and 7.

    Examples
    --------
    Four channels of one position, in two groups.

    >>> from minipipe import Tensor, functional
    >>> x, ones, zeros = Tensor([[[1.0], [3.0], [5.0], [105.0]]]), Tensor([1.0] * 4), Tensor([0.0] * 4)
    >>> functional.group_norm(x, 2, ones, zeros).numpy().round(3).ravel()
    array([-1.,  1., -1.,  1.], dtype=float32)
    """
    x, weight, bias = _real_operands(x, weight, bias)
    if backend.is_half(x.dtype):
        return in_float32(lambda x, w, b: group_norm(x, num_groups, w, b, epsilon), x, weight, bias)
    _check_groups(x.shape, num_groups, weight.shape, bias.shape)
    shape, (n, c), positions = x.shape, x.shape[:2], backend.prod(x.shape[2:])
    by_group, by_channel, w = (n * num_groups, c // num_groups * positions), (n, c, positions), weight.data[:, None]
    normalised, scale = _normalised(backend.reshape(x.data, by_group), epsilon)
    result = backend.reshape(normalised, by_channel) * w
    result += bias.data[:, None]

    def vjp(g: Array) -> Array:
        gradient = backend.reshape(backend.reshape(g, by_channel) * w, by_group)
        gradient -= _row_means(gradient)
        gradient -= normalised * _row_means(gradient * normalised)
        gradient *= scale
        return backend.reshape(gradient, shape)

    def of_channels(g: Array) -> Array:
        """Return the sum over samples and positions."""
        rows = backend.reshape(g, (n * c, positions))
        return backend.sum_of_rows(backend.reshape(_row_sums(rows), (n, c)))

    return record(
        backend.reshape(result, shape),
        (x, vjp),
        (weight, lambda g: of_channels(g * backend.reshape(normalised, shape))),
        (bias, of_channels),
    )


@with_hints
def rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-5) -> Tensor:
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
    return _norm_of_rows("rms_norm", x, (weight,), epsilon)


def _norm_of_rows(name: str, x: Tensor, vectors: tuple[Tensor, ...], epsilon: float) -> Tensor:
    """Normalise rows: centred, with a weight and a bias, as layer_norm does, or with a weight alone, as rms_norm."""
    given = _real_operands(x, *vectors)
    x, weight, *biases = given
    shape, shapes = x.shape, {what: vector.shape for what, vector in zip(("weight", "bias"), given[1:])}
    if shape[-1:] in ((), (0,)) or set(shapes.values()) != {shape[-1:]}:
        raise shape_error(name, "(..., k) and (k,), k above 0", input=shape, **shapes)
    if backend.is_half(x.dtype):
        return in_float32(lambda x, *vectors: _norm_of_rows(name, x, vectors, epsilon), *given)
    width, w, is_centred = shape[-1], weight.data, bool(biases)
    normalised, scale = (_normalised if is_centred else _scaled)(backend.reshape(x.data, (-1, width)), epsilon)
    result = normalised * w

    def vjp(g: Array) -> Array:
        g = backend.reshape(g, (-1, width))
        gradient = g * w
        if is_centred:
            gradient -= (backend.product(g, w) / width)[:, None]
        gradient -= normalised * (backend.product(g * normalised, w) / width)[:, None]
        gradient *= scale
        return backend.reshape(gradient, shape)

    inputs = [(x, vjp), (weight, lambda g: backend.sum_of_rows(backend.reshape(g, (-1, width)) * normalised))]
    for bias in biases:
        result += bias.data
        inputs.append((bias, lambda g: backend.sum_of_rows(backend.reshape(g, (-1, width)))))
    return record(backend.reshape(result, shape), *inputs)


def _normalised(rows: Array, epsilon: float) -> tuple[Array, Array]:
    """Return each row with mean 0 and variance 1, and its factor: shapes (n, k) and (n, 1)."""
    centred = rows - _row_means(rows)
    centred -= _row_means(centred)  # the rounding error of a mean that is large compared to the differences
    scale = _inverse_root(centred, epsilon)
    centred *= scale
    return centred, scale


def _scaled(rows: Array, epsilon: float) -> tuple[Array, Array]:
    """Return each row with mean square 1, and its factor: shapes (n, k) and (n, 1)."""
    scale = _inverse_root(rows, epsilon)
    return rows * scale, scale


def _row_sums(rows: Array) -> Array:
    """Return the sum of each row, from shape (n, k) to (n,)."""
    return backend.product(rows, backend.ones(rows.shape[1:], rows))


def _row_means(rows: Array) -> Array:
    """Return the mean of each row, from shape (n, k) to (n, 1)."""
    return (_row_sums(rows) / rows.shape[1])[:, None]


def _inverse_root(rows: Array, epsilon: float) -> Array:
    """Return 1 / sqrt(mean square + epsilon) of each row, from shape (n, k) to (n, 1)."""
    return 1 / array_module(rows).sqrt(_row_means(rows * rows) + epsilon)


def _real_operands(x: Tensor, *vectors: Tensor) -> list[Tensor]:
    """Return the input, and its weight and bias, in one dtype."""
    found = []
    for vector in vectors:
        x, vector = operands(x, vector)
        found.append(as_real(vector))
    return [as_real(x), *found]


def _check_groups(shape: Shape, num_groups: int, weight: Shape, bias: Shape) -> None:
    if len(shape) < 2 or 0 in shape[1:] or not weight == bias == shape[1:2]:
        expected = "(n, c, *spatial), (c,) and (c,), no axis but the first empty"
        raise shape_error("group_norm", expected, input=shape, weight=weight, bias=bias)
    of = f"the {counted(shape[1], 'channel')}"
    divisor("group_norm: num_groups", num_groups, shape[1], of=of, error=TensorError, code="range")
