"""A group of MPI processes that survives the loss of ranks, by the calls of ULFM.

Only ranks that communicate with a lost process get an error of MPI (``PROC_FAILED``);
the others would stay blocked on ranks that no longer send. So the first rank that
notices *revokes* the communicator: from then on every call on it fails on every rank.
*Agree* is a vote with one result on all living ranks, even if some die meanwhile;
*Shrink* gives the living ranks a new communicator.

References
----------
Bland, Bouteiller, Herault, Bosilca, Dongarra 2013, "Post-failure recovery of MPI
communication capability", section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from minipipe.comm.job.mpi_job import MPIJob
from minipipe.core.comm.mpi import MPIGroup
from minipipe.core.comm.mpi_process import MPI

_LOST = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


class SurvivorGroup(MPIGroup):
    """Ranks that survive the loss of some of them.

    Parameters
    ----------
    job : MPIJob
    comm : MPI.Comm
    timeout : float
        In seconds.
    outer : MPIGroup
        When that is closed, this is.
    """

    job: MPIJob

    def __init__(
        self, job: MPIJob, comm: MPI.Comm, timeout: float, outer: MPIGroup
    ) -> None:
        super().__init__(job, comm, timeout)
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._outer = outer
        outer._resources.callback(self.close)

    @classmethod
    def of(cls, group: MPIGroup) -> SurvivorGroup:
        """Return a group of the same ranks, with separate messages. Collective."""
        assert isinstance(group.job, MPIJob)  # the package is complete
        group.job.process.line.survive(True)
        return cls(group.job, group.comm.Dup(), group.timeout, group)

    def end_together(self) -> None:
        """From now on a loss ends the job. Local."""
        # then it is the failure, and its effects on other ranks are not printed
        self.job.process.line.survive(False)

    def is_done_by_all(self, act: Callable[[], None]) -> bool:
        """Call a function; return whether all ranks completed it before any rank was
        lost.

        Collective; every living rank gets the same answer. After False this group can
        only be used for :meth:`of_survivors`.
        """
        is_done = False
        try:
            act()
            self.barrier()  # which waits politely; the vote does not
            is_done = True
        except MPI.Exception as error:
            if error.Get_error_class() not in _LOST:
                raise
            self._continue_without(_world_ranks(self.comm.Get_failed()))
        with self.job.watching(
            self.timeout, None, lambda: "every surviving rank to report its step"
        ):
            return _vote(self.comm, is_done)

    def of_survivors(self) -> SurvivorGroup:
        """Return the group of the ranks that are left, in their order. Collective among
        them; ends this group.
        """
        with self.job.watching(
            self.timeout, None, lambda: "the surviving ranks to form a group"
        ):
            comm = self.comm.Shrink()
            # A vote ends on no rank before the last one has entered it. Without it a
            # rank could notice another loss and revoke the new group while others are
            # still in Shrink, where Open MPI 5.0 then crashes.
            _vote(self.comm)
        # Ranks that learned of the loss in the vote have not revoked their groups yet.
        self._continue_without(set(self.world_ranks) - _world_ranks(comm.group))
        self.close()
        return SurvivorGroup(self.job, comm, self.timeout, self._outer)

    def _continue_without(self, lost: set[int]) -> None:
        """Let every call fail in every group of this job, and the job expect nothing of
        the lost ranks.
        """
        for group in self.job.groups:
            _revoke(group)
        self.job.continue_without(lost, finalise=lambda: _vote(self.job.control))

    def say(self, text: str) -> None:
        """Write a line to stderr, behind the number of this rank."""
        self.job.process.say(text)


def _revoke(group: MPIGroup) -> None:
    """Let every call of any rank fail in a group, close it, and forget its receives."""
    with suppress(MPI.Exception):
        group.comm.Revoke()
    group.withdraw()
    group.under_way.clear()
    group.is_closed = True


def _vote(comm: MPI.Comm, vote: bool = True) -> bool:
    """Return whether all have voted for it, the same on every rank that lives; False if
    one was lost on the way.

    After a loss it takes the place of ``MPI_Finalize``, which waited for the lost rank
    without end, once in 55 jobs.
    """
    try:
        return bool(comm.Agree(vote))
    except MPI.Exception:
        return False


def _world_ranks(group: MPI.Group) -> set[int]:
    return set(MPI.Group.Translate_ranks(group, None, MPI.COMM_WORLD.group))
