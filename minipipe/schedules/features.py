"""The features of tables that some readers do not support: one list, with the words of
the errors in which readers refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from minipipe.core.schedules.action import REDUCE_GRAD, Action, ActionKind, L, O, R, U
from minipipe.core.schedules.placement import ranks_in
from minipipe.errors import Code, ScheduleError

if TYPE_CHECKING:
    from minipipe.core.schedules.action_table import ActionTable

T = TypeVar("T", bound="ActionTable")
Names = Collection[str]


class Feature(NamedTuple):
    """A feature of tables that some readers of tables do not support.

    Attributes
    ----------
    name : str
    words : str
        The predicate of the error, "has replicas of stages"; its ``{}`` stands for the
        first example, which otherwise follows in brackets.
    examples : function
        Returns the examples of the feature in a table, given the names of the features
        that a reader supports.
    advice : str
    code : Code
        The code of the error.
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
    if table.num_slices == 1:
        return []
    return [table.num_slices]


def _updates(table: ActionTable, known: Names) -> list[Action]:
    kinds = {U, REDUCE_GRAD}
    if "replicas" in known:
        kinds = {U}
    return _of_kinds(table, kinds)


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


def check_known(table: ActionTable, reader: str, *known: str) -> None:
    """Refuse features of a table that its reader does not support: all of ``FEATURES``
    except the known ones.

    Raises
    ------
    ScheduleError
        Code ``unsupported`` or ``overlap``.
    """
    unknown = (feature for feature in FEATURES if feature.name not in known)
    for feature in unknown:
        examples = feature.examples(table, known)
        if examples:
            has = feature.words.format(examples[0])
            if has == feature.words:
                has += f" (such as {examples[0]})"
            problem = f"{table.title} {has}, which {reader} does not support"
            raise ScheduleError.of(feature.code, f"{problem}; {feature.advice}")


def rank_of_each_stage(table: ActionTable, reader: str) -> tuple[int, ...]:
    """Return the rank of each stage, for a reader that supports no feature but
    overlaps.
    """
    check_known(table, reader, "overlap")
    return tuple(ranks_in(home)[0] for home in table.placement)


def without_overlaps(table: T, reader: str) -> T:
    """Return the table itself, for a reader that supports all features but overlaps.

    Raises
    ------
    ScheduleError
        Code ``overlap``.
    """
    if table.overlaps:
        check_known(
            table, reader, "replicas", "slices", "updates", "recompute", "kinds"
        )
    return table
