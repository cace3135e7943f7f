"""The features of tables that not every reader supports: one list, from which readers refuse what they do not know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.errors import ScheduleCode
from minipipe.schedules.action import REDUCE_GRAD, Action, ActionKind, L, O, R, U
from minipipe.schedules.placement import ranks_in

if TYPE_CHECKING:
    from minipipe.schedules.action_table import ActionTable

Codes = Collection[ScheduleCode]


class Feature(NamedTuple):
    """Something in a table that not every reader of tables supports.

    Attributes
    ----------
    code : ScheduleCode
    words : str
        With a place for the first example.
    examples : function
        From a table, and the codes of the features that a reader supports, to what the table has.
    advice : str
    """

    code: ScheduleCode
    words: str
    examples: Callable[[ActionTable, Codes], Sequence[Any]]
    advice: str = "it can be drawn, checked and simulated."


def _replicas(table: ActionTable, known: Codes) -> list[int]:
    return [stage for stage, home in enumerate(table.placement) if len(ranks_in(home)) > 1]


def _slices(table: ActionTable, known: Codes) -> list[int]:
    return [table.num_slices] if table.num_slices > 1 else []


def _updates(table: ActionTable, known: Codes) -> list[Action]:
    return _of_kinds(table, {U} if ScheduleCode.REPLICAS in known else {U, REDUCE_GRAD})


def _recomputation(table: ActionTable, known: Codes) -> list[Action]:
    return _of_kinds(table, {R, O, L})


def _declared(table: ActionTable, known: Codes) -> list[Action]:
    return _of_kinds(table, table.kinds - set(ActionKind))


def _of_kinds(table: ActionTable, kinds: Collection[ActionKind]) -> list[Action]:
    return [action for row in table.actions for action in row if action.kind in kinds]


def _overlaps(table: ActionTable, known: Codes) -> list[Action]:
    return sorted(table.overlaps)


FEATURES = (
    Feature(ScheduleCode.REPLICAS, "has replicas of stages (such as stage {})", _replicas),
    Feature(ScheduleCode.SLICES, "splits sequences into {} slices", _slices),
    Feature(ScheduleCode.UPDATES, "has actions for gradient all-reduces or updates (such as {})", _updates),
    Feature(ScheduleCode.RECOMPUTE, "has actions that recompute or offload activations (such as {})", _recomputation),
    Feature(ScheduleCode.KINDS, "has actions of a declared kind (such as {})", _declared),
    Feature(
        ScheduleCode.OVERLAP,
        "overlaps forwards with backwards (such as {})",
        _overlaps,
        "dataclasses.replace(schedule, overlaps=()) runs them one after the other.",
    ),
)
