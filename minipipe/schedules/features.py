"""The features of tables that not every reader supports: one list, from which readers
refuse what they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.core.schedules.action import REDUCE_GRAD, Action, ActionKind, L, O, R, U
from minipipe.core.schedules.placement import ranks_in
from minipipe.errors import Code

if TYPE_CHECKING:
    from minipipe.core.schedules.action_table import ActionTable

Names = Collection[str]


class Feature(NamedTuple):
    """Something in a table that not every reader of tables supports.

    Attributes
    ----------
    name : str
    words : str
    examples : function
        From a table, and the names of the features that a reader supports, to what the
        table has; the first one is put into the words, or behind them as an example.
    advice : str
    code : Code
        Of the error of a reader that does not.
    """

    name: str
    words: str
    examples: Callable[[ActionTable, Names], Sequence[Any]]
    advice: str = "it can be drawn, checked and simulated."
    code: Code = Code.UNSUPPORTED


def _replicas(table: ActionTable, known: Names) -> list[str]:
    homes = enumerate(table.placement)
    return [f"stage {stage}" for stage, home in homes if len(ranks_in(home)) > 1]


def _slices(table: ActionTable, known: Names) -> list[int]:
    return [table.num_slices] if table.num_slices > 1 else []


def _updates(table: ActionTable, known: Names) -> list[Action]:
    return _of_kinds(table, {U} if "replicas" in known else {U, REDUCE_GRAD})


def _recomputation(table: ActionTable, known: Names) -> list[Action]:
    return _of_kinds(table, {R, O, L})


def _declared(table: ActionTable, known: Names) -> list[Action]:
    return _of_kinds(table, table.kinds - set(ActionKind))


def _of_kinds(table: ActionTable, kinds: Collection[ActionKind]) -> list[Action]:
    return [action for row in table.actions for action in row if action.kind in kinds]


def _overlaps(table: ActionTable, known: Names) -> list[Action]:
    return sorted(table.overlaps)


FEATURES = (
    Feature("replicas", "has replicas of stages", _replicas),
    Feature("slices", "splits sequences into {} slices", _slices),
    Feature("updates", "has actions for gradient all-reduces or updates", _updates),
    Feature(
        "recompute", "has actions that recompute or offload activations", _recomputation
    ),
    Feature("kinds", "has actions of a declared kind", _declared),
    Feature(
        "overlap",
        "overlaps forwards with backwards",
        _overlaps,
        "dataclasses.replace(schedule, overlaps=()) runs them one after the other.",
        Code.OVERLAP,
    ),
)
