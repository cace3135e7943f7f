"""Do all ranks run the same program? Asked once, before the first step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import RankError

__all__ = ["check_agreement"]


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
