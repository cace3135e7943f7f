"""Versions of weights and staleness: how many updates come between what happens to each
microbatch.

A version of the weights is the number of U before it; it is not written in the rows, so
it cannot contradict them::

    row        1F0   1F1   1B0   1U0   1F2   1B1   1U1   1B2   1U2        1F2 runs with version 1, and 1U2 makes
    version     0     0           1     1           2           3         version 3 of version 2: its staleness is 1
"""

from __future__ import annotations

from operator import sub

from minipipe.core.flow import flow_of
from minipipe.core.schedules.action_table import ActionTable, check_range
from minipipe.schedules.analysis.copies import updates_before

ByMicrobatch = tuple[tuple[int, ...], ...]  # by stage and microbatch


def weight_versions(table: ActionTable) -> ByMicrobatch:
    """Return, by stage and microbatch, the version of the weights with which its F
    runs: the number of U before it.

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, if an action names a stage or a microbatch that does not
        exist; also of :func:`staleness` and :func:`drift`.

    Examples
    --------
    >>> from minipipe import schedules
    >>> weight_versions(schedules.pipedream(3, 5))
    ((0, 0, 0, 1, 2), (0, 0, 1, 2, 3), (0, 1, 2, 3, 4))
    """
    check_range(table)
    return tuple(map(tuple, updates_before(flow_of(table), "graph")))


def staleness(table: ActionTable) -> ByMicrobatch:
    """Return, by stage and microbatch, how many updates come between its F and the
    update that applies its gradient.

    Examples
    --------
    >>> from minipipe import schedules
    >>> staleness(schedules.pipedream(3, 5))
    ((0, 1, 2, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 0))
    """
    return _since_forward(table, "weights")


def drift(table: ActionTable) -> ByMicrobatch:
    """Return, by stage and microbatch, how many updates come between its F and its
    gradient.

    Without a copy of the weights of its F, its backward runs with weights that are as
    many updates newer.

    Examples
    --------
    >>> from minipipe import schedules
    >>> drift(schedules.paci(3, 5, microbatches_per_update=1))
    ((0, 1, 2, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 0))
    """
    return _since_forward(table, "dw")


def _since_forward(table: ActionTable, name: str) -> ByMicrobatch:
    """Return the number of updates between each F and the action that gives a value of
    a name.
    """
    first = weight_versions(table)
    later = updates_before(flow_of(table), name)
    rows = (map(sub, updates, versions) for updates, versions in zip(later, first))
    return tuple(map(tuple, rows))
