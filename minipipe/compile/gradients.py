"""The gradients that the programs of a rank write, and with which its losses begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.autograd import Leaf
from minipipe.core.autograd.backend import Array
from minipipe.core.nn.parameter import Parameter
from minipipe.execution.objective import BatchObjective
from minipipe.nn.arena import Arena


class GradientArrays:
    """An array for the gradient of each use of a rank's trained parameters.

    All programs of a rank share them. They are in an arena, side by side.

    Parameters
    ----------
    owners, uses : iterable of Parameter
        The parameters of a rank, and all uses of them.

    Attributes
    ----------
    arena : Arena
    version : int
        How often the arrays were made anew.
    """

    def __init__(self, owners: Iterable[Parameter], uses: Iterable[Parameter]) -> None:
        self.trained = _trained(owners)
        self.arena = Arena(uses)
        self.version = 0

    def serve(self, owners: Iterable[Parameter]) -> bool:
        """Return whether these are the arrays of the parameters that are trained."""
        return self.trained == _trained(owners) and self.arena.is_intact()

    def close(self) -> None:
        """Use the arrays no more."""
        self.arena.close()

    def of(self, leaves: Sequence[Leaf]) -> list[Array | None]:
        """Return the arrays of some leaves; None for a frozen one."""
        return list(map(self.arena.gradient_of, leaves))

    def flat(self, leaves: Sequence[Leaf]) -> list[Array]:
        """Return the arrays of some leaves with one axis: few, if these are all."""
        own = [array for array in self.of(leaves) if array is not None]
        everything = {id(each) for each in self.arena.gradients if each is not None}
        if everything == {id(each) for each in own}:
            return self.arena.flat_gradients()
        return [each.reshape(-1) for each in own]

    def count_references(self) -> None:
        """Take all references that exist now for references of programs."""
        self.arena.count_references()

    def renew(self) -> None:
        """Make new arrays: programs are to be bound again."""
        self.arena.renew_gradients()
        self.version += 1


def _trained(owners: Iterable[Parameter]) -> list[Parameter]:
    return [owner for owner in owners if owner.requires_grad]


class GivenGradients:
    """The gradients that a program has written, and the leaves that get them.

    Attributes
    ----------
    pairs : list of (Leaf, array)
    flat : list of array of shape (elements,)
        All elements of these arrays.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Array]] = []
        self.flat: list[Array] = []


_PLAIN = (np.dtype(np.float32), np.dtype(np.float64))


class Seeds:
    """The gradients with which the backwards of the losses begin, as arrays.

    Parameters
    ----------
    dtypes : mapping of int to dtype
        Of the losses, by microbatch.
    xp : module, optional
        Of the losses; NumPy by default.
    """

    def __init__(self, dtypes: Mapping[int, Any], xp: ModuleType = np) -> None:
        self._seeds = {k: xp.empty((), dtype=dtype) for k, dtype in dtypes.items()}
        self._given = dict(self._seeds)
        self._last: tuple[list[float], float] = [], 0.0

    def __call__(self, objective: BatchObjective) -> dict[int, Array]:
        """Return the seeds of a batch, by microbatch."""
        now = objective.shares, objective.scale
        if now != self._last:
            for k, seed in self._seeds.items():
                seed[...] = objective.shares[k] * objective.scale
                # one number with another takes NumPy a tenth of the time of an array
                if isinstance(seed, np.ndarray) and seed.dtype in _PLAIN:
                    self._given[k] = seed[()]
            self._last = now
        return self._given
