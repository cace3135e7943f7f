"""What rank 0 says while choices are measured, for whoever waits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minipipe.comm import ProcessGroup

MARK = "minipipe: "  # before each line


def silent(text: str) -> None:
    """Say nothing."""


def teller(group: ProcessGroup, progress: bool | None) -> Callable[[str], None]:
    """Return a function that writes a line to standard error, or is silent. Local.

    Parameters
    ----------
    group : ProcessGroup
        Only its rank 0 speaks.
    progress : bool, optional
        Whether to speak; by default where standard error is a terminal.

    Examples
    --------
    >>> from minipipe.comm import OneRankGroup
    >>> teller(OneRankGroup(), progress=False)("ready")
    """
    if sys.stderr is None or group.rank:  # a process without one, such as a daemon
        return silent
    if not (sys.stderr.isatty() if progress is None else progress):
        return silent
    return lambda text: print(f"{MARK}{text}", file=sys.stderr, flush=True)


@contextmanager
def unwarned(group: ProcessGroup) -> Iterator[None]:
    """Leave warnings of measurements out inside this block: the report says how noisy the machine was."""
    if group.rank:  # only rank 0 warns, and blocks of several threads may not overlap
        yield
        return
    with warnings.catch_warnings(action="ignore"):
        yield
