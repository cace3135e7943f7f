"""State shared by thread ranks: mailboxes, waits, and the turn. Detects deadlocks."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.comm.message import Header
from minipipe.core.comm.watch import (
    LONGEST_GAP,
    Deadline,
    RankActivity,
    Words,
    the_watch,
    titled,
)
from minipipe.core.errors import MessageError

Mailbox = deque[tuple[Header, np.ndarray]]


class Cancelled(BaseException):
    """Ends a rank at its next communication after another has failed; not caught by
    ``except Exception``.
    """


class Wait(NamedTuple):
    """A wait: a condition, asked under the switchboard's lock; its description, for
    errors; and the sender.
    """

    is_over: Callable[[], bool]
    words: Words
    peer: int | None = None


class Switchboard:
    """The state that all thread ranks share, guarded by one lock."""

    def __init__(self, num_ranks: int, take_turns: bool) -> None:
        self._lock = threading.RLock()
        # one for each rank: a message that woke all of them would cost more than itself
        self._changed = [threading.Condition(self._lock) for _ in range(num_ranks)]
        # By (group, source, destination, tag); tags below 0 are the library's.
        self.mailboxes: defaultdict[tuple, Mailbox] = defaultdict(deque)
        self.waits: dict[int, Wait] = {}
        self.activities = [RankActivity() for _ in range(num_ranks)]
        self.everyone = range(num_ranks)
        self.running = set(self.everyone)
        self.failure: tuple[int, BaseException] | None = None
        self.turn: int | None = 0 if take_turns else None

    def check_cancelled(self) -> None:
        """End this rank, if another one has failed."""
        if self.failure is not None:
            raise Cancelled

    def post(self, box: tuple, header: Header, array: np.ndarray) -> None:
        """Put a message into a mailbox."""
        with self._lock:
            self.check_cancelled()
            self.mailboxes[box].append((header, array))
            self._changed[box[2]].notify_all()

    def letters(self, *box: Any) -> Mailbox:
        """Return the contents of a box; only its rank takes messages out, so this needs
        no lock.
        """
        with self._lock:
            return self.mailboxes[box]

    def wait(self, rank: int, wait: Wait, timeout: float) -> None:
        """Return once the condition holds and, if ranks take turns, it is this one's
        turn.
        """
        deadline = Deadline(timeout)
        activity = self.activities[rank]
        activity.claim()
        with self._lock, activity.waiting(deadline, wait.peer, wait.words):
            self.waits[rank] = wait
            try:
                while not (wait.is_over() and self.turn in (None, rank)):
                    self.check_cancelled()
                    self._check_deadlock(rank)
                    if self.turn == rank:
                        self._pass_turn()
                        continue
                    # With turns there is no limit: a rank may be in a debugger.
                    # Deadlocks are detected anyway.
                    if deadline.poll() and self.turn is None:
                        raise self._timeout(rank, wait, timeout)
                    self._changed[rank].wait(min(deadline.left, LONGEST_GAP))
            finally:
                del self.waits[rank]

    def _timeout(self, rank: int, wait: Wait, timeout: float) -> MessageError:
        """Return the error of a wait that has lasted too long."""
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - timeout))
        roles = self.activities[rank].roles
        sentence = (
            f"Rank {titled(rank, roles)} has waited {timeout:g} s, since {began}, for "
            f"{wait.words()}."
        )
        diagnosis = the_watch().diagnose(self.activities, roles)
        return MessageError("timeout", f"{sentence}\n{diagnosis}".rstrip())

    def _check_deadlock(self, rank: int) -> None:
        """Raise if all running ranks wait and no condition holds: none ever will."""
        is_one_running = bool(self.running - self.waits.keys())
        if is_one_running or any(wait.is_over() for wait in self.waits.values()):
            return
        in_order = sorted(self.waits.items())
        waits = "; ".join(f"rank {r} waits for {wait.words()}" for r, wait in in_order)
        returned = [r for r in self.everyone if r not in self.running]
        gone = "".join(f"; rank {r} has returned" for r in returned)
        left = ""
        for (_, source, destination, tag), letters in sorted(self.mailboxes.items()):
            if letters and tag >= 0:
                message = f"a message from rank {source} to rank {destination}"
                left += f"; {message} with tag {tag} is never received"
        raise MessageError("deadlock", f"All ranks are blocked: {waits}{gone}{left}.")

    def _pass_turn(self) -> None:
        """Give the turn to the next rank that can run."""
        assert self.turn is not None
        ranks = sorted(self.running)
        turn = self.turn
        later = sorted(ranks, key=lambda r: (r <= turn, r))
        able = (r for r in later if r not in self.waits or self.waits[r].is_over())
        self.turn = next(able, min(ranks, default=None))
        self._wake_everyone()

    def leave(self, rank: int) -> None:
        """Note that a rank has returned."""
        with self._lock:
            self.running.discard(rank)
            self.activities[rank].has_ended = True
            if self.turn == rank:
                self._pass_turn()
            self._wake_everyone()

    def fail(self, rank: int, error: BaseException) -> None:
        """Note that a rank has failed; the others end at their next communication."""
        with self._lock:
            self.failure = self.failure or (rank, error)
            self.turn = None
            self._wake_everyone()

    def _wake_everyone(self) -> None:
        for changed in self._changed:
            changed.notify_all()
