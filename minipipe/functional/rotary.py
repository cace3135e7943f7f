"""Rotary position embeddings: queries and keys turned by their position, so that scores depend on distances."""

from __future__ import annotations

from typing import NamedTuple

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.tensor import Operand, Tensor, as_real, record


def rotary(x: Operand, positions: Operand | None = None, base: float = 10000.0) -> Tensor:
    """Return vectors turned by angles proportional to their positions.

    Elements i and i + d / 2 are a point in a plane, which is turned by position * base^(-2 i / d). These are the pairs
    of GPT-NeoX and of Llama's weights in Hugging Face's form; the paper pairs neighbours, elements 2 i and 2 i + 1,
    which is the same but for the order of the elements. The product of a query and a key that are both turned depends
    on the distance of their positions alone.

    Parameters
    ----------
    x : Tensor of shape (..., t, d)
        Queries or keys; d is even.
    positions : array or Tensor of whole numbers, of shape (t,) or (n, t), optional
        Of the vectors; where each sample has its own, n is the first axis of x. By default 0 to t - 1.
    base : float
        Above 0. The larger it is, the slower the slowest planes turn.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    TensorError
        Codes ``shape``, ``dtype`` and ``range``.

    References
    ----------
    Su et al. 2021, "RoFormer: enhanced transformer with rotary position embedding", equations 14 and 34.

    Examples
    --------
    The vector at position 1 is turned by 1 radian.

    >>> from minipipe import Tensor, functional
    >>> functional.rotary(Tensor([[1.0, 0.0], [1.0, 0.0]])).numpy().round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
    """
    x = as_real(x)
    rotation = Rotation.of("rotary", x.data, positions, base)
    return record(rotation.turned(x.data), (x, lambda g: rotation.turned_back(g)))


class Rotation(NamedTuple):
    """Cosine and sine of the angles of all planes, of shape (t, d / 2) or (n, ..., t, d / 2).

    Examples
    --------
    >>> import numpy as np
    >>> rotation, x = Rotation.of("rotary", np.ones((3, 2)), None, 10000.0), np.ones((3, 2))
    >>> np.allclose(rotation.turned_back(rotation.turned(x)), x)
    True
    """

    cosine: Array
    sine: Array

    @classmethod
    def of(cls, name: str, like: Array, positions: Operand | None, base: float) -> Rotation:
        """Return the rotation of arrays of the shape, module and dtype of ``like``.

        Raises
        ------
        TensorError
            Codes ``shape``, ``dtype`` and ``range``.
        """
        if like.ndim < 2 or like.shape[-1] % 2:
            raise TensorError("shape", f"{name}: the vectors have shape {like.shape}; expected (..., t, d), d even.")
        if not base > 0:
            raise TensorError("range", f"{name}: the base is {base}; expected a number above 0.")
        xp, d = array_module(like), like.shape[-1]
        speeds = float(base) ** (xp.arange(d // 2, dtype=xp.float64) * (-2 / max(d, 1)))
        angles = xp.astype(_positions(name, like, positions)[..., None], xp.float64) * speeds
        return cls(xp.astype(xp.cos(angles), like.dtype), xp.astype(xp.sin(angles), like.dtype))

    def turned(self, x: Array) -> Array:
        """Return vectors turned by their angles."""
        half, xp = x.shape[-1] // 2, array_module(x)
        a, b = x[..., :half], x[..., half:]
        return xp.concat([a * self.cosine - b * self.sine, b * self.cosine + a * self.sine], axis=-1)

    def turned_back(self, x: Array) -> Array:
        """Return vectors turned the other way: the inverse, and the gradient."""
        return Rotation(self.cosine, -self.sine).turned(x)


def _positions(name: str, like: Array, positions: Operand | None) -> Array:
    """Return positions of shape (t,), or (n, ..., t) with axes of length one between."""
    n, t = like.shape[0], like.shape[-2]
    if positions is None:
        return array_module(like).arange(t)
    values = positions.data if isinstance(positions, Tensor) else backend.as_array(positions, like=like)
    if not backend.is_integer(values.dtype):
        raise TensorError("dtype", f"{name}: positions must be whole numbers; these are {values.dtype}.")
    if values.shape == (t,):
        return values
    if like.ndim < 3 or values.shape != (n, t):
        by_sample = f" or {(n, t)}" if like.ndim > 2 else ""
        raise TensorError(
            "shape",
            f"{name}: positions have shape {values.shape}; vectors of shape {like.shape} want {(t,)}{by_sample}.",
        )
    return backend.reshape(values, (n, *(1,) * (like.ndim - 3), t))
