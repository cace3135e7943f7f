"""The processes that run one student's file: ``python -m minipipe.coursework.child``,
started by ``process.py``.

Standard input has a line of JSON with the job, and then a line for each call. Replies
go to the original standard output, which is moved to another descriptor before the
student's code is loaded; standard output and error then both carry what the student
prints.

This process has no test, no expected value and no secret: student code that changes it
can only return other values.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import decode_source
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import minipipe
from minipipe.autograd.watch import watch_everything
from minipipe.core.comm.host import limit_blas_threads
from minipipe.coursework.checking import CheckResult, load, outcome_of, reply_of
from minipipe.coursework.imports import findings, guarded_builtins
from minipipe.coursework.sandbox import contained


def main() -> None:
    """Contain the student's file, answer calls, and report the exit code."""
    job = json.loads(sys.stdin.buffer.readline())
    replies = os.dup(1)
    os.dup2(2, 1)
    _import_packages()
    # Limit threads now: a contained process cannot list its libraries.
    with limit_blas_threads(1):
        _answer(job, replies)
    os._exit(0)  # without waiting for threads


def _answer(job: dict[str, Any], replies: int) -> None:
    """Contain the process, and write each event to ``replies``."""
    for event in contained(job, lambda: _run(job)):
        # Flush before the reply, because the process is killed after the last reply.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        line = json.dumps(event).encode() + b"\n"
        while line:
            line = line[os.write(replies, line) :]


def _import_packages() -> None:
    """Import the packages of minipipe, which load their contents later, and the modules
    beside them that tasks use.

    An installed minipipe contains solutions, so its folder cannot be listed once the
    process is contained. Then Python finds what is in the packages, but no further
    package.
    """
    for module in iter_modules(minipipe.__path__):
        if module.ispkg or module.name == "testing":
            import_module(f"minipipe.{module.name}")


def _run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load the remote functions of the checks, inspect the student's file, load it, and
    answer calls.
    """
    calls = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # input() raises at once instead of blocking
    checks = load(f"checks_of_{job['task']}", job["checks"])
    watch_everything()
    content = base64.b64decode(job["content"])
    allowed = [(module, name) for module, name in job["given"]]
    file = Path(f"{job['task']}.py")
    flags = list[str]()
    file.write_bytes(content)
    try:
        text = decode_source(content)
    except (SyntaxError, UnicodeError, LookupError) as error:
        outcome = CheckResult(False, f"it is not valid Python: {error}")
        yield {"outcome": outcome._asdict()}
        return
    try:
        flags += findings(ast.parse(text, str(file)), allowed)
        yield {"flags": flags}  # before any of the student's code has run
        names = {"__builtins__": guarded_builtins(allowed, flags)}
        task = load(job["task"], text, file, names)
    except BaseException as error:
        yield {"outcome": outcome_of(error, str(file), text)._asdict(), "flags": flags}
        return
    yield {"loaded": True, "flags": flags}
    for line in calls:
        call = json.loads(line)
        function = call["function"]
        if call["is_remote"]:
            function = getattr(checks, function)
        yield {**reply_of(task, function, call["given"], text), "flags": flags}


if __name__ == "__main__":
    main()
