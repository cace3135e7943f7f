"""Operations that join several tensors into one, and the one that parts it again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from minipipe.autograd.backend import array_module
from minipipe.errors import TensorError
from minipipe.functional.shape import index
from minipipe.tensor import Operand, Tensor, as_tensor, record


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return the tensors one behind the other along an axis.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of one dtype, and of one shape but for that axis.
    axis : int

    Returns
    -------
    Tensor

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.concatenate([Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]])])
    Tensor([[1., 2.],
            [3., 4.]])
    """
    tensors = _of_one_dtype("concatenate", tensors)
    axis = _axis("concatenate", axis, tensors[0].shape)
    others = {(*t.shape[:axis], *t.shape[axis + 1 :]) for t in tensors}
    if len(others) > 1 or any(t.ndim != tensors[0].ndim for t in tensors):
        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        raise TensorError("shape", f"concatenate: shapes {shapes} differ elsewhere than along axis {axis}.")
    xp = array_module(tensors[0].data)
    inputs, start = [], 0
    for tensor in tensors:
        part = (slice(None),) * axis + (slice(start, start + tensor.shape[axis]), ...)
        inputs.append((tensor, lambda g, part=part: g[part]))
        start += tensor.shape[axis]
    return record(xp.concat([tensor.data for tensor in tensors], axis=axis), *inputs)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors of one shape side by side along a new axis, which will be number ``axis`` of the result.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of one dtype and shape.
    axis : int

    Returns
    -------
    Tensor
        With one axis more, as long as there are tensors.

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])], axis=1)
    Tensor([[1., 3.],
            [2., 4.]])
    """
    tensors = _of_one_dtype("stack", tensors)
    if len({tensor.shape for tensor in tensors}) > 1:
        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        raise TensorError("shape", f"stack: shapes {shapes} differ; expected one shape for all.")
    axis = _axis("stack", axis, (*tensors[0].shape, len(tensors)))
    inputs = []
    for i, tensor in enumerate(tensors):
        part = (slice(None),) * axis + (i, ...)
        inputs.append((tensor, lambda g, part=part: g[part]))
    return record(array_module(tensors[0].data).stack([tensor.data for tensor in tensors], axis=axis), *inputs)


def split(a: Operand, sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts of a tensor along an axis, each a view.

    Parameters
    ----------
    a : Tensor
    sections : int or sequence of int
        The number of equal parts, as in NumPy; or the length of each part. (In PyTorch a number is the length.)
    axis : int

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.split(Tensor([1.0, 2.0, 3.0]), [1, 2])
    (Tensor([1.]), Tensor([2., 3.]))
    """
    a = as_tensor(a)
    axis = _axis("split", axis, a.shape)
    length = a.shape[axis]
    if isinstance(sections, Sequence):
        sizes = list(sections)
    elif sections >= 1 and length % sections == 0:
        sizes = [length // int(sections)] * int(sections)
    else:
        raise TensorError("shape", f"split: axis {axis} of shape {a.shape} does not fall into {sections} equal parts.")
    if any(size < 0 for size in sizes) or sum(sizes) != length:
        raise TensorError("shape", f"split: lengths {sizes} do not add up to axis {axis} of shape {a.shape}.")
    before = (slice(None),) * axis
    return tuple(index(a, (*before, slice(stop - size, stop), ...)) for size, stop in zip(sizes, accumulate(sizes)))


def _of_one_dtype(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    tensors = [as_tensor(tensor) for tensor in tensors]
    if not tensors:
        raise TensorError("shape", f"{name}: no tensor was given; expected at least one.")
    if len({str(tensor.dtype) for tensor in tensors}) > 1:
        given = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise TensorError("dtype", f"{name}: the dtypes differ: {given}.")
    return tensors


def _axis(name: str, axis: int, shape: tuple[int, ...]) -> int:
    """Return the number of an axis from 0."""
    if not -len(shape) <= axis < len(shape):
        raise TensorError("shape", f"{name}: there is no axis {axis} in a tensor of shape {shape}.")
    return axis % len(shape)
