"""The process in which one student's file runs: ``python -m minipipe.coursework.child``, started by ``grading.py``.

The job comes as JSON on standard input. Results go out on what was standard output when the process began; before the
student's code is loaded, that is moved to another number, and standard output and error both become what the student
prints. Each result carries a word that only the two processes know, so that nothing printed is taken for a result.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minipipe.autograd.watch import watch_everything
from minipipe.coursework.checking import load, outcome_of, run_test

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]


def main() -> None:
    """Load the tests, then the student's file, run test after test, and tell how each ended."""
    job = json.loads(sys.stdin.buffer.read())
    tell = _channel(job["nonce"])
    _limit_memory(job["memory_limit"])
    checks = load(f"checks_of_{job['task']}", job["checks"], job["checks_path"])
    watch_everything()
    tests = [(name, getattr(checks, name)) for name in job["tests"]]
    file = Path(f"{job['task']}.py")
    text = file.read_text("utf-8")
    try:
        task = load(job["task"], text, file)
    except BaseException as error:
        tell({"not_loaded": outcome_of(error, str(file), text)._asdict()})
    else:
        tell({"loaded": True})
        for name, test in tests:
            tell({"test": name, "outcome": run_test(test, task, text)._asdict()})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)  # whatever threads are left running


def _channel(nonce: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that sends one event; from then on standard output belongs to the student."""
    private = os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # input() ends at once instead of waiting for somebody
    write, dumps = os.write, json.dumps

    def tell(event: dict[str, Any]) -> None:
        line = memoryview(f"\n{dumps({'nonce': nonce, **event})}\n".encode())
        while line:
            line = line[write(private, line) :]

    return tell


def _limit_memory(size: int) -> None:
    """Limit the process to ``size`` bytes of addresses, and leave no core file, where the system can do that."""
    if resource is None:
        return
    for what, limit in ((resource.RLIMIT_AS, size), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))


if __name__ == "__main__":
    main()
