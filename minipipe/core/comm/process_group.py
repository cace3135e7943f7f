"""Process groups: messages between two ranks, and collective operations.

A kind of group implements three primitives: ``_post_send``, ``_take`` and
``_subgroup``. Everything else is built here from sends and receives, so that all kinds
of groups agree to the bit, and every wait has a limit.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum
from functools import partial
from threading import get_ident
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.comm.message import (
    DEFAULT_TIMEOUT,
    Expectation,
    Given,
    Header,
    Label,
    Receive,
    Request,
    described,
    finish,
)
from minipipe.core.comm.watch import RankActivity
from minipipe.core.errors import (
    ArgumentError,
    LaunchError,
    MessageError,
    RankError,
    counted,
    not_copyable,
)
from minipipe.core.familiar import Familiar, explain, with_hints
from minipipe.core.specs import Spec

if TYPE_CHECKING:
    from minipipe.comm.channel import ReceiveChannel, SendChannel

Channel = TypeVar("Channel", "SendChannel", "ReceiveChannel")
_COLOR = Spec(
    int,
    minimum=0,
    expected="a whole number, at least 0, or None; each rank gives its own: "
    "group.split(group.rank % 2)",
)


class OwnTag(IntEnum):
    """The tags of the library's own messages, below zero; the tags of users begin at
    zero.
    """

    BROADCAST = -1
    GATHER = -2
    BARRIER = -3
    CLOCK = -4
    IBROADCAST = -5
    COPY = -6  # of a rank's state, for elastic training
    RESULTS = -7  # of a replica, for the first one
    TRAINED = -8  # whether parameters are trained
    SUM = -9  # of one member of a reduction, for the others


class ProcessGroup(Familiar, ABC):
    """Ranks 0 to size - 1, of which this object is one.

    Any thread may call it, but one of a rank at a time: the second one gets a
    LaunchError, code ``not-a-rank``.

    Attributes
    ----------
    rank : int
        The number of this one.
    size : int
        The number of ranks.
    timeout : float
        Seconds that a wait may last, unless the call sets a limit.
    note : str
        A remark on times measured in this group.
    clock_offset : float
        Seconds that the clock of rank 0 is ahead of this rank's ``time.perf_counter``,
        as far as could be measured.
    takes_device_arrays : bool
        Whether arrays in the memory of a GPU can be sent as they are.
    local_rank : int
        The number of this rank on its host, if the launcher reports it.
    world_ranks : sequence of int
        For each rank of this group its number among all ranks that were started, which
        error messages use.
    world_size : int
        The size of the outermost group that this one was split from.
    under_way : deque of Receive
        The broadcasts that were started here and have not arrived, as far as was asked.
    activity : RankActivity
        What this rank is doing, for the report to ranks whose wait takes too long.
    on_send : function or None
        Called with header, array, destination and tag of each message, before it is
        sent; not of those that a compiled step sends in line.

    Examples
    --------
    :func:`minipipe.spawn` makes threads of this process,
    :func:`minipipe.init_process_group` joins the processes that ``mpirun`` started.

    >>> from minipipe import spawn
    >>> spawn(lambda group: f"{group.rank} of {group.size}", num_ranks=3)
    ['0 of 3', '1 of 3', '2 of 3']
    """

    takes_device_arrays = False
    note = ""
    on_send: Callable[[Header, Any, int, int], None] | None = None
    clock_offset = 0.0
    _num_serials = _num_programs = 0

    def __init__(self, rank: int, size: int, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.rank = self.local_rank = rank
        self.size = size
        self.timeout = timeout
        self.world_ranks: Sequence[int] = range(size)
        self.world_size = size
        self.activity = RankActivity()
        self.is_closed = False
        # the group that this one was split off from
        self._parent: ProcessGroup | None = None
        self._resources = ExitStack()
        self.under_way: deque[Receive] = deque()  # of ibroadcast

    # -- copies: a group is not a value, so copies of objects that refer to it, such as
    # a layer or a loss, share it

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled."""
        why = f"it is rank {self.rank} of {self.size} ranks that exchange messages"
        raise not_copyable(
            self,
            why,
            "In another process call init_process_group(); state_dict() has the "
            "values.",
        )

    # -- primitives of a kind of group -------------------------------------------------

    @abstractmethod
    def _post_send(
        self, header: Header, array: np.ndarray, destination: int, tag: int
    ) -> Request: ...

    def _post_receive(self, expected: Expectation) -> Expectation:
        """Prepare for a message, for a kind of group in which it needs memory to arrive
        in.
        """
        return expected

    @abstractmethod
    def _take(self, expected: Expectation, timeout: float | None) -> np.ndarray:
        """Wait for a message, check it, and return its array."""

    def _channel(
        self, kind: type[Channel], array: Array, peer: int, tag: int, what: Label
    ) -> Channel:
        """Return a channel for arrays of the shape and dtype of this one, which it may
        use.
        """
        return kind(self, array, peer, tag, what)

    def has_arrived(self, source: int, tag: int) -> bool:
        """Return whether a message has arrived for which a receive was started; False
        if this is unknown. Local.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def look(group):
        ...     group.isend(np.ones(2), destination=0, tag=5)
        ...     request = group.irecv(source=0, tag=5)
        ...     return (
        ...         group.has_arrived(source=0, tag=5),
        ...         request.wait().tolist(),
        ...         group.has_arrived(source=0, tag=5),
        ...     )
        >>> spawn(look, num_ranks=1)
        [(True, [1.0, 1.0], False)]
        """
        return False

    @abstractmethod
    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        """Return this rank's view of a group of these ranks, or None where ``members``
        is empty; all ranks call it.
        """

    def _limit(self, timeout: float | None) -> float:
        if timeout is None:
            return self.timeout
        return timeout

    # -- two ranks ---------------------------------------------------------------------

    @with_hints
    def isend(
        self, array: Array, destination: int, tag: int = 0, *, step: int = 0
    ) -> Request:
        """Start to send an array; return at once.

        Local; the partner is ``destination``, which receives with the same tag. Do not
        change the array before the request is done. Roughly: ``request =
        comm.Isend(array, destination, tag)``.

        Parameters
        ----------
        array : array
            Of numbers, with at most 8 axes; its shape and dtype travel along. Arrays of
            another module than NumPy are accepted only if the group
            ``takes_device_arrays``.
        destination : int
            A rank; the sender itself is allowed.
        tag : int
            At least 0. Messages of one sender and one tag arrive in order.
        step : int
            The number of the sender's call, which the receiver may compare with its
            own.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def swap(group):
        ...     request = group.isend(np.array(group.rank), destination=1 - group.rank)
        ...     received = group.recv(source=1 - group.rank)
        ...     request.wait()
        ...     return int(received)
        >>> spawn(swap, num_ranks=2)
        [1, 0]
        """
        self._check("destination", destination, tag)
        if not isinstance(array, np.ndarray):
            if not (self.takes_device_arrays and backend.is_array(array)):
                array = np.asarray(array)
            # MPI reads the memory at once
            backend.synchronise(backend.array_module(array))
            array = backend.contiguous(array)
        elif not array.flags.c_contiguous:
            array = array.copy()
        header = described(array.dtype, array.shape, step)
        if self.on_send is not None:
            self.on_send(header, array, destination, tag)
        return self._post_send(header, array, destination, tag)

    @with_hints
    def irecv(
        self,
        source: int,
        tag: int = 0,
        out: np.ndarray | None = None,
        *,
        step: int | None = None,
        what: Label = "",
        allocate: Callable[..., Array] = np.empty,
    ) -> Receive:
        """Start to receive a message; ``wait()`` returns its array.

        Local; nothing is taken before ``wait``, so of several receives with one source
        and tag, the one waited for first gets the first message. The partner is
        ``source``, which sends with the same tag.

        Parameters
        ----------
        source : int
            A rank.
        tag : int
            At least 0.
        out : array, optional
            Filled with the array that arrives, which must have the same shape and
            dtype.
        step : int, optional
            Compared with the sender's.
        what : str or function
            A description of the message, for errors; a function that returns it is
            called only then.
        allocate : function
            ``(shape, dtype) -> array`` for the arriving array.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def add(group):
        ...     if group.rank > 0:
        ...         return group.send(np.array(10.0 * group.rank), destination=0)
        ...     return sum(
        ...         float(request.wait())
        ...         for request in [group.irecv(source=1), group.irecv(source=2)]
        ...     )
        >>> spawn(add, num_ranks=3)
        [30.0, None, None]
        """
        self._check("source", source, tag)
        expected = Expectation(
            self.rank, source, tag, out, step, what, allocate, self.world_ranks
        )
        return Receive(self._take, self._post_receive(expected))

    @with_hints
    def send(
        self,
        array: np.ndarray,
        destination: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send an array and wait until it may be changed again.

        Local; the partner is ``destination``. A large array is only gone once the
        partner receives it: two ranks that both send first and receive afterwards wait
        for each other (use :meth:`isend`).

        Parameters
        ----------
        array : array
        destination : int
            A rank.
        tag : int
            At least 0.
        timeout : float, optional
            In seconds; the group's timeout by default.

        Raises
        ------
        MessageError
            Code ``timeout``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def pass_on(group):
        ...     if group.rank == 0:
        ...         return group.send(np.array([1.5, 2.5]), destination=1)
        ...     return group.recv(source=0).tolist()
        >>> spawn(pass_on, num_ranks=2)
        [None, [1.5, 2.5]]
        """
        self.isend(array, destination, tag).wait(timeout)

    @with_hints
    def recv(
        self,
        source: int,
        tag: int = 0,
        out: np.ndarray | None = None,
        *,
        timeout: float | None = None,
    ) -> np.ndarray:
        """Wait for an array and return it.

        Local; the partner is ``source``, which sends with the same tag. Shape and dtype
        come with the message; if ``out`` is given, it must have this shape and dtype,
        and it is filled.

        Parameters
        ----------
        source : int
            A rank.
        tag : int
            At least 0.
        out : array, optional
        timeout : float, optional
            In seconds; the group's timeout by default.

        Raises
        ------
        MessageError
            Codes ``shape``, ``dtype``, ``timeout``, ``rank-lost``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def receive_into(group):
        ...     if group.rank == 0:
        ...         return group.send(np.array([1.0, 2.0]), destination=1, tag=7)
        ...     out = np.zeros(2)
        ...     return group.recv(source=0, tag=7, out=out) is out
        >>> spawn(receive_into, num_ranks=2)
        [None, True]
        """
        return self.irecv(source, tag, out).wait(timeout)

    def send_channel(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        destination: int,
        tag: int = 0,
        what: Label = "",
        xp: ModuleType = np,
    ) -> SendChannel:
        """Return a message that is sent in every step, from one buffer: what ``isend``
        sends, with less work.

        Local; the partner is ``destination``, which receives with the same tag, by a
        channel or by ``irecv``.

        Parameters
        ----------
        shape : tuple of int
            At most 8 axes.
        dtype : dtype
        destination : int
            A rank; the sender itself is allowed.
        tag : int
            At least 0.
        what : str or function
            A description of the message, for errors; a function that returns it is
            called only then.
        xp : module
            The array module of the buffer.

        Examples
        --------
        >>> from minipipe import spawn
        >>> def count(group):
        ...     if group.rank == 0:
        ...         channel = group.send_channel((2,), "float32", destination=1)
        ...         for step in range(3):
        ...             channel.wait()
        ...             channel.array[:] = step
        ...             channel.start(step)
        ...         return channel.wait()
        ...     channel, received = group.receive_channel((2,), "float32", source=0), []
        ...     for step in range(3):
        ...         channel.start(step)
        ...         channel.wait()
        ...         received.append(channel.array.tolist())
        ...     return received
        >>> spawn(count, num_ranks=2)
        [None, [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]]
        """
        from minipipe.comm.channel import SendChannel, empty

        self._check("destination", destination, tag)
        array = empty(shape, dtype, xp)
        return self._channel(SendChannel, array, destination, tag, what)

    def receive_channel(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        source: int,
        tag: int = 0,
        what: Label = "",
        xp: ModuleType = np,
    ) -> ReceiveChannel:
        """Return a message that is received in every step, into one buffer: what
        ``irecv`` takes, with less work.

        Local; the partner is ``source``, which sends with the same tag, by a channel or
        by ``isend``. Parameters are as in :meth:`send_channel`.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     channel = group.receive_channel((2,), "float64", source=0)
        ...     channel.start(step=1)
        ...     group.isend(np.array([1.0, 2.0]), destination=0, step=1).wait()
        ...     channel.wait()
        ...     print(channel.array)
        [1. 2.]
        """
        from minipipe.comm.channel import ReceiveChannel, empty

        self._check("source", source, tag)
        return self._channel(ReceiveChannel, empty(shape, dtype, xp), source, tag, what)

    # -- all ranks ---------------------------------------------------------------------

    @with_hints
    def broadcast(
        self,
        array: np.ndarray | None = None,
        root: int = 0,
        *,
        what: str = "the broadcast array",
    ) -> np.ndarray:
        """Return the root's array on every rank; on the root a copy of it.

        Collective. It travels down a binomial tree.

        Parameters
        ----------
        array : array
            On the root, the array to send. On other ranks None, or an array of the same
            shape and dtype to be filled.
        root : int
            A rank.
        what : str
            A description of the message, for the error of a timeout.

        Raises
        ------
        MessageError
            Codes ``shape`` and ``dtype``, where another rank's array is not like the
            root's.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> spawn(
        ...     lambda group: group.broadcast(
        ...         np.array([7, 8]) if group.rank == 0 else None
        ...     ).tolist(),
        ...     num_ranks=3,
        ... )
        [[7, 8], [7, 8], [7, 8]]
        """
        self._check("root", root)
        parent, children = self.tree(root)
        if parent is not None:
            array = self.irecv(parent, OwnTag.BROADCAST, array, what=what).wait()
        elif array is None:
            raise self._no_array("broadcast")
        else:
            array = np.array(array)
        finish([self.isend(array, child, OwnTag.BROADCAST) for child in children])
        return array

    def tree(self, root: int) -> tuple[int | None, list[int]]:
        """Return from which rank this one gets what the root broadcasts, None for the
        root; and to which it sends it.

        Local.

        Examples
        --------
        >>> from minipipe import spawn
        >>> spawn(lambda group: group.tree(root=1), num_ranks=4)
        [(3, []), (None, [3, 2]), (1, []), (1, [0])]
        """
        place = (self.rank - root) % self.size  # in a binomial tree, whose root is 0
        # the lowest bit of a place; beyond all places for the root
        reach = place & -place or 1 << (self.size - 1).bit_length()
        children = []
        while reach > 1:
            reach >>= 1
            if place + reach < self.size:
                children.append((place + reach + root) % self.size)
        if not place:
            return None, children
        return ((place & (place - 1)) + root) % self.size, children

    def ibroadcast(
        self,
        array: np.ndarray | None = None,
        root: int = 0,
        *,
        step: int = 0,
        what: str = "the broadcast array",
    ) -> Receive | Given:
        """Start to broadcast the root's array, and return at once; ``wait()`` of the
        result returns the array.

        Collective, but no rank waits for another. The root sends to each rank itself.
        Of several broadcasts under way, earlier ones are taken first, whichever is
        waited for.

        Parameters
        ----------
        array : array
            On the root, the array to send, which ``wait()`` returns; unchanged until
            then. None on other ranks.
        root : int
            A rank.
        step : int
            The number of the call, which must be the same on all ranks.
        what : str
            A description of the message, for the error of a timeout.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def share(group):
        ...     first, second = (
        ...         group.ibroadcast(np.array(n) if group.rank == 1 else None, root=1)
        ...         for n in (7, 8)
        ...     )
        ...     return int(second.wait()), int(first.wait())
        >>> spawn(share, num_ranks=2)
        [(8, 7), (8, 7)]
        """
        if self.rank != root:
            self._check("root", root)
            expected = Expectation(
                self.rank,
                root,
                OwnTag.IBROADCAST,
                step=step,
                what=what,
                names=self.world_ranks,
            )

            def take(expected: Expectation, timeout: float | None) -> np.ndarray:
                self.check_open()
                while (first := self.under_way[0]) is not request:
                    try:
                        first.wait(timeout)
                    except MessageError:
                        # not arrived; any other error belongs to that message's wait()
                        if self.under_way[0] is first:
                            raise
                return self._take(expected, timeout)

            posted = self._post_receive(expected)
            request = Receive(take, posted, self.under_way.popleft)
            self.under_way.append(request)
            return request
        if array is None:
            raise self._no_array("ibroadcast")
        others = [rank for rank in range(self.size) if rank != root]
        start = partial(self.isend, array, tag=OwnTag.IBROADCAST, step=step)
        return Given(array, list(map(start, others)))

    def _no_array(self, call: str) -> ArgumentError:
        message = f"{call}: rank {self.name()} is the root and must give an array."
        return ArgumentError(message)

    def all_gather(
        self, array: np.ndarray, *, what: str = "its part of a gather"
    ) -> list[np.ndarray]:
        """Return the arrays of all ranks, by rank; their shapes may differ.

        Collective.

        Parameters
        ----------
        array : array
        what : str
            A description of the message, for the error of a timeout.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> spawn(
        ...     lambda group: [
        ...         len(array) for array in group.all_gather(np.zeros(group.rank))
        ...     ],
        ...     num_ranks=3,
        ... )
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
        """
        self.check_open()
        own = np.array(array)
        # the nearest first
        behind = [own, *exchange(self, own, range(1, self.size), OwnTag.GATHER, what)]
        return [behind[(self.rank - rank) % self.size] for rank in range(self.size)]

    @with_hints
    def all_reduce(self, array: np.ndarray, operation: str = "sum") -> np.ndarray:
        """Return the sum (or the elementwise largest) of the arrays of all ranks, on
        every rank.

        Collective. Arrays are added in pairs of neighbouring ranks, then pairs of
        pairs, always, so the result has the same bits on every rank and in every run:
        (0 + 1) + 2 of three ranks, (0 + 1) + (2 + 3) of four. Each of n ranks sends 2
        (n - 1) / n of the bytes.

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
        >>> spawn(
        ...     lambda group: int(group.all_reduce(np.array(10 * group.rank))),
        ...     num_ranks=4,
        ... )
        [60, 60, 60, 60]
        >>> spawn(
        ...     lambda group: int(group.all_reduce(np.array(10 * group.rank), "max")),
        ...     num_ranks=4,
        ... )
        [30, 30, 30, 30]
        """
        from minipipe.parallel.reduction import all_reduce  # which sends over a group

        operations = {"sum": np.add, "max": np.maximum}
        Spec(str, choices=tuple(operations)).check("operation", operation)
        return all_reduce(self, array, operations[operation])

    def barrier(self) -> None:
        """Return once every rank has called this.

        Collective. In round k each rank tells the one 2^k further on, and hears from
        the one 2^k behind.

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
        self.check_open()
        distances = [1 << k for k in range((self.size - 1).bit_length())]
        exchange(self, np.zeros(0), distances, OwnTag.BARRIER, "a barrier")

    def split(self, color: int | None, key: int = 0) -> ProcessGroup | None:
        """Divide the ranks: ranks with the same color form a new group.

        Collective. In the new group ranks are ordered by key, then by their rank here.

        Parameters
        ----------
        color : int or None
            At least 0; None for a rank that joins no group, which gets None.
        key : int

        Raises
        ------
        ArgumentError
            Code ``value``, for an invalid color, such as a list with the color of every
            rank.

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
        mine = -1
        if color is not None:
            mine = _COLOR.check("color", color)
        given = [(int(c), int(k)) for c, k in self.all_gather(np.array([mine, key]))]
        members = [rank for rank in range(self.size) if given[rank][0] == color]
        members.sort(key=lambda rank: (given[rank][1], rank))
        group = self._subgroup(members, mine)
        if group is not None:
            group._parent = self
            group.clock_offset = self.clock_offset
            group.world_size = self.world_size
        return group

    def name(self, rank: int | None = None) -> int:
        """Return the number in the world of a rank of this group, by default of this
        one, for messages. Local.

        Examples
        --------
        >>> from minipipe import spawn
        >>> spawn(lambda group: group.split(group.rank // 2).name(0), num_ranks=4)
        [0, 0, 2, 2]
        """
        if rank is None:
            rank = self.rank
        return self.world_ranks[rank]

    def describe_ranks(self, roles: Mapping[int, str]) -> None:
        """Set the program's names for ranks, for messages, by their numbers in the
        world. Local.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.describe_ranks({0: "replica 0, stage 0"})
        ...     group.activity.roles
        {0: 'replica 0, stage 0'}
        """
        self.activity.roles = dict(roles)

    def name_of_program(self) -> str:
        """Return a name for a program: the same on all ranks, if they make theirs in
        the same order. Local.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.name_of_program(), group.name_of_program()
        ('1 of 0-0', '2 of 0-0')
        """
        self._num_programs += 1
        return f"{self._num_programs} of {self.name(0)}-{self.name(self.size - 1)}"

    def next_serial(self) -> int:
        """Return 1, 2, … in successive calls: a number for an object that all ranks
        make in the same order. Local.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.next_serial(), group.next_serial()
        (1, 2)
        """
        self._num_serials += 1
        return self._num_serials

    # -- time --------------------------------------------------------------------------

    def time(self) -> float:
        """Return seconds on a clock that all ranks share, as far as it could be aligned
        (``clock_offset``).

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     before = group.time()
        ...     group.time() >= before
        True
        """
        return time.perf_counter() + self.clock_offset

    def align_clocks(self, rounds: int = 10) -> None:
        """Align the clocks with the clock of rank 0.

        Collective. Each rank asks rank 0 for the time; of several answers the quickest
        counts, as in Cristian 1989, "Probabilistic clock synchronization".

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def differs(group):
        ...     group.align_clocks()
        ...     return (
        ...         abs(group.time() - float(group.broadcast(np.array(group.time()))))
        ...         > 10
        ...     )
        >>> spawn(differs, num_ranks=3)
        [False, False, False]
        """
        if self.rank == 0:
            for rank in range(1, self.size):
                for _ in range(rounds):
                    asking = "a question for the time"
                    self.irecv(rank, OwnTag.CLOCK, what=asking).wait()
                    self.isend(np.array(time.perf_counter()), rank, OwnTag.CLOCK).wait()
            return
        best = float("inf")
        for _ in range(rounds):
            asked = time.perf_counter()
            self.isend(np.zeros(0), 0, OwnTag.CLOCK).wait()
            answer = float(self.irecv(0, OwnTag.CLOCK, what="the time").wait())
            heard = time.perf_counter()
            if heard - asked < best:
                best = heard - asked
                self.clock_offset = answer - (asked + heard) / 2

    # -- the end -----------------------------------------------------------------------

    def _check(self, name: str, rank: int, tag: int = 0) -> None:
        """Check that the group is open, and that there is such a rank and such a tag.

        Raises
        ------
        RankError
            Code ``out-of-range``.
        """
        if self.is_closed or self._parent or get_ident() != self.activity.thread:
            self.check_open()
        if not 0 <= rank < self.size:
            raise RankError(
                "out-of-range",
                f"{name} is {rank}, but the group has {counted(self.size, 'rank')}, "
                "counted from 0.",
            )
        if tag < 0 and not isinstance(tag, OwnTag):
            raise ArgumentError(f"tag is {tag}; expected at least 0.")

    def check_open(self) -> None:
        """Refuse a call on a closed group, and in a second thread. Local.

        Raises
        ------
        LaunchError
            Codes ``closed`` and ``not-a-rank``.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.check_open()
        """
        if self._parent is not None:
            self._parent.check_open()
        if get_ident() != self.activity.thread:
            self.activity.claim()
        if self.is_closed:
            raise LaunchError(
                "closed",
                "This group is closed: its with-block has ended, or a rank of it was "
                "lost.",
            )

    def abort(self, code: int = 1) -> NoReturn:
        """End every rank at once, with an exit code that is not 0.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.abort(3)
        Traceback (most recent call last):
            ...
        SystemExit: 3
        """
        # which spawn() raises again, once all threads have ended
        raise SystemExit(code or 1)

    def close(self) -> None:
        """Release the resources of the group, such as the limit on BLAS threads. Local;
        may be called twice.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> group = init_process_group()
        >>> group.close()
        >>> group.is_closed
        True
        """
        self.is_closed = True
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            explain(error)
        try:
            if error is None and not self.is_closed:
                # their results may be read later
                finish(tuple(self.under_way))
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: rank {self.rank} of {self.size}>"


def exchange(
    group: ProcessGroup,
    array: np.ndarray,
    distances: Iterable[int],
    tag: OwnTag,
    what: str,
) -> list[np.ndarray]:
    """Send an array to the ranks at some distances ahead; return the arrays of the
    ranks as far behind, cyclically.

    Collective, a round for each distance: a rank sends in the next one when it has
    received in this one.
    """
    sends = []
    received = []
    try:
        for number, distance in enumerate(distances, 1):
            group.activity.round = number
            sends.append(group.isend(array, (group.rank + distance) % group.size, tag))
            source = (group.rank - distance) % group.size
            received.append(group.irecv(source, tag, what=what).wait())
        finish(sends)
    finally:
        group.activity.round = 0
    return received
