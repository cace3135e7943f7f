"""Advice for a training program: it runs unchanged until its first step; then its ranks
measure choices in turns.

Each rank runs ``mpirun -n 4 python -m minipipe.cli.advise_program PROGRAM …``.
``Pipeline.watcher`` gets the first call of ``Pipeline.step``, and does not return from
it. Without mpirun, thread ranks measure.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from inspect import signature
from typing import Any, NoReturn, cast

from minipipe.cli.programs import check_num_ranks, ended_early, run_program
from minipipe.cli.progress import Progress
from minipipe.cli.ranks import (
    answer_of_ranks,
    errors_left,
    leave_answer,
    question_of_ranks,
)
from minipipe.comm import ProcessGroup, spawn
from minipipe.comm.job.host import launcher_of_ranks
from minipipe.errors import ArgumentError, LaunchError, counted
from minipipe.nn import Sequential
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline, Plan
from minipipe.pipeline.planning import Stages
from minipipe.tuning import advising
from minipipe.tuning.advising import check_num_layers, checked_seconds
from minipipe.tuning.memory import MakeOptimiser
from minipipe.tuning.race import RACE_SECONDS, advice_on_ranks, chosen, silent, teller
from minipipe.tuning.report import Advice, AdviceReport
from minipipe.tuning.weighing import PLANNED, Question

# Options of a pipeline that advice chooses. One rank cannot run the program's own
# choice for several.
_STARTING = 8.0  # seconds for imports and for the last turns of a benchmark
_CHOSEN = {*signature(chosen).parameters} - {"recompute"}


Leave = Callable[[Pipeline, Question], NoReturn]


class _Left(BaseException):
    """Leaves the program at its first step; no ``except Exception`` of the program
    catches it.
    """

    def __init__(self, question: Question) -> None:
        super().__init__("the program was left at its first step")
        self.question = question


class _Watcher:
    """Records the arguments of a program's pipelines, and leaves the program at its
    first step.
    """

    def __init__(self, leave: Leave, limits: Mapping[str, Any]) -> None:
        self._leave = leave
        self._limits = limits
        self._arguments: dict[int, tuple[Sequential, dict[str, Any]]] = {}

    def begin(
        self, pipeline: Pipeline, model: Any, options: dict[str, Any]
    ) -> tuple[Any, dict]:
        """Return the model and the options of a pipeline, without those that advice
        chooses.
        """
        if isinstance(model, Plan | Stages):
            model = model.model
        self._arguments[id(pipeline)] = model, options
        kept = options.keys() - _CHOSEN
        return model, {name: options[name] for name in options if name in kept}

    def step(self, pipeline: Pipeline, inputs: Any, targets: Any) -> NoReturn:
        model, options = self._arguments[id(pipeline)]
        plan = {name: options[name] for name in PLANNED if name in options}
        settings = {"recompute": options["recompute"] or None, **self._limits}
        if plan.get("schedule") != "auto" and str(plan.get("partition")) != "measured":
            settings["own"] = plan
        kept = options.keys() - {*_CHOSEN, "recompute"}
        rest = {name: options[name] for name in options if name in kept}
        optimiser = _optimiser_of(pipeline)
        question = Question(model, inputs, targets, rest, optimiser, **settings)
        self._leave(pipeline, question)


def _optimiser_of(pipeline: Pipeline) -> MakeOptimiser | None:
    """Return a function that makes optimisers like the one over a pipeline's
    parameters.
    """
    parameters = set(map(id, pipeline.parameters()))
    # The garbage collector lists every living optimiser, so that the program need not
    # pass its own.
    alive = [each for each in gc.get_objects() if issubclass(type(each), Optimiser)]
    alive = [each for each in alive if hasattr(each, "groups")]
    if not alive:
        return None

    def num_common(optimiser: Optimiser) -> int:
        return len(parameters & set(map(id, optimiser.parameters)))

    settings = dict(max(alive, key=num_common).settings)
    kind = settings.pop("class")
    return lambda parameters: kind(parameters, **settings)


def question_about(
    program: str, arguments: Sequence[str] = (), **limits: Any
) -> Question:
    """Run a program until its first training step, and return a question about its
    model, batch and optimiser.

    Local: it runs in this process, as on one rank. Its standard output goes to standard
    error.

    Parameters
    ----------
    program : str
        A Python file.
    arguments : sequence of str
        The arguments of the program.
    **limits
        ``memory_limit``, ``num_microbatches`` and ``replicas`` of the question.

    Raises
    ------
    LaunchError
        Code ``not-found``.
    ArgumentError
        Code ``value``: a program that ends or fails before its first step, or makes
        ranks of its own.
    """

    def leave(pipeline: Pipeline, question: Question) -> NoReturn:
        size = pipeline.group.size
        if size != 1:
            problem = f"{program} starts {counted(size, 'rank')} itself"
            how = "expected a program that calls init_process_group()"
            raise ArgumentError(f"{problem}; {how}.")
        raise _Left(question)

    with redirect_stdout(sys.stderr):
        try:
            run_program(program, arguments, _Watcher(leave, limits))
        except _Left as left:
            return left.question
        except (ArgumentError, LaunchError):
            raise
        except (SystemExit, Exception) as error:
            if not isinstance(error, SystemExit):
                traceback.print_exception(error)
            raise ended_early(program, error, _BEFORE, _HINT) from None
    problem = f"{program} ended without a training step"
    raise ArgumentError(f"{problem}; expected a call of Pipeline.step.")


_BEFORE = "before its first training step"
_HINT = (
    "Write options of minipipe before the name of the program, and its own arguments "
    "after the name."
)


# -- on several ranks ------------------------------------------------------------------


def program_report(
    program: str,
    arguments: Sequence[str],
    num_ranks: int,
    seconds: float | None = None,
    **limits: Any,
) -> AdviceReport:
    """Return advice for a program: its ranks run until its first training step, and
    measure there.

    Local; starts processes, and returns when they have exited. Before that the program
    runs in this process until the same step, as on one rank: its errors are easiest to
    read there.

    Parameters
    ----------
    program : str
    arguments : sequence of str
    num_ranks : int
    seconds : float, optional
        As for :func:`minipipe.tuning.race.advice_on_ranks`.
    **limits
        As for :func:`question_about`.

    Raises
    ------
    LaunchError
        Codes ``unavailable``, if the program fails under mpirun, and ``not-found``.
    MinipipeError
        As for :func:`minipipe.advise` and :func:`question_about`.
    """
    benchmark = checked_seconds(seconds, RACE_SECONDS)
    launcher = launcher_of_ranks()
    ranks = counted(num_ranks, "rank")
    begin = f"running {program} until its first step"
    work = f"{begin}, then measuring choices in turns on {ranks}"
    with Progress(work, advising.SECONDS + benchmark + _STARTING) as progress:
        progress.tell(f"running {program} in this process")
        question = question_about(program, arguments, **limits)
        check_num_layers(question, num_ranks)
        if launcher is None:

            def advise(group: ProcessGroup) -> Advice | None:
                tell = silent if group.rank else progress.tell
                return advice_on_ranks(
                    question, group, Pipeline, "thread ranks", seconds, tell
                )

            return AdviceReport.of(cast(Advice, spawn(advise, num_ranks)[0]))
        progress.tell(f"starting {program} on {ranks}")
        settings = {"limits": limits, "seconds": seconds, "ranks": num_ranks}
        failed = f"{program} failed before its first step"
        module = [__name__, program, *arguments]
        report = answer_of_ranks(
            launcher, num_ranks, module, settings, failed, progress
        )
        return AdviceReport(**report)


def main() -> None:
    """Run the program as one rank until its first step, and measure there."""
    program, *arguments = sys.argv[1:]
    settings = question_of_ranks()

    def leave(pipeline: Pipeline, question: Question) -> NoReturn:
        Pipeline.watcher = None  # the measured choices must run their steps
        group = pipeline.group
        with errors_left(group):  # no ``except Exception`` of the program catches them
            check_num_ranks(program, group.size, settings["ranks"], "that were started")
            tell = teller(group, progress=True)
            advice = advice_on_ranks(
                question, group, Pipeline, "MPI ranks", settings["seconds"], tell
            )
        if advice is not None:
            leave_answer(AdviceReport.of(advice)._asdict())
        group.barrier()
        sys.exit(0)

    run_program(program, arguments, _Watcher(leave, settings["limits"]))


if __name__ == "__main__":
    main()
