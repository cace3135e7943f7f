"""The first training step of any program: its model, loss, batch and optimiser, without a word changed in it.

The program runs as it is. Where it calls ``Pipeline.step`` for the first time, it is left.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError, LaunchError, quoted
from minipipe.nn import Sequential
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline, Plan
from minipipe.tuning.candidates import PLANNED, Question
from minipipe.tuning.deciding import chosen
from minipipe.tuning.layers import MakeOptimiser

_DECIDED = {*signature(chosen).parameters} - {
    "recompute",
    "inputs_require_grad",
}  # options of a pipeline that measurements would choose


class FirstStep(NamedTuple):
    """What a program gave to its first training step.

    Attributes
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or bundle
    options : dict
        Those of the pipeline.
    optimiser : function, optional
        Makes one as the program's.
    """

    model: Sequential
    inputs: Any
    targets: Any
    options: dict[str, Any]
    optimiser: MakeOptimiser | None


class _Left(BaseException):
    """Leaves the program where it steps; no ``except Exception`` of its own stops that."""

    def __init__(self, found: FirstStep) -> None:
        super().__init__("the program was left at its first step")
        self.found = found


def first_step_of(program: str, arguments: Sequence[str] = ()) -> FirstStep:
    """Run a program until its first training step, and return what it gave to that.

    Local: it runs in this process, as on one rank. What it prints goes to standard error.

    Parameters
    ----------
    program : str
        A file with Python.
    arguments : sequence of str
        The program's own.

    Raises
    ------
    LaunchError
        Code ``no-script``.
    ArgumentError
        Code ``value``: a program that ends or fails before its first step, or makes ranks of its own.
    """

    def leave(pipeline: Pipeline, step: FirstStep) -> NoReturn:
        if pipeline.group.size != 1:
            size = pipeline.group.size
            raise ArgumentError("value", f"{program} makes {size} ranks itself; expected init_process_group().")
        raise _Left(step)

    with at_first_step(leave):
        try:
            with redirect_stdout(sys.stderr):
                run(program, arguments)
        except _Left as left:
            return left.found
        except (SystemExit, Exception) as error:
            _refuse(program, error)
    raise ArgumentError(
        "value", f"{program} came to its end without a training step; expected a call of Pipeline.step."
    )


@contextmanager
def at_first_step(leave: Callable[[Pipeline, FirstStep], NoReturn]) -> Iterator[None]:
    """Inside this block, have a function called instead of any training step; it leaves the program.

    Pipelines are made without what they were planned with, which may be for another number of ranks.

    Parameters
    ----------
    leave : function
        Of the pipeline, and of what was given to its first step.
    """
    pipelines: dict[int, tuple[Sequential, dict[str, Any]]] = {}
    optimisers: list[Optimiser] = []
    initialise, make_optimiser = Pipeline.__init__, Optimiser.__init__

    def begin(self: Pipeline, model: Any, group: ProcessGroup, **options: Any) -> None:
        model = model.model if isinstance(model, Plan) else model
        pipelines[id(self)] = model, options
        initialise(self, model, group, **{k: v for k, v in options.items() if k not in _DECIDED})

    def note(self: Optimiser, *given: Any, **defaults: Any) -> None:
        make_optimiser(self, *given, **defaults)
        optimisers.append(self)

    def step(self: Pipeline, inputs: Any, targets: Any, **_: Any) -> NoReturn:
        model, options = pipelines[id(self)]
        with replaced(*as_they_were):  # pipelines of its own step
            leave(self, FirstStep(model, inputs, targets, options, _like(optimisers)))

    methods = ((Pipeline, "__init__", begin), (Pipeline, "step", step), (Optimiser, "__init__", note))
    as_they_were = [(kind, name, getattr(kind, name)) for kind, name, _ in methods]
    with replaced(*methods):
        yield


def question_of(step: FirstStep, memory_limit: float, num_microbatches: int | None) -> Question:
    """Return what to ask about a program, with its own choice if it has made one.

    Parameters
    ----------
    step : FirstStep
    memory_limit : float
        Bytes of each rank.
    num_microbatches : int or None
    """
    own = {name: step.options[name] for name in PLANNED if name in step.options}
    is_made = own.get("schedule") != "auto" and str(own.get("partition")) != "measured"
    rest = {name: value for name, value in step.options.items() if name not in {*_DECIDED, "recompute"}}
    return Question(
        step.model,
        step.inputs,
        step.targets,
        rest,
        step.optimiser,
        memory_limit,
        num_microbatches,
        recompute=True if step.options.get("recompute") else None,
        own=own if is_made else None,
    )


def _like(optimisers: list[Optimiser]) -> MakeOptimiser | None:
    """Return a function that makes optimisers like the last one."""
    if not optimisers:
        return None
    numbers = dict(optimisers[-1].settings)
    kind = numbers.pop("class")
    return lambda parameters: kind(parameters, **numbers)


def _refuse(program: str, error: BaseException) -> NoReturn:
    """Say why a program has not come to its first step.

    Raises
    ------
    ArgumentError, LaunchError
        Code ``value``, or that of the error.
    """
    if isinstance(error, ArgumentError | LaunchError):
        raise error
    if isinstance(error, SystemExit):
        code = "with exit code 0" if error.code in (None, 0) else f"with {quoted(error.code)}"
        hint = "Its own arguments stand behind its name, those of minipipe before it."
        raise ArgumentError("value", f"{program} ended {code} before its first training step. {hint}") from None
    traceback.print_exception(error)
    said = f"{type(error).__name__}: {error}"
    raise ArgumentError("value", f"{program} failed before its first training step, with {said}") from None


def run(program: str, arguments: Sequence[str]) -> None:
    """Run a program as ``python program arguments`` does.

    Raises
    ------
    LaunchError
        Code ``no-script``.
    """
    if not Path(program).is_file():
        raise LaunchError("no-script", f"There is no program {quoted(program, 200)}; expected a file with Python.")
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [program, *arguments], [str(Path(program).resolve().parent)]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def replaced(*methods: tuple[type, str, Callable[..., Any]]) -> Iterator[None]:
    """Replace methods of classes inside this block.

    Examples
    --------
    >>> class Door:
    ...     def open(self): return "creaks"
    >>> with replaced((Door, "open", lambda self: "is silent")):
    ...     Door().open()
    'is silent'
    >>> Door().open()
    'creaks'
    """
    before = [(kind, name, getattr(kind, name)) for kind, name, _ in methods]
    for kind, name, method in methods:
        setattr(kind, name, method)
    try:
        yield
    finally:
        for kind, name, method in before:
            setattr(kind, name, method)
