"""The rules of joined actions: a forward and a backward that begin at once and end at once.

rank 0   0F0 (0F1;0B0)         0F1 joined with 0B0 waits for both of their inputs, and 1F1 waits for both: here for
rank 1       1F0       1F1 1B0     ever, since 0B0 needs 1B0. Without the overlap 0F1 would run first.
"""

from __future__ import annotations

from collections.abc import Collection

from minipipe.errors import Problem, ScheduleCode
from minipipe.schedules.action import SEND_F, Action
from minipipe.schedules.action_table import ActionTable


def overlap_problems(table: ActionTable) -> list[Problem]:
    """Return the problems of forwards that are joined with anything but a backward of another microbatch.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> print(overlap_problems(Schedule("mine", (0,), 1, [["0F0", "0B0"]], overlaps=["0F0"]))[0].message)
    Rank 0, position 0: 0F0 is joined with 0B0, which needs it; expected a B or I of another microbatch behind it.
    """
    wrong, found = table.overlaps - table.joined.keys(), []
    for rank, row in enumerate(table.actions if wrong else ()):
        for position, action in enumerate(row):
            if action in wrong:
                what = f"{action} is joined with {_next(row[position + 1 :], action)}"
                sentence = (
                    f"Rank {rank}, position {position}: {what}; expected a B or I of another microbatch behind it."
                )
                found.append(Problem(ScheduleCode.OVERLAP, sentence, rank, position))
    return found


def with_pairs(rows: list[list[Action]], overlaps: Collection[Action]) -> list[list[Action]]:
    """Move the message of each joined forward behind the backward: both values leave when the pair has ended.

    In the rows of a program the message stands between the two, and nothing else does, since they are neighbours in the
    one global order. The order of the messages stays as it was.

    Examples
    --------
    >>> row = [Action.parse(cell) for cell in ("0F1", "0SEND_F1", "0B0", "0B1")]
    >>> print(*with_pairs([row], {Action.parse("0F1")})[0])
    0F1 0B0 0SEND_F1 0B1
    """
    for row in rows if overlaps else ():
        for at, action in enumerate(row):
            if action in overlaps and at + 2 < len(row) and row[at + 1].kind is SEND_F:
                row[at + 1], row[at + 2] = row[at + 2], row[at + 1]
    return rows


def _next(row: tuple[Action, ...], forward: Action) -> str:
    if not row:
        return "nothing, as the last action of its row"
    needs_it = row[0].kind.is_backward and row[0].microbatch == forward.microbatch
    return f"{row[0]}, which needs it" if needs_it else str(row[0])
