"""Advice for a program, measured on ranks that mpirun starts; or on thread ranks, where there is no mpirun.

``mpirun -n 4 python -m minipipe.cli.advise_running PROGRAM …`` is what each rank runs. The program runs until its first
training step: there its ranks measure its model together, and leave it. Rank 0 writes the report to a file. What is
asked stands in a variable: mpirun cannot pass braces on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, NoReturn, cast

from minipipe import errors
from minipipe.cli.advise_program import FirstStep, at_first_step, first_step_of, question_of, run
from minipipe.cli.supervision.launching import find_mpirun
from minipipe.comm import ProcessGroup, spawn
from minipipe.comm.job.launcher import num_ranks as ranks_of_launcher
from minipipe.errors import ArgumentError, LaunchError, MinipipeError, ScheduleCode, ScheduleError
from minipipe.pipeline import Pipeline
from minipipe.tuning.advising import check_sizes, checked_seconds
from minipipe.tuning.deciding import RACE_SECONDS, advice_on_ranks
from minipipe.tuning.progress import MARK, teller
from minipipe.tuning.report import Advice, Report

_ASKED = "MINIPIPE_ADVICE"


def program_report(
    program: str,
    arguments: Sequence[str],
    num_ranks: int,
    memory_limit: float = inf,
    num_microbatches: int | None = None,
    seconds: float | None = None,
) -> Report:
    """Return advice for a program: its ranks run until its first training step, and measure there.

    Local; it starts processes of its own, and ends when they do. Before that the program runs in this process, as on
    one rank, until the same step: what is wrong with it is told best there.

    Parameters
    ----------
    program : str
    arguments : sequence of str
    num_ranks : int
    memory_limit : float
        Bytes of each rank.
    num_microbatches : int, optional
    seconds : float, optional
        As for :func:`minipipe.tuning.deciding.advice_on_ranks`.

    Raises
    ------
    LaunchError
        Code ``no-launcher``, where the program fails under mpirun; ``no-script``.
    MinipipeError
        As for :func:`minipipe.advise` and :func:`minipipe.cli.advise_program.first_step_of`.
    """
    checked_seconds(seconds, RACE_SECONDS)
    step, launcher = first_step_of(program, arguments), find_mpirun()
    asked = memory_limit, num_microbatches
    question = question_of(step, *asked)
    check_sizes(question, num_ranks)
    if launcher is None or ranks_of_launcher(os.environ) != 1:  # or this is a rank itself, which can start no others

        def advise(group: ProcessGroup) -> Advice | None:
            return advice_on_ranks(question, group, Pipeline, "thread ranks", seconds, teller(group, None))

        return Report.of(cast(Advice, spawn(advise, num_ranks)[0]))
    with tempfile.TemporaryDirectory(prefix="minipipe-advice-") as folder:
        file = Path(folder) / "report"
        given = {"file": str(file), "question": asked, "seconds": seconds, "ranks": num_ranks}
        variable = json.dumps({**given, "progress": sys.stderr.isatty()})
        command = [launcher, "-n", str(num_ranks), sys.executable, "-m", "minipipe.cli.advise_running"]
        output = _output_of([*command, program, *arguments], {**os.environ, _ASKED: variable})
        if not file.exists():
            said = (output or "not a word").splitlines()[-1]
            raise LaunchError(
                "no-launcher", f"{program} has not come through its first step under mpirun -n {num_ranks}: {said}"
            )
        told = json.loads(file.read_text())
    if "error" in told:
        _raise(*told["error"])
    return Report(**told)


def _output_of(command: Sequence[str], environment: dict[str, str]) -> str:
    """Run a command; return what it wrote as errors or, if nothing, printed. What its ranks tell is passed on."""
    told: list[str] = []
    with tempfile.TemporaryFile("w+") as printed:
        job = subprocess.Popen(command, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment)
        with job:
            for line in job.stderr or ():
                told.append(line)
                if line.startswith(MARK):
                    print(line, end="", file=sys.stderr, flush=True)
        printed.seek(0)
        return "".join(told).strip() or printed.read().strip()


def _raise(name: str, code: str, message: str) -> NoReturn:
    """Raise an error of another process.

    Raises
    ------
    MinipipeError
        What it raised.
    """
    if name == "ScheduleError":
        raise ScheduleError.of(ScheduleCode(code), message)
    kind: type[MinipipeError] = getattr(errors, name)
    raise kind(code, message)


def main() -> None:
    """Run the program as one rank until its first step, and measure there."""
    program, *arguments = sys.argv[1:]
    asked = json.loads(os.environ[_ASKED])

    def write(found: dict[str, Any]) -> None:
        Path(asked["file"]).write_text(json.dumps(found))

    def leave(pipeline: Pipeline, step: FirstStep) -> NoReturn:
        try:
            if pipeline.group.size != asked["ranks"]:
                given = f"{program} makes {pipeline.group.size} ranks itself, of {asked['ranks']} that were started"
                raise ArgumentError("value", f"{given}; expected init_process_group().")
            question = question_of(step, *asked["question"])
            tell = teller(pipeline.group, asked["progress"])
            advice = advice_on_ranks(question, pipeline.group, Pipeline, "MPI ranks", asked["seconds"], tell)
        except Exception as error:
            if pipeline.group.rank == 0 and isinstance(error, MinipipeError):
                message = error.problems[0].message if isinstance(error, ScheduleError) else str(error)
                write({"error": [type(error).__name__, str(error.code), message]})
            traceback.print_exception(error)
            sys.exit(1)  # which no ``except Exception`` of the program stops
        if advice is not None:
            write(Report.of(advice)._asdict())
        pipeline.group.barrier()
        sys.exit(0)

    with at_first_step(leave):
        run(program, arguments)


if __name__ == "__main__":
    main()
