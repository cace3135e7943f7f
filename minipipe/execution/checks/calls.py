"""The collective calls of a pipeline: each begins with the question whether all ranks are in the same one, alike."""

from __future__ import annotations

from collections.abc import Mapping

from minipipe.comm import ProcessGroup
from minipipe.errors import MessageError
from minipipe.execution.checks.comparison import check_marks, marks_of, numbers_sent, numbers_that_came
from minipipe.execution.checks.updates import Updates

_NAMES = (
    *("step", "step(accumulate=True)", "forward_backward", "forward_backward(accumulate=True)", "evaluate", "predict"),
    *("state_dict", "timeline", "measure_memory", "measure_costs", "clip_grad_norm", "unscale_gradients"),
)


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
    updates : Updates or None
        What optimisers did since the pipeline was made, if that is compared.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(lambda group: Calls(group, first_rank=0).begin(("step", "evaluate")[group.rank]), num_ranks=2)
    ... except MessageError as error:
    ...     print(str(error).partition(".")[0])
    Rank 1 is in evaluate(), call 1 of pipeline 1, but rank 0 in step(), call 1 of pipeline 1
    """

    def __init__(self, group: ProcessGroup, first_rank: int) -> None:
        self.count = 0
        self.updates: Updates | None = None
        self._group = group
        self._first_rank = first_rank
        self._pipeline = group.next_serial()

    def begin(
        self, call: str, given: Mapping[str, float | None] | None = None, size: int = 0, layout: int = 0
    ) -> tuple[int, int]:
        """Return the first rank's ``size`` and ``layout``; check that all ranks begin the same call of one pipeline.

        Collective. 8 bytes for each number travel.

        Parameters
        ----------
        call : str
        given : mapping of str to number, optional
            What all ranks must give to this call alike, under the same names; None where it is not compared.
        size, layout : int
            Of the batch; known to the first rank.

        Raises
        ------
        MessageError
            Code ``step``, naming both calls.
        RankError
            Code ``disagreement``, naming what differs from that of the first rank.
        """
        self.count += 1
        values = {**(given or {}), **(self.updates.marks() if self.updates else {})}
        mine = [self._pipeline, self.count, _NAMES.index(call), size, layout, *marks_of(values)]
        sent = numbers_sent(mine) if self._group.rank == self._first_rank else None
        first = numbers_that_came(self._group.broadcast(sent, self._first_rank, what=part_of(call)))
        rank, first_rank = self._group.name(), self._group.name(self._first_rank)
        if first[:3] != mine[:3]:
            raise MessageError(
                "step",
                f"Rank {rank} is in {_described(*mine[:3])}, "
                f"but rank {first_rank} in {_described(*first[:3])}. "
                "Every rank must make the same calls of the same pipelines in the same order.",
            )
        check_marks((rank, first_rank), values, (mine[5:], first[5:]), self.updates.words if self.updates else dict)
        return int(first[3]), int(first[4])


def part_of(call: str) -> str:
    """Name the part of another rank in a collective call, for the message of a timeout.

    Examples
    --------
    >>> part_of("step")
    'its part of pipeline.step(), which every rank must call,'
    """
    return f"its part of pipeline.{_called(call)}, which every rank must call,"


def _described(pipeline: float = 0, count: float = 0, call: float = -1) -> str:
    if call not in range(len(_NAMES)):
        return "a broadcast that no other rank takes part in"
    return f"{_called(_NAMES[int(call)])}, call {count:.0f} of pipeline {pipeline:.0f}"


def _called(name: str) -> str:
    return name if name.endswith(")") else f"{name}()"
