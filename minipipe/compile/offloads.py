"""Values of a compiled stage that are offloaded: O and L in a compiled row.

The lines of a microbatch whose input and values leave the memory::

    F    forward_1(0, x1_2_0, out1_2_0)
    O    graph1_2 = Kept({"x0": x1_2_0}, [(stash0_1, 0)])
         del x1_2_0
         away1_2 = offload(rank, cell[4], graph1_2)
    L    back1_2 = load(rank, cell[9], away1_2)
    B    x1_2_0, = back1_2.wait().arrays.values()
         backward_1(0, True, x1_2_0, g1_2_0, grad_out1_2_0)
         del x1_2_0

O and L have the same handlers as in an eager step. Sections of such a microbatch keep
new arrays, because arrays that exist already cannot leave the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from minipipe.compile.arguments import Arguments
from minipipe.compile.memory import NAME
from minipipe.compile.stage_program import StageProgram
from minipipe.core.autograd.backend import Array
from minipipe.core.execution.executor import Binding
from minipipe.execution.source import variable_of


class Kept:
    """Values that a forward keeps for its backward, as a node of a graph saves them.

    Parameters
    ----------
    arrays : dict of str to array
        Inputs and results of the stage, by the parameters of sections.
    slots : list of (list, int)
        Lists of the values of sections, and the slots of this microbatch in them.
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
        """All arrays, or their placeholders while they are offloaded."""
        values = [stash[slot] or () for stash, slot in self._slots]
        return list(self.arrays.values()), values

    @saved.setter
    def saved(self, saved: tuple[Any, ...]) -> None:
        arrays, values = saved
        self.arrays = dict(zip(self.arrays, arrays))
        for (stash, slot), kept in zip(self._slots, values):
            stash[slot] = kept


class Offloads:
    """Prints the lines of offloaded values in a row.

    Parameters
    ----------
    programs : mapping of (int, int) to StageProgram
        By stage and microbatch.
    arguments : Arguments
    local : set of str
        The arrays of the row that are new in each step.
    """

    def __init__(
        self,
        programs: Mapping[tuple[int, int], StageProgram],
        arguments: Arguments,
        local: set[str],
    ) -> None:
        self._programs = programs
        self._arguments = arguments
        self._local = local

    def has_result(self, program: StageProgram, value: Any) -> bool:
        """Return whether the result of a forward is offloaded.

        Its stage reads it again, or the next stage, if that is on this rank.
        """
        if program.takes_away("y"):
            return True
        if value is None or value.name != "x":
            return False
        following = self._programs.get((value.stage, value.microbatch))
        return following is not None and following.takes_away("x")

    def collected(self, program: StageProgram, binding: Binding) -> str:
        """Return the line that collects the values of a microbatch for its O."""
        k = binding.action.microbatch
        name = variable_of(binding.takes[0])
        slots = [
            f"(stash{i}_{program.name}, {program.slots[k][i]})"
            for i, (first, _) in enumerate(program.sections.lifetimes)
            if first == "forward"
        ]
        away = self._away(program, k).items()
        arrays = ", ".join(f'"{parameter}": {array}' for parameter, array in away)
        return f"{name} = Kept({{{arrays}}}, [{', '.join(slots)}])"

    def loaded(self, program: StageProgram, binding: Binding) -> Iterator[str]:
        """Yield the lines that wait for the values of a microbatch after its L."""
        for value in binding.takes:
            if value.name == "back":
                name = variable_of(value)
                arrays = self._away(program, value.microbatch).values()
                line = f"{name}.wait().arrays.values()"
                if arrays:
                    line = f"{', '.join(arrays)}, = {line}"
                yield line
                yield f"del {name}"

    def _away(self, program: StageProgram, k: int) -> dict[str, str]:
        """Return the arrays of the row that are offloaded with values of sections."""
        names = {p: self._arguments.of(p, program, k) for p in program.read_later}
        return {p: name for p, name in names.items() if name in self._local}


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
    backwards = list[str]()
    is_used = set[str]()
    for line in reversed(lines):
        named = [name for name in NAME.findall(line) if name in names]
        last_uses = [name for name in dict.fromkeys(named) if name not in is_used]
        if last_uses:
            backwards.append(f"    del {', '.join(last_uses)}")
        backwards.append(line)
        is_used.update(named)
        if " = " in line:
            is_used -= {*NAME.findall(line.partition(" = ")[0])}
    return backwards[::-1]
