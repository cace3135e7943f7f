"""Ranks as threads of this process, for notebooks and tests: real ranks with real messages, not fast ones.

Threads share the interpreter lock, so two of them run small operations at less than the speed of one.

``process_group.py`` has ``isend``, ``irecv`` and all else that a rank calls; it asks the primitives of a kind of group:
``_post_send``, ``_post_receive`` and ``_subgroup``. ``message.py`` has the ``Header`` of a message that came and the
``Expectation`` of one that is awaited.

File 12 of 12 on the first path through the code (README.md): after ``autograd/split.py``.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from minipipe import backend
from minipipe.comm.host import keep_freed_memory, limit_blas_threads
from minipipe.comm.message import Expectation, Header
from minipipe.comm.process_group import ProcessGroup
from minipipe.comm.request import DEFAULT_TIMEOUT, Done, Request
from minipipe.errors import MessageError, RankError

Result = TypeVar("Result")
_GRACE = 5.0  # seconds that the other ranks have to stop after one has failed


class Cancelled(BaseException):
    """Ends a rank at its next communication after another one has failed. No ``except Exception`` catches it."""


class _Wait(NamedTuple):
    """What a rank waits for: a question that is answered under the switchboard's lock, and its words."""

    is_over: Callable[[], bool]
    words: str


class _Switchboard:
    """What the ranks share: mailboxes, who waits for what, and whose turn it is."""

    def __init__(self, num_ranks: int, take_turns: bool) -> None:
        self.changed = threading.Condition()
        # By (group, source, destination, tag); tags below 0 are the library's own.
        self.mailboxes: defaultdict[tuple, deque[tuple[Header, np.ndarray]]] = defaultdict(deque)
        self.waits: dict[int, _Wait] = {}
        self.everyone = range(num_ranks)
        self.running = set(self.everyone)
        self.failure: tuple[int, BaseException] | None = None
        self.turn: int | None = 0 if take_turns else None

    def check_cancelled(self) -> None:
        if self.failure is not None:
            raise Cancelled

    def post(self, box: tuple, header: Header, array: np.ndarray) -> None:
        with self.changed:
            self.check_cancelled()
            self.mailboxes[box].append((header, array))
            self.changed.notify_all()

    def wait(self, rank: int, wait: _Wait, timeout: float) -> None:
        """Return once the wait is over (and, where ranks take turns, it is this one's turn)."""
        since = time.perf_counter()
        with self.changed:
            self.waits[rank] = wait
            try:
                while not (wait.is_over() and self.turn in (None, rank)):
                    self.check_cancelled()
                    self._check_deadlock(rank)
                    if self.turn == rank:
                        self._pass_turn()
                        continue
                    # Where ranks take turns there is no limit: one may be in a debugger. Deadlocks are noticed anyway.
                    left = since + timeout - time.perf_counter() if self.turn is None else timeout
                    if left <= 0:
                        began = time.strftime("%H:%M:%S", time.localtime(time.time() - timeout))
                        sentence = f"Rank {rank} has waited {timeout:g} s, since {began}, for {wait.words}."
                        raise MessageError("timeout", sentence)
                    self.changed.wait(min(left, threading.TIMEOUT_MAX))
            finally:
                del self.waits[rank]

    def _check_deadlock(self, rank: int) -> None:
        """All who still run wait, and nothing that they wait for is there: it never will be."""
        if self.running - self.waits.keys() or any(wait.is_over() for wait in self.waits.values()):
            return
        waits = "; ".join(f"rank {r} waits for {wait.words}" for r, wait in sorted(self.waits.items()))
        gone = "".join(f"; rank {r} has returned" for r in self.everyone if r not in self.running)
        left = "".join(
            f"; nobody receives a message from rank {source} to rank {destination} with tag {tag}"
            for (_, source, destination, tag), letters in sorted(self.mailboxes.items())
            if letters and tag >= 0
        )
        raise MessageError("deadlock", f"No rank can go on: {waits}{gone}{left}.")

    def _pass_turn(self) -> None:
        """Give the turn to the next rank, in turn, that can run."""
        assert self.turn is not None
        ranks = sorted(self.running)
        later = [r for r in ranks if r > self.turn] + [r for r in ranks if r <= self.turn]
        able = (r for r in later if r not in self.waits or self.waits[r].is_over())
        self.turn = next(able, None if not ranks else ranks[0])
        self.changed.notify_all()

    def leave(self, rank: int) -> None:
        """A rank has returned."""
        with self.changed:
            self.running.discard(rank)
            if self.turn == rank:
                self._pass_turn()
            self.changed.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        """A rank has failed: the others end at their next communication."""
        with self.changed:
            if self.failure is None:
                self.failure = (rank, error)
            self.turn = None
            self.changed.notify_all()


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
        self, switchboard: _Switchboard, members: list[int], rank: int, timeout: float, name: tuple = ()
    ) -> None:
        super().__init__(rank, len(members), timeout)
        self._switchboard = switchboard
        self._members = members  # by rank here: the number of the thread
        self._name = name  # tells the messages of one group from those of another
        self._num_splits = 0  # calls of ProcessGroup.split

    def _post_send(self, header: Header, array: np.ndarray, destination: int, tag: int) -> Request:
        self._switchboard.post((self._name, self.rank, destination, tag), header, backend.copy(array))
        return Done()

    def _post_receive(self, expected: Expectation) -> Request:
        return _ThreadReceive(self, expected)

    def _receive_now(self, expected: Expectation, timeout: float | None) -> np.ndarray:
        with self._switchboard.changed:
            letters = self._switchboard.mailboxes[self._name, expected.source, self.rank, expected.tag]
        words = f"{expected} from rank {expected.source}"
        limit = self.timeout if timeout is None else timeout
        self._switchboard.wait(self._members[self.rank], _Wait(lambda: bool(letters), words), limit)
        header, array = letters.popleft()  # without the lock: nobody else takes from this box
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


class _ThreadReceive(Request):
    def __init__(self, group: ThreadGroup, expected: Expectation) -> None:
        self._group = group
        self._expected = expected

    def wait(self, timeout: float | None = None) -> np.ndarray:
        return self._group._receive_now(self._expected, timeout)


def spawn(
    function: Callable[[ProcessGroup], Result],
    num_ranks: int,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    blas_threads: int = 1,
    take_turns: bool = False,
) -> list[Result]:
    """Run a function on ranks that are threads of this process, and return the results in rank order.

    Each rank gets fresh context variables: neither ``no_grad`` nor ``numpy.errstate`` reaches in from outside. When one
    rank raises, the others end at their next communication.

    Parameters
    ----------
    function : function
        Takes the group, a :class:`ProcessGroup`.
    num_ranks : int
        At least 1.
    timeout : float
        Seconds that a wait may last. A deadlock of all ranks is noticed at once.
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
    if num_ranks < 1:
        raise RankError("wrong-number", f"num_ranks is {num_ranks}; expected at least 1.")
    keep_freed_memory()
    switchboard = _Switchboard(num_ranks, take_turns)
    members = list(range(num_ranks))
    results: list[Any] = [None] * num_ranks

    def run(rank: int) -> None:
        try:
            with ThreadGroup(switchboard, members, rank, timeout) as group:
                switchboard.wait(rank, _Wait(lambda: True, "its turn"), timeout)
                results[rank] = contextvars.Context().run(function, group)
        except Cancelled:
            pass
        except BaseException as error:
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


def _join(threads: list[threading.Thread], switchboard: _Switchboard) -> None:
    """Wait for every rank; after a failure, only as long as the others need to reach a communication."""
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
