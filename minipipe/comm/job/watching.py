"""The full watch of a job, which the transport installs (``core/comm/watch.py``)."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from minipipe.comm.job.diagnosis import diagnosis
from minipipe.comm.job.reports import check_claim, report_of
from minipipe.core.comm.host import RANK, launcher_number
from minipipe.core.comm.watch import RankActivity, Watch

if TYPE_CHECKING:
    from minipipe.comm.job.mpi_job import MPIJob
    from minipipe.comm.job.process import RankProcess


class JobWatch(Watch):
    """Ends all ranks together, with one message that gives the cause.

    Attributes
    ----------
    process : RankProcess
        This process, once it is a rank that a launcher has started.
    """

    process: RankProcess | None = None

    def join(self, num_ranks: int) -> None:
        """Make this process a rank. From now on it reports why it ends, and ends the
        others. The first call counts.
        """
        if self.process is not None:
            return
        from minipipe.comm.job.meeting import line_to_watchdog  # not on Windows
        from minipipe.comm.job.process import RankProcess

        rank = launcher_number(os.environ, RANK)
        with suppress(Exception):  # stderr may not be a file
            if not faulthandler.is_enabled():
                # a crash in compiled code shows the Python lines that led there
                faulthandler.enable(all_threads=False)
        self.process = RankProcess(rank, line_to_watchdog(rank, num_ranks, os.environ))

    def starting(self, timeout: float) -> AbstractContextManager[None]:
        """Wait for the other ranks of this host, and limit the time of the block."""
        assert self.process is not None
        return self.process.starting(timeout)

    def mpi_process(self) -> MPIJob:
        """Return the job of this process."""
        from minipipe.comm.job.mpi_job import MPIJob  # not without mpi4py

        assert self.process is not None
        return MPIJob(self.process)

    def diagnose(
        self, activities: Sequence[RankActivity], roles: Mapping[int, str]
    ) -> str:
        """Return a table of the thread ranks, and the one that blocks the others."""
        reports = [report_of(each, rank) for rank, each in enumerate(activities)]
        return diagnosis(reports, roles)

    def check_claim(self, activity: RankActivity) -> None:
        """Refuse a second thread while the first one is inside a call."""
        check_claim(activity)
