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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from minipipe.core.comm.watch import RankActivity
from minipipe.errors import LaunchError, MinipipeError, counted

# of the final message, to fit a screen; the middle of a longer text is left out
_MOST_LINES = 22
_DEBUGGERS = ("bdb", "pdb", "ipdb", "pudb", "pydevd", "_pydevd_bundle", "debugpy")
_PACKAGES_OF_CALLS = ("minipipe.core.comm.", "minipipe.comm.", "minipipe.pipeline.")
_LIBRARIES = (
    str(Path(__file__).resolve().parents[2]) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
    "<frozen",
)


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


def report_of(activity: RankActivity, rank: int) -> RankReport:
    """Return the report of a rank of this process. Any thread may call it."""
    frames = _frames(activity.thread)
    report = RankReport(rank, os.getpid(), socket.gethostname(), activity.words())
    report.has_ended = activity.has_ended
    report.program, _, report.step, sent_at = activity.run
    report.position = activity.position
    report.round = activity.round
    report.place = place_of(frames)
    names = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
    packages = {name.partition(".")[0] for name in names}
    report.is_debugged = not packages.isdisjoint(_DEBUGGERS)
    wait = activity.wait
    if wait is not None:
        report.peer = wait.peer
        report.awaited = wait.words()
        report.seconds = wait.deadline.spent
        report.unread = activity.unread()
        action = activity.current
        if action is None:
            report.is_collective = "with tag" not in report.awaited
        else:
            report.sent_at = sent_at(action)
    return report


# -- two threads of one rank -----------------------------------------------------------


def check_claim(activity: RankActivity) -> None:
    """Refuse that this thread communicates for a rank, while another one is inside a
    call.

    Raises
    ------
    LaunchError
        Code ``not-a-rank``.
    """
    other = _call_of(activity, activity.thread)
    if not other:
        return
    this = _call_of(activity, threading.get_ident())
    raise LaunchError(
        "not-a-rank",
        f"Two threads of this rank communicate at once: {other}; {this}. Only one may "
        "at a time: let one thread make all calls, or share a threading.Lock.",
    )


def _call_of(activity: RankActivity, thread: int | None) -> str:
    """Describe the outermost call to a group or a pipeline of a rank that a thread is
    inside, if any.
    """
    frames = _frames(thread)
    calls = [i for i, (frame, _) in enumerate(frames) if _serves(activity, frame)]
    if not calls:
        return ""
    stack = frames[calls[-1] :]
    names = {each.ident: each.name for each in threading.enumerate()}
    name = names.get(thread, "a thread")
    return f"{name} is in {stack[0][0].f_code.co_qualname}() at {place_of(stack)}"


def _serves(activity: RankActivity, frame: FrameType) -> bool:
    """Return whether a frame is inside a group or a pipeline of this rank."""
    module = str(frame.f_globals.get("__name__"))
    if not module.startswith(_PACKAGES_OF_CALLS):
        return False
    this = frame.f_locals.get("self")
    return getattr(getattr(this, "_group", this), "activity", None) is activity


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
    if frame is None:
        return []
    return list(traceback.walk_stack(frame))


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
    if source:
        place += f": {source[:60]}"
    return place


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in file


# -- the final message -----------------------------------------------------------------


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
    place = ""
    if stack:
        place = f" at {place_of(stack[::-1])}"
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
