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

# PyTorch always names the stage.
_PYTORCH = re.compile(r"PP:(\(?\d[^\s,]*)", re.ASCII)
_BESIDE = re.compile(r"\d{1,9}([A-Za-z_]+)\d{0,9}", re.ASCII)
# Point-to-point operations as c10d records them, such as gloo:send and nccl:recv 0<-1.
# The range of gloo:send may begin after the message has left; c10d::send is around it.
_TRANSFER = re.compile(r"(?:c10d:|gloo|nccl|ucc|mpi):(send|recv)", re.IGNORECASE)
_GROUPS = ("stage", "kind", "microbatch")
# The words for a kind, in lower case and without punctuation.
_KINDS = {
    "backwardinput": I,
    "backwardweight": W,
    "inputbackward": I,
    "weightbackward": W,
    "backward": B,
    "forward": F,
    "dgrad": I,
    "wgrad": W,
    "bwd": B,
    "fwd": F,
    "f": F,
    "b": B,
    "i": I,
    "w": W,
}


class Label(NamedTuple):
    """The meaning of a range.

    Attributes
    ----------
    actions : tuple of Action
        One, or the two of an overlapped pair; none for a label that is no action of a
        schedule. A stage of -1 stands for the rank.
    transfer : str
        ``"send"`` or ``"recv"`` for an operation of a process group.
    other : str
        The name of work that PyTorch labels beside the schedule, such as ``UNSHARD``.

    Examples
    --------
    >>> reader = label_reader()
    >>> [str(action) for action in reader("PP:(2F5;3B1)OVERLAP_F_B").actions]
    ['2F5', '3B1']
    >>> reader("PP:2UNSHARD").other, reader("gloo:send").transfer, reader("aten::mm")
    ('UNSHARD', 'send', None)
    """

    actions: tuple[Action, ...] = ()
    transfer: str = ""
    other: str = ""


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
        beside = _BESIDE.fullmatch(match[1])
        return beside and Label(other=beside[1])
    return Label(rows[0])


def _compiled(pattern: str) -> re.Pattern[str]:
    such = r"such as '(?P<kind>Forward|Backward) (?P<microbatch>\d+)'"
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        problem = f"{quoted(pattern)} is no regular expression: {error}"
        raise ArgumentError(f"{problem}; expected one {such}.") from None
    missing = {"kind", "microbatch"} - compiled.groupindex.keys()
    unknown = compiled.groupindex.keys() - set(_GROUPS)
    if missing or unknown:
        names = " and ".join(sorted(missing or unknown))
        problem = f"{quoted(pattern)} lacks the group {names}"
        if not missing:
            problem = f"{quoted(pattern)} has the unknown group {names}"
        raise ArgumentError(f"{problem}; expected {', '.join(_GROUPS)}, {such}.")
    return compiled


def _of_pattern(pattern: re.Pattern[str]) -> LabelReader:
    def read(name: str) -> Label | None:
        match = pattern.search(name)
        if match is None:
            return None
        groups = match.groupdict()
        word = re.sub("[^a-z]", "", (groups["kind"] or "").lower())
        kind = _KINDS.get(word)
        numbers = [groups.get("stage") or "-1", groups["microbatch"] or ""]
        if kind is None or not all(map(_is_number, numbers)):
            expected = "a kind such as F, forward or backward_input, and whole numbers"
            problem = f"--label reads {groups} in {quoted(name, 80)}"
            raise ArgumentError(f"{problem}; expected {expected}.")
        stage, microbatch = map(int, numbers)
        return Label((Action(stage, kind, microbatch),))

    return read


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-1|[0-9]{1,9}", text) is not None
