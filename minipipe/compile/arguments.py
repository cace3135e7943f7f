"""The arguments of sections in a compiled row: the names of its arrays.

For a slice of a sequence these are also the keys and values that its earlier slices
have passed on, and the gradients that come back for its own::

    0F0.0    forward_0(x[0:2], passed0_0_0, passed0_0_1, out0_0)
    0F0.1    forward_0b(x[2:4], passed0_0_0, passed0_0_1, passed0_1_0, …)
    0B0.1    backward_0b(…, grad_passed0_1_0, grad_passed0_1_1)
    0B0.0    backward_0(…, grad_passed0_1_0, grad_passed0_1_1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.compile.printing import preparation_of
from minipipe.compile.stage_program import StageProgram
from minipipe.execution.samples import Cut

Place = tuple[int, int]
"""A stage and a microbatch."""


class Arguments:
    """The names of the arrays of a row, as far as it is printed.

    Parameters
    ----------
    num_slices : int
        Of a sequence.
    xp : module
        Of the arrays.

    Attributes
    ----------
    inputs, gradients : dict of (int, int) to str
        By stage and microbatch, the value that it gets, and the gradient that has come
        back.
    results, passed : dict of (int, int) to list of str
        By stage and microbatch, the arrays that its forward leaves; and those among
        them for later slices.
    begun : set of int
        The stages that have given a weight gradient.
    """

    def __init__(self, num_slices: int, xp: ModuleType = np) -> None:
        self._num_slices = num_slices
        self._is_in_numpy = xp is np
        self.inputs: dict[Place, str] = {}
        self.gradients: dict[Place, str] = {}
        self.results: dict[Place, list[str]] = {}
        self.passed: dict[Place, list[str]] = {}
        self._came: dict[Place, list[str]] = {}  # gradients of what was passed on
        self._batch: dict[tuple[str, int], list[str]] = {}
        self.begun: set[int] = set()

    def of_batch(self, letter: str, given: str, parts: Any) -> Iterator[str]:
        """Yield the lines that name the arrays of a batch, and remember its rows."""
        if isinstance(parts, Cut):
            names = [f"{letter}{i}" for i in range(len(parts.whole.arrays))]
            names = [letter] if len(names) == 1 else names
            yield f"    {', '.join(names)}, = {given}.whole.arrays"
            whole = parts.whole.replicated
            for k, rows in enumerate(parts.rows):
                where = f"{rows.start}:{rows.stop}"
                if not self._is_in_numpy:  # the array API asks for all axes
                    where += ", ..."
                own = [f"{name}[{where}]" for name in names]
                own = [name if i in whole else own[i] for i, name in enumerate(names)]
                self._batch[letter, k] = own
            return
        yield f"    {letter} = [each.arrays for each in {given}]"
        for k, part in enumerate(parts):
            own = [f"{letter}[{k}][{i}]" for i in range(len(part.arrays))]
            self._batch[letter, k] = own

    def call(
        self, program: StageProgram, section: str, k: int, out: Sequence[str]
    ) -> str:
        """Return the call of a section, which writes into some arrays."""
        arguments = []
        for parameter in program.sections.parameters[section]:
            if parameter.startswith("out"):
                arguments.append(out[int(parameter[3:])])
            elif parameter == "prepared":
                before = preparation_of(section)
                arguments.append(self.call(program, before, k, out))
            else:
                arguments.append(self.of(parameter, program, k))
        return f"{program.name_of(section)}({', '.join(arguments)})"

    def of(self, parameter: str, program: StageProgram, k: int) -> str:
        """Return the argument for a parameter of a section."""
        letter = parameter.rstrip("0123456789")
        i = int(parameter[len(letter) :] or 0)
        if letter == "slot":
            return str(program.slots[k][i])
        if letter == "first":
            return str(program.stage not in self.begun)
        if letter == "key":
            return f"key_of(seed, step, {k})"
        if letter == "x":
            return self._input(program, k, i)
        if letter == "g":
            return self._gradient(program, k, i)
        assert letter == "y", parameter
        return self.results[program.stage, k][i]

    def _input(self, program: StageProgram, k: int, i: int) -> str:
        """Return an array of a stage's input, of the targets, or of earlier slices."""
        count = program.recorded.num_inputs
        if i >= count:
            targets = self._batch["y", k] if program.recorded.result is None else []
            places = [(program.stage, each) for each in self._before(k)]
            passed = [name for each in places for name in self.passed.get(each, ())]
            return [*targets, *passed][i - count]
        if program.stage == 0:
            return self._batch["x", k][i]
        return f"{self.inputs[program.stage, k]}_{i}"

    def _gradient(self, program: StageProgram, k: int, i: int) -> str:
        """Return a gradient of a stage's result, or of what it has passed on."""
        place = (program.stage, k)
        came = program.recorded.came
        count = 1 if came is None else len(came.shapes)
        if i >= count:
            return self._came[place][i - count]
        name = self.gradients.get(place)
        return f"seeds[{k}]" if name is None else f"{name}_{i}"

    def _before(self, k: int) -> range:
        """Return the slices of a sequence before one."""
        return range(k - k % self._num_slices, k)

    def added(self, stage: int, k: int, names: Sequence[str]) -> Iterator[str]:
        """Yield the lines that add gradients of what earlier slices have passed on."""
        new = iter(names)
        for before in self._before(k) if names else ():
            own = [next(new) for _ in self.passed[stage, before]]
            came = self._came.setdefault((stage, before), own)
            for i, (total, part) in enumerate(zip(came, own)):
                if total == "None":
                    came[i] = part
                elif part not in ("None", total):
                    in_numpy = f"add({total}, {part}, {total})"
                    yield in_numpy if self._is_in_numpy else f"{total}[...] += {part}"
