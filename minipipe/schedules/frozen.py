"""Frozen stages: a schedule without the work that nothing needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import ActionTable, T, check_table


def freeze_stages(table: T, stages: Iterable[int]) -> T:
    """Return the schedule for stages without trained parameters.

    A frozen stage has no W: its B becomes I. No gradient goes back beyond the first stage that is not frozen, so the
    stages before it have no backward and exchange no gradients. A forward-only schedule stays as it is.

    Parameters
    ----------
    table : Schedule or Program
        A legal one.
    stages : iterable of int
        The frozen stages.

    Returns
    -------
    Schedule or Program
        As given.

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, for a stage that does not exist; ``parameters`` for what is no sequence of them.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(freeze_stages(schedules.one_f_one_b(3, 2), [0, 2]))
    # 1f1b (frozen: 0, 2): 3 ranks, 3 stages, 2 microbatches
    rank 0: 0F0 0F1
    rank 1: 1F0 1F1 1B0 1B1
    rank 2: 2F0 2I0 2F1 2I1
    """
    check_table(table)
    if not isinstance(stages, Iterable):
        message = f"stages is {quoted(stages, 40)}; expected the numbers of the frozen stages, such as [0]."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    marked = replace(table, frozen=table.frozen | frozenset(stages))
    if table.is_forward_only or not marked.frozen:
        return table
    return marked.with_rows(type(table), (_needed(row, marked) for row in table.actions))


def _needed(row: Iterable[Action], table: ActionTable) -> Iterator[Action]:
    first = table.first_backward_stage
    for action in row:
        stage, kind, microbatch = action
        is_gradient = kind.is_backward or kind in (ActionKind.SEND_B, ActionKind.RECV_B)
        if is_gradient and (stage < first or (stage == first and kind is ActionKind.SEND_B)):
            continue
        if stage not in table.frozen:
            yield action
        elif kind is ActionKind.BACKWARD:
            yield Action(stage, ActionKind.BACKWARD_INPUT, microbatch)
        elif kind is not ActionKind.BACKWARD_WEIGHT:
            yield action
