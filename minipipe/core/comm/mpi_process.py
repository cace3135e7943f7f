"""This process as one of an MPI job: it starts MPI, holds sends until they are over,
and finalises MPI at the end.

A package that watches the job extends :class:`MPIProcess` (``watch.py``).
"""

from __future__ import annotations

import operator
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import filterfalse
from typing import TYPE_CHECKING, NoReturn

import mpi4py

# A group starts MPI, and MPIProcess.leave finalises it. An import alone leaves no files
# behind.
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI

from minipipe.core.comm.host import cores
from minipipe.core.comm.watch import Deadline, RankActivity, Words, exit_code_of
from minipipe.core.errors import MessageError

if TYPE_CHECKING:
    from minipipe.core.comm.mpi import MPIGroup

_MOST_CORES = 4096  # of a host
# polls that do not even yield, if every rank of this host has a core of its own
_SPINS = 50


class MPIProcess:
    """This process in MPI, without a watch: a wait ends with an error after its limit,
    and an error that leaves the with-block of a group ends all ranks.

    Attributes
    ----------
    activity : RankActivity
    groups : list of MPIGroup
        Those that are open.
    timeout : float
        The longest of all groups'.
    spins : int
        How many polls at the beginning of a wait do not even yield the core.
    """

    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        self.timeout = 0.0
        here = self.world.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this host
        self.spins = _SPINS * (here.size <= _num_cores_of(here))
        here.Free()
        # sends of all groups, each as its is_over()
        self._unfinished: deque[Callable[[], bool]] = deque()
        self._many = 16
        self.groups: list[MPIGroup] = []
        self.activity = RankActivity()

    def keep(self, is_over: Callable[[], bool]) -> None:
        """Hold a send, by its method, until it is over. The oldest are dropped one by
        one; all when they are many.
        """
        self._unfinished.append(is_over)
        while self._unfinished and self._unfinished[0]():
            self._unfinished.popleft()
        if len(self._unfinished) > self._many:
            self._drop_finished()
            self._many = 2 * len(self._unfinished) + 16

    def _drop_finished(self) -> None:
        self._unfinished = deque(filterfalse(operator.call, self._unfinished))

    # -- what a watch extends ----------------------------------------------------------

    def during_wait(self, peer: int, waited: Words) -> Callable[[], object]:
        """Return a function that a wait for a rank calls now and then.

        Parameters
        ----------
        peer : int
            The rank, by its number in the world.
        waited : function
            Describes the wait, for an error.
        """
        return lambda: None

    def give_up(self, waited: str, is_over: Callable[[], bool]) -> None:
        """Raise the timeout of a wait; return if the wait is to continue.

        Raises
        ------
        MessageError
            Code ``timeout``.
        """
        raise MessageError("timeout", f"{waited}.")

    def watching(
        self, limit: float, peer: int | None, words: Words
    ) -> AbstractContextManager[object]:
        """Return a block for a call inside MPI, which may take ``limit`` seconds; only
        a watch can end it.
        """
        return self.activity.waiting(Deadline(limit), peer, words)

    def describe(self, role: str) -> None:
        """Set the program's name for this rank."""

    def end_by(self, error: BaseException) -> None:
        """End all ranks, because an error leaves the with-block of a group."""
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        self.abort(exit_code_of(error))

    def abort(self, code: int) -> NoReturn:
        """End every rank at once, with this exit code (1 instead of 0)."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or None
                stream.flush()
        MPI.COMM_WORLD.Abort(code or 1)
        raise SystemExit(code or 1)  # not reached

    def leave(self) -> None:
        """Finish the sends, and finalise MPI: the last call of a rank."""
        if MPI.Is_finalized():
            return
        for group in self.groups:
            group.withdraw()
        while self._unfinished:
            self._drop_finished()
        MPI.Finalize()


def start_mpi() -> None:
    """Start MPI with the thread support that ``mpi4py.rc``, or its environment
    variable, requests. Collective.
    """
    if MPI.Is_initialized():  # the program has imported mpi4py itself
        return
    if mpi4py.rc.threads:
        level = f"THREAD_{mpi4py.rc.thread_level}".upper()
        MPI.Init_thread(getattr(MPI, level, MPI.THREAD_MULTIPLE))
    else:
        MPI.Init()


def _num_cores_of(ranks: MPI.Comm) -> int:
    """Return how many cores the ranks of a host have together; each may be bound to its
    own. Collective.
    """
    has_core = bytearray(_MOST_CORES)
    for core in cores():
        has_core[core % _MOST_CORES] = 1
    ranks.Allreduce(MPI.IN_PLACE, has_core, MPI.BOR)
    return sum(has_core)
