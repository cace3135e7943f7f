"""A receive that was posted, and the message that it waits for."""

from __future__ import annotations

from typing import Any

from minipipe.core.comm.mpi_process import MPI

LONGEST = 1 << 15
"""Bytes of an array that travels with its header, in one message."""


class Posted:
    """A receive that was posted: the request, and the memory that its message arrives
    in.

    Parameters
    ----------
    memory : bytearray or memoryview
    is_spare : bool
        Whether the memory is for any message, and belongs to no channel.

    Attributes
    ----------
    request : MPI.Request
    status : MPI.Status
        Of the message that has arrived; empty if it was longer than the memory.
    is_over : bool
        Whether the message has arrived, as far as was asked.
    """

    __slots__ = ("is_over", "is_spare", "memory", "request", "status")

    def __init__(self, memory: bytearray | memoryview, is_spare: bool) -> None:
        self.memory = memory
        self.is_spare = is_spare
        self.request: Any = MPI.REQUEST_NULL
        self.status = MPI.Status()
        self.is_over = False

    def has_arrived(self) -> bool:
        """Return whether the message has arrived. It may be called again after that,
        and MPI's Test may not.

        MPICH 5.0 forgets the message of a persistent request that was asked by
        Get_status.
        """
        try:
            self.is_over = self.is_over or self.request.Test(self.status)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            # longer than any message in one piece: none of ours
            self.is_over = True
            self.status.Set_elements(MPI.BYTE, 0)
        return self.is_over
