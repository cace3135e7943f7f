"""A stand-alone program of a rank: one file with NumPy and mpi4py alone.

It computes the same bits as the compiled program of the rank, but is simpler to read:
arrays are allocated anew, receives begin where their values are used, and there are no
headers, checks and handshakes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from minipipe.compile.export.constants import Constants
from minipipe.compile.export.expressions import Writer
from minipipe.compile.export.frame import Frame
from minipipe.compile.export.merging import merged
from minipipe.compile.export.recorded import Recording
from minipipe.compile.export.row import RowSource
from minipipe.compile.export.stage_source import Functions, StageSource
from minipipe.compile.export.texts import FUNCTIONS, HELPERS, dicts
from minipipe.compile.program import CompiledRow
from minipipe.compile.stage_program import StageProgram
from minipipe.core.execution.executor import Executor
from minipipe.execution.plan import Plan
from minipipe.io import write_whole


class RankFile:
    """The stand-alone program of one rank.

    Parameters
    ----------
    executor : Executor
        The executor of training steps.
    compiled : CompiledRow
    plan : Plan
    recording : Recording

    Attributes
    ----------
    source : str
    arrays : dict of str to array
        The arrays that the program loads.

    Raises
    ------
    ModelError, ScheduleError
        Code ``unsupported``.
    """

    def __init__(
        self,
        executor: Executor,
        compiled: CompiledRow,
        plan: Plan,
        recording: Recording,
    ) -> None:
        self._executor = executor
        self._recorders = compiled.recorders
        self._plan = plan
        self._recording = recording
        self._constants = Constants()
        self._functions = Functions()
        self.has_sizes = False  # whether functions read the sizes of microbatches
        self._uses: dict[str, dict[int, str]] = {}  # gradients of shared parameters
        sources = self._stage_sources(compiled)
        self._row = RowSource(
            executor, sources, plan, self._uses, recording, self.has_sizes
        )
        self.arrays = self._saved()
        self.source = "\n".join(self._lines()) + "\n"

    def write(self, folder: Path) -> str:
        """Write the program and its arrays to a folder; return the program's name."""
        arrays = io.BytesIO()
        np.savez(arrays, allow_pickle=False, **self.arrays)
        name = f"rank{self._executor.group.rank}"
        write_whole(folder / f"{name}.py", self.source)
        write_whole(folder / f"{name}.npz", arrays.getvalue())
        return f"{name}.py"

    # -- stages ------------------------------------------------------------------------

    def _stage_sources(
        self, compiled: CompiledRow
    ) -> dict[tuple[int, int], StageSource]:
        """Return the functions of stages, by stage and microbatch."""
        sources: dict[int, StageSource] = {}
        for stage in compiled.recorders:
            parts = [each for each in compiled.parts if each.stage == stage]
            of_stage = self._merged(parts) or [
                self._stage_source(each.name, each, self._functions) for each in parts
            ]
            sources |= zip(map(id, parts), of_stage)
        return {place: sources[id(part)] for place, part in compiled.programs.items()}

    def _stage_source(
        self, name: str, program: StageProgram, functions: Functions
    ) -> StageSource:
        parameters, gradients = self._names(program.stage)
        writer = Writer(program.recorded.trace, parameters, gradients, self._constants)
        return StageSource(writer, program, name, functions)

    def _merged(self, parts: Sequence[StageProgram]) -> list[StageSource] | None:
        """Return the sources of programs that differ only in size; None otherwise."""
        all_sizes = self._recording.sizes
        sizes = [all_sizes[each.recorded.microbatch] for each in parts]
        if len(parts) < 2 or len({*sizes}) < len(sizes):
            return None
        functions = [Functions() for _ in parts]
        sources = [
            self._stage_source(str(part.stage), part, target)
            for part, target in zip(parts, functions)
        ]
        if len({tuple(each.parts) for each in functions}) > 1:
            return None
        for name, (parameters, _) in functions[0].parts.items():
            bodies = ["\n".join(each.parts[name][1]) for each in functions]
            text = merged(bodies, sizes, self._constants.formulas)
            if text is None:
                return None
            begin = ["n = sizes[k]"] * (text != bodies[0])
            functions[0].parts[name] = parameters, [*begin, text]
        self._functions.update(functions[0])
        self.has_sizes = True
        return sources

    def _names(self, stage: int) -> tuple[list[str], list[str]]:
        """Return the names of a stage's parameters, and of their gradients."""
        recorder = self._recorders[stage]
        parameters = self._executor.stages[stage].parameters
        by_owner = {id(each.owner): name for name, each in parameters.items()}
        names = [by_owner[id(owner)] for owner in recorder.owners]
        gradients = []
        for use in recorder.uses:
            name = by_owner[id(use.owner)]
            leaves = use.owner.leaves
            if len(leaves) > 1:
                number = next(n for n, leaf in leaves.items() if leaf is use.node)
                gradient = f"{name}, use {number}"
                self._uses.setdefault(name, {})[number] = gradient
                name = gradient
            gradients.append(name)
        return names, gradients

    # -- the arrays --------------------------------------------------------------------

    def _saved(self) -> dict[str, np.ndarray]:
        recording = self._recording
        arrays = {f"w/{name}": each for name, each in recording.parameters.items()}
        for name, state in recording.states.items():
            for key, value in state.items():
                arrays[f"{key}/{name}"] = np.asarray(value)
        for n, step in enumerate(recording.steps):
            for letter, parts in step.batch.items():
                if parts:
                    arrays[f"{letter}{n}"] = np.concatenate(list(parts.values()))
        arrays |= self._constants.arrays
        if recording.weights is None:
            rows = [step.weights for step in recording.steps]
            arrays["weights"] = np.array(rows)
        return arrays

    # -- the file ----------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        executor = self._executor
        row = self._row
        frame = Frame(self._recording, executor)
        sources = self._functions.sources
        yield from frame.head()
        yield from self._globals("\n".join(sources))
        yield from frame.state()
        if executor.program.num_ranks > 1:
            yield "comm, sent = MPI.COMM_WORLD, []"
        used = "\n".join([*sources, row.source])
        updates = frame.update(self._plan.owners)
        for text in [*self._general(used), *sources, row.source, *updates]:
            yield f"\n\n{text}"
        yield "\n"
        yield from frame.end(row, draws="uniform(" in used)

    def _globals(self, body: str) -> Iterator[str]:
        """Yield the dicts and constants of the functions."""
        yield from dicts(self._functions.kept, "by stage or layer, and microbatch")
        if "end_block(" in self._row.source:
            yield "blocks = {}  # by layers, the gradients of blocks of microbatches"
        yield from self._row.constants()
        yield from self._constants.lines(body)

    def _general(self, used: str) -> Iterator[str]:
        """Yield the functions that do not depend on the program."""
        texts = HELPERS | FUNCTIONS
        needed = [name for name in texts if f"{name}(" in used]
        bodies = "".join(texts[name] for name in needed)
        for name, text in texts.items():
            if name in needed or f" {name}(" in bodies:
                yield text.replace("SEED", str(self._recording.seed))
