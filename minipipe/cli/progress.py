"""Progress messages of a verb: lines on standard error, or a bar if it is a
terminal.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, TextIO

from minipipe.io import MARK, is_terminal, printable

# Seconds between two lines: less than the promised 10 s, for busy machines.
_INTERVAL = 8.0
_REFRESH = 0.5  # seconds between two drawings of a bar
_DELAY = 2.0  # seconds in which a verb that is usually quick prints nothing


class Progress:
    """Reports the progress of its block on standard error: the work at once, the state
    at least every 10 s.

    Parameters
    ----------
    work : str
        A description of the work.
    seconds : float, optional
        The time that it may take.
    is_at_most : bool
        Whether ``seconds`` is a limit; otherwise it is an estimate.
    is_long : bool
        Whether to print the work at once; otherwise only if it takes long.
    stream, clock
        Standard error and a clock of seconds; tests pass others.

    Examples
    --------
    >>> with Progress("counting", 30, stream=sys.stdout) as progress:
    ...     progress.tell("at one")
    minipipe: counting; about 30 s
    """

    def __init__(
        self,
        work: str,
        seconds: float | None = None,
        *,
        is_at_most: bool = False,
        is_long: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.work = work
        self.seconds = seconds
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_long = is_long
        self._limit = "at most" if is_at_most else "about"
        self._describe: Callable[[], str] = lambda: ""
        self._bar: Any = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_the_end, daemon=True)

    def __enter__(self) -> Progress:
        self._begun = self._said = self._clock()
        if self._is_long:
            self._begin()
        else:
            self._said += _DELAY - _INTERVAL
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._bar is not None:
            with suppress(OSError, ValueError):  # a stream that is closed or full
                self._bar.close()

    def tell(self, state: str) -> None:
        """Set the current state, and show it beside the bar."""
        self.watch(lambda: state)
        if self._bar is not None:
            self._draw(self._clock() - self._begun)

    def watch(self, describe: Callable[[], str]) -> None:
        """Set a function that returns the current state."""
        self._describe = describe

    def beat(self) -> None:
        """Print the state if it is due. A thread calls this several times a second."""
        now = self._clock()
        if self._bar is not None:
            self._draw(now - self._begun)
        elif now - self._said >= _INTERVAL:
            if not self._is_long:
                self._is_long = True
                self._said = now
                self._begin()
                return
            self._said = now
            state = self._describe() or self.work
            self._print(f"{self._after(now - self._begun)}: {state}")

    def _begin(self) -> None:
        time = " …"
        if self.seconds:
            time = f"; {self._limit} {duration(self.seconds)}"
        self._print(f"{self.work}{time}")
        if is_terminal(self._stream):
            from tqdm import tqdm

            form = "{desc} {elapsed}"
            if self.seconds:
                form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"
            look: dict[str, Any] = {"bar_format": form, "dynamic_ncols": True}
            look |= {"total": self.seconds, "leave": False, "mininterval": 0}
            with suppress(OSError, ValueError):
                self._bar = tqdm(file=self._stream, **look)

    def _draw(self, elapsed: float) -> None:
        state = printable(self._describe() or self.work)
        # The bar and the elapsed time take the other 40 columns.
        width = max(20, (self._bar.ncols or 80) - 40)
        if len(state) > width:
            state = f"{state[: width - 1]}…"
        if self.seconds:
            elapsed = min(elapsed, 0.99 * self.seconds)
        with suppress(OSError, ValueError):
            self._bar.n = elapsed
            self._bar.set_description_str(state, refresh=False)
            self._bar.refresh()

    def _after(self, elapsed: float) -> str:
        if self.seconds is None:
            return f"{elapsed:.0f} s"
        if elapsed > self.seconds:
            return f"{elapsed:.0f} s, longer than expected"
        return f"{elapsed:.0f} s of {self._limit} {duration(self.seconds)}"

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):
            print(f"{MARK}{printable(line)}", file=self._stream, flush=True)

    def _beat_until_the_end(self) -> None:
        while not self._ends.wait(_REFRESH):
            self.beat()


def duration(seconds: float) -> str:
    """Return a time as text, with a unit and one or two digits.

    Examples
    --------
    >>> duration(42.3), duration(240), duration(90_000), duration(0.2)
    ('42 s', '4 min', '25 h', '1 s')
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"
