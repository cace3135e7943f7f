"""Ranks that act together: what every group can do, and the group of one.

Everything that all ranks do together is written here once, from sends and receives, so that all kinds of groups agree
to the bit, and every wait has the same time limit.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict, deque
from typing import NoReturn

import numpy as np

from minipipe import backend
from minipipe.comm.message import Expectation, Header
from minipipe.comm.point_to_point import DEFAULT_TIMEOUT, Done, PointToPoint, Request, check_rank
from minipipe.errors import MessageError

__all__ = ["OneRankGroup", "ProcessGroup"]

# Tags below zero are the library's own; users' begin at zero.
_BROADCAST, _GATHER, _BARRIER, _CLOCK = -1, -2, -3, -4


class ProcessGroup(PointToPoint):
    """Ranks 0 to size - 1, of which this object is one.

    Attributes
    ----------
    rank : int
        Which one this is.
    size : int
        How many there are.
    timeout : float
        Seconds that a wait may last, unless the call says otherwise.
    note : str
        What to keep in mind when reading times measured in this group.

    Examples
    --------
    :func:`minipipe.spawn` makes threads of this process, :func:`minipipe.init_process_group` joins the processes that
    ``mpirun`` started.

    >>> from minipipe import spawn
    >>> spawn(lambda group: f"{group.rank} of {group.size}", num_ranks=3)
    ['0 of 3', '1 of 3', '2 of 3']
    """

    note = ""
    _clock_offset = 0.0
    _num_serials = 0

    @abstractmethod
    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        """Return this rank's view of a group of these ranks, or None where ``members`` is empty; all ranks call it."""

    def broadcast(
        self,
        array: np.ndarray | None = None,
        root: int = 0,
        *,
        timeout: float | None = None,
        what: str = "the broadcast array",
    ) -> np.ndarray:
        """Return the root's array on every rank.

        Collective. It travels down a binomial tree.

        Parameters
        ----------
        array : array
            On the root, what is sent. On other ranks None, or an array of the same shape and dtype to be filled.
        root : int
            A rank.
        timeout : float, optional
            Seconds that each wait may last; the group's own by default.
        what : str
            In words, what is awaited; for the message of a timeout.

        Raises
        ------
        MessageError
            Codes ``shape`` and ``dtype``, where another rank's array is not like the root's.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> spawn(lambda group: group.broadcast(np.array([7, 8]) if group.rank == 0 else None).tolist(), num_ranks=3)
        [[7, 8], [7, 8], [7, 8]]
        """
        self._check_open()
        check_rank("root", root, self.size)
        place = (self.rank - root) % self.size  # in the tree, whose root is 0
        if place:
            parent = (place & (place - 1)) + root
            array = self._receive(parent % self.size, _BROADCAST, array, what, timeout)
        elif array is None:
            raise ValueError(f"broadcast: rank {root} is the root and must give an array.")
        array = np.asarray(array)
        reach = place & -place if place else 1 << (self.size - 1).bit_length()
        sends = []
        while reach > 1:
            reach >>= 1
            if place + reach < self.size:
                sends.append(self._isend(array, (place + reach + root) % self.size, _BROADCAST))
        self._finish(sends, timeout)
        return array

    def all_gather(
        self, array: np.ndarray, *, timeout: float | None = None, what: str = "its part of a gather"
    ) -> list[np.ndarray]:
        """Return the arrays of all ranks, by rank; their shapes may differ.

        Collective.

        Parameters
        ----------
        array : array
        timeout : float, optional
            Seconds that each wait may last; the group's own by default.
        what : str
            In words, what is awaited; for the message of a timeout.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> spawn(lambda group: [len(array) for array in group.all_gather(np.zeros(group.rank))], num_ranks=3)
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
        """
        self._check_open()
        gathered = [np.array(array)] * self.size
        sends = []
        for distance in range(1, self.size):
            sends.append(self._isend(gathered[self.rank], (self.rank + distance) % self.size, _GATHER))
            source = (self.rank - distance) % self.size
            gathered[source] = self._receive(source, _GATHER, None, what, timeout)
        self._finish(sends, timeout)
        return gathered

    def all_reduce(self, array: np.ndarray, operation: str = "sum") -> np.ndarray:
        """Return the sum (or the elementwise largest) of the arrays of all ranks, on every rank.

        Collective. The order is rank 0 + rank 1 + …, everywhere and always, so the result has the same bits on every
        rank and in every run.

        Parameters
        ----------
        array : array
            Of one shape and dtype on all ranks.
        operation : {"sum", "max"}

        Raises
        ------
        MessageError
            Codes ``shape`` and ``dtype``, naming two ranks that differ.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> spawn(lambda group: int(group.all_reduce(np.array(10 * group.rank))), num_ranks=4)
        [60, 60, 60, 60]
        >>> spawn(lambda group: int(group.all_reduce(np.array(10 * group.rank), "max")), num_ranks=4)
        [30, 30, 30, 30]
        """
        combine = {"sum": np.add, "max": np.maximum}.get(operation)
        if combine is None:
            raise ValueError(f"operation is {operation!r}; expected 'sum' or 'max'.")
        gathered = self.all_gather(array)
        for source, other in enumerate(gathered):
            Expectation(self.rank, source, _GATHER, gathered[self.rank]).check(Header.of(other))
        total = gathered[0]
        for other in gathered[1:]:
            total = combine(total, other)
        return np.asarray(total)

    def barrier(self) -> None:
        """Return once every rank has called this.

        Collective. In round k each rank tells the one 2^k further on, and hears from the one 2^k behind.

        Examples
        --------
        >>> from minipipe import spawn
        >>> log = []
        >>> def arrive(group):
        ...     log.append("before")
        ...     group.barrier()
        ...     log.append("after")
        >>> _ = spawn(arrive, num_ranks=3)
        >>> log
        ['before', 'before', 'before', 'after', 'after', 'after']
        """
        self._check_open()
        distance = 1
        while distance < self.size:
            send = self._isend(np.zeros(0), (self.rank + distance) % self.size, _BARRIER)
            self._receive((self.rank - distance) % self.size, _BARRIER, None, "a barrier")
            self._finish([send])
            distance *= 2

    def split(self, color: int | None, key: int = 0) -> ProcessGroup | None:
        """Divide the ranks: those that give the same color form a group of their own.

        Collective. In the new group ranks are ordered by key, then by their rank here.

        Parameters
        ----------
        color : int or None
            At least 0; None for a rank that joins no group, which gets None.
        key : int

        Examples
        --------
        Even ranks and odd ones.

        >>> from minipipe import spawn
        >>> def parity(group):
        ...     half = group.split(color=group.rank % 2)
        ...     return f"{half.rank} of {half.size}"
        >>> spawn(parity, num_ranks=5)
        ['0 of 3', '0 of 2', '1 of 3', '1 of 2', '2 of 3']
        """
        if color is not None and color < 0:
            raise ValueError(f"color is {color}; expected at least 0, or None.")
        mine = -1 if color is None else color
        given = [(int(c), int(k)) for c, k in self.all_gather(np.array([mine, key]))]
        members = [rank for rank in range(self.size) if given[rank][0] == mine and color is not None]
        members.sort(key=lambda rank: (given[rank][1], rank))
        group = self._subgroup(members, mine)
        if group is not None:
            group._parent, group._clock_offset = self, self._clock_offset
        return group

    def next_serial(self) -> int:
        """Return 1, 2, … by turns: a number for something that all ranks make in the same order. Local.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.next_serial(), group.next_serial()
        (1, 2)
        """
        self._num_serials += 1
        return self._num_serials

    # -- time -----------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return seconds on a clock that all ranks share, as far as it could be aligned.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     before = group.time()
        ...     group.time() >= before
        True
        """
        return time.perf_counter() + self._clock_offset

    def align_clocks(self, rounds: int = 10) -> None:
        """Align the clocks with that of rank 0.

        Collective. Each rank asks rank 0 for the time; of several answers the quickest counts, as in Cristian 1989,
        "Probabilistic clock synchronization".

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def differs(group):
        ...     group.align_clocks()
        ...     return abs(group.time() - float(group.broadcast(np.array(group.time())))) > 10
        >>> spawn(differs, num_ranks=3)
        [False, False, False]
        """
        nothing = np.zeros(0)
        if self.rank == 0:
            for rank in range(1, self.size):
                for _ in range(rounds):
                    self._receive(rank, _CLOCK, None, "a question for the time")
                    self._isend(np.array(time.perf_counter()), rank, _CLOCK).wait()
            return
        best = float("inf")
        for _ in range(rounds):
            asked = time.perf_counter()
            self._isend(nothing, 0, _CLOCK).wait()
            answer = float(self._receive(0, _CLOCK, None, "the time"))
            heard = time.perf_counter()
            if heard - asked < best:
                best = heard - asked
                self._clock_offset = answer - (asked + heard) / 2


class OneRankGroup(ProcessGroup):
    """The group of one: plain ``python`` runs the same program as four ranks do.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe.comm import OneRankGroup
    >>> group = OneRankGroup()
    >>> group.send(np.array([1.0, 2.0]), destination=0)
    >>> group.recv(source=0)
    array([1., 2.])
    """

    takes_device_arrays = True

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(0, 1, timeout)
        self._mailbox: defaultdict[int, deque[tuple[Header, np.ndarray]]] = defaultdict(deque)

    def _post_send(self, header: Header, array: np.ndarray, destination: int, tag: int) -> Request:
        self._mailbox[tag].append((header, backend.copy(array)))
        return Done()

    def _post_receive(self, expected: Expectation) -> Request:
        return _FromMailbox(self._mailbox[expected.tag], expected)

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        return OneRankGroup(self.timeout) if members else None

    def abort(self, code: int = 1) -> NoReturn:
        """End the process by SystemExit."""
        raise SystemExit(code or 1)


class _FromMailbox(Request):
    def __init__(self, letters: deque[tuple[Header, np.ndarray]], expected: Expectation) -> None:
        self._letters = letters
        self._expected = expected

    def wait(self, timeout: float | None = None) -> np.ndarray:
        if not self._letters:
            raise MessageError(
                "deadlock",
                f"Rank 0 waits for {self._expected} from itself, and nobody else is there to send it. "
                "Send before you receive.",
            )
        header, array = self._letters.popleft()
        self._expected.check(header)
        return array
