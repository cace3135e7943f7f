"""Do all ranks run the same program? Asked before the first step, and at the beginning of every collective call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import MessageError, RankError

__all__ = ["Calls", "check_agreement", "part_of"]

_NAMES = (
    "step",
    "evaluate",
    "predict",
    "state_dict",
    "timeline",
    "measure_memory",
    "measure_costs",
    "clip_grad_norm",
)


def check_agreement(group: ProcessGroup, description: Mapping[str, str]) -> None:
    """Compare a description on all ranks, and name what differs and where.

    Collective. Only digests travel.

    Parameters
    ----------
    group : ProcessGroup
    description : mapping of str to str
        The same keys on all ranks, such as ``"seed"``.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank.
    """
    digests = [hashlib.blake2b(value.encode(), digest_size=8).digest() for value in description.values()]
    by_rank = group.all_gather(np.frombuffer(b"".join(digests), dtype=np.uint64))
    for i, key in enumerate(description):
        values = [int(row[i]) for row in by_rank]
        usual = max(values, key=lambda value: (values.count(value), -values.index(value)))
        others = [rank for rank, value in enumerate(values) if value != usual]
        if others:
            raise RankError(
                "disagreement",
                f"The {key} of rank {', '.join(map(str, others))} differs from that of rank {values.index(usual)}; "
                f"on rank {group.rank} it is: {_shortened(description[key])}. Every rank must run the same program.",
            )


def _shortened(text: str, width: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 2] + " …"


class Calls:
    """The collective calls of one pipeline, counted, so that no rank takes the messages of another call for its own.

    Parameters
    ----------
    group : ProcessGroup
    first_rank : int
        The rank that the others follow.

    Attributes
    ----------
    count : int
        How many calls were begun.
    """

    def __init__(self, group: ProcessGroup, first_rank: int) -> None:
        self.count = 0
        self._group = group
        self._first_rank = first_rank
        self._pipeline = group.next_serial()

    def begin(self, call: str, size: int = 0) -> int:
        """Return the first rank's ``size``, after checking that all ranks begin the same call of the same pipeline.

        Collective.

        Raises
        ------
        MessageError
            Code ``step``, naming both calls.
        """
        self.count += 1
        mine = np.array([self._pipeline, self.count, _NAMES.index(call), size])
        sent = mine if self._group.rank == self._first_rank else None
        first = self._group.broadcast(sent, self._first_rank, what=part_of(call))
        if first[:3].tolist() != mine[:3].tolist():
            raise MessageError(
                "step",
                f"Rank {self._group.rank} is in {_described(*mine)}, "
                f"but rank {self._first_rank} in {_described(*first)}. "
                "Every rank must make the same calls of the same pipelines in the same order.",
            )
        return int(first[3])


def part_of(call: str) -> str:
    """Name what a rank waits for in a collective call, for the message of a timeout."""
    return f"its part of pipeline.{call}(), which every rank must call,"


def _described(pipeline: int, count: int, call: int, size: int) -> str:
    return f"{_NAMES[call]}(), call {count} of pipeline {pipeline}"
