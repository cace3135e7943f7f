"""The processes in which one student's file is run: ``python -m minipipe.coursework.child``.

``process.py`` starts it. The job comes as a line of JSON on standard input, and after it one call after the other.
Replies go out on what was standard output when the process began; before the student's code is loaded, that is moved to
another number, and standard output and error both become what the student prints.

No test is here, no expected value, and nothing to be kept from the student's code: whatever it changes in this process,
it can only return other values.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from minipipe.autograd.watch import watch_everything
from minipipe.coursework.checking import Outcome, load, outcome_of, reply_of
from minipipe.coursework.imports import findings, guarded_builtins
from minipipe.coursework.supervisor import contained


def main() -> None:
    """Contain the student's file, answer call after call, and tell how it ended."""
    job = json.loads(sys.stdin.buffer.readline())
    replies = os.dup(1)
    os.dup2(2, 1)
    for event in contained(job, lambda: _run(job)):
        for stream in (sys.stdout, sys.stderr):  # first: after the last reply the process is killed
            with contextlib.suppress(Exception):
                stream.flush()
        line = json.dumps(event).encode() + b"\n"
        while line:
            line = line[os.write(replies, line) :]
    os._exit(0)  # whatever threads are left running


def _run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load the functions of the checks, look at the student's file, load it, and answer calls."""
    calls, nothing = os.fdopen(os.dup(0), "rb"), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # input() ends at once instead of waiting for somebody
    checks = load(f"checks_of_{job['task']}", job["checks"])
    watch_everything()
    content, given = base64.b64decode(job["content"]), [(module, name) for module, name in job["given"]]
    file, flags = Path(f"{job['task']}.py"), list[str]()
    file.write_bytes(content)
    try:
        text = decode_source(content)
    except (SyntaxError, UnicodeError, LookupError) as error:
        yield {"outcome": Outcome(False, f"it is not valid Python: {error}")._asdict()}  # of no call: it does not load
        return
    try:
        flags += findings(ast.parse(text, str(file)), given)
        yield {"flags": flags}  # before anything of the student's has run
        task = load(job["task"], text, file, {"__builtins__": guarded_builtins(given, flags)})
    except BaseException as error:
        yield {"outcome": outcome_of(error, str(file), text)._asdict(), "flags": flags}
        return
    yield {"loaded": True, "flags": flags}
    for line in calls:
        call = json.loads(line)
        function = getattr(checks, call["function"]) if call["is_remote"] else call["function"]
        yield {**reply_of(task, function, call["given"], text), "flags": flags}


if __name__ == "__main__":
    main()
