"""The command line: ``minipipe VERB``, with the verbs of ``VERBS``.

A verb is a module of this package with the functions ``add_options(parser)`` and
``run(options)``. A file of the folder ``help`` ends its help. A verb is imported only
when it runs, so schedules and their pictures need neither NumPy nor MPI.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from minipipe._lazy import __version__
from minipipe.cli.numbers import check_numbers, real, whole
from minipipe.cli.output import ExitStatus, as_json, complain, help_text
from minipipe.cli.streams import (
    Signalled,
    discard,
    finish_messages,
    leave_by_signals,
    prepare_streams,
    put,
)
from minipipe.errors import MinipipeError, ScheduleError, quoted
from minipipe.io import columns_of_terminal, printable

_MOST = 500  # characters of an error message about an argument
_SHOWN = 5  # further problems of a schedule

# Verb and purpose, which fit a line of 80 columns.
VERBS = {
    "schedules": "list the named schedules with their time, bubble and memory",
    "sweep": "compute these figures for many sizes and costs, as CSV or JSON",
    "show": "draw a schedule, or write it to a file",
    "check": "check that a schedule is legal, or say which action is not",
    "simulate": "predict makespan, bubble, idle time and memory of a schedule",
    "trace": "read profiler traces: real bubble, its causes, other schedules",
    "paper": "predict published training times on thousands of GPUs",
    "search": "find a fast schedule under a memory limit, and a lower bound",
    "step": "step through a schedule, one action at a time",
    "edit": "edit a schedule in the browser",
    "advise": "recommend partition, schedule and microbatches for a program",
    "compare": "measure pipeline, data and tensor parallelism on one model",
    "referee": "say whether the difference of two runs is a bug",
    "export": "write what each rank of a program does as a file of NumPy",
    "run": "start an MPI job, and restart it when it fails",
    "coursework": "write the exercises for students, instructors and autograders",
    "assignment": "compose an assignment from tasks, with points of its own",
    "grade": "run the tests of submissions, and print their points",
    "info": "print versions, MPI library, devices and BLAS threads",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default ``sys.argv[1:]``.

    Examples
    --------
    >>> main(["check", "gpipe", "--ranks", "2", "--microbatches", "2"])
    legal: gpipe, 2 ranks, 2 stages, 2 microbatches; makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    <ExitStatus.YES: 0>
    """
    prepare_streams()
    is_command = arguments is None  # this process is the command
    if arguments is None:
        leave_by_signals()
        arguments = sys.argv[1:]
    try:
        return _status(list(arguments), is_command)
    finally:
        finish_messages()


def _status(arguments: list[str], may_complete: bool) -> int:
    """Run one command and write out what it printed; return its exit status."""
    if sys.stdout is None:
        complain("'stdout' cannot be written: it is closed.")
        return ExitStatus.MISUSE
    status: int = ExitStatus.YES
    try:
        try:
            if may_complete and "_ARGCOMPLETE" in os.environ:
                _complete()
            status = _run(arguments)
        finally:  # now, because an error at the exit of the interpreter has no handler
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed it, as `head` does
        discard(sys.stdout)
    except OSError as error:  # such as a full disk
        discard(sys.stdout)
        name = quoted(error.filename or "stdout", 200)
        complain(f"{name} cannot be written: {error.strerror}.")
        return ExitStatus.MISUSE
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except Signalled as signalled:
        return 128 + signalled.number  # the convention of shells
    return status


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in VERBS:
        _explain_or_refuse(arguments)
    verb = import_module(f"minipipe.cli.{arguments[0]}")
    parser = _parser_of(arguments[0], verb)
    end = len(arguments)
    # The arguments after -- belong to a program, and argparse does not know them.
    if getattr(verb, "PASSES_ON", False) and "--" in arguments:
        end = arguments.index("--")
    options = parser.parse_args(arguments[1:end])
    options.passed_on = arguments[end + 1 :]
    return _answer(verb, parser, options)


class _Once(argparse.Action):
    """Store the value of an option, and refuse a second one: argparse would silently
    keep the last.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        assert isinstance(parser, _Parser)
        if option is not None and self.dest in parser.seen:
            problem = "this option was passed twice"
            raise argparse.ArgumentError(self, f"{problem}; pass it once")
        parser.seen.add(self.dest)
        if self.nargs == 0:
            values = self.const
        setattr(namespace, self.dest, values)


class _Flag(_Once):
    """Store the constant of an option without a value, at most once."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, const: bool = True, **more: Any
    ) -> None:
        more = {"default": False, **more, "nargs": 0, "const": const}
        super().__init__(option_strings, dest, **more)


class _Parser(argparse.ArgumentParser):
    """A parser that escapes control characters in messages, and accepts only digits as
    a number and each option once.

    An option that may be repeated has the action ``append``.

    Attributes
    ----------
    seen : set of str
        The options so far, by the names of their values.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: set[str] = set()
        for action in (None, "store"):
            self.register("action", action, _Once)
        self.register("action", "store_true", _Flag)
        for kind, parse in ((int, whole), (float, real)):
            self.register("type", kind, parse)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Before Python 3.13, argparse drops the value of --ranks=-- and continues with
        # an empty list.
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        if len(message) > _MOST:
            message = f"{message[:_MOST]}…"
        super().error(printable(message))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats help for the terminal, whose width argparse would ask again for each
    option that is declared.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns_of_terminal(80) - 2)


def _explain_or_refuse(arguments: list[str]) -> NoReturn:
    """Print the help or the version; refuse an unknown verb, or a missing one, with the
    list of verbs.
    """
    parser = _of_all_verbs()
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(ExitStatus.MISUSE)
    parser.parse_args(arguments)
    raise AssertionError(
        "argparse prints the help, the version or the usage, and exits"
    )


def _complete() -> NoReturn:
    """Print the completions of a command line, which the shell passes in the
    environment at a Tab.
    """
    import argcomplete

    _, *typed = [*os.environ["COMP_LINE"].split(), ""]
    argcomplete.autocomplete(_of_all_verbs(typed[0]))
    raise AssertionError("argcomplete exits")


def _of_all_verbs(chosen: str = "") -> argparse.ArgumentParser:
    """Return the parser of all verbs, with the options of one verb, so that no other
    verb is imported.
    """
    listed = "\n".join(f"  {name:12}{purpose}" for name, purpose in VERBS.items())
    raw: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    raw["epilog"] = help_text("minipipe").replace("@verbs@", listed)
    raw["usage"] = "%(prog)s [-h] [--version] VERB …"
    about = "Draw, check, time, search and teach pipeline-parallel schedules."
    parser = _Parser(prog="minipipe", description=about, allow_abbrev=False, **raw)
    version = f"minipipe {__version__}"
    parser.add_argument("--version", action="version", version=version)
    added = parser.add_subparsers(required=True, metavar="VERB", help=argparse.SUPPRESS)
    for name, purpose in VERBS.items():
        of_verb = added.add_parser(name, help=purpose)
        if name == chosen:
            _declare(of_verb, import_module(f"minipipe.cli.{name}"))
    return parser


def _declare(parser: argparse.ArgumentParser, verb: ModuleType) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    verb.add_options(parser)


def _parser_of(name: str, verb: ModuleType) -> argparse.ArgumentParser:
    purpose = VERBS[name]
    parser = _Parser(
        prog=f"minipipe {name}",
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=getattr(verb, "EPILOG", "") or help_text(name),
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    _declare(parser, verb)
    return parser


def _answer(
    verb: ModuleType, parser: argparse.ArgumentParser, options: argparse.Namespace
) -> int:
    try:
        check_numbers(parser, options)
        return verb.run(options)
    except MinipipeError as error:
        status = ExitStatus.of(error)
        if options.json:
            data: dict[str, object] = {}
            if status is ExitStatus.NO and hasattr(verb, "ANSWER"):
                data[verb.ANSWER] = False
            data |= {"error": error.code, "message": str(error)}
            if isinstance(error, ScheduleError):
                data["problems"] = [problem._asdict() for problem in error.problems]
            put(as_json(data))
        complain(_complaint(error))
        return status


def _complaint(error: MinipipeError) -> str:
    """Return the first problem with its drawing, and the messages of the next ones."""
    if not isinstance(error, ScheduleError):
        return error.message
    first, *others = error.problems
    lines = [f"[{first.code}] {first.message}"]
    if error.grid:
        lines.append(f"\n{error.grid}\n")
    lines += [
        f"also: [{problem.code}] {problem.message}" for problem in others[:_SHOWN]
    ]
    if len(others) > _SHOWN:
        lines.append(f"and {len(others) - _SHOWN} more")
    return "\n".join(lines).rstrip()
