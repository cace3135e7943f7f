"""Starting a group: MPI if a launcher started several ranks, otherwise one rank; or
ranks that are threads.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from minipipe.core.comm.host import (
    keep_freed_memory,
    limit_blas_threads,
    num_ranks,
)
from minipipe.core.comm.message import DEFAULT_TIMEOUT, chosen_timeout
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.comm.switchboard import Cancelled, Switchboard, Wait
from minipipe.core.comm.thread import ThreadGroup
from minipipe.core.comm.watch import exit_code_of, the_watch
from minipipe.core.errors import LaunchError, RankError
from minipipe.core.familiar import explain, with_hints
from minipipe.core.specs import Spec

Result = TypeVar("Result")
_GRACE = 5.0  # seconds that the other threads have to stop after one has failed
# seconds that starting may take, however short the timeout: processes begin at
# different times
_START = 10.0


class OneRankGroup(ThreadGroup):
    """The group of one: plain ``python`` runs the same program as four ranks do. Its
    only thread is its rank.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe.comm import OneRankGroup
    >>> group = OneRankGroup()
    >>> group.send(np.array([1.0, 2.0]), destination=0)
    >>> group.recv(source=0)
    array([1., 2.])
    """

    note = ""

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(Switchboard(1, take_turns=False), [0], 0, timeout)

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        if not members:
            return None
        return OneRankGroup(self.timeout)


@with_hints
def init_process_group(
    *, timeout: float | None = None, blas_threads: int = 1
) -> ProcessGroup:
    """Return this process' rank: of an MPI job when started by mpirun or srun,
    otherwise the only one.

    Collective. From here until the group closes, matrix products use ``blas_threads``
    threads. Use it as a context manager, or without: either way an exception or
    ``sys.exit(n)`` on one rank ends every rank, with n.

    Children that the rank forks later, as data loaders do, end with it: wait for those
    whose work matters. They, and other programs that a rank starts, are not ranks and
    cannot call this.

    Parameters
    ----------
    timeout : float, optional
        Seconds that a rank waits for another before the job ends, with a table of the
        state of every rank and the rank that blocks the others. The default is the variable
        ``MINIPIPE_TIMEOUT``, or 300; may be infinite. The clock stops while a rank is
        in a debugger or the whole job is suspended. Starting may take 10 s in any case.
    blas_threads : int
        The same on every rank. Runs with another number may differ in the last bits.

    Returns
    -------
    ProcessGroup

    Raises
    ------
    LaunchError
        Code ``unavailable``: several ranks were started, but mpi4py is missing; they
        would all run alone. Code ``unavailable``: mpi4py belongs to another MPI than
        the launcher. Code ``rank-lost``: another rank of this host exited before this
        call. Code ``timeout``: it did not make it. Code ``not-a-rank``: this process is
        a child of a rank, and has inherited the launcher's variables.
    ArgumentError
        Code ``value``: a timeout that is not above 0.

    Examples
    --------
    >>> with init_process_group() as group:
    ...     print(group.rank, group.size)
    0 1
    """
    started = num_ranks(os.environ)
    if started == 1:
        group: ProcessGroup = OneRankGroup(chosen_timeout(timeout))
    else:
        group = _mpi_group(started, timeout)
    keep_freed_memory()
    group._resources.enter_context(limit_blas_threads(blas_threads))
    return group


def _mpi_group(started: int | None, given_timeout: float | None) -> ProcessGroup:
    several = f"{started or 'several'} ranks"
    if sys.platform == "win32":
        raise LaunchError(
            "unavailable",
            f"A launcher started {several}; on Windows use spawn, whose ranks are "
            "threads.",
        )
    watch = the_watch()
    watch.join(started or 0)
    # not earlier: from now on one rank reports an error of all
    timeout = chosen_timeout(given_timeout)
    try:
        with watch.starting(max(timeout, _START)):
            from minipipe.core.comm import mpi

            group = mpi.world_group(timeout)
    except ImportError as error:
        raise LaunchError(
            "unavailable",
            f"A launcher started {several}, but mpi4py cannot be imported ({error}), "
            "so each would run alone. Install it from minipipe's folder: pip install "
            "-e '.[mpi]' (on a cluster, its MPI loaded: pip install mpi4py).",
        ) from None
    if started is not None and group.size != started:
        raise LaunchError(
            "unavailable",
            f"A launcher started {several}, but mpi4py sees {group.size}: it belongs "
            "to another MPI than this mpirun. Use the mpirun of the same environment, "
            "or rebuild mpi4py: pip install --no-binary mpi4py mpi4py.",
        )
    return group


# -- ranks that are threads ------------------------------------------------------------


@with_hints
def spawn(
    function: Callable[[ProcessGroup], Result],
    num_ranks: int,
    *,
    timeout: float | None = None,
    blas_threads: int = 1,
    take_turns: bool = False,
) -> list[Result]:
    """Run a function on ranks that are threads of this process, and return the results
    in rank order.

    Each rank gets fresh context variables: neither ``no_grad`` nor ``numpy.errstate``
    reaches in from outside. When one rank raises, the others end at their next
    communication. ``sys.exit(0)`` is a return of None.

    Parameters
    ----------
    function : function
        Takes the group, a :class:`ProcessGroup`.
    num_ranks : int
        At least 1.
    timeout : float, optional
        Seconds that a wait may last; as for :func:`init_process_group`. A deadlock of
        all ranks is noticed at once.
    blas_threads : int
        Threads of each matrix product, the same on every rank.
    take_turns : bool
        Run one rank at a time, and switch only when it waits: every run takes the same
        course. For debuggers.

    Raises
    ------
    RankError
        Code ``wrong-number``.
    BaseException
        Whatever a rank raised first, SystemExit included, with a note that names the
        rank.

    Examples
    --------
    >>> import numpy as np
    >>> def ring(group):
    ...     group.isend(np.array(group.rank), (group.rank + 1) % group.size)
    ...     return int(group.recv((group.rank - 1) % group.size))
    >>> spawn(ring, num_ranks=3)
    [2, 0, 1]
    """
    spec = Spec(int, minimum=1, error=RankError, code="wrong-number")
    num_ranks = spec.check("num_ranks", num_ranks)
    limit = chosen_timeout(timeout)
    keep_freed_memory()
    switchboard = Switchboard(num_ranks, take_turns)
    members = list(range(num_ranks))
    results: list[Any] = [None] * num_ranks

    def run(rank: int) -> None:
        with ThreadGroup(switchboard, members, rank, limit) as group:
            switchboard.wait(rank, Wait(lambda: True, lambda: "its turn"), limit)
            results[rank] = contextvars.Context().run(function, group)

    threads = [
        threading.Thread(
            target=_run_rank,
            args=(run, rank, switchboard),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank in members
    ]
    with limit_blas_threads(blas_threads):
        for thread in threads:
            thread.start()
        _join(threads, switchboard)
    if switchboard.failure is not None:
        raise _noted(*switchboard.failure, switchboard)
    return results


def _run_rank(run: Callable[[int], None], rank: int, switchboard: Switchboard) -> None:
    """Run a rank in this thread, and let the switchboard know how it ends."""
    switchboard.activities[rank].thread = threading.get_ident()
    try:
        run(rank)
    except Cancelled:
        pass
    except BaseException as error:
        explain(error)
        # at once: fail() may wait for the lock
        switchboard.activities[rank].has_ended = True
        # as under MPI, a rank that leaves with 0 has returned
        if exit_code_of(error):
            switchboard.fail(rank, error)
    finally:
        switchboard.leave(rank)


def _noted(rank: int, error: BaseException, switchboard: Switchboard) -> BaseException:
    """Return the error of a rank, with a note that names the rank."""
    which = "a thread"
    role = switchboard.activities[rank].roles.get(rank)
    if role:
        which = f"a thread: {role}"
    error.add_note(f"raised on rank {rank} of {len(switchboard.everyone)} ({which})")
    return error


def _join(threads: list[threading.Thread], switchboard: Switchboard) -> None:
    """Wait for every rank; after a failure, only until the others should have reached a
    communication.
    """
    try:
        alive = threading.Thread.is_alive
        while switchboard.failure is None and any(map(alive, threads)):
            max(threads, key=threading.Thread.is_alive).join(0.2)
    except KeyboardInterrupt as error:
        switchboard.fail(-1, error)
        raise
    finally:
        give_up = time.perf_counter() + _GRACE
        for thread in threads:
            thread.join(max(0.0, give_up - time.perf_counter()))
