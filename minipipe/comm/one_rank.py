"""The group of one rank: a mailbox."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from minipipe.autograd import backend
from minipipe.comm.message import DEFAULT_TIMEOUT, Done, Expectation, Header, Request
from minipipe.comm.process_group import ProcessGroup
from minipipe.errors import MessageError


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

    def _take(self, expected: Expectation, timeout: float | None) -> np.ndarray:
        letters = self._mailbox[expected.tag]
        if not letters:
            raise MessageError(
                "deadlock", f"Rank 0 is blocked on {expected} from itself, which was not sent. Send before you receive."
            )
        header, array = letters.popleft()
        expected.check(header)
        return array

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        return OneRankGroup(self.timeout) if members else None
