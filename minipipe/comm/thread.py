"""Ranks as threads of this process, for notebooks and tests: real ranks with real messages, not fast ones.

Threads share the interpreter lock, so two of them run small operations at less than the speed of one.

``process_group.py`` has ``isend``, ``irecv`` and everything else that a rank calls, built on the primitives of each
kind of group: ``_post_send``, ``_take``, ``_subgroup`` and ``abort``::

    isend -> _post_send -> the receiver's mailbox (a copy; done at once)
    irecv -> Receive; its wait -> _take (takes nothing before)

Read these two first. ``message.py`` has the ``Header`` of a message
and the ``Expectation`` of its receiver; ``switchboard.py`` the mailboxes and the detection of deadlocks.

File 12 of 12 on the first path through the code (README.md): after ``autograd/split.py``.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from minipipe.autograd import backend
from minipipe.comm.job.host import keep_freed_memory, limit_blas_threads
from minipipe.comm.job.reports import exit_code_of
from minipipe.comm.message import Done, Expectation, Header, Request, chosen_timeout
from minipipe.comm.process_group import ProcessGroup
from minipipe.comm.switchboard import Cancelled, Switchboard, Wait
from minipipe.errors import RankError, whole_number

Result = TypeVar("Result")
_GRACE = 5.0  # seconds that the other ranks have to stop after one has failed


class ThreadGroup(ProcessGroup):
    """A rank that is a thread; :func:`spawn` makes them.

    Examples
    --------
    >>> from minipipe import spawn
    >>> spawn(repr, num_ranks=2)
    ['<ThreadGroup: rank 0 of 2>', '<ThreadGroup: rank 1 of 2>']
    """

    takes_device_arrays = True
    note = "thread ranks share one interpreter: times are not those of real ranks"

    def __init__(
        self, switchboard: Switchboard, members: list[int], rank: int, timeout: float, name: tuple = ()
    ) -> None:
        super().__init__(rank, len(members), timeout)
        self._switchboard = switchboard
        self.activity = switchboard.activities[members[rank]]
        self._members = self.world_ranks = members  # by rank here: the number of the thread
        self._name = name  # tells the messages of one group from those of another
        self._num_splits = 0  # calls of ProcessGroup.split

    def _post_send(self, header: Header, array: np.ndarray, destination: int, tag: int) -> Request:
        self._switchboard.post((self._name, self.name(), self.name(destination), tag), header, backend.copy(array))
        return Done()

    def _take(self, expected: Expectation, timeout: float | None) -> np.ndarray:
        with self._switchboard.changed:
            letters = self._switchboard.mailboxes[self._name, self.name(expected.source), self.name(), expected.tag]
        wait = Wait(lambda: bool(letters), expected.awaited(), self._members[expected.source])
        self._switchboard.wait(self._members[self.rank], wait, self._limit(timeout))
        header, array = letters.popleft()  # without the lock: only this rank takes from this box
        expected.check(header)
        return array

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        self._num_splits += 1
        if not members:
            return None
        threads = [self._members[rank] for rank in members]
        name = (*self._name, self._num_splits, color)
        return ThreadGroup(self._switchboard, threads, members.index(self.rank), self.timeout, name)

    def abort(self, code: int = 1) -> NoReturn:
        """End every rank: SystemExit here, which :func:`spawn` raises again."""
        raise SystemExit(code or 1)


def spawn(
    function: Callable[[ProcessGroup], Result],
    num_ranks: int,
    *,
    timeout: float | None = None,
    blas_threads: int = 1,
    take_turns: bool = False,
) -> list[Result]:
    """Run a function on ranks that are threads of this process, and return the results in rank order.

    Each rank gets fresh context variables: neither ``no_grad`` nor ``numpy.errstate`` reaches in from outside. When one
    rank raises, the others end at their next communication. ``sys.exit(0)`` is a return of None.

    Parameters
    ----------
    function : function
        Takes the group, a :class:`ProcessGroup`.
    num_ranks : int
        At least 1.
    timeout : float, optional
        Seconds that a wait may last; as for :func:`init_process_group`. A deadlock of all ranks is noticed at once.
    blas_threads : int
        For each matrix product, on every rank alike.
    take_turns : bool
        Run one rank at a time, and switch only where it waits: every run takes the same course. For debuggers.

    Raises
    ------
    RankError
        Code ``wrong-number``.
    BaseException
        Whatever a rank raised first, SystemExit included, with a note that names the rank.

    Examples
    --------
    >>> import numpy as np
    >>> def ring(group):
    ...     group.isend(np.array(group.rank), (group.rank + 1) % group.size)
    ...     return int(group.recv((group.rank - 1) % group.size))
    >>> spawn(ring, num_ranks=3)
    [2, 0, 1]
    """
    num_ranks = whole_number("num_ranks", num_ranks, error=RankError, code="wrong-number")
    limit = chosen_timeout(timeout)
    keep_freed_memory()
    switchboard = Switchboard(num_ranks, take_turns)
    members = list(range(num_ranks))
    results: list[Any] = [None] * num_ranks

    def run(rank: int) -> None:
        try:
            with ThreadGroup(switchboard, members, rank, limit) as group:
                switchboard.wait(rank, Wait(lambda: True, "its turn"), limit)
                results[rank] = contextvars.Context().run(function, group)
        except Cancelled:
            pass
        except BaseException as error:
            switchboard.activities[rank].has_ended = True  # at once: fail() may wait for the lock
            if exit_code_of(error):  # as under MPI, a rank that leaves with 0 has returned
                switchboard.fail(rank, error)
        finally:
            switchboard.leave(rank)

    threads = [threading.Thread(target=run, args=(r,), name=f"rank {r}", daemon=True) for r in range(num_ranks)]
    with limit_blas_threads(blas_threads):
        for thread in threads:
            thread.start()
        _join(threads, switchboard)
    if switchboard.failure is not None:
        rank, error = switchboard.failure
        error.add_note(f"raised on rank {rank} of {num_ranks} (a thread)")
        raise error
    return results


def _join(threads: list[threading.Thread], switchboard: Switchboard) -> None:
    """Wait for every rank; after a failure, only until the others should have reached a communication."""
    try:
        while switchboard.failure is None and any(thread.is_alive() for thread in threads):
            max(threads, key=threading.Thread.is_alive).join(0.2)
    except KeyboardInterrupt as error:
        switchboard.fail(-1, error)
        raise
    finally:
        give_up = time.perf_counter() + _GRACE
        for thread in threads:
            thread.join(max(0.0, give_up - time.perf_counter()))
