"""A program's own steps, measured on ranks that mpirun starts: with its own choice, or with another one.

``mpirun -n 4 python -m minipipe.advice.running RESULT PROGRAM …`` is what each rank runs. It reads the choice, if there
is one, from its environment, and leaves the program after some steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from minipipe.advice.program import PLANNED, replaced, run
from minipipe.advice.text import options_of_text, text_of
from minipipe.advice.weighing import Choice
from minipipe.comm import ProcessGroup
from minipipe.errors import LaunchError
from minipipe.pipeline import Pipeline, Plan
from minipipe.supervision.launching import find_mpirun

STEPS = 20
_WARM_UP = 3
_CHOICE, _STEPS = "MINIPIPE_ADVICE_CHOICE", "MINIPIPE_ADVICE_STEPS"


def measured_step(
    program: str, arguments: Sequence[str], num_ranks: int, choice: Choice | None = None, num_steps: int = STEPS
) -> float:
    """Run a program under mpirun for some training steps; return the median time of forward and backward, in seconds.

    Local; it starts processes of its own, and ends when they do. Files that the program writes are written.

    Parameters
    ----------
    program : str
    arguments : sequence of str
    num_ranks : int
    choice : Choice, optional
        Replaces what the program chose itself.
    num_steps : int
        After some that are not measured.

    Raises
    ------
    LaunchError
        Code ``no-launcher``: no mpirun, or the program failed under it.
    """
    launcher = find_mpirun()
    if launcher is None:
        raise LaunchError("no-launcher", "There is no mpirun here to run the choice; pip install -e '.[mpi]'.")
    with tempfile.TemporaryDirectory(prefix="minipipe-advice-") as folder:
        result = Path(folder) / "seconds"
        told = {_STEPS: str(num_steps), **({} if choice is None else {_CHOICE: str(Path(folder) / "choice")})}
        if choice is not None:
            (Path(folder) / "choice").write_text(text_of(choice))
        command = [launcher, "-n", str(num_ranks), sys.executable, "-m", "minipipe.advice.running", str(result)]
        done = subprocess.run(
            [*command, program, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **told}
        )
        if not result.exists():
            said = (done.stderr.strip() or done.stdout.strip() or "not a word").splitlines()[-1]
            message = f"{program} has not taken {num_steps} steps under mpirun -n {num_ranks}: {said}"
            raise LaunchError("no-launcher", message)
        return float(result.read_text())


def main() -> None:
    """Run the program as one rank, until enough steps were measured."""
    result, program, *arguments = sys.argv[1:]
    choice = options_of_text(Path(os.environ[_CHOICE]).read_text()) if _CHOICE in os.environ else None
    makespans: list[float] = []
    initialise, take_step = Pipeline.__init__, Pipeline.step

    def begin(self: Pipeline, model: Any, group: ProcessGroup, **options: Any) -> None:
        if choice is not None:
            model = model.model if isinstance(model, Plan) else model
            options = {name: value for name, value in options.items() if name not in PLANNED} | choice
        initialise(self, model, group, **options)

    def step(self: Pipeline, *batch: Any, **asked: Any) -> Any:
        self.group.barrier()
        loss = take_step(self, *batch, **asked)
        makespans.append(self.timeline().makespan)
        if len(makespans) == _WARM_UP + int(os.environ[_STEPS]):
            if self.group.rank == 0:
                Path(result).write_text(str(median(makespans[_WARM_UP:])))
            self.group.barrier()
            sys.exit(0)
        return loss

    with replaced((Pipeline, "__init__", begin), (Pipeline, "step", step)):
        run(program, arguments)


if __name__ == "__main__":
    main()
