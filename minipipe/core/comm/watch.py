"""The seam to a package that watches a job: what the transport records for it, and what
it asks.

The transport records the action of a rank, its wait, and the time it has waited: one
assignment per action. It waits with a limit, and raises the named error. Why the
awaited rank did not answer, and how the other ranks end, is known to a :class:`Watch`,
which is asked when a rank starts, waits for too long, or fails. The one here is plain.
``comm/job`` has another, which is installed if that package exists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.core.familiar import optional

if TYPE_CHECKING:
    from minipipe.core.comm.mpi_process import MPIProcess

LONGEST_GAP = 0.5
"""Seconds between two polls. A longer gap means that this process itself was
suspended.
"""
Words = Callable[[], str]
"""A function that describes a message, called only for a report or an error."""


class Deadline:
    """Counts the seconds that this process has waited, from poll to poll.

    A scheduler that suspends a job, or a user with Ctrl-Z, stops the job but not the
    clock. So a gap between two polls counts as at most half a second.

    Parameters
    ----------
    limit : float
        In seconds; may be infinite.

    Attributes
    ----------
    spent : float
        Seconds waited so far.

    Examples
    --------
    >>> deadline = Deadline(limit=0.0)
    >>> deadline.poll(), Deadline(float("inf")).poll()
    (True, False)
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.spent = 0.0
        self._last = perf_counter()

    def poll(self) -> bool:
        """Count the time since the last poll; return whether the limit is exceeded."""
        now = perf_counter()
        self.spent += min(now - self._last, LONGEST_GAP)
        self._last = now
        return self.spent > self.limit

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return max(0.0, self.limit - self.spent)

    def renew(self) -> None:
        """Start counting again from 0."""
        self.spent = 0.0


class Run(NamedTuple):
    """A sequence of actions that a rank runs.

    Attributes
    ----------
    program : str
        A name, the same on all its ranks.
    actions : sequence
    step : int
        The number of the step, or of another call.
    sent_at : function
        From an action to the position at which its peer sends the awaited message; None
        if it waits for none.
    """

    program: str
    actions: Sequence[Any]
    step: int
    sent_at: Callable[[Any], int | None]


class BlockedOn(NamedTuple):
    """A wait of a rank.

    Attributes
    ----------
    deadline : Deadline
    peer : int or None
        The sender of the awaited message, by its world rank.
    words : function
        Describes the message.
    """

    deadline: Deadline
    peer: int | None
    words: Words


class RankActivity:
    """The current activity of this rank.

    Attributes
    ----------
    position : int
        Index of the running action among the actions of this rank; counted by the code
        that runs them.
    unread : function
        Returns the messages that have arrived and for which no receive is posted.
    has_ended : bool
        Whether the program of this rank has finished.
    roles : dict of int to str
        By world rank, the program's name for it in messages, such as "replica 1, stage
        0".
    round : int
        The round of a collective operation; set by the operation.
    thread : int or None
        Identifier of the thread that communicates for this rank; at first the main
        thread.
    run : Run
    wait : BlockedOn or None
    """

    def __init__(self) -> None:
        self.position = 0
        self.round = 0
        self.has_ended = False
        self.thread = threading.main_thread().ident
        self.run = Run("", (), 0, lambda action: None)
        self.unread: Callable[[], list[str]] = list
        self.roles: dict[int, str] = {}
        self.wait: BlockedOn | None = None

    def begin(
        self,
        program: str,
        actions: Sequence[Any],
        step: int,
        sent_at: Callable[[Any], int | None],
    ) -> None:
        """Note that this rank begins a sequence of actions; see :class:`Run`."""
        if threading.get_ident() != self.thread:
            self.claim()
        self.position = 0
        self.run = Run(program, actions, step, sent_at)

    def claim(self) -> None:
        """Make this thread the one that communicates for this rank.

        Raises
        ------
        LaunchError
            Code ``not-a-rank``, while another thread is inside a call, if a watch is
            installed. Messages carry no thread, so each thread would receive the
            other's messages.
        """
        if threading.get_ident() != self.thread:
            the_watch().check_claim(self)
            self.thread = threading.get_ident()

    @property
    def current(self) -> Any:
        """The running action, or None between two steps."""
        actions = self.run.actions
        position = self.position
        if position < len(actions):
            return actions[position]
        return None

    def words(self) -> str:
        """Name the running action, or the last finished step."""
        action = self.current
        step = self.run.step
        if not step:
            return ""
        if action is None:
            return f"after step {step}"
        return f"{action}, step {step}"

    @contextmanager
    def waiting(
        self, deadline: Deadline, peer: int | None, words: Words
    ) -> Iterator[None]:
        """Note, inside this block, the message for which this rank waits."""
        before = self.wait
        self.wait = BlockedOn(deadline, peer, words)
        try:
            yield
        finally:
            self.wait = before


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
    with optional():
        from minipipe.comm.job.watching import JobWatch

        return JobWatch()
    return Watch()


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
        if isinstance(error.code, int):
            return error.code & 0xFF
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 1


def titled(rank: int, roles: Mapping[int, str]) -> str:
    """Return the number of a rank, and the program's name for it.

    Examples
    --------
    >>> titled(5, {5: "replica 1, stage 1"}), titled(6, {})
    ('5 (replica 1, stage 1)', '6')
    """
    if rank in roles:
        return f"{rank} ({roles[rank]})"
    return str(rank)
