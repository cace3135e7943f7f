"""Activations: what a rank holds while each of its actions runs, and after it.

A pair (stage, microbatch) is held from the start of its F to the end of its B, or of its W where the backward is split;
where there is no backward, only while its F runs. It takes ``activation`` until I, and ``weight_activation`` from I
until W. While a B or I runs it may take more, ``transient``, such as what recomputation computes again::

    F        I             W                 F        B
    ┌────────┬─transient┐                    ┌────────┬─transient┐
    │ activation        ├───────┐            │ activation        │
    │                   │weight_│            │                   │
    ┴                   ┴       ┴            ┴                   ┴
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from numbers import Integral
from typing import NamedTuple

from minipipe.analysis.dependencies import check_range
from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import ActionTable

__all__ = [
    "CHANGE",
    "Footprint",
    "Held",
    "Lifetime",
    "held_after",
    "held_over_time",
    "held_pairs",
    "lifetimes",
    "memory_after",
    "memory_during",
    "memory_peaks",
    "peak_activations",
    "per_rank",
]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

# By how many pairs an action changes the number held, where there is a backward.
CHANGE = {F: 1, B: -1, W: -1}
Pair = tuple[int, int]  # (stage, microbatch)


class Footprint(NamedTuple):
    """What one microbatch holds on each stage, in any one unit of memory.

    Attributes
    ----------
    activation : sequence of float
        By stage, from F until B or I.
    weight_activation : sequence of float
        By stage, from I until W.
    transient : sequence of float
        By stage, beyond that while B or I runs.
    """

    activation: Sequence[float]
    weight_activation: Sequence[float]
    transient: Sequence[float]


# -- pairs, counted ---------------------------------------------------------------------------------------------------


def held_after(actions: Iterable[Action], is_forward_only: bool) -> Iterator[int]:
    """Yield, for each action of a rank, how many (stage, microbatch) pairs it holds after it.

    In a forward-only schedule, where a pair is held only while its F runs, that is the number while it runs.

    Examples
    --------
    >>> from minipipe import schedules
    >>> list(held_after(schedules.one_f_one_b(2, 3).actions[0], is_forward_only=False))
    [1, 2, 1, 2, 1, 0]
    """
    if is_forward_only:
        return (int(kind is F) for _, kind, _ in actions)
    return accumulate(CHANGE.get(kind, 0) for _, kind, _ in actions)


def peak_activations(table: ActionTable) -> tuple[int, ...]:
    """Return, by rank, the most (stage, microbatch) pairs held at once.

    Examples
    --------
    >>> from minipipe import schedules
    >>> peak_activations(schedules.gpipe(4, 8))
    (8, 8, 8, 8)
    """
    return tuple(max(held_after(row, table.is_forward_only), default=0) for row in table.actions)


# -- memory -----------------------------------------------------------------------------------------------------------


def memory_after(table: ActionTable, footprint: Footprint) -> tuple[tuple[float, ...], ...]:
    """Return, by rank, the memory held after each of its actions.

    In a forward-only schedule, where F gives its memory back when it ends, it is the memory while it runs. Not counted:
    parameters, gradients, temporary arrays of one operation.

    Examples
    --------
    >>> from minipipe import schedules
    >>> memory_after(schedules.zb_h1(2, 2), Footprint([10, 10], [4, 4], [0, 0]))[0]
    (10, 20, 14, 10, 4, 0)
    """
    check_range(table)
    activation, weight_activation, _ = footprint
    change = {
        F: activation,
        B: [-held for held in activation],
        I: [later - held for held, later in zip(activation, weight_activation)],
        W: [-held for held in weight_activation],
    }
    if table.is_forward_only:
        return tuple(tuple(activation[a.stage] if a.kind is F else 0.0 for a in row) for row in table.actions)
    nothing = [0.0] * table.num_stages
    return tuple(tuple(accumulate(change.get(kind, nothing)[stage] for stage, kind, _ in row)) for row in table.actions)


def memory_during(table: ActionTable, footprint: Footprint) -> tuple[tuple[float, ...], ...] | None:
    """Return, by rank, the most memory held while each of its actions runs; None where nothing is transient.

    Examples
    --------
    >>> from minipipe import schedules
    >>> memory_during(schedules.one_f_one_b(1, 2), Footprint([10], [10], [5]))
    ((10, 15, 10, 15),)
    """
    transient = footprint.transient
    if not any(transient) or table.is_forward_only:
        return None
    rows = []
    for row, after in zip(table.actions, memory_after(table, footprint)):
        more = (transient[stage] if kind in (B, I) else 0 for stage, kind, _ in row)
        rows.append(tuple(max(now, before + extra) for before, now, extra in zip((0, *after), after, more)))
    return tuple(rows)


def memory_peaks(table: ActionTable, footprint: Footprint) -> tuple[float, ...]:
    """Return, by rank, the most memory held at once, while an action runs or after it.

    Examples
    --------
    >>> from minipipe import schedules
    >>> memory_peaks(schedules.one_f_one_b(2, 4), Footprint([10, 20], [10, 20], [5, 5]))
    (25, 25)
    """
    rows = memory_during(table, footprint) or memory_after(table, footprint)
    return tuple(max((0.0, *held)) for held in rows)


# -- pairs, named -----------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """(stage, microbatch) pairs, in the order of their F, and the memory that they take."""

    pairs: tuple[Pair, ...]
    memory: float


def held_pairs(table: ActionTable, footprint: Footprint) -> list[list[tuple[Held, Held]]]:
    """Return, by rank, what it holds while each of its actions runs, and after it. The schedule may be illegal.

    Examples
    --------
    >>> from minipipe import schedules
    >>> rank = held_pairs(schedules.one_f_one_b(2, 2), Footprint([1, 1], [1, 1], [0, 0]))[1]
    >>> [during.pairs for during, _ in rank]
    [((1, 0),), ((1, 0),), ((1, 1),), ((1, 1),)]
    """
    return [list(_held_pairs_of(row, table.is_forward_only, footprint)) for row in table.actions]


def _held_pairs_of(row: Sequence[Action], is_forward_only: bool, footprint: Footprint) -> Iterator[tuple[Held, Held]]:
    taken: dict[Pair, float] = {}
    for stage, kind, k in row:
        if kind is F:
            taken[stage, k] = footprint.activation[stage]
        before = Held(tuple(taken), sum(taken.values()))
        if kind is I and (stage, k) in taken:
            taken[stage, k] = footprint.weight_activation[stage]
        elif _releases(kind, is_forward_only):
            taken.pop((stage, k), None)
        after = Held(tuple(taken), sum(taken.values()))
        transient = footprint.transient[stage] if kind in (B, I) else 0
        yield before._replace(memory=max(before.memory + transient, after.memory)), after


def _releases(kind: ActionKind, is_forward_only: bool) -> bool:
    return kind is F if is_forward_only else CHANGE.get(kind, 0) < 0


class Lifetime(NamedTuple):
    """A pair, and the positions of the actions that begin and end its time in memory; None where nothing ends it."""

    stage: int
    microbatch: int
    first: int
    last: int | None


def lifetimes(actions: Sequence[Action], is_forward_only: bool) -> list[Lifetime]:
    """Return the lifetime of every pair of a rank, in the order of their F.

    Examples
    --------
    >>> from minipipe import schedules
    >>> lifetimes(schedules.gpipe(1, 2).actions[0], is_forward_only=False)[1]
    Lifetime(stage=0, microbatch=1, first=1, last=3)
    """
    last = {(s, k): at for at, (s, kind, k) in enumerate(actions) if _releases(kind, is_forward_only)}
    return [Lifetime(s, k, at, last.get((s, k))) for at, (s, kind, k) in enumerate(actions) if kind is F]


def held_over_time(
    spans: Sequence[tuple[Action, float, float]],
    after: Sequence[float],
    is_forward_only: bool,
    during: Sequence[float] | None = None,
) -> Iterator[tuple[float, float]]:
    """Yield (time, amount held) at the start and at the end of each action of a rank: a curve of steps.

    Parameters
    ----------
    spans : sequence of (Action, float, float)
        Actions with start and end, in the order in which they ran.
    after : sequence of float
        The amount after each of them, as of :func:`held_after` or :func:`memory_after`.
    is_forward_only : bool
    during : sequence of float, optional
        The amount while each of them ran, as of :func:`memory_during`; by default that before or after it.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> spans = simulate(schedules.gpipe(1, 1)).spans[0]
    >>> list(held_over_time(spans, [1, 0], is_forward_only=False, during=[1, 3]))
    [(0.0, 1), (1.0, 1), (1.0, 3), (3.0, 0)]
    """
    held = 0.0
    for i, ((_, start, end), amount) in enumerate(zip(spans, after)):
        yield start, amount if is_forward_only else max(held, amount) if during is None else during[i]
        held = 0.0 if is_forward_only else amount
        yield end, held


def per_rank(name: str, given: int | Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Return a limit for each rank: one whole number for all alike, or those given.

    Raises
    ------
    ScheduleError
        Code ``parameters``.

    Examples
    --------
    >>> per_rank("memory_limit", 4, num_ranks=3)
    (4, 4, 4)
    """
    values: tuple = tuple(given) if isinstance(given, Sequence) else (given,) * num_ranks
    if len(values) != num_ranks or not all(isinstance(value, Integral) and int(value) >= 1 for value in values):
        message = f"{name} is {given!r}; expected a whole number, at least 1, or one for each of {num_ranks} ranks."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    return tuple(map(int, values))
