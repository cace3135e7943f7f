"""Reports of a rank: its current action, the call that blocks it and for how long, and
its last message.

Recording it costs one assignment per action. Text is made only when another rank asks,
once a wait has lasted too long.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from minipipe.errors import LaunchError, MinipipeError, counted

LONGEST_GAP = 0.5
"""Seconds between two polls. A longer gap means that this process itself was
suspended.
"""
# of the final message, to fit a screen; the middle of a longer text is left out
_MOST_LINES = 22
_DEBUGGERS = ("bdb", "pdb", "ipdb", "pudb", "pydevd", "_pydevd_bundle", "debugpy")
_LIBRARIES = (
    str(Path(__file__).resolve().parents[2]) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
    "<frozen",
)


class Patience:
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
    >>> patience = Patience(limit=0.0)
    >>> patience.look(), Patience(float("inf")).look()
    (True, False)
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.spent = 0.0
        self._last = perf_counter()

    def look(self) -> bool:
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


Words = Callable[[], str]
"""A function that describes a message, called only for a report or an error."""


@dataclass
class RankReport:
    """The state of one rank, as sent to the rank that asks.

    Attributes
    ----------
    rank, pid : int
    host : str
    action : str
        The action and the step that run, or ran last.
    awaited : str
        The message or call that the rank is blocked on; empty if none.
    peer : int or None
        The sender of that message, by its world rank.
    seconds : float
        How long it has waited.
    place : str
        The line of the user's program that runs; for a silent rank the state of its
        process.
    is_debugged : bool
        Whether it is in a debugger.
    has_ended : bool
        Whether its program has finished.
    unread : list of str
        Messages that have arrived and for which no receive is posted.
    program : str
        The program of its actions; steps of different programs cannot be compared.
    step, position : int
        The current step, and how many of its actions are finished.
    sent_at : int or None
        The position at which the peer sends the awaited message, if the program
        determines it.
    round : int
        The round of a collective operation, from 1; 0 outside.
    is_collective : bool
        Whether it is blocked in a collective call, not in an action.
    is_silent : bool
        Whether it did not answer. Such a report is filled in by the rank that asked.
    """

    rank: int
    pid: int
    host: str
    action: str = ""
    awaited: str = ""
    peer: int | None = None
    seconds: float = 0.0
    place: str = ""
    is_debugged: bool = False
    has_ended: bool = False
    unread: list[str] = field(default_factory=list)
    program: str = ""
    step: int = 0
    position: int = 0
    sent_at: int | None = None
    round: int = 0
    is_collective: bool = False
    is_silent: bool = False

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RankReport:
        """Read the JSON of :meth:`to_bytes`."""
        return cls(**json.loads(data))


_Run = tuple[str, Sequence[Any], int, Callable[[Any], int | None]]
"""The program, its actions, the step, and where the message of an action is sent."""


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
    """

    def __init__(self) -> None:
        self.position = 0
        self.round = 0
        self.has_ended = False
        self.thread = threading.main_thread().ident
        self._run: _Run = "", (), 0, lambda action: None
        self.unread: Callable[[], list[str]] = list
        self.roles: dict[int, str] = {}
        self._wait: tuple[Patience, int | None, Words] | None = None

    def begin(
        self,
        program: str,
        actions: Sequence[Any],
        step: int,
        sent_at: Callable[[Any], int | None],
    ) -> None:
        """Note that this rank begins a sequence of actions.

        Parameters
        ----------
        program : str
            A name, the same on all its ranks.
        actions : sequence
        step : int
            The number of the step, or of another call.
        sent_at : function
            From an action to the position at which its peer sends the awaited message;
            None if it waits for none.
        """
        if threading.get_ident() != self.thread:
            self.claim()
        self.position = 0
        self._run = (program, actions, step, sent_at)

    def claim(self) -> None:
        """Make this thread the one that communicates for this rank.

        Raises
        ------
        LaunchError
            Code ``not-a-rank``, while another thread is inside a call. Messages carry
            no thread, so each thread would receive the other's messages.
        """
        if (thread := threading.get_ident()) == self.thread:
            return
        if other := self._call_of(self.thread):
            only_one = (
                "Only one may at a time: let one thread make all calls, or share a "
                "threading.Lock"
            )
            message = (
                f"Two threads of this rank communicate at once: {other}; "
                f"{self._call_of(thread)}. {only_one}."
            )
            raise LaunchError("not-a-rank", message)
        self.thread = thread

    def _call_of(self, thread: int | None) -> str:
        """Describe the outermost call to a group or a pipeline of this rank that a
        thread is inside, if any.
        """
        frames = _frames(thread)
        calls = [i for i, (frame, _) in enumerate(frames) if self._serves(frame)]
        if not calls:
            return ""
        stack = frames[calls[-1] :]
        names = {each.ident: each.name for each in threading.enumerate()}
        name = names.get(thread, "a thread")
        return f"{name} is in {stack[0][0].f_code.co_qualname}() at {place_of(stack)}"

    def _serves(self, frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(("minipipe.comm.", "minipipe.pipeline.")):
            return False
        this = frame.f_locals.get("self")
        return getattr(getattr(this, "_group", this), "activity", None) is self

    @property
    def current(self) -> Any:
        """The running action, or None between two steps."""
        actions = self._run[1]
        position = self.position
        return actions[position] if position < len(actions) else None

    def words(self) -> str:
        """Name the running action, or the last finished step."""
        action = self.current
        step = self._run[2]
        if not step:
            return ""
        if action is None:
            return f"after step {step}"
        return f"{action}, step {step}"

    @contextmanager
    def waiting(
        self, patience: Patience, peer: int | None, words: Words
    ) -> Iterator[None]:
        """Note, inside this block, the message for which this rank waits."""
        before = self._wait
        self._wait = (patience, peer, words)
        try:
            yield
        finally:
            self._wait = before

    def report(self, rank: int) -> RankReport:
        """Return the report of this rank. Any thread may call it."""
        frames = _frames(self.thread)
        report = RankReport(rank, os.getpid(), socket.gethostname(), self.words())
        report.has_ended = self.has_ended
        report.program, _, report.step, sent_at = self._run
        report.position = self.position
        report.round = self.round
        report.place = place_of(frames)
        names = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
        packages = {name.partition(".")[0] for name in names}
        report.is_debugged = not packages.isdisjoint(_DEBUGGERS)
        if (wait := self._wait) is not None:
            patience, report.peer, words = wait
            report.awaited = words()
            report.seconds = patience.spent
            report.unread = self.unread()
            action = self.current
            report.is_collective = action is None and "with tag" not in report.awaited
            report.sent_at = None if action is None else sent_at(action)
        return report


# -- places in the user's program ------------------------------------------------------


def _frames(thread: int | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a thread with their lines, the innermost first.

    CPython before 3.11.9 may hang for ever if a garbage collection begins inside
    ``sys._current_frames`` (python/cpython#106883), so collection is disabled during
    the call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    frame = sys._current_frames().get(thread or 0)
    if was_enabled:
        gc.enable()
    return list(traceback.walk_stack(frame)) if frame else []


def place_of(stack: Sequence[tuple[FrameType, int]]) -> str:
    """Return the innermost line of the user's own code: outside minipipe, the standard
    library and packages.

    Parameters
    ----------
    stack : sequence of (frame, line number)
        The innermost first.

    Examples
    --------
    >>> place_of([])
    ''
    """
    if not stack:
        return ""
    own = (entry for entry in stack if not _is_library(entry[0].f_code.co_filename))
    frame, line = next(own, stack[0])
    code = frame.f_code
    source = linecache.getline(code.co_filename, line).strip()
    place = f"{os.path.basename(code.co_filename)}, line {line}, in {code.co_name}"
    return f"{place}: {source[:60]}" if source else place


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in file


# -- the final message -----------------------------------------------------------------


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


def last_words(error: BaseException) -> str:
    """Return the final message of a rank that an exception ends: its notes, then a
    sentence or a traceback.

    At most a screen, with the cause last.

    Examples
    --------
    >>> last_words(SystemExit(3))
    'sys.exit(3); ending all ranks.'
    """
    try:
        return shortened("\n".join([*getattr(error, "__notes__", ()), _cause(error)]))
    except MemoryError:  # not even for a traceback
        return f"{type(error).__name__}: no memory is left for a traceback."


def _cause(error: BaseException) -> str:
    stack = list(traceback.walk_tb(error.__traceback__))
    place = f" at {place_of(stack[::-1])}" if stack else ""
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted{place}."
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return f"sys.exit({error.code}){place}; ending all ranks."
        return str(error.code)
    if isinstance(error, MinipipeError) and error.is_self_explaining:
        return f"{type(error).__name__}: {error}"
    formatted = traceback.TracebackException.from_exception(error)
    # printed before; Python would print them after the cause
    formatted.__notes__ = None
    return "".join(formatted.format()).rstrip()


def shortened(text: str) -> str:
    """Leave out the middle of a text that is longer than a screen.

    Examples
    --------
    >>> len(shortened("line\\n" * 100).splitlines())
    22
    """
    lines = text.splitlines()
    if len(lines) <= _MOST_LINES:
        return text
    head = lines[:6]
    tail = lines[6 - _MOST_LINES + 1 :]
    num_left_out = len(lines) - len(head) - len(tail)
    return "\n".join([*head, f"  … {counted(num_left_out, 'line')} …", *tail])
