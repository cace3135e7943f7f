"""The labels of actions in a trace: ranges that a framework or a program has named.

PyTorch's runtime schedules record each action of their rank as a range::

    PP:2RECV_F0 PP:2F0 PP:2SEND_F0 … PP:(2F5;3B1)OVERLAP_F_B … PP:2REDUCE_GRAD

For other names there is a pattern with groups. GPipe of PyTorch writes ``Forward 0``,
which ``(?P<kind>Forward|Backward) (?P<microbatch>[0-9]+)`` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from minipipe.core.schedules.action import Action, B, F, I, W
from minipipe.core.schedules.text import rows_of
from minipipe.errors import ArgumentError, ScheduleError, quoted
from minipipe.io import parse_whole

# PyTorch always names the stage.
_PYTORCH = re.compile(r"PP:(\(?\d[^\s,]*)", re.ASCII)
# Point-to-point operations as c10d records them, such as gloo:send and nccl:recv 0<-1.
# The range of gloo:send may begin after the message has left; c10d::send is around it.
_TRANSFER = re.compile(r"(?:c10d:|gloo|nccl|ucc|mpi):(send|recv)", re.IGNORECASE)
SUCH = r"'(?P<kind>Forward|Backward) (?P<microbatch>\d+)'"
# The words for a kind, in lower case and without punctuation.
_KINDS = {
    "f|fwd|forward": F,
    "b|bwd|backward": B,
    "i|dgrad|backwardinput|inputbackward": I,
    "w|wgrad|backwardweight|weightbackward": W,
}


class Label(NamedTuple):
    """The meaning of a range.

    Attributes
    ----------
    actions : tuple of Action
        One, or the two of an overlapped pair; none for an operation of a process group.
        A stage of -1 stands for the rank.
    transfer : str
        ``"send"`` or ``"recv"`` for an operation of a process group.

    Examples
    --------
    >>> reader = label_reader()
    >>> [str(action) for action in reader("PP:(2F5;3B1)OVERLAP_F_B").actions]
    ['2F5', '3B1']
    >>> reader("gloo:send").transfer, reader("aten::mm")
    ('send', None)
    """

    actions: tuple[Action, ...] = ()
    transfer: str = ""


LabelReader = Callable[[str], Label | None]


def label_reader(pattern: str | None = None) -> LabelReader:
    r"""Return a function that reads the name of a range, and returns None for a range
    without meaning here.

    Parameters
    ----------
    pattern : str, optional
        A regular expression for names other than PyTorch's, with the groups
        ``microbatch``, ``kind`` and, if a rank has several stages, ``stage``.
        Microbatches and stages are counted from 0. A kind is F, B, I or W, or a
        word such as ``forward`` or ``backward_input``.

    Raises
    ------
    ArgumentError
        Code ``value``, for a pattern that is no regular expression or lacks a group.

    Examples
    --------
    >>> reader = label_reader(r"(?P<kind>Forward|Backward) (?P<microbatch>\d+)")
    >>> reader("Backward 3").actions
    (Action(stage=-1, kind=<ActionKind.BACKWARD: 'B'>, microbatch=3),)
    """
    read: LabelReader = _of_pytorch
    if pattern is not None:
        read = _of_pattern(_compiled(pattern))

    @lru_cache(2**16)
    def reader(name: str) -> Label | None:
        if match := _TRANSFER.match(name):
            return Label(transfer=match[1].lower())
        return read(name)

    return reader


def _of_pytorch(name: str) -> Label | None:
    match = _PYTORCH.fullmatch(name)
    if match is None:
        return None
    try:
        rows, _, _ = rows_of(match[1])
    except ScheduleError:
        return None  # UNSHARD and other work beside the schedule
    return Label(rows[0])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        problem = f"{quoted(pattern)} is no regular expression: {error}"
        raise ArgumentError(f"{problem}; expected one such as {SUCH}.") from None
    missing = sorted({"kind", "microbatch"} - compiled.groupindex.keys())
    if missing:
        problem = f"{quoted(pattern)} lacks the group {' and '.join(missing)}"
        expected = f"kind, microbatch and perhaps stage, such as {SUCH}"
        raise ArgumentError(f"{problem}; expected {expected}.")
    return compiled


def _of_pattern(pattern: re.Pattern[str]) -> LabelReader:
    def read(name: str) -> Label | None:
        match = pattern.search(name)
        if match is None:
            return None
        groups: dict[str, str] = match.groupdict("")
        word = re.sub("[^a-z]", "", groups["kind"].lower())
        kinds = [kind for words, kind in _KINDS.items() if re.fullmatch(words, word)]
        stage = -1
        try:
            microbatch = parse_whole(groups["microbatch"])
            if groups.get("stage"):
                stage = parse_whole(groups["stage"])
            return Label((Action(stage, kinds[0], microbatch),))
        except (IndexError, ArgumentError):
            expected = "a kind such as F, forward or backward_input, and whole numbers"
            problem = f"--label reads {groups} in {quoted(name, 80)}"
            raise ArgumentError(f"{problem}; expected {expected}.") from None

    return read
