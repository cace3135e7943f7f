"""The arguments of sections in a compiled row: the names of its arrays.

For a slice of a sequence these include the keys and values of earlier slices, and the
gradients of its keys and values from later ones::

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

from minipipe.compile.printing import addition, preparation_of
from minipipe.compile.stage_program import StageProgram
from minipipe.execution.samples import Cut

Place = tuple[int, int]
"""A stage and a microbatch."""


class Arguments:
    """The names of the arrays in the lines of a row so far.

    Parameters
    ----------
    num_slices : int
        The number of slices of a sequence.
    xp : module
        The module of the arrays.

    Attributes
    ----------
    inputs, gradients : dict of (int, int) to str
        By stage and microbatch, its input, and the gradient of its result.
    results, passed : dict of (int, int) to list of str
        By stage and microbatch, the results of its forward; and those among them for
        later slices.
    begun : set of int
        The stages whose weight gradients have a first contribution.
    """

    def __init__(self, num_slices: int, xp: ModuleType = np) -> None:
        self._num_slices = num_slices
        self._is_in_numpy = xp is np
        self.inputs: dict[Place, str] = {}
        self.gradients: dict[Place, str] = {}
        self.results: dict[Place, list[str]] = {}
        self.passed: dict[Place, list[str]] = {}
        # Gradients of the arrays for later slices.
        self._passed_gradients: dict[Place, list[str]] = {}
        self._batch: dict[tuple[str, int], list[str]] = {}
        self._sources: dict[int, list[tuple[str, str]]] = {}  # by stage
        self.begun: set[int] = set()

    def of_batch(
        self, stage: int, letter: str, source: str, parts: Any
    ) -> Iterator[str]:
        """Yield the lines that unpack a batch, and note the arguments of microbatches."""
        if isinstance(parts, Cut) and self._is_in_numpy:
            names = [letter]
            if len(parts.whole.arrays) > 1:
                names = [f"{letter}{i}" for i in range(len(parts.whole.arrays))]
            yield f"    {', '.join(names)}, = {source}.whole.arrays"
            replicated = parts.whole.replicated
            for k, rows in enumerate(parts.rows):
                index = f"{rows.start}:{rows.stop}"
                self._batch[letter, k] = [
                    name if i in replicated else f"{name}[{index}]"
                    for i, name in enumerate(names)
                ]
            return
        yield f"    {letter} = {{}}"
        self._sources.setdefault(stage, []).append((letter, source))
        for k, part in enumerate(parts):
            count = len(part.arrays)
            self._batch[letter, k] = [f"{letter}[{k}][{i}]" for i in range(count)]

    def read(self, stage: int, k: int) -> Iterator[str]:
        """Yield the lines that read a microbatch when its forward begins: on its way to
        a device it is copied then (``pipeline/copies.py``).
        """
        for letter, source in self._sources.get(stage, ()):
            yield f"{letter}[{k}] = {source}[{k}].arrays"

    def call(
        self, program: StageProgram, section: str, k: int, out: Sequence[str]
    ) -> str:
        """Return the call of a section that writes into the arrays ``out``."""
        arguments = []
        for parameter in program.sections.parameters[section]:
            if parameter.startswith("out"):
                arguments.append(out[int(parameter[3:])])
            elif parameter == "prepared":
                preparation = preparation_of(section)
                arguments.append(self.call(program, preparation, k, out))
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
            further = []
            if program.recorded.result is None:
                further += self._batch["y", k]  # the targets
            for earlier in self._before(k):
                further += self.passed.get((program.stage, earlier), ())
            return further[i - count]
        if program.stage == 0:
            return self._batch["x", k][i]
        return f"{self.inputs[program.stage, k]}_{i}"

    def _gradient(self, program: StageProgram, k: int, i: int) -> str:
        """Return a gradient of a stage's result, or of its arrays for later slices."""
        place = (program.stage, k)
        form = program.recorded.output_gradient
        count = 1  # the seed
        if form is not None:
            count = len(form.shapes)
        if i >= count:
            return self._passed_gradients[place][i - count]
        if place in self.gradients:
            return f"{self.gradients[place]}_{i}"
        return f"seeds[{k}]"

    def _before(self, k: int) -> range:
        """Return the earlier slices of the sequence of a slice."""
        return range(k - k % self._num_slices, k)

    def added(self, stage: int, k: int, names: Sequence[str]) -> Iterator[str]:
        """Yield the lines that add gradients of the arrays of earlier slices."""
        if not names:
            return
        remaining = iter(names)
        for earlier in self._before(k):
            parts = [next(remaining) for _ in self.passed[stage, earlier]]
            totals = self._passed_gradients.setdefault((stage, earlier), parts)
            for i, (total, part) in enumerate(zip(totals, parts)):
                if total == "None":
                    totals[i] = part
                elif part not in ("None", total):
                    yield addition(total, part, self._is_in_numpy)
