"""Whether a job that failed is started again, when, and on how many ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from minipipe.cli.supervision.attempt import Attempts, Ending
from minipipe.cli.supervision.guard import shell_code
from minipipe.cli.supervision.hostfile import silent_hosts
from minipipe.cli.supervision.launching import Job

_BAD_USAGE = 2  # exit code
_QUICK = 5.0  # seconds
_ALIKE = 3  # attempts
_LONGEST_PAUSE = 60.0  # seconds


class Outcome(NamedTuple):
    """How a job ended at last.

    Attributes
    ----------
    code : int
        For the shell: that of the last attempt, or 128 and the signal that ended the supervisor.
    restarts : int
        How often it was started again.
    ranks : int
        Of the last attempt.
    """

    code: int
    restarts: int
    ranks: int


def supervise(job: Job, restarts: int, say: Callable[[str], object]) -> Outcome:
    """Run a job until it ends well, or is not worth another attempt.

    Every attempt has the same command line, and the variable ``MINIPIPE_RESTART`` with its number, from 0. What the
    job did before is its own business: a script that keeps checkpoints goes on from the last one. Before a restart
    each host of the hostfile is asked whether it answers, and the ranks of those that do not are left out.

    Parameters
    ----------
    job : Job
    restarts : int
        At most so many.
    say : function
        Takes a line for each attempt that failed: how it ended, and what follows.

    Raises
    ------
    LaunchError
        Code ``no-launcher``.
    """
    endings: list[Ending] = []
    silent: dict[str, str] = {}
    with Attempts() as attempts:
        while True:
            with job.command(len(endings), list(silent)) as command:
                endings.append(attempts.run(command))
            outcome = Outcome(shell_code(endings[-1].code), len(endings) - 1, job.ranks_without(list(silent)))
            why_not = reason_to_stop(endings, restarts)
            if not (attempts.stopped_by or why_not):
                attempts.pause(pause_before_restart(endings))
                silent = silent_hosts((host.name for host in job.hosts), job.probe)
                why_not = _too_few(job, silent)
            if attempts.stopped_by:
                return outcome._replace(code=128 + attempts.stopped_by)
            if outcome.code and restarts:
                say(_line(job, endings, restarts, silent, why_not))
            if why_not:
                return outcome


def reason_to_stop(endings: Sequence[Ending], restarts: int) -> str:
    """Return why a job is not started again, or nothing where it is.

    A job that ended well is not, nor is one that ended with exit code 2, by which programs say that their command line
    is wrong; nor one that has failed within 5 s with the same exit code three times in a row. It got nowhere, and will
    get nowhere next time. An attempt that lasted longer begins a new count: it may have come further.

    Parameters
    ----------
    endings : sequence of Ending
        Of all attempts, in order.
    restarts : int
        At most so many.

    Notes
    -----
    Others decide by the clock or by a count alone. ``torchrun`` restarts up to ``--max-restarts`` times, at once;
    systemd gives a service up that started five times within ten seconds; Kubernetes goes on for ever, with growing
    pauses. A count alone repeats the traceback of a plain mistake to the end; the clock alone would also give up a job
    that different hosts fail in turn.

    Examples
    --------
    >>> reason_to_stop([Ending(1, 0.4), Ending(1, 0.3)], restarts=9)
    ''
    >>> reason_to_stop([Ending(1, 0.4), Ending(1, 0.3), Ending(1, 0.4)], restarts=9)
    'it failed alike 3 times in a row, within 5 s each, and would again'
    """
    last = endings[-1]
    if last.code == 0:
        return "it ended well"
    if last.code == _BAD_USAGE:
        return "exit code 2 says that its command line is wrong"
    alike = [ending for ending in endings[-_ALIKE:] if ending.code == last.code and ending.seconds < _QUICK]
    if len(alike) == _ALIKE:
        return f"it failed alike {_ALIKE} times in a row, within {_QUICK:g} s each, and would again"
    return f"{restarts} of {restarts} restarts are used" if len(endings) > restarts else ""


def pause_before_restart(endings: Sequence[Ending]) -> float:
    """Return how many seconds to wait before the next attempt.

    None after the first failure, nor after an attempt of more than 5 s; otherwise 1 s, then twice as long each time, up
    to a minute, so that a host that is on its way back has time, and a log does not fill.

    Examples
    --------
    >>> pause_before_restart([Ending(1, 70.0), Ending(9, 0.3)])
    0.0
    >>> pause_before_restart([Ending(1, 0.4), Ending(9, 0.3), Ending(1, 0.3)])
    2.0
    """
    quick = len(list(takewhile(lambda ending: ending.seconds < _QUICK, reversed(endings))))
    return min(2.0 ** min(quick - 2, 10), _LONGEST_PAUSE) if quick > 1 else 0.0


def _too_few(job: Job, silent: dict[str, str]) -> str:
    """Return why too few ranks are left, or nothing."""
    ranks = job.ranks_without(list(silent))
    if ranks >= job.min_ranks:
        return ""
    return f"{ranks} of {job.ranks} ranks are left, and --min-ranks is {job.min_ranks}"


def _line(job: Job, endings: Sequence[Ending], restarts: int, silent: dict[str, str], why_not: str) -> str:
    """Return what is said of the last attempt."""
    number, ranks = len(endings), job.ranks_without(list(silent))
    gone = "".join(f", without {name} ({why})" for name, why in silent.items())
    some = f"{ranks} of {job.ranks}" if ranks < job.ranks else f"{ranks}"
    again = f"restart {number} of {restarts} on {some} rank{'s' * (job.ranks > 1)}"
    follows = f"not started again: {why_not}" if why_not else again
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{now}: attempt {number - 1} failed with {endings[-1]}; {follows}{gone}"
