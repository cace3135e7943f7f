"""A limit on waiting that a suspended process does not use up."""

from __future__ import annotations

from time import perf_counter

LONGEST_GAP = 0.5
"""Seconds between two looks. Whatever is longer was no waiting: this process itself stood still."""


class Patience:
    """Counts the seconds that this process has waited, from look to look.

    A scheduler that suspends a whole job, or a user with Ctrl-Z, stops the clock of the job and not that of the wall.
    So a gap between two looks counts at most half a second.

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
        """Count the time since the last look; tell whether the limit is passed."""
        now = perf_counter()
        self.spent += min(now - self._last, LONGEST_GAP)
        self._last = now
        return self.spent > self.limit

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return max(0.0, self.limit - self.spent)

    def renew(self) -> None:
        """Begin again."""
        self.spent = 0.0
