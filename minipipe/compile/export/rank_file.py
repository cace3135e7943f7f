"""A stand-alone program of a rank: one file with NumPy and mpi4py alone.

It computes what the compiled program of the rank computes, with the same bits. For a
reader it is simpler: arrays are allocated anew, receives begin where their values are
used, and there are no headers, checks and handshakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from minipipe.compile.export.constants import Constants
from minipipe.compile.export.merging import merged
from minipipe.compile.export.recorded import Recording
from minipipe.compile.export.row import RowSource
from minipipe.compile.export.stage_source import Functions, StageSource
from minipipe.compile.export.statements import Writer
from minipipe.compile.export.texts import (
    CLIP,
    GRADIENTS,
    HELPERS,
    MESSAGES,
    UPDATES,
)
from minipipe.compile.export.wrapping import WIDTH, wrapped
from minipipe.compile.program import CompiledRow
from minipipe.compile.recording import Recorded, Recorder
from minipipe.errors import ModelError
from minipipe.execution.executor import Executor
from minipipe.execution.plan import Plan


def _command(ranks: Sequence[str]) -> list[str]:
    """Return a command for all ranks, on as many lines as it needs."""
    lines = [f"mpirun {ranks[0]}"]
    for each in ranks[1:]:
        if len(f"{lines[-1]} : {each}") > WIDTH - 8:
            lines[-1] += " : \\\\"
            lines.append(f"    {each}")
        else:
            lines[-1] += f" : {each}"
    return lines


def _suffix(number: int) -> str:
    return chr(ord("a") + number) if number else ""


class RankFile:
    """The stand-alone program of one rank.

    Parameters
    ----------
    executor : Executor
        Of the training steps.
    compiled : CompiledRow
    plan : Plan
    recording : Recording

    Attributes
    ----------
    source : str
    arrays : dict of str to array
        What the program loads.

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
        self._executor, self._plan, self._recording = executor, plan, recording
        self._constants, self._functions = Constants(), Functions()
        self._helpers: set[str] = set()
        self.has_sizes = False  # of microbatches, which functions read
        self._uses: dict[str, dict[int, str]] = {}  # of shared parameters, gradients
        sources = self._stage_sources(compiled.recorders)
        form = recording.form
        self._row = RowSource(
            executor,
            compiled.recorders,
            sources,
            plan,
            self._uses,
            form,
            self.has_sizes,
        )
        self.arrays = self._saved()
        self.source = "\n".join(self._lines()) + "\n"

    # -- stages ------------------------------------------------------------------------

    def _stage_sources(
        self, recorders: Mapping[int, Recorder]
    ) -> dict[tuple[int, int], StageSource]:
        """Return the functions of stages, by stage and microbatch."""
        found: dict[tuple[int, int], StageSource] = {}
        for stage, recorder in recorders.items():
            kinds = list({id(r): r for r in recorder.kind_of.values()}.values())
            made = self._merged(stage, recorder, kinds)
            if made is None:
                made = [
                    self._stage_source(
                        f"{stage}{_suffix(i)}", stage, recorder, kind, self._functions
                    )
                    for i, kind in enumerate(kinds)
                ]
            of_kind = dict(zip(map(id, kinds), made))
            for k, recorded in recorder.kind_of.items():
                found[stage, k] = of_kind[id(recorded)]
        return found

    def _stage_source(
        self,
        name: str,
        stage: int,
        recorder: Recorder,
        kind: Recorded,
        functions: Functions,
    ) -> StageSource:
        model = self._plan.model.layers
        layers = {i: type(layer).__name__ for i, layer in enumerate(model)}
        parameters, gradients = self._names(stage, recorder)
        writer = Writer(kind.trace, parameters, gradients, self._constants, HELPERS)
        self._helpers |= writer.helpers
        return StageSource(writer, kind.trace, name, layers, functions)

    def _merged(
        self, stage: int, recorder: Recorder, kinds: Sequence[Recorded]
    ) -> list[StageSource] | None:
        """Return one source for kinds that differ in size alone; None otherwise."""
        all_sizes = self._recording.sizes
        sizes = [all_sizes[kind.microbatch] for kind in kinds]
        if len(kinds) < 2 or len({*sizes}) < len(sizes):
            return None
        functions = [Functions() for _ in kinds]
        made = [
            self._stage_source(f"{stage}", stage, recorder, kind, own)
            for kind, own in zip(kinds, functions)
        ]
        if len({tuple(own.sources) for own in functions}) > 1:
            return None
        for name in functions[0].sources:
            same = [own.sources[name] for own in functions]
            source = merged(same, sizes, self._constants.formulas)
            if source is None:
                return None
            if source != same[0]:
                source = source.replace("):\n", "):\n    n = sizes[k]\n", 1)
                lines = [
                    wrapped(line.lstrip(), len(line) - len(line.lstrip()))
                    for line in source.split("\n")
                ]
                source = "\n".join(each for many in lines for each in many)
            functions[0].sources[name] = source
        self._functions.update(functions[0])
        self.has_sizes = True
        return made

    def _names(self, stage: int, recorder: Recorder) -> tuple[list[str], list[str]]:
        """Return the names of a stage's parameters, and of their gradients."""
        parameters = self._executor.stages[stage].parameters
        by_owner = {id(each.owner): name for name, each in parameters.items()}
        names = [by_owner[id(owner)] for owner in recorder.owners]
        gradients = []
        for use in recorder.uses:
            name, leaves = by_owner[id(use.owner)], use.owner.leaves
            if len(leaves) > 1:
                number = next(n for n, leaf in leaves.items() if leaf is use.node)
                gradient = f"{name}, use {number}"
                self._uses.setdefault(name, {})[number] = gradient
                name = gradient
            gradients.append(name)
        return names, gradients

    # -- what is loaded ----------------------------------------------------------------

    def _saved(self) -> dict[str, np.ndarray]:
        recording = self._recording
        found = {f"w/{name}": each for name, each in recording.parameters.items()}
        for name, state in recording.states.items():
            for kind, value in state.items():
                found[f"{kind}/{name}"] = np.asarray(value)
        for n, step in enumerate(recording.steps):
            for letter, parts in (("x", step.inputs), ("y", step.targets)):
                if parts:
                    found[f"{letter}{n}"] = np.concatenate(list(parts.values()))
        found |= self._constants.arrays
        if self._has_weights:
            rows = [step.weights for step in recording.steps]
            found["weights"] = np.array(rows)
        return found

    @property
    def _has_weights(self) -> bool:
        """Whether the weights of losses differ, and are an argument of ``step``."""
        return self._recording.form.weights is None

    # -- the file ----------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        rank, size = self._executor.group.rank, self._executor.group.size
        body = "\n".join(self._functions.sources.values())
        yield from self._docstring(rank, size)
        yield ""
        yield "import hashlib"
        yield "import os"
        if self._limit is not None:
            yield "from math import fsum, sqrt"
        yield "from pathlib import Path"
        yield ""
        yield "# A matrix product by more threads adds in another order."
        threads = self._recording.num_threads
        names = '("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")'
        yield f'os.environ |= dict.fromkeys({names}, "{threads}")'
        yield ""
        yield "import numpy as np"
        if size > 1:
            yield "from mpi4py import MPI"
        yield ""
        yield 'saved = np.load(Path(__file__).with_suffix(".npz"))'
        yield ""
        yield ""
        yield "def saved_as(kind):"
        yield "    names = [name for name in saved.files if name.startswith(kind)]"
        yield "    return {name.removeprefix(kind): saved[name] for name in names}"
        yield ""
        yield ""
        yield 'w = saved_as("w/")  # the parameters of this rank, by layer and name'
        yield "gradients = {}"
        if self._functions.kept:
            names = list(self._functions.kept)
            values = ", ".join(["{}"] * len(names))
            yield f"{', '.join(names)} = {values}  # by stage or layer, and microbatch"
        yield from self._row.constants()
        yield from self._constants.lines(body)
        yield from self._of_the_optimiser()
        if size > 1:
            yield "comm, sent = MPI.COMM_WORLD, []"
        yield ""
        yield ""
        used = body + "\n".join(self._row.lines)
        for text in self._helper_sources(used):
            yield text
            yield ""
            yield ""
        for source in self._functions.sources.values():
            yield source
            yield ""
            yield ""
        yield from self._row.lines
        yield ""
        yield ""
        yield from self._update()
        yield from self._main(rank, size)

    def _docstring(self, rank: int, size: int) -> Iterator[str]:
        program = self._executor.program
        stages = sorted(self._executor.stages)
        yield f'"""What rank {rank} of {size} does in a training step: NumPy and MPI alone.'
        yield ""
        count = program.num_microbatches
        what = f"{self._recording.program}, schedule {program.name}"
        here = f"stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}"
        text = f"Written by minipipe export. Program: {what}, {count} microbatches. This rank "
        text += f"has {here} of {program.num_stages}." if stages else "has no stage."
        yield fill(text, WIDTH)
        yield "Run it, and see that the parameters get the same bits as in minipipe:"
        yield ""
        ranks = [f"-n 1 python rank{r}.py" for r in range(size)]
        for line in _command(ranks) if size > 1 else ["python rank0.py"]:
            yield f"    {line}"
        yield ""
        yield "Arrays are allocated anew, and a receive begins where its value is used. There"
        yield "are no handshakes and no checks: if one rank fails, the others wait for ever."
        yield '"""'

    def _helper_sources(self, used: str) -> Iterator[str]:
        for name in sorted(self._helpers):
            yield HELPERS[name].replace("SEED", str(self._recording.seed))
        if "add_gradient(" in used:
            yield GRADIENTS
        for name, text in MESSAGES.items():
            if f"{name}(" in used:
                yield text

    # -- the update --------------------------------------------------------------------

    @property
    def _limit(self) -> float | None:
        """The norm to which gradients are clipped."""
        limits = self._recording.steps[0].limits
        return limits[0] if limits else None

    def _numbers(self, n: int) -> list[dict[str, Any]]:
        """Return the numbers of the groups in step n."""
        return self._recording.steps[n].groups[0]

    def _of_the_optimiser(self) -> Iterator[str]:
        recording = self._recording
        kinds = {kind for state in recording.states.values() for kind in state}
        for kind in sorted(kinds):
            yield f'{kind} = saved_as("{kind}/")'
        rates = [
            [g["learning_rate"] for g in self._numbers(n)]
            for n in range(len(recording.steps))
        ]
        shown = [each[0] for each in rates] if len(rates[0]) == 1 else rates
        name = "rates"
        text = f"{name} = {shown}  # the learning rate of each step"
        if len(text) <= WIDTH:
            yield text
            return
        yield "rates = [  # the learning rate of each step"
        yield (
            fill(
                ", ".join(map(repr, shown)),
                WIDTH - 4,
                initial_indent="    ",
                subsequent_indent="    ",
            )
            + ","
        )
        yield "]"

    def _update(self) -> Iterator[str]:
        if self._limit is not None:
            yield from self._clip()
            yield ""
            yield ""
        groups = self._numbers(0)
        if len(groups) != 1:
            message = (
                "The optimiser has several groups of parameters; export knows only one."
            )
            raise ModelError("unsupported", f"{message} Give it pipeline.parameters().")
        yield UPDATES[self._recording.optimiser](groups[0])
        yield ""
        yield ""

    def _clip(self) -> Iterator[str]:
        """Yield the function that limits the norm; a shared parameter counts once."""
        rank, owners = self._executor.group.rank, self._plan.owners
        shared = [name for name in self._recording.parameters if owners[name] != rank]
        text = CLIP.replace(
            "OTHERS", f" if name not in {tuple(shared)}" if shared else ""
        )
        if self._executor.group.size == 1:
            text = text.replace("sum(comm.allgather(squares), [])", "squares")
        yield text

    # -- the end -----------------------------------------------------------------------

    def _main(self, rank: int, size: int) -> Iterator[str]:
        recording = self._recording
        first = recording.steps[0]
        given = [f'saved[f"{letter}{{n}}"]' for letter, has in self._row.batch if has]
        yield f"for n in range({len(recording.steps)}):"
        if "uniform" in self._helpers:
            yield f"    training_step = {first.number} + n"
        if self._row.has_loss and self._has_weights:
            given.append('saved["weights"][n]')
        call = f"step({', '.join(given)})"
        if self._row.has_loss:
            yield f"    loss = {call}"
            yield '    print(f"step {n}: loss {loss:.6f}")'
        else:
            yield f"    {call}"
        if self._limit is not None:
            yield f"    clip({self._limit!r})"
        yield "    update(rates[n])"
        yield "    gradients.clear()"
        yield ""
        yield 'bits = b"".join(w[name].tobytes() for name in sorted(w))'
        yield "digest = hashlib.sha256(bits).hexdigest()[:16]"
        expected = recording.digest
        yield f'assert digest == "{expected}", f"rank {rank}: other bits, {{digest}}"'
        yield f'print("rank {rank}: the same bits,", digest)'
