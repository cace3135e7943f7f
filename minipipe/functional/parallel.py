"""Operations of tensor parallelism: the messages between tensor-parallel ranks, forward
and backward.

All are collective over the group: all of its ranks call them in the same order, in the
forward and in the backward. ``copy_to`` and ``reduce_from`` are conjugate: the forward
of one is the backward of the other. Between them each rank computes with its part of a
layer's parameters.

References
----------
Shoeybi et al. 2019, "Megatron-LM: training multi-billion parameter language models
using model parallelism", section 3, whose f is ``copy_to`` and whose g is
``reduce_from``.
"""

from __future__ import annotations

from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape, array_module
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.functional.loss import (
    check_range_of_labels,
    not_labels,
    weight_of_labels,
)
from minipipe.core.functional.operands import as_real, data_of, in_full
from minipipe.core.tensor import Operand, Tensor, op, record
from minipipe.functional.distributed import check_part, check_scores, marked


@backend.collective
def combined(array: Array, group: ProcessGroup, operation: str = "sum") -> Array:
    """Return the sum, or the largest, of the arrays of all ranks, in pairs of ranks.
    Collective.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import spawn
    >>> spawn(lambda group: combined(np.ones(2), group).tolist(), num_ranks=3)
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """
    total = group.all_reduce(backend.to_numpy(array), operation)
    return backend.moved(total, array_module(array))


@op()
def copy_to(x: Array, *, group: ProcessGroup) -> Array:
    """Return x, which all ranks have, for parts of a layer; the backward adds up their
    gradients.

    Examples
    --------
    >>> from minipipe import Tensor, spawn
    >>> def differentiate(group):
    ...     x = Tensor([1.0, 2.0], requires_grad=True)
    ...     copy_to(x, group=group).sum().backward()
    ...     return x.grad.tolist()
    >>> spawn(differentiate, num_ranks=2)
    [[2.0, 2.0], [2.0, 2.0]]
    """
    return x


copy_to.gradients(x=lambda g, group: combined(g, group))


@op()
def reduce_from(x: Array, *, group: ProcessGroup) -> Array:
    """Return the sum of the ranks' tensors; the backward passes the gradient to each of
    them.

    Examples
    --------
    >>> from minipipe import Tensor, spawn
    >>> spawn(
    ...     lambda group: (
    ...         reduce_from(Tensor([1.0 + group.rank]), group=group).numpy().tolist()
    ...     ),
    ...     num_ranks=2,
    ... )
    [[3.0], [3.0]]
    """
    return combined(x, group)


reduce_from.gradients(x=lambda g: g)


def gather_from(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the concatenated parts of all ranks, along the last axis; each part gets
    its own gradient.

    Raises
    ------
    TensorError
        Code ``divided``, for a tensor that every rank has whole.

    Examples
    --------
    >>> from minipipe import Tensor, spawn
    >>> spawn(
    ...     lambda group: (
    ...         gather_from(Tensor([1.0 + group.rank]), group).numpy().tolist()
    ...     ),
    ...     num_ranks=2,
    ... )
    [[1.0, 2.0], [1.0, 2.0]]
    """
    check_part("gather_from", x, group)
    return marked(_gather_from(x, group=group), group, is_whole=True)


@op(saves="first")
def _gather_from(x: Array, *, group: ProcessGroup) -> tuple[Array, int]:
    return gathered(x, group)


_gather_from.gradients(
    x=lambda g, first, shape: backend.contiguous(g[..., first : first + shape[-1]])
)


@backend.collective
def gathered(array: Array, group: ProcessGroup) -> tuple[Array, int]:
    """Return the parts of all ranks behind each other, and where along the last axis
    this rank's begins. Collective.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import spawn
    >>> spawn(lambda group: gathered(np.array([group.rank]), group), num_ranks=2)
    [(array([0, 1]), 0), (array([0, 1]), 1)]
    """
    parts = group.all_gather(backend.to_numpy(array))
    xp = array_module(array)
    whole = xp.concat([backend.moved(part, xp) for part in parts], axis=-1)
    return whole, sum(part.shape[-1] for part in parts[: group.rank])


def parallel_cross_entropy(
    logits: Tensor,
    labels: Operand,
    group: ProcessGroup,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross-entropy of logits whose classes are divided among the ranks, by
    three small all-reduces.

    Parameters
    ----------
    logits : Tensor of shape (..., k / size of the group)
        The logits of this rank's classes; ranks have consecutive ranges of classes.
    labels : array of integers of shape (...)
        The right class of each row, 0 to k - 1, the same on all ranks.
    group : ProcessGroup
    ignore_index : int, optional
        Rows with this label do not count.
    reduction : {"mean", "sum"}

    Raises
    ------
    TensorError
        Codes ``dtype`` and ``out-of-range``; ``divided``, for scores that are the same
        on every rank.

    Examples
    --------
    Equal scores for four classes on two ranks cost log(4).

    >>> import numpy as np
    >>> from minipipe import Tensor, spawn
    >>> scores = Tensor(np.zeros((3, 2)))
    >>> spawn(
    ...     lambda group: round(
    ...         parallel_cross_entropy(scores, [0, 3, 1], group).item(), 4
    ...     ),
    ...     num_ranks=2,
    ... )
    [1.3863, 1.3863]
    """
    check_scores("parallel_cross_entropy", logits, group)
    logits = in_full(as_real(logits))
    columns = backend.reshape(data_of(labels, logits.data), (-1,))
    if not backend.is_integer(columns.dtype):
        raise not_labels("parallel_cross_entropy", columns)
    num_classes = logits.shape[-1] * group.size
    check_range_of_labels("parallel_cross_entropy", columns, num_classes, ignore_index)
    if ignore_index is None:
        xp = array_module(columns)
        counts = xp.ones_like(columns, dtype=xp.bool)
    else:
        counts = columns != ignore_index
    return _parallel_cross_entropy(
        logits,
        record(columns),
        record(counts),
        group=group,
        ignore_index=ignore_index,
        is_mean=reduction == "mean",
    )


@op(saves="powers sums is_wanted total")
def _parallel_cross_entropy(
    logits: Array,
    columns: Array,
    counts: Array,
    *,
    group: ProcessGroup,
    ignore_index: int | None,
    is_mean: bool,
) -> tuple[Array, Array, Array, Array, Any]:
    xp = array_module(logits)
    k = logits.shape[-1]
    rows = backend.reshape(logits, (-1, k))
    own = columns - group.rank * k
    shifted = rows - combined(xp.max(rows, axis=-1, keepdims=True), group, "max")
    powers = xp.exp(shifted)
    sums = combined(backend.reduce_sum(powers, -1, True), group)
    is_wanted = (xp.arange(k) == own[:, None]) & counts[:, None]
    picked = combined(backend.reduce_sum(backend.masked(shifted, is_wanted), -1), group)
    total: Any = 1.0
    if is_mean:
        total = weight_of_labels(columns, logits, ignore_index, None)
    losses = backend.masked(xp.log(sums[:, 0]) - picked, counts)
    loss = backend.reduce_sum(losses) / total
    return loss, powers, sums, is_wanted, total


def _of_logits(
    g: Array,
    powers: Array,
    sums: Array,
    is_wanted: Array,
    counts: Array,
    total: Any,
    shape: Shape,
) -> Array:
    probabilities = backend.masked(powers / sums, counts[:, None])
    wanted = array_module(powers).astype(is_wanted, powers.dtype)
    return backend.reshape((probabilities - wanted) * (g / total), shape)


_parallel_cross_entropy.gradients(logits=_of_logits)
