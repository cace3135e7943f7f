"""Activations held by a rank: during each of its actions, and after it.

A pair (stage, microbatch) is held from the start of its F to the end of its B, or of
its W if the backward is split. It takes ``activation`` until I, and
``weight_activation`` from I until W. While a B or I runs it may take more,
``transient``, such as what recomputation computes again::

    F        I             W                 F        B
    ┌────────┬─transient┐                    ┌────────┬─transient┐
    │ activation        ├───────┐            │ activation        │
    │                   │weight_│            │                   │
    ┴                   ┴       ┴            ┴                   ┴

A stage without W and B, which is frozen, releases its activation after I; a stage
without any backward, after F.

An R recomputes the ``transient`` part, which is then held from the R on. Between an O
and its L a pair takes no memory, as if both took no time; :func:`minipipe.simulate`
knows when they begin and end::

    F        R      B                        F   O        L   B
    ┌────────┬transient                      ┌───┐        ┌───┐
    │ activation    │                        │   │        │   │
    ┴               ┴                        ┴   ┴        ┴   ┴
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple, TypeVar

from minipipe.core.flow import flow_of
from minipipe.core.memory import Change, Changes, Level, Sizes, pairs_of
from minipipe.core.schedules.action import Action
from minipipe.core.schedules.action_table import ActionTable, check_range
from minipipe.core.values import KINDS
from minipipe.schedules.analysis.copies import levels_of_copies

T = TypeVar("T")


class Footprint(NamedTuple):
    """The memory of one microbatch on each stage, in any one unit.

    Attributes
    ----------
    activation : sequence or mapping of float
        By stage, from F until B or I.
    weight_activation : sequence or mapping of float
        By stage, from I until W.
    transient : sequence or mapping of float
        By stage, the additional memory while B or I runs, or from R until then.
    """

    activation: Sizes
    weight_activation: Sizes
    transient: Sizes


def memory_levels(
    table: ActionTable,
    footprint: Footprint,
    weights: Sequence[float] = (),
    keys_values: Sequence[float] = (),
) -> list[list[Level]]:
    """Return, by rank, the memory held while each of its actions runs and after it:
    activations, and copies.

    Not counted: parameters, gradients, temporary arrays of one operation. Copies are
    the versions of a stage's weights beyond one, and its gradient accumulators beyond
    one: a synchronous schedule has none.

    Parameters
    ----------
    table : Schedule or Program
    footprint : Footprint
    weights : sequence of float, optional
        By stage, the memory of its weights, and so of each copy of them.
    keys_values : sequence of float, optional
        By stage, the memory of the keys and values of one slice of a sequence: a part
        of its activation, which on a stage without a backward stays until the forward
        of the last slice. Their gradients take memory beyond it from the first B of a
        later slice on.

    Examples
    --------
    >>> from minipipe import Schedule, schedules
    >>> levels = memory_levels(
    ...     schedules.one_f_one_b(2, 4), Footprint([10, 20], [10, 20], [5, 5])
    ... )
    >>> [max(during for during, _ in row) for row in levels]
    [25, 25]
    >>> levels = memory_levels(
    ...     schedules.pipedream(2, 3),
    ...     Footprint([1, 1], [1, 1], [0, 0]),
    ...     weights=[10, 10],
    ... )
    >>> [after for _, after in levels[0]]
    [1, 2, 1, 11, 12, 1, 11, 0, 0]
    >>> sliced = Schedule.from_text("0F0.0 0F0.1 0F0.2 0B0.2 0B0.1 0B0.0")
    >>> memory_levels(sliced, Footprint([0], [0], [0]), keys_values=[1])[0]
    [(0, 0), (0, 0), (0, 0), (2, 2), (2, 1), (1, 0)]
    """
    check_range(table)
    flow = flow_of(table)
    ranks = range(table.num_ranks)
    sizes = sizes_of(footprint)
    has_slices = table.num_slices > 1 and any(keys_values)
    if has_slices:
        first = table.first_backward_stage
        if table.is_forward_only:
            first = table.num_stages
        sizes["kv"] = [*keys_values[:first], *[0] * (table.num_stages - first)]
    rows = [list(levels) for levels in map(Changes(flow, sizes).levels, ranks)]
    if has_slices:
        gradients = Changes(flow, {"dkv": keys_values})
        for rank, row in enumerate(rows):
            rows[rank] = list(_with_gradients(row, gradients.of_row(rank)))
    if any(weights) and "weights" in flow.names:
        for rank, row in enumerate(rows):
            rows[rank] = _added(row, levels_of_copies(flow, rank, weights))
    return rows


def sizes_of(footprint: Footprint) -> dict[str, Sizes]:
    """Return, by name of a value of ``core/values.py``, its size on each stage."""
    whole, rest, transient = footprint
    return {"graph": whole, "rebuilt part": transient, "rest": rest}


def _with_gradients(
    levels: Iterable[Level], changes: Iterable[Change]
) -> Iterator[Level]:
    """Yield the levels of a rank with gradients of keys and values, of which a slice's
    exist before it frees any.
    """
    total: float = 0
    for (during, after), change in zip(levels, changes):
        later = after + total - change.lost + change.gained
        least = during + total - change.lost
        yield max(least + max(change.lost, change.gained), later), later
        total += change.gained - change.lost


def _added(levels: Iterable[Level], others: Iterable[Level]) -> list[Level]:
    pairs = zip(levels, others)
    return [(one + more, after + later) for (one, after), (more, later) in pairs]


def peak_activations(table: ActionTable) -> tuple[int, ...]:
    """Return, by rank, the most (stage, microbatch) pairs held at once.

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, if an action names a stage or a microbatch that does not
        exist.

    Examples
    --------
    >>> from minipipe import schedules
    >>> peak_activations(schedules.gpipe(4, 8))
    (8, 8, 8, 8)
    """
    check_range(table)
    return tuple(
        map(int, peaks(map(pairs_of(flow_of(table)).levels, range(table.num_ranks))))
    )


def peaks(levels: Iterable[Iterable[Level]]) -> tuple[float, ...]:
    """Return, by rank, the most held at once."""
    return tuple(max((during for during, _ in row), default=0.0) for row in levels)


def held_over_time(
    spans: Sequence[tuple[Action, float, float]], levels: Iterable[Level]
) -> Iterator[tuple[float, float]]:
    """Yield (time, amount held) at the start and at the end of each action of a rank: a
    curve of steps.

    The first of two overlapped actions has no end of its own.

    Parameters
    ----------
    spans : sequence of (Action, float, float)
        Actions with start and end, in the order in which they ran.
    levels : iterable of Level
        The amounts while each of them runs and after it.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> spans = simulate(schedules.gpipe(1, 1)).spans[0]
    >>> list(held_over_time(spans, [(1, 1), (3, 0)]))
    [(0.0, 1), (1.0, 1), (1.0, 3), (3.0, 0)]
    """
    starts = chain((start for _, start, _ in spans[1:]), [inf])
    for (_, start, end), (during, after), following in zip(spans, levels, starts):
        yield start, during
        if following >= end:
            yield end, after


def without_copies(
    actions: Iterable[Action], levels: Iterable[tuple[T, T]]
) -> list[tuple[T, T]]:
    """Return the levels of a rank's computations and messages; an O counts as part of
    the action before it.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> row = Schedule.from_text("F0 O0 L0 B0").actions[0]
    >>> without_copies(row, [(1, 1), (1, 0), (1, 1), (1, 0)])
    [(1, 0), (1, 0)]
    """
    found: list[tuple[T, T]] = []
    for action, (during, after) in zip(actions, levels):
        lane = KINDS[action.kind].lane
        if lane == "copy out":
            found[-1] = found[-1][0], after
        elif lane != "copy in":
            found.append((during, after))
    return found
