"""A rank that is a thread of this process, for notebooks and tests: with real messages,
but not fast.

Threads share the interpreter lock, so two of them run small operations at less than the
speed of one.

``process_group.py`` has ``isend``, ``irecv`` and everything else that a rank calls,
built on the primitives of each kind of group: ``_post_send``, ``_take`` and
``_subgroup``::

    isend -> _post_send -> the receiver's mailbox (a copy; done at once)
    irecv -> Receive; its wait -> _take (takes nothing before)

Read these two first. ``message.py`` has the ``Header`` of a message and the
``Expectation`` of its receiver; ``switchboard.py`` the mailboxes and the detection of
deadlocks.

File 13 of 13 on the first path through the code (README.md): after
``core/autograd/split.py``.
"""

from __future__ import annotations

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.comm.message import Done, Expectation, Header, Request
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.comm.switchboard import Mailbox, Switchboard, Wait


class ThreadGroup(ProcessGroup):
    """A rank that is a thread; :func:`spawn` makes them.

    Examples
    --------
    >>> from minipipe import spawn
    >>> spawn(repr, num_ranks=2)
    ['<ThreadGroup: rank 0 of 2>', '<ThreadGroup: rank 1 of 2>']
    """

    takes_device_arrays = True
    note = "thread ranks share one interpreter: times differ from real ranks"

    def __init__(
        self,
        switchboard: Switchboard,
        members: list[int],
        rank: int,
        timeout: float,
        name: tuple = (),
    ) -> None:
        super().__init__(rank, len(members), timeout)
        self._switchboard = switchboard
        self.activity = switchboard.activities[members[rank]]
        # the number of the thread, by rank in this group
        self._members = self.world_ranks = members
        self._name = name  # distinguishes the messages of this group from others
        self._num_splits = 0  # calls of ProcessGroup.split

    def _post_send(
        self, header: Header, array: np.ndarray, destination: int, tag: int
    ) -> Request:
        box = self._name, self._members[self.rank], self._members[destination], tag
        self._switchboard.post(box, header, backend.copy(array))
        return Done()

    def _take(self, expected: Expectation, timeout: float | None) -> np.ndarray:
        self.check_open()
        letters = self._letters(expected.source, expected.tag)
        sender = self._members[expected.source]
        wait = Wait(lambda: bool(letters), expected.awaited, sender)
        self._switchboard.wait(self._members[self.rank], wait, self._limit(timeout))
        # without the lock: only this rank takes from this box
        header, array = letters.popleft()
        expected.check(header)
        return array

    def has_arrived(self, source: int, tag: int) -> bool:
        """Return whether a message has arrived for which a receive was started."""
        return bool(self._letters(source, tag))

    def _letters(self, source: int, tag: int) -> Mailbox:
        box = self._name, self._members[source], self._members[self.rank], tag
        return self._switchboard.letters(*box)

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        self._num_splits += 1
        if not members:
            return None
        threads = [self._members[rank] for rank in members]
        name = (*self._name, self._num_splits, color)
        rank = members.index(self.rank)
        return ThreadGroup(self._switchboard, threads, rank, self.timeout, name)
