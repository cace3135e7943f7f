"""Stages whose weights are divided among their replicas, and whole while they compute.

Each rank of such a stage keeps a shard of its weights. A GATHER makes the stage whole
before its first computation in a row, or earlier, and a FREE follows its last one::

    rank 0: 0GATHER0 0F0 0F1 4GATHER0 4F0 4F1 … 4B1 4FREE0 0B0 0B1 0FREE0
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Program, check_table
from minipipe.core.specs import INDEX
from minipipe.core.values import NOUNS
from minipipe.errors import ScheduleError

_GATHER = ActionKind("GATHER")
_FREE = ActionKind("FREE")


def shard(program: Program, stages: Collection[int], ahead: int = 0) -> Program:
    """Return a program in which the weights of some stages are gathered for a step.

    Local; no messages.

    Parameters
    ----------
    program : Program
        Without instructions of a rank.
    stages : collection of int
        The stages of which each replica keeps a shard.
    ahead : int
        How many computations of its row, at most, stand between a GATHER and the first
        computation that needs it.

    Raises
    ------
    ScheduleError
        Code ``value``, if `ahead` is not a whole number, at least 0.

    Examples
    --------
    >>> from minipipe import schedules
    >>> program = schedules.lower(schedules.interleaved_1f1b(1, 1))
    >>> print(shard(program, stages=[0, 1], ahead=1))
    # interleaved-1f1b: 1 rank, 2 stages, 1 microbatch
    rank 0: 0GATHER0 1GATHER0 0F0 1F0 1B0 1FREE0 0B0 0FREE0
    """
    check_table(program, Program)
    INDEX._replace(error=ScheduleError.of).check("ahead", ahead)
    rows = (_gathered(row, stages, ahead) for row in program.actions)
    return program.with_rows(Program, rows)


def _gathered(
    row: Sequence[Action], stages: Collection[int], ahead: int
) -> list[Action]:
    """Return a row in which the stages that it computes are gathered and released."""
    covered = NOUNS["whole"].covers
    computing = [i for i, action in enumerate(row) if action.kind in covered]
    first: dict[int, int] = {}  # by stage, among the computations
    last: dict[int, int] = {}  # by stage, its position
    for number, position in enumerate(computing):
        stage = row[position].stage
        first.setdefault(stage, number)
        last[stage] = position
    before: dict[int, list[Action]] = {}
    behind: dict[int, Action] = {}
    for stage in sorted(first.keys() & set(stages), key=first.__getitem__):
        k = row[computing[first[stage]]].microbatch
        at = computing[max(0, first[stage] - ahead)]
        before.setdefault(at, []).append(Action(stage, _GATHER, k))
        behind[last[stage]] = Action(stage, _FREE, k)
    found: list[Action] = []
    for position, action in enumerate(row):
        found += before.get(position, [])
        found.append(action)
        if position in behind:
            found.append(behind[position])
    return found
