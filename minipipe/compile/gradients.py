"""The arrays of weight gradients of a rank, and the seeds of its backwards."""

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
        The number of times that the arrays were replaced.
    """

    def __init__(self, owners: Iterable[Parameter], uses: Iterable[Parameter]) -> None:
        self.trained = _trained(owners)
        self.arena = Arena(uses)
        self.version = 0

    def serve(self, owners: Iterable[Parameter]) -> bool:
        """Return whether these are the arrays of all parameters that are trained."""
        return self.trained == _trained(owners) and self.arena.is_intact()

    def close(self) -> None:
        """Release the arrays."""
        self.arena.close()

    def of(self, leaves: Sequence[Leaf]) -> list[Array | None]:
        """Return the arrays of some leaves; None for a frozen one."""
        return list(map(self.arena.gradient_of, leaves))

    def flat(self, leaves: Sequence[Leaf]) -> list[Array]:
        """Return the elements of some leaves, in as few arrays as possible."""
        arrays = [array for array in self.of(leaves) if array is not None]
        of_arena = {id(each) for each in self.arena.gradients if each is not None}
        if of_arena == {id(each) for each in arrays}:
            return self.arena.flat_gradients()
        return [each.reshape(-1) for each in arrays]

    def count_references(self) -> None:
        """Count all references that exist now as references of programs."""
        self.arena.count_references()

    def renew(self) -> None:
        """Replace the arrays; programs have to be bound again."""
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
    """The gradients of the losses, with which their backwards begin, as arrays.

    Parameters
    ----------
    dtypes : mapping of int to dtype
        The dtypes of the losses, by microbatch.
    xp : module, optional
        The module of the losses; NumPy by default.
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
                # NumPy multiplies scalars in a tenth of the time of 0-d arrays.
                if isinstance(seed, np.ndarray) and seed.dtype in _PLAIN:
                    self._given[k] = seed[()]
            self._last = now
        return self._given
