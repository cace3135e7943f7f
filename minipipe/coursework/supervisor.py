"""Processes between the grader and the student's code, which contain it, wait for it, and end all that it leaves.

::

    grader ── supervisor ── process 0 ── process 1 ── process 2      with namespaces; 1 is the first process in them
                    └─────────────────────────────── process 2      without

Process 2 runs the student's code, the others never do. Orphans go to process 1, whose end is the end of all processes
in the namespace, or to the supervisor, which ends them one by one. The supervisor ends everything, too, when its
standard input closes: the grader closes it when the time is over, and the system when the grader is gone.

Other systems than Linux have only limits. There the process that the grader started runs the student's code.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minipipe.comm.job.system_calls import adopt_orphans, end_descendants, end_with_parent
from minipipe.coursework import namespaces
from minipipe.coursework.containment import NAMESPACES
from minipipe.coursework.limits import DISK
from minipipe.coursework.readable import readable_paths
from minipipe.coursework.restriction import limit_alone, restrict

Events = Iterator[dict[str, Any]]

_FIRST_USER = 2_000_000_000  # numbers that no system gives to anybody
_REFUSED = 77  # the exit status of a process that the system refused namespaces


def contained(job: dict[str, Any], run: Callable[[], Events]) -> Events:
    """Contain student code as well as this system can, run it, and yield what there is to tell the grader.

    Several processes leave this generator: each that it forks goes on, and ends, like the one that called it.

    Parameters
    ----------
    job : dict
        ``layers`` that may be used; ``source`` and ``directory`` to hide; ``seconds`` of processor time.
    run : function
        Runs the student's code. It is called in process 2 alone, and what it yields is passed on.

    Yields
    ------
    dict
        ``{"contained": …}``, what ``run`` yields, and ``{"ended": …}``, the exit code of process 2.
    """
    if sys.platform != "linux":
        yield {"contained": limit_alone(job["seconds"])}
        yield from run()
        return
    adopt_orphans()
    for flags in _attempts(job["layers"]):
        child = os.fork()
        if child == 0:
            yield from _in_child(job, flags, run)
            return
        code = _wait(child, sys.stdin.fileno())
        end_descendants()
        if code != _REFUSED or flags is None:
            if code or flags is None:
                yield {"ended": code}
            return


def _attempts(layers: list[str]) -> list[int | None]:
    """Return the namespaces to ask for, one after another until the system agrees; the last ones are none."""
    if NAMESPACES not in layers:
        return [None]
    return [*([namespaces.WITHOUT_USER] if os.geteuid() == 0 else []), namespaces.WITH_USER, None]


def _in_child(job: dict[str, Any], flags: int | None, run: Callable[[], Events]) -> Events:
    """Go on as process 0, 1 and 2, or as process 2 at once."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, end this and not the grader
    user = _FIRST_USER + os.getpid()  # not a number within namespaces, which all tasks would share
    readable = readable_paths(Path(job["source"]), Path(job["directory"]))
    end_with_parent()
    if flags is not None:
        student = _born_in_namespaces(flags, readable)
        if student:
            yield {"ended": _wait_as_first_process(student)}
            return
    yield {"contained": restrict(job["layers"], job["seconds"], readable, flags, user)}
    yield from run()


def _born_in_namespaces(flags: int, readable: list[Path]) -> int:
    """Return process 2's number in process 1, and 0 in process 2; process 0 waits here, and ends."""
    folder = os.getcwd()
    try:
        namespaces.enter(flags)
        first = os.fork()
        if first:
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
            os._exit(code if code >= 0 else 1)
        end_with_parent()
        namespaces.replace_root(folder, readable, DISK)
    except OSError:
        os._exit(_REFUSED)
    return os.fork()


def _wait_as_first_process(student: int) -> int:
    """Return the student's exit code, and meanwhile bury the orphans that the first process inherits."""
    while True:
        ended, status = os.wait()
        if ended == student:
            return os.waitstatus_to_exitcode(status)


def _wait(child: int, control: int) -> int:
    """Return a child's exit code; that of a kill, when the other end of the file ``control`` is closed before."""
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    events = select.poll()
    events.register(woken, select.POLLIN)
    events.register(control, 0)  # its end alone: calls are read by the student's process
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    try:
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                return os.waitstatus_to_exitcode(status)
            if ended:
                continue  # an orphan
            if control in dict(events.poll()):
                return -signal.SIGKILL
            os.read(woken, 1 << 12)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        os.close(woken)
        os.close(waking)
