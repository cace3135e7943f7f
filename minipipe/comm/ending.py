"""How a rank ends when something goes wrong: its exit code, its last words, and the watchdog."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from minipipe.errors import MinipipeError

_INTERVAL = 0.25  # seconds between the watchdog's looks


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
    """Return the last words of a rank that an exception ends: a sentence where that says all, or the traceback."""
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted."
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code}); ending all." if isinstance(error.code, int) else str(error.code)
    if isinstance(error, MinipipeError) and error.is_self_explaining:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return "".join(traceback.format_exception(error))


class Watchdog:
    """A thread that gives up when a blocking call takes too long.

    Parameters
    ----------
    give_up : function
        Called in the watchdog's thread with a sentence that names the awaited message and the time waited.
    """

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self._watched: tuple[float, float, Callable[[], str]] | None = None  # since, until, what
        self._thread: threading.Thread | None = None

    def watch(self, limit: float, words: Callable[[], str]) -> None:
        """Give up after ``limit`` seconds, unless it may rest before.

        For the one call that blocks inside MPI: a sender that stops in the middle of its bytes would hang it for ever.
        """
        now = time.perf_counter()
        self._watched = (now, now + limit, words)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_for_ever, name="watchdog", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """The call is over."""
        self._watched = None

    def _look_for_ever(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            watched, now = self._watched, time.perf_counter()
            if watched is not None and now > watched[1]:
                self._give_up(f"has waited {now - watched[0]:.1f} s for {watched[2]()}.")
                return
