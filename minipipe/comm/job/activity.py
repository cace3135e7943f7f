"""The flight recorder: what a rank is doing, told to others when a wait grows too long.

A rank notes which action it runs and, once a wait has outlasted the first polite looks, what it waits for. That costs
an assignment for each action. Words are made only when somebody asks.
"""

from __future__ import annotations

import json
import linecache
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from minipipe.comm.job.patience import Patience
from minipipe.errors import LaunchError

_DEBUGGERS = ("bdb", "pdb", "ipdb", "pudb", "pydevd", "_pydevd_bundle", "debugpy")
_LIBRARIES = (str(Path(__file__).resolve().parents[2]) + os.sep, os.path.dirname(os.__file__) + os.sep, "<frozen")


@dataclass
class Report:
    """What a rank tells of itself.

    Attributes
    ----------
    rank, pid : int
    host : str
    action : str
        Which action of which step it runs, or ran last.
    awaited : str
        What it waits for, or nothing.
    peer : int or None
        From which rank, by its number in the world.
    seconds : float
        How long it has waited.
    place : str
        The line of the user's program at which it is.
    is_debugged : bool
        Whether it stands still in a debugger.
    has_ended : bool
        Whether it has come to its end.
    unread : tuple of str
        Messages that have arrived, and for which nobody waits here.
    program : str
        Which program its actions belong to: steps of others cannot be compared.
    step, position : int
        Which step it is in, and how many of its actions it has finished.
    sent_at : int or None
        At which position its peer sends what it waits for, where a program says that.
    round : int
        In which round of a gather or a barrier it is, from 1; 0 outside.
    is_collective : bool
        Whether what it waits for belongs to a call that all ranks make, and not to an action.
    is_silent : bool
        Whether it did not answer; then others tell what they know, with what the system says as its place.
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
    unread: tuple[str, ...] = ()
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
    def from_bytes(cls, data: bytes) -> Report:
        """Read what :meth:`to_bytes` wrote."""
        fields = json.loads(data)
        return cls(**{**fields, "unread": tuple(fields["unread"])})


class Activity:
    """What this rank is doing.

    Attributes
    ----------
    position : int
        The place of the action that runs, among those of this rank; whoever runs them counts.
    unread : function
        Returns the messages that have arrived and that nobody waits for.
    has_ended : bool
        Whether this rank has come to its end.
    round : int
        The round of a collective operation; whoever runs that sets it.
    thread : int or None
        The thread that communicates for this rank, by its identifier; the main one by default.
    """

    def __init__(self) -> None:
        self.position = self.round = 0
        self.thread = threading.main_thread().ident
        self._run: tuple[str, Sequence[Any], int, Callable[[Any], int | None]] = "", (), 0, lambda action: None
        self.unread: Callable[[], tuple[str, ...]] = tuple
        self.has_ended = False
        self._wait: tuple[Patience, int | None, Callable[[], str]] | None = None

    def begin(self, program: str, actions: Sequence[Any], step: int, sent_at: Callable[[Any], int | None]) -> None:
        """Note that this rank begins with its actions.

        Parameters
        ----------
        program : str
            A name that all ranks of it share.
        actions : sequence
        step : int
            The number of the step, or of another call.
        sent_at : function
            At which position another rank sends what an action waits for; None for one that waits for nothing.
        """
        self.claim()
        self.position, self._run = 0, (program, actions, step, sent_at)

    def claim(self) -> None:
        """Let this thread be the one that communicates for this rank from now on.

        Raises
        ------
        LaunchError
            Code ``two-threads``, while another one is inside of a call: messages carry no thread, so each would take
            those of the other.
        """
        if (thread := threading.get_ident()) == self.thread:
            return
        if other := self._call_of(self.thread):
            only_one = "Only one may at a time: let one thread make all calls, or share a threading.Lock"
            message = f"Two threads of this rank communicate at once: {other}; {self._call_of(thread)}. {only_one}."
            raise LaunchError("two-threads", message)
        self.thread = thread

    def _call_of(self, thread: int | None) -> str:
        """Return, in words, the call to a group or a pipeline of this rank that a thread is inside of, or nothing."""
        frames = list(_frames(sys._current_frames().get(thread or 0)))
        calls = [number for number, frame in enumerate(frames) if self._serves(frame)]
        if not calls:
            return ""
        stack = [(frame.f_code, frame.f_lineno) for frame in frames[calls[-1] :]]
        name = next((each.name for each in threading.enumerate() if each.ident == thread), "a thread")
        return f"{name} is in {stack[0][0].co_qualname}() at {place_of(stack)}"

    def _serves(self, frame: FrameType) -> bool:
        if not str(frame.f_globals.get("__name__")).startswith(("minipipe.comm.", "minipipe.pipeline.")):
            return False
        this = frame.f_locals.get("self")
        return getattr(getattr(this, "_group", this), "activity", None) is self

    @property
    def current(self) -> Any:
        """The action that runs, or None between two steps."""
        actions, position = self._run[1], self.position
        return actions[position] if position < len(actions) else None

    def words(self) -> str:
        """Return which action runs, or what was finished last."""
        action, step = self.current, self._run[2]
        return "" if not step else f"after step {step}" if action is None else f"{action}, step {step}"

    @contextmanager
    def waiting(self, patience: Patience, peer: int | None, words: Callable[[], str]) -> Iterator[None]:
        """Note what this rank waits for inside this block."""
        before, self._wait = self._wait, (patience, peer, words)
        try:
            yield
        finally:
            self._wait = before

    def report(self, rank: int) -> Report:
        """Return what there is to tell. May be called by another thread than that of the rank."""
        frames = list(_frames(sys._current_frames().get(self.thread or 0)))
        report = Report(rank, os.getpid(), socket.gethostname(), self.words(), has_ended=self.has_ended)
        report.program, _, report.step, sent_at = self._run
        report.position, report.round = self.position, self.round
        report.place = place_of([(frame.f_code, frame.f_lineno) for frame in frames])
        report.is_debugged = any(str(f.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS for f in frames)
        if (wait := self._wait) is not None:
            patience, report.peer, words = wait
            report.awaited, report.seconds, report.unread = words(), patience.spent, self.unread()
            report.is_collective = self.current is None and "with tag" not in report.awaited
            report.sent_at = None if (action := self.current) is None else sent_at(action)
        return report


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def place_of(stack: Sequence[tuple[CodeType, int]]) -> str:
    """Return the innermost line that is the user's own: not minipipe's, the standard library's or a package's.

    Parameters
    ----------
    stack : sequence of (code, line number)
        The innermost first.

    Examples
    --------
    >>> place_of([])
    ''
    """
    own = (entry for entry in stack if not _is_of_a_library(entry[0].co_filename))
    found = next(own, stack[0] if stack else None)
    if found is None:
        return ""
    code, line = found
    source = linecache.getline(code.co_filename, line).strip()
    return f"{os.path.basename(code.co_filename)}, line {line}, in {code.co_name}" + (
        f": {source[:60]}" if source else ""
    )


def _is_of_a_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in file
