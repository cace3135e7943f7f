"""Values of a compiled stage that are in a file meanwhile: O and L in a compiled row.

What is printed for a microbatch whose input and values leave the memory::

    F    forward_1(0, x1_2_0, out1_2_0)
    O    graph1_2 = Kept({"x0": x1_2_0}, [(stash0_1, 0)])
         del x1_2_0
         away1_2 = offload(rank, cell[4], graph1_2)
    L    back1_2 = load(rank, cell[9], away1_2)
    B    x1_2_0, = back1_2.wait().arrays.values()
         backward_1(0, True, x1_2_0, g1_2_0, grad_out1_2_0)
         del x1_2_0

An eager step has the same handlers of O and L. Sections of such a microbatch keep
values, which NumPy allocates, and no arrays that exist already.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from minipipe.core.autograd.backend import Array

_NAME = re.compile(r"[A-Za-z_]\w*")


class Kept:
    """Values that a forward has kept for its backward, as a node that has saved them.

    Parameters
    ----------
    arrays : dict of str to array
        Inputs and results of the stage, by the parameters of sections.
    slots : list of (list, int)
        Lists of the values of sections, and the places of this microbatch in them.
    """

    inputs = ()

    def __init__(
        self, arrays: dict[str, Array], slots: list[tuple[list[Any], int]]
    ) -> None:
        self.arrays = arrays
        self._slots = slots

    @property
    def graph(self) -> list[Any]:
        """The roots of the graph."""
        return [self]

    @property
    def saved(self) -> tuple[Any, ...]:
        """All arrays, or what stands for them while they are away."""
        values = [stash[slot] or () for stash, slot in self._slots]
        return list(self.arrays.values()), values

    @saved.setter
    def saved(self, saved: tuple[Any, ...]) -> None:
        arrays, values = saved
        self.arrays = dict(zip(self.arrays, arrays))
        for (stash, slot), own in zip(self._slots, values):
            stash[slot] = own


def with_deletions(lines: Sequence[str], names: Collection[str]) -> list[str]:
    """Return lines that delete some variables after their last uses.

    Examples
    --------
    >>> lines = ["    x = new()", "    put(x)", "    x = get()", "    use(x, y)"]
    >>> for line in with_deletions(lines, {"x"}):
    ...     print(line.strip())
    x = new()
    put(x)
    del x
    x = get()
    use(x, y)
    del x
    """
    found = list[str]()
    is_used = set[str]()
    for line in reversed(lines):
        own = [name for name in _NAME.findall(line) if name in names]
        over = [name for name in dict.fromkeys(own) if name not in is_used]
        if over:
            found.append(f"    del {', '.join(over)}")
        found.append(line)
        is_used.update(own)
        if " = " in line:
            is_used -= {*_NAME.findall(line.partition(" = ")[0])}
    return found[::-1]
