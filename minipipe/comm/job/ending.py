"""How a rank ends when something goes wrong: its exit code and its last words."""

from __future__ import annotations

import traceback

from minipipe.comm.job.activity import place_of
from minipipe.errors import MinipipeError

_MOST_LINES = 22  # what fits on a screen; of more, the middle is left out


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that the shell would see if an exception ended the program.

    Examples
    --------
    >>> exit_code_of(SystemExit(3)), exit_code_of(SystemExit("no data")), exit_code_of(ValueError())
    (3, 1, 1)
    """
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def last_words(error: BaseException) -> str:
    """Return the last words of a rank that an exception ends: a sentence where that says all, or the traceback.

    At most a screen; first where it was, as far as notes say it, and last the cause.

    Examples
    --------
    >>> last_words(SystemExit(3))
    'sys.exit(3); ending all.'
    """
    try:
        return shortened("\n".join([*getattr(error, "__notes__", ()), _words(error)]))
    except MemoryError:  # too little is left for a traceback
        return f"{type(error).__name__}: no memory is left to say where."


def _words(error: BaseException) -> str:
    stack = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    place = f" at {place_of(stack[::-1])}" if stack else ""
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted{place}."
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code}){place}; ending all." if isinstance(error.code, int) else str(error.code)
    if isinstance(error, MinipipeError) and error.is_self_explaining:
        return f"{type(error).__name__}: {error}"
    told = traceback.TracebackException.from_exception(error)
    told.__notes__ = None  # they have been said; Python would say them behind the cause
    return "".join(told.format()).rstrip()


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
    head, tail = lines[:6], lines[6 - _MOST_LINES + 1 :]
    return "\n".join([*head, f"  … {len(lines) - len(head) - len(tail)} lines …", *tail])
