"""The frame of a stand-alone file: its head, the update, and the training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import fill

from minipipe.compile.export.recorded import Recording
from minipipe.compile.export.row import RowSource
from minipipe.compile.export.texts import CLIP, UPDATES
from minipipe.compile.wrapping import WIDTH, wrapped
from minipipe.core.execution.executor import Executor

_DOCSTRING = '''\
"""What rank RANK of SIZE does in a training step: NumPy and MPI alone.

ORIGIN
Run it, and see that the parameters get the same bits as in minipipe:

    COMMAND

Arrays are allocated anew, and a receive begins when its value is used. There are no
handshakes and no checks: if one rank fails, the others wait for ever.
"""
'''
_IMPORTS = """\
import hashlib
import os
MATHS
from pathlib import Path

# A matrix product by more threads adds in another order.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "COUNT")

import numpy as np
MPI

saved = np.load(Path(__file__).with_suffix(".npz"))


def saved_as(kind):
    names = [name for name in saved.files if name.startswith(kind)]
    return {name.removeprefix(kind): saved[name] for name in names}


w = saved_as("w/")  # the parameters of this rank, by layer and name
gradients = {}"""
_END = """\
bits = b"".join(w[name].tobytes() for name in sorted(w))
digest = hashlib.sha256(bits).hexdigest()[:16]
assert digest == "DIGEST", f"rank RANK: other bits, {digest}"
print("rank RANK: the same bits,", digest)"""


class Frame:
    """Everything around the functions of a rank's step.

    Parameters
    ----------
    recording : Recording
    executor : Executor
    """

    def __init__(self, recording: Recording, executor: Executor) -> None:
        self._recording = recording
        self._program = executor.program
        self._rank = executor.group.rank
        self._stages = sorted(executor.stages)
        self._limit = next(iter(recording.steps[0].limits), None)

    def head(self) -> Iterator[str]:
        """Yield the docstring, the imports, and the arrays of every file."""
        size = self._program.num_ranks
        text = _DOCSTRING.replace("RANK", str(self._rank)).replace("SIZE", str(size))
        text = text.replace("COMMAND", _command(size)).replace("ORIGIN", self._origin())
        yield text
        imports = _IMPORTS.replace("COUNT", str(self._recording.num_threads))
        has_clip = self._limit is not None
        imports = imports.replace("MATHS\n", "from math import fsum, sqrt\n" * has_clip)
        yield imports.replace("MPI\n", "from mpi4py import MPI\n" * (size > 1))

    def _origin(self) -> str:
        count = self._program.num_microbatches
        table = self._program.name
        program = f"Program: {self._recording.program}, schedule {table}"
        here = "no stage"
        if self._stages:
            noun = "stage" + "s" * (len(self._stages) > 1)
            numbers = " and ".join(map(str, self._stages))
            here = f"{noun} {numbers} of {self._program.num_stages}"
        text = f"Written by minipipe export. {program}, {count} microbatches."
        return fill(f"{text} This rank has {here}.", WIDTH)

    def state(self) -> Iterator[str]:
        """Yield the states of the optimiser, and its learning rates."""
        states = self._recording.states.values()
        for name in sorted({name for state in states for name in state}):
            yield f'{name} = saved_as("{name}/")'
        rates = [step.updates[0]["learning_rate"] for step in self._recording.steps]
        yield "# The learning rate of each step."
        yield from wrapped(f"rates = {rates}", 0)

    def update(self, owners: Mapping[str, int]) -> Iterator[str]:
        """Yield the functions that clip gradients and change parameters.

        Parameters
        ----------
        owners : mapping of str to int
            By parameter, the rank that adds its gradient to the norm.
        """
        if self._limit is not None:
            others = [n for n in self._recording.parameters if owners[n] != self._rank]
            condition = ""
            if len(others) == len(self._recording.parameters):
                condition = " if False"  # another replica adds them
            elif others:
                condition = f" if name not in {others}"
            text = CLIP.replace("OTHERS", condition)
            if self._program.num_ranks == 1:
                text = text.replace("sum(comm.allgather(squares), [])", "squares")
            yield text
        if self._recording.optimiser:
            lines = UPDATES[self._recording.optimiser]
            yield "\n".join(lines(self._recording.steps[0].updates[0]))

    def end(self, row: RowSource, draws: bool) -> Iterator[str]:
        """Yield the steps, and the comparison of the parameters after them.

        Parameters
        ----------
        row : RowSource
        draws : bool
            Whether the step draws random numbers.
        """
        steps = self._recording.steps
        arguments = [f'saved[f"{letter}{{n}}"]' for letter in row.batch]
        arguments += ['saved["weights"][n]'] * row.has_weights
        call = f"step({', '.join(arguments)})"
        yield f"for n in range({len(steps)}):"
        if draws:
            yield f"    training_step = {steps[0].number} + n"
        if row.has_loss:
            yield f"    loss = {call}"
            name = "loss"
            if len(self._recording.batch["y"]) < self._program.num_microbatches:
                name = f"rank {self._rank}'s part of the loss"
            yield f'    print(f"step {{n}}: {name} {{loss:.6f}}")'
        else:
            yield f"    {call}"
        if self._limit is not None:
            yield f"    clip({self._limit!r})"
        if self._recording.optimiser:
            yield "    update(rates[n])"
        yield "    gradients.clear()"
        yield ""
        text = _END.replace("DIGEST", self._recording.digest)
        yield text.replace("RANK", str(self._rank))


def _command(size: int) -> str:
    """Return a command for all ranks, on one or several lines."""
    if size == 1:
        return "python rank0.py"
    lines = ["mpirun -n 1 python rank0.py"]
    for rank in range(1, size):
        command = f"-n 1 python rank{rank}.py"
        if len(f"{lines[-1]} : {command}") > WIDTH - 8:
            lines[-1] += " : \\\\"
            lines.append(f"        {command}")
        else:
            lines[-1] += f" : {command}"
    return "\n".join(lines)
