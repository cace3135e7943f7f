"""Tensors that record whether a rank has all of them: results of layers on
tensor-parallel ranks.

A part and a whole tensor look alike, and a loss of the wrong one is a wrong number
without an error. So ``parallel.py`` marks the tensors that it returns, and a loss
refuses the wrong kind. Any other operation drops the mark.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.tensor import Tensor
from minipipe.errors import TensorError

_COMPARED = 64  # elements of the scores of each rank
# replicas of one computation differ by rounding at most, and parts of one result by far
# more
_CLOSE = 1e-3


class DistributedTensor(Tensor):
    """A tensor of tensor-parallel ranks; :func:`marked` makes them.

    Attributes
    ----------
    group : ProcessGroup
        The ranks.
    is_whole : bool
        Whether each rank has the whole tensor, or only its part along the last axis.
    """

    __slots__ = ("group", "is_whole")

    group: ProcessGroup
    is_whole: bool

    def _check_whole(self, operation: str) -> None:
        """Refuse the part of this rank.

        Raises
        ------
        TensorError
            Code ``divided``.
        """
        if not self.is_whole:
            raise TensorError(
                "divided",
                f"{operation}: this rank has one of {self.group.size} parts of the "
                f"scores, of shape {self.shape}, and each rank would get another "
                "loss. Give the last layer gather=True, or take "
                "ParallelCrossEntropyLoss.",
            )


def marked(tensor: Tensor, group: ProcessGroup, is_whole: bool) -> Tensor:
    """Return the same tensor with a mark, unless the group has one rank.

    Examples
    --------
    >>> from minipipe import spawn
    >>> spawn(
    ...     lambda group: marked(Tensor([1.0]), group, is_whole=False).is_whole,
    ...     num_ranks=2,
    ... )
    [False, False]
    """
    if group.size == 1:
        return tensor
    own = DistributedTensor.__new__(DistributedTensor)
    own.data = tensor.data
    own.node = tensor.node
    own.group = group
    own.is_whole = is_whole
    return own


def check_part(operation: str, tensor: Any, group: ProcessGroup) -> None:
    """Refuse a tensor that every rank has whole, or parts on other ranks; accept any
    tensor without a mark.

    Raises
    ------
    TensorError
        Code ``divided``.
    """
    if not isinstance(tensor, DistributedTensor):
        return
    if tensor.is_whole:
        raise _all_have_all(operation, tensor, group)
    of_scores = list(tensor.group.world_ranks)
    of_loss = list(group.world_ranks)
    if of_scores != of_loss:
        problem = f"{operation}: the scores are divided among ranks {of_scores}"
        how = f"and the loss among {of_loss}; give both the same group"
        raise TensorError("divided", f"{problem}, {how}.")


def check_scores(operation: str, scores: Tensor, group: ProcessGroup) -> None:
    """Refuse scores that are whole, not parts: by their mark or, without one, if they
    are the same on all ranks.

    Collective for scores without a mark. Scores that do not depend on the class are
    accepted, since they may be parts of a layer that begins at 0.

    Raises
    ------
    TensorError
        Code ``divided``.
    """
    check_part(operation, scores, group)
    if not isinstance(scores, DistributedTensor) and group.size > 1:
        _check_differ(scores.data, group, operation)


@backend.collective
def _check_differ(scores: Array, group: ProcessGroup, operation: str) -> None:
    if not are_same(scores, group):
        return
    rows = backend.to_numpy(scores)
    first = np.broadcast_to(rows[..., :1], rows.shape)
    if not np.array_equal(rows, first, equal_nan=True):
        raise _all_have_all(operation, scores, group)


@backend.collective
def check_same(array: Array, group: ProcessGroup, message: str) -> None:
    """Refuse an array that differs from rank to rank. Collective.

    Raises
    ------
    TensorError
        Code ``divided``.
    """
    if not are_same(array, group):
        raise TensorError("divided", message)


def are_same(array: Array, group: ProcessGroup) -> bool:
    """Return whether an array is the same on all ranks, up to rounding, as far as some
    elements show. Collective.

    Examples
    --------
    >>> from minipipe import spawn
    >>> spawn(lambda group: are_same(np.arange(3.0) * group.rank, group), num_ranks=2)
    [False, False]
    """
    # odd, so that it meets every column
    step = max(1, backend.prod(array.shape) // _COMPARED) | 1
    own = backend.to_numpy(backend.reshape(array, (-1,))[::step]).astype(np.float64)
    # all ranks compare the same two, with the same result
    first, *others = group.all_gather(own)
    return all(_are_close(first, other) for other in others)


def _are_close(own: np.ndarray, other: np.ndarray) -> bool:
    if own.shape != other.shape:
        return False
    return np.allclose(own, other, rtol=_CLOSE, atol=1e-12, equal_nan=True)


def _all_have_all(operation: str, tensor: Any, group: ProcessGroup) -> TensorError:
    message = (
        f"{operation}: every rank has all scores, of shape {tensor.shape}, and "
        f"{group.size} ranks would each count them. Take CrossEntropyLoss, or a "
        "ColumnParallelLinear without gather as last layer."
    )
    return TensorError("divided", message)
