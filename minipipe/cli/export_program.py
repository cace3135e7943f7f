"""Runs a training program, and writes what each of its ranks did in compiled steps.

Each rank runs ``mpirun -n 2 python -m minipipe.cli.export_program PROGRAM …``.
``Pipeline.watcher`` gets each call of ``Pipeline.step``. The program is left before the
first step that need not be recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from minipipe.cli.programs import (
    check_num_ranks,
    check_program,
    ended_early,
    run_program,
)
from minipipe.cli.progress import Progress
from minipipe.cli.ranks import (
    answer_of_ranks,
    leave_answer,
    leave_error,
    question_of_ranks,
)
from minipipe.comm import ProcessGroup
from minipipe.comm.job.host import launcher_of_ranks
from minipipe.compile.export.following import Watcher, noting
from minipipe.compile.export.rank_file import RankFile
from minipipe.errors import ArgumentError, MinipipeError, counted
from minipipe.pipeline import Pipeline

Tell = Callable[[ProcessGroup, Exception], None]
_BEFORE = "before its steps were recorded"
_HINT = "Write its own arguments after --."


class _Left(SystemExit):
    """Leaves the program behind its last recorded step; no ``except Exception`` of the
    program catches it.
    """

    def __init__(self) -> None:
        super().__init__(0)


class Exporter(Watcher):
    """Writes the file of each rank, and leaves the program behind its last step.

    Parameters
    ----------
    program : str
    num_ranks, num_steps : int
    folder : Path
    tell : function, optional
        ``(group, error)``: gets the error of a rank before the program does, which may
        end the job.
    """

    def __init__(
        self,
        program: str,
        num_ranks: int,
        num_steps: int,
        folder: Path,
        tell: Tell | None = None,
    ) -> None:
        super().__init__(program, num_steps)
        self._tell = tell
        self._num_ranks = num_ranks
        self._folder = folder
        self.names: dict[int, str] = {}  # of files, by rank

    def step(self, pipeline: Pipeline, inputs: Any, targets: Any) -> None:
        """Look at a step before it begins, and leave the program behind the last
        one.
        """
        fail = partial(self._fail, pipeline)
        try:
            self._check(pipeline)
            if not self.follow(pipeline, fail):
                return
            pipeline.group.barrier()  # all ranks can be exported
            self._write(pipeline.group.rank)
        except MinipipeError as error:
            fail(error)
            raise
        raise _Left

    def _fail(self, pipeline: Pipeline, error: Exception) -> None:
        if self._tell is not None:
            self._tell(pipeline.group, error)

    def _check(self, pipeline: Pipeline) -> None:
        if pipeline.grid is not None:
            problem = f"{self._program} trains on a Grid"
            how = "expected none of --tensor and --fully-sharded"
            raise ArgumentError(
                f"{problem}; export knows pipelines and replicas: {how}."
            )
        size = pipeline.group.size
        check_num_ranks(self._program, size, self._num_ranks, "of --ranks")

    def _write(self, rank: int) -> None:
        """Write the file of a rank, and its arrays."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.names[rank] = self.files[rank].write(self._folder)

    def finish(self) -> list[RankFile]:
        """Write the files of a program that has ended by itself.

        Raises
        ------
        ArgumentError
            Code ``value``, unless it has taken enough steps.
        """
        files = super().finish()
        if not files:
            message = f"{self._program} ended without a training step"
            raise ArgumentError(f"{message}; expected calls of Pipeline.step.")
        for rank in self.files.keys() - self.names.keys():
            self._write(rank)
        return files


def exported(
    program: str, arguments: Sequence[str], num_ranks: int, num_steps: int, folder: Path
) -> list[str]:
    """Write the files of all ranks of a program; return their names.

    Local; starts processes, and returns when they have exited. One rank runs in this
    process, and so do thread ranks without mpirun.

    Parameters
    ----------
    program : str
    arguments : sequence of str
    num_ranks, num_steps : int
    folder : Path

    Raises
    ------
    LaunchError
        Codes ``not-found``, and ``unavailable`` if the program fails.
    MinipipeError
        For a program that cannot be exported.
    """
    check_program(program)
    launcher: str | None = None
    if num_ranks > 1:
        launcher = launcher_of_ranks()
    steps = f"until {counted(num_steps, 'compiled step')} are recorded"
    work = f"running {program} on {counted(num_ranks, 'rank')} {steps}"
    with Progress(work, 20.0) as progress:
        if launcher is None:
            exporter = Exporter(program, num_ranks, num_steps, folder)
            with redirect_stdout(sys.stderr):
                _run(program, arguments, exporter)
            return [exporter.names[rank] for rank in sorted(exporter.names)]
        files = str(folder.resolve())
        settings = {"ranks": num_ranks, "steps": num_steps, "folder_of_files": files}
        failed = f"{program} failed {_BEFORE}"
        module = [__name__, program, *arguments]
        answer_of_ranks(launcher, num_ranks, module, settings, failed, progress)
        return [f"rank{rank}.py" for rank in range(num_ranks)]


def _run(program: str, arguments: Sequence[str], exporter: Exporter) -> None:
    """Run the program as ``python program arguments`` does, until its steps are
    recorded.

    Raises
    ------
    ArgumentError
        Code ``value``: a program that fails, or ends before.
    """
    try:
        with noting(exporter.followers):
            run_program(program, arguments, exporter)
        exporter.finish()
    except _Left:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            raise ended_early(program, error, _BEFORE, _HINT) from None
        exporter.finish()
    except MinipipeError:
        raise
    except Exception as error:
        raise ended_early(program, error, _BEFORE, _HINT) from error


def main() -> None:
    """Run the program as one rank, and write its file."""
    program, *arguments = sys.argv[1:]
    settings: Mapping[str, Any] = question_of_ranks()
    folder = Path(settings["folder_of_files"])
    exporter = Exporter(
        program, settings["ranks"], settings["steps"], folder, leave_error
    )
    _run(program, arguments, exporter)
    if 0 in exporter.names:
        leave_answer({"files": len(exporter.names)})


if __name__ == "__main__":
    main()
