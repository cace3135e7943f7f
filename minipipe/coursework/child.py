"""The processes in which one student's file is graded: ``python -m minipipe.coursework.child``.

``process.py`` starts it. The job comes as a line of JSON on standard input. Events go out on what was standard output
when the process began; before the student's code is loaded, that is moved to another number, and standard output and
error both become what the student prints. Each event begins with a word that the student's code is not told, so that
nothing printed is taken for an event.

The code could find that word, as it sits in one interpreter with it. So no frame that its own frames lead to has it
among its variables: the events are computed within ``map``, which sends them, and whose own frame is none. And what
shows other objects and frames of the interpreter raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minipipe.autograd.watch import watch_everything
from minipipe.coursework.checking import load, outcome_of, run_test
from minipipe.coursework.supervisor import contained


def main() -> None:
    """Contain the student's file, run test after test, and tell how each ended."""
    job = json.loads(sys.stdin.buffer.readline())
    deque(map(_channel(job.pop("word")), contained(job, lambda: _run_tests(job))), maxlen=0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)  # whatever threads are left running


def _channel(word: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that sends one event; from then on standard output belongs to the student."""
    private = os.dup(1)
    os.dup2(2, 1)
    write, dumps = os.write, json.dumps

    def tell(event: dict[str, Any]) -> None:  # it looks up nothing that the student's code could replace, but in dumps
        line = f"\n{word}{dumps(event)}\n".encode()
        while line:
            line = line[write(private, line) :]

    return tell


def _run_tests(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load the tests, then the student's file, and run test after test."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # input() ends at once instead of waiting for somebody
    checks = load(f"checks_of_{job['task']}", job.pop("checks"))
    checks.__dict__.pop("WRONG_ANSWERS", None)  # parts of the solution
    tests = [(name, getattr(checks, name)) for name in job["tests"]]
    watch_everything()
    file, text = Path(f"{job['task']}.py"), job["text"]
    file.write_text(text, "utf-8")
    sys.addaudithook(_refusal())  # no hook can be removed
    try:
        task = load(job["task"], text, file)
    except BaseException as error:
        yield {"outcome": outcome_of(error, str(file), text)._asdict()}  # of no test: it does not load
        return
    yield {"loaded": True}
    for name, test in tests:
        yield {"test": name, "outcome": run_test(test, task, text)._asdict()}


def _refusal() -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook (PEP 578) that refuses what no exercise needs."""
    refused = {"gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames"}
    refused |= {"sys._current_exceptions", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"}

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if event in refused:
            raise PermissionError(f"{event} is not allowed in a graded task")

    return hook


if __name__ == "__main__":
    main()
