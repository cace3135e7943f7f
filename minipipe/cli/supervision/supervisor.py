"""Run a job under a supervisor: whether, when and on which hosts it is restarted when
it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from minipipe.cli.supervision.launching import JobSpec, silent_hosts
from minipipe.comm.job.guard import Attempts, Ending, shell_code
from minipipe.errors import counted

_BAD_USAGE = 2  # exit code
_QUICK = 5.0  # seconds
_ALIKE = 3  # attempts
_LONGEST_PAUSE = 60.0  # seconds


class JobResult(NamedTuple):
    """The result of a job after its last attempt.

    Attributes
    ----------
    code : int
        For the shell: the code of the last attempt, or 128 plus the signal that ended
        the supervisor.
    restarts : int
    ranks : int
        The number of ranks of the last attempt.
    """

    code: int
    restarts: int
    ranks: int


def supervise(job: JobSpec, restarts: int, say: Callable[[str], object]) -> JobResult:
    """Run a job until it succeeds, or is not worth another attempt.

    Every attempt has the same command line, and its number, from 0, in the variable
    ``MINIPIPE_RESTART``. A script that saves checkpoints can resume from the last one.
    Before a restart each host of the hostfile is probed, and hosts that do not answer
    are left out.

    Parameters
    ----------
    job : JobSpec
    restarts : int
        The most restarts.
    say : function
        Called with a line for each failed attempt: its end and the consequence.

    Raises
    ------
    LaunchError
        Code ``unavailable``.
    """
    endings: list[Ending] = []
    silent: dict[str, str] = {}
    with Attempts() as attempts:
        while True:
            with job.command(len(endings), list(silent)) as command:
                endings.append(attempts.run(command))
            ranks = job.ranks_without(list(silent))
            result = JobResult(shell_code(endings[-1].code), len(endings) - 1, ranks)
            why_not = reason_to_stop(endings, restarts)
            if not (attempts.stopped_by or why_not):
                attempts.pause(pause_before_restart(endings))
                silent = silent_hosts((host.name for host in job.hosts), job.probe)
                left = job.ranks_without(list(silent))
                if left < job.min_ranks:
                    why_not = f"only {left} of {counted(job.ranks, 'rank')} are left"
                    why_not += f", and --min-ranks is {job.min_ranks}"
            if attempts.stopped_by:
                return result._replace(code=128 + attempts.stopped_by)
            if result.code and restarts:
                say(_line(job, endings, restarts, silent, why_not))
            if why_not:
                return result


def reason_to_stop(endings: Sequence[Ending], restarts: int) -> str:
    """Return why a job is not restarted, or "" if it is.

    A job is not restarted after success, after exit code 2, which means a wrong command
    line, and after failing within 5 s with the same exit code three times in a row: it
    made no progress. A longer attempt begins a new count: it may have made progress.

    Parameters
    ----------
    endings : sequence of Ending
        The endings of all attempts, in order.
    restarts : int
        The most restarts.

    Notes
    -----
    Other supervisors use only the clock or only a count. ``torchrun`` restarts up to
    ``--max-restarts`` times, at once; systemd gives up a service that started five
    times within ten seconds; Kubernetes restarts forever, with growing pauses. A count
    alone repeats the traceback of a simple mistake until the last restart; a clock
    alone also gives up a job that fails on different hosts in turn.

    Examples
    --------
    >>> reason_to_stop([Ending(1, 0.4), Ending(1, 0.3)], restarts=9)
    ''
    >>> reason_to_stop([Ending(1, 0.4), Ending(1, 0.3), Ending(1, 0.4)], restarts=9)
    'it failed 3 times in a row within 5 s, with the same exit code'
    """
    code = endings[-1].code
    if code == 0:
        return "it succeeded"
    if code == _BAD_USAGE:
        return "exit code 2 means a wrong command line"
    quick = [ending for ending in endings[-_ALIKE:] if ending.seconds < _QUICK]
    if [ending.code for ending in quick] == _ALIKE * [code]:
        often = f"{_ALIKE} times in a row within {_QUICK:g} s"
        return f"it failed {often}, with the same exit code"
    if len(endings) > restarts:
        return f"{counted(restarts, 'restart')} of {restarts} used"
    return ""


def pause_before_restart(endings: Sequence[Ending]) -> float:
    """Return how many seconds to wait before the next attempt.

    There is no pause after the first failure, nor after an attempt of more than 5 s.
    Otherwise it is 1 s, then twice as long each time, up to a minute: a host may
    recover meanwhile, and logs do not fill up.

    Examples
    --------
    >>> pause_before_restart([Ending(1, 70.0), Ending(9, 0.3)])
    0.0
    >>> pause_before_restart([Ending(1, 0.4), Ending(9, 0.3), Ending(1, 0.3)])
    2.0
    """
    quick = takewhile(lambda ending: ending.seconds < _QUICK, reversed(endings))
    count = len([*quick])
    if count < 2:
        return 0.0
    return min(2.0 ** min(count - 2, 10), _LONGEST_PAUSE)


def _line(
    job: JobSpec,
    endings: Sequence[Ending],
    restarts: int,
    silent: dict[str, str],
    why_not: str,
) -> str:
    """Return the message about the last attempt."""
    number = len(endings)
    ranks = job.ranks_without(list(silent))
    gone = "".join(f", without {name} ({why})" for name, why in silent.items())
    some = counted(job.ranks, "rank")
    if ranks < job.ranks:
        some = f"{ranks} of {some}"
    follows = f"restart {number} of {restarts} on {some}"
    if why_not:
        follows = f"not restarted: {why_not}"
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{now}: attempt {number - 1} failed with {endings[-1]}; {follows}{gone}"
