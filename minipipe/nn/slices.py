"""Slices of a sequence: the tensors of earlier slices that a layer needs.

Each slice is computed as a separate microbatch. A layer that processes one position at
a time needs nothing else; an attention needs the keys and values of earlier slices, and
a positional embedding the number of positions before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from minipipe.core.autograd.modes import setting
from minipipe.core.tensor import Tensor
from minipipe.functional import contiguous

# in the order of the calls in a forward: tensors of one slice for later slices
Carried = list[tuple[Tensor, ...]]


class SequenceSlice:
    """A slice of a sequence, while layers compute it.

    Parameters
    ----------
    first : int
        The number of positions before it.
    earlier : sequence of Carried
        By earlier slice, in order.

    Attributes
    ----------
    made : Carried
        The tensors of this slice.

    Examples
    --------
    >>> one = SequenceSlice(0, [])
    >>> _ = one.carried(Tensor([1.0]))
    >>> SequenceSlice(1, [one.made]).carried(Tensor([2.0]))
    [(Tensor([1.]), Tensor([2.]))]
    """

    def __init__(self, first: int, earlier: Sequence[Carried]) -> None:
        self.first = first
        self.earlier = earlier
        self.made: Carried = []

    def carried(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Keep tensors for later slices; return each behind those that the same call
        kept of earlier slices.
        """
        number = len(self.made)
        # as between layers: dividing a sequence changes no bit
        self.made.append(tuple(map(contiguous, tensors)))
        return list(zip(*(one[number] for one in (*self.earlier, self.made))))


_current: ContextVar[SequenceSlice | None] = ContextVar("slice", default=None)

current_slice = _current.get
"""Return the slice that is computed here; None for a whole sequence."""


def computing(part: SequenceSlice) -> setting:
    """Let layers compute a slice inside this block."""
    return setting(_current, part)
