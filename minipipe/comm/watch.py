"""The seam to the package that watches a job: asked when a rank starts, waits for too
long, or fails.

The transport waits with a limit and raises the named error. Why the awaited rank did
not answer, and how the other ranks end, is known to a :class:`Watch`. The one here is
plain. ``comm/job`` has another, which is installed if that package exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipipe.comm.activity import RankActivity
    from minipipe.comm.mpi_process import MPIProcess


class Watch:
    """Watches nothing: an error names the message that did not arrive, and no cause."""

    def join(self, num_ranks: int) -> None:
        """Make this process a rank, one of ``num_ranks`` (0: unknown), that a launcher
        has started.
        """

    def starting(self, timeout: float) -> AbstractContextManager[None]:
        """Return the block in which MPI starts; it has ``timeout`` seconds."""
        return nullcontext()

    def mpi_process(self) -> MPIProcess | None:
        """Return this process as one of an MPI job, once MPI has started; None for one
        that nobody watches.
        """
        return None

    def diagnose(
        self, activities: Sequence[RankActivity], roles: Mapping[int, str]
    ) -> str:
        """Return lines that name the thread rank that blocks the others; empty if
        unknown.

        Parameters
        ----------
        activities : sequence of RankActivity
            Of all ranks of this process.
        roles : mapping of int to str
            By rank, the program's name for it.
        """
        return ""

    def check_claim(self, activity: RankActivity) -> None:
        """Refuse that this thread communicates for a rank, while another one does."""


@cache
def the_watch() -> Watch:
    """Return the watch of this process: the full one if its package exists."""
    try:
        from minipipe.comm.job.watching import JobWatch
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("minipipe."):
            raise
        return Watch()
    return JobWatch()


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that the shell would see if an exception ended the program.

    Examples
    --------
    >>> (
    ...     exit_code_of(SystemExit(3)),
    ...     exit_code_of(SystemExit("no data")),
    ...     exit_code_of(ValueError()),
    ... )
    (3, 1, 1)
    """
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1
