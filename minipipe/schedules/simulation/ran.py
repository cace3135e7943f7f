"""The rows of a timeline, as a table whose memory can be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minipipe.core.values import GRADIENTS, KINDS


class Ran:
    """The rows of a timeline, which has no table.

    Stages without a gradient of weights count as frozen. No value needs a message.
    """

    def __init__(self, rows: Sequence[Sequence[Any]], num_slices: int = 1) -> None:
        self.actions = rows
        every = {(stage, kind) for row in rows for stage, kind, _ in row}
        of_ranks = {kind for _, kind in every if KINDS[kind].of_rank}
        present = {(stage, kind) for stage, kind in every if kind not in of_ranks}
        self.numbered = rows
        if num_slices > 1 or of_ranks:
            ranks = enumerate(rows)
            self.numbered = [_numbered(rank, row, num_slices) for rank, row in ranks]
        back = {stage for stage, kind in present if KINDS[kind].is_backward}
        trained = {stage for stage, kind in present if kind in GRADIENTS}
        self.num_stages = _count(stage for stage, _ in present)
        self.num_microbatches = _count(k for row in self.numbered for _, _, k in row)
        self.num_slices = num_slices
        self.frozen = frozenset(range(self.num_stages)) - trained
        self.first_backward_stage = min(back, default=self.num_stages)
        self.is_forward_only = not back
        self.message_cuts = (False,) * self.num_stages
        self.joined: dict[Any, Any] = {}
        self.tied: Sequence[tuple[int, ...]] = ()
        self._stages = [
            {s for s, kind, _ in row if kind not in of_ranks} for row in rows
        ]

    def ranks_of(self, stage: int) -> list[int]:
        """Return the ranks that ran a stage."""
        return [rank for rank, ran in enumerate(self._stages) if stage in ran]


def _numbered(rank: int, row: Sequence[Any], n: int) -> list[tuple[int, str, int]]:
    """Return a row with a number for each of n slices of a sequence."""
    found = []
    for stage, kind, k in row:
        number = k if n == 1 else k[0] * n + k[1]
        is_of_rank = KINDS[
            kind
        ].of_rank  # its row may have another number than its rank
        found.append((rank, kind, 0) if is_of_rank else (stage, kind, number))
    return found


def _count(numbers: Iterable[int]) -> int:
    return 1 + max(numbers, default=0)
