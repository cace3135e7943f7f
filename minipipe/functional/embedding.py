"""Looking up rows of a table by their numbers."""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError, shape_error
from minipipe.tensor import Operand, Tensor, as_tensor, record


def embedding(weight: Tensor, ids: Operand) -> Tensor:
    """Return the rows of the weight that the ids name.

    Parameters
    ----------
    weight : Tensor of shape (num_embeddings, width)
    ids : array or Tensor of whole numbers, of any shape
        Each 0 to num_embeddings - 1. (In NumPy negative numbers count from the end; here they are mistakes.)

    Returns
    -------
    Tensor of shape ``(*ids.shape, width)``

    Raises
    ------
    TensorError
        Codes ``shape``, ``dtype`` and ``range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> weight = Tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> functional.embedding(weight, [2, 0])
    Tensor([[4., 5.],
            [0., 1.]])
    """
    ids = ids if isinstance(ids, Tensor) else as_tensor(backend.as_array(ids, like=weight.data))
    _check_ids(weight, ids)
    rows = backend.reshape(ids.data, (-1,))
    count, width = weight.shape
    result = array_module(weight.data).take(weight.data, rows, axis=0)
    return record(
        backend.reshape(result, (*ids.shape, width)),
        (weight, lambda g: add_rows((count, width), rows, backend.reshape(g, (-1, width)))),
        (ids, _no_gradient),  # only marks the result as dependent on the ids: it is an activation
    )


def _no_gradient(gradient: Array) -> Array:
    raise TensorError("dtype", "embedding: ids are whole numbers and have no gradient.")


def _check_ids(weight: Tensor, ids: Tensor) -> None:
    if weight.ndim != 2:
        raise shape_error("embedding", "(num_embeddings, width)", weight=weight.shape)
    if not backend.is_integer(ids.dtype):
        raise TensorError("dtype", f"embedding: ids must be whole numbers; these are {ids.dtype}.")
    if ids.size == 0:
        return
    _check_range(ids.data, weight.shape[0])


@backend.one_line
def _check_range(ids: Array, count: int) -> None:
    xp = array_module(ids)
    low, high = int(xp.min(ids)), int(xp.max(ids))
    if low < 0 or high >= count:
        raise TensorError("range", f"embedding: ids run from {low} to {high}; expected 0 to {count - 1}.")


@backend.one_line
def add_rows(shape: tuple[int, int], ids: Array, values: Array) -> Array:
    """Return zeros of a shape with each row of values added to the row that its id names.

    A stable sort brings the rows of one id together; they are added in pairs, the pairs in pairs, and so on. That order
    depends on nothing but the ids, whatever the module; a GPU's atomic additions come in another order every time. In
    NumPy it beats ``np.add.at`` from about 60 rows of 128 on, five times at 1000. Halves add up in float32.
    """
    xp = array_module(values)
    if backend.is_half(values.dtype):
        return backend.as_array(add_rows(shape, ids, backend.as_array(values, xp.float32)), values.dtype)
    if not hasattr(values, "flags"):  # the array API standard writes to no list of rows
        return xp.asarray(add_rows(shape, backend.to_numpy(ids), backend.to_numpy(values)))
    order = xp.argsort(ids, kind="stable")
    ids, values = ids[order], values[order]
    is_first = xp.ones(ids.shape, dtype=bool)
    is_first[1:] = ids[1:] != ids[:-1]
    first = xp.flatnonzero(is_first)
    rank = xp.arange(len(ids)) - first[xp.cumsum(is_first) - 1]  # among the rows of the same id
    distance = 1
    while len(right := xp.flatnonzero(rank % (2 * distance) == distance)):
        values[right - distance] += values[right]
        distance *= 2
    result = xp.zeros(shape, dtype=values.dtype)
    result[ids[first]] = values[first]
    return result
