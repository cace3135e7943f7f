"""The arrays into which the programs of a rank write the gradients of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minipipe.autograd import Leaf
from minipipe.autograd.backend import Array
from minipipe.nn.arena import Arena
from minipipe.nn.parameter import Parameter


class GradientArrays:
    """An array for the gradient of each use of a rank's trained parameters.

    All programs of a rank share them. They are in an arena, side by side.

    Parameters
    ----------
    owners, uses : iterable of Parameter
        The parameters of a rank, and all uses of them.
    """

    def __init__(self, owners: Iterable[Parameter], uses: Iterable[Parameter]) -> None:
        self.trained = _trained(owners)
        self._arena = Arena(uses)
        self.version = 0

    def serve(self, owners: Iterable[Parameter]) -> bool:
        """Return whether these are the arrays of the parameters that are trained."""
        return self.trained == _trained(owners) and self._arena.is_intact()

    @property
    def is_open(self) -> bool:
        """Whether no other arrays have been made for these parameters since."""
        return self._arena.is_open

    def close(self) -> None:
        """Use the arrays no more."""
        self._arena.close()

    def of(self, leaves: Sequence[Leaf]) -> list[Array | None]:
        """Return the arrays of some leaves; None for a frozen one."""
        return list(map(self._arena.gradient_of, leaves))

    def count_references(self) -> None:
        """Take all references that exist now for references of programs."""
        self._arena.count_references()

    def make_free(self) -> bool:
        """Return whether nobody else refers to an array; make new arrays if not."""
        if self._arena.gradients_are_free():
            return True
        self.renew()
        return False

    def renew(self) -> None:
        """Make new arrays: programs are to be bound again."""
        self._arena.renew_gradients()
        self.version += 1


def _trained(owners: Iterable[Parameter]) -> list[Parameter]:
    return [owner for owner in owners if owner.requires_grad]
