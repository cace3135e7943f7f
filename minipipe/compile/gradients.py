"""The arrays into which the programs of a rank write the gradients of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import le
from sys import getrefcount

import numpy as np

from minipipe.autograd import Leaf
from minipipe.autograd.backend import Array
from minipipe.nn.arena import Arena
from minipipe.nn.parameter import Parameter


class GradientArrays:
    """An array for the gradient of each use of a rank's trained parameters.

    All programs of a rank share them. A parameter with one use has its array in an
    arena, side by side with others.

    Parameters
    ----------
    owners, uses : iterable of Parameter
        The parameters of a rank, and all uses of them.
    """

    def __init__(self, owners: Iterable[Parameter], uses: Iterable[Parameter]) -> None:
        self.trained = _trained(owners)
        self._arena = Arena(self.trained)
        self._uses = [use for use in uses if use.requires_grad]
        self.version = 0
        self._allocate()

    def _allocate(self) -> None:
        alone = {
            id(each): array
            for each, array in zip(self._arena.parameters, self._arena.gradients)
            if len(each.leaves) == 1
        }
        self._own: list[Array] = []
        self._arrays: dict[int, Array] = {}
        for use in self._uses:
            array = alone.get(id(use.owner))
            if array is None:
                array = np.zeros(use.node.shape or (), use.node.dtype)
                self._own.append(array)
            self._arrays[id(use.node)] = array
        self._counts = list(map(getrefcount, self._own))

    def serve(self, owners: Iterable[Parameter]) -> bool:
        """Return whether these are the arrays of the parameters that are trained."""
        return self.trained == _trained(owners) and self._arena.is_intact()

    def close(self) -> None:
        """Use the arrays no more."""
        self._arena.close()

    def of(self, leaves: Sequence[Leaf]) -> list[Array | None]:
        """Return the arrays of some leaves; None for a frozen one."""
        return [self._arrays.get(id(leaf)) for leaf in leaves]

    def count_references(self) -> None:
        """Take all references that exist now for those of programs."""
        self._arena.count_references()
        self._counts = list(map(getrefcount, self._own))

    def make_free(self) -> bool:
        """Return whether nobody else refers to an array; make new arrays if not."""
        if self._arena.gradients_are_free() and self._own_are_free():
            return True
        self.renew()
        return False

    def renew(self) -> None:
        """Make new arrays: programs are to be bound again."""
        self._arena.renew_gradients()
        self._allocate()
        self.version += 1

    def _own_are_free(self) -> bool:
        return all(map(le, map(getrefcount, self._own), self._counts))


def _trained(owners: Iterable[Parameter]) -> list[Parameter]:
    return [owner for owner in owners if owner.requires_grad]
