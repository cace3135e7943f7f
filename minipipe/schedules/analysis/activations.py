"""Activations held by a rank: during each of its actions, and after it.

A pair (stage, microbatch) is held from the start of its F to the end of its B, or of its W if the backward is split.
It takes ``activation`` until I, and ``weight_activation`` from I until W. While a B or I runs it may take more,
``transient``, such as what recomputation computes again::

    F        I             W                 F        B
    ┌────────┬─transient┐                    ┌────────┬─transient┐
    │ activation        ├───────┐            │ activation        │
    │                   │weight_│            │                   │
    ┴                   ┴       ┴            ┴                   ┴

A stage without W and B, which is frozen, releases its activation after I; a stage without any backward, after F.

An R recomputes the ``transient`` part, which is then held from the R on. Between an O and its L a pair takes no
memory, as if both took no time; :func:`minipipe.simulate` knows when they begin and end::

    F        R      B                        F   O        L   B
    ┌────────┬transient                      ┌───┐        ┌───┐
    │ activation    │                        │   │        │   │
    ┴               ┴                        ┴   ┴        ┴   ┴
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple, TypeVar

from minipipe.schedules.action import Action, ActionKind, B, F, I, L, O, R, W
from minipipe.schedules.action_table import ActionTable, check_range

_LATER = {F: {B, I, W}, I: {W}, B: set(), W: set()}  # the kinds that end it, if a stage has them
Pair = tuple[int, int]  # (stage, microbatch)


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

    activation: Sequence[float] | Mapping[int, float]
    weight_activation: Sequence[float] | Mapping[int, float]
    transient: Sequence[float] | Mapping[int, float]


# The amount held by a rank: the most while an action runs, and after it.
Level = tuple[float, float]
T = TypeVar("T")


def endings(actions: Iterable[Action]) -> set[tuple[int, ActionKind]]:
    """Return (stage, kind) of the actions of a rank that release the memory of a pair.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> row = Schedule.from_text("0F0 1F0 1I0 1W0 0B0").actions[0]
    >>> sorted(f"{stage}{kind}" for stage, kind in endings(row))
    ['0B', '1W']
    """
    present = {(stage, kind) for stage, kind, _ in actions}
    return {(s, kind) for s, kind in present if kind in _LATER and not any((s, k) in present for k in _LATER[kind])}


# -- amounts ----------------------------------------------------------------------------------------------------------


def held_memory(actions: Sequence[Action], footprint: Footprint) -> Iterator[Level]:
    """Yield, for each action of a rank, the memory held while it runs and after it.

    Not counted: parameters, gradients, temporary arrays of one operation.

    Examples
    --------
    >>> from minipipe import schedules
    >>> [after for _, after in held_memory(schedules.zb_h1(2, 2).actions[0], Footprint([10, 10], [4, 4], [0, 0]))]
    [10, 20, 14, 10, 4, 0]
    >>> [during for during, _ in held_memory(schedules.gpipe(1, 2).actions[0], Footprint([10], [10], [5]))]
    [10, 20, 25, 15]
    """
    activation, weight_activation, transient = footprint
    held: float = 0
    ends = endings(actions)
    recomputed: set[Pair] = set()
    for stage, kind, k in actions:
        before = held
        if kind is F:
            before = held + activation[stage]
            held = held if (stage, F) in ends else before
        elif kind is B or kind is I:
            held -= activation[stage]
            if kind is I and (stage, I) not in ends:
                held += weight_activation[stage]
            if recomputed and (stage, k) in recomputed:
                held -= transient[stage]
            else:
                before += transient[stage]
        elif kind is W:
            held -= weight_activation[stage]
        elif kind is R:
            before = held = held + transient[stage]
            recomputed.add((stage, k))
        elif kind is O:
            held -= activation[stage]
        elif kind is L:
            before = held = held + activation[stage]
        yield (before if before > held else held), held


def memory_levels(table: ActionTable, footprint: Footprint) -> list[list[Level]]:
    """Return, by rank, the memory held while each of its actions runs and after it.

    Examples
    --------
    >>> from minipipe import schedules
    >>> levels = memory_levels(schedules.one_f_one_b(2, 4), Footprint([10, 20], [10, 20], [5, 5]))
    >>> [max(during for during, _ in row) for row in levels]
    [25, 25]
    """
    check_range(table)
    return [list(held_memory(row, footprint)) for row in table.actions]


def held_counts(actions: Sequence[Action]) -> Iterator[Level]:
    """Yield, for each action of a rank, how many (stage, microbatch) pairs it holds while it runs and after it.

    Examples
    --------
    >>> from minipipe import schedules
    >>> [int(held) for _, held in held_counts(schedules.one_f_one_b(2, 3).actions[0])]
    [1, 2, 1, 2, 1, 0]
    """
    stages = {stage for stage, _, _ in actions}
    one, none = dict.fromkeys(stages, 1), dict.fromkeys(stages, 0)
    return held_memory(actions, Footprint(one, one, none))


def without_copies(actions: Iterable[Action], levels: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return the levels of a rank's computations and messages; an O counts as part of the action before it.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> row = Schedule.from_text("F0 O0 L0 B0").actions[0]
    >>> without_copies(row, held_counts(row))
    [(1, 0), (1, 0)]
    """
    found: list[tuple[T, T]] = []
    for action, (during, after) in zip(actions, levels):
        if action.kind is O:
            found[-1] = found[-1][0], after
        elif action.kind is not L:
            found.append((during, after))
    return found


def peak_activations(table: ActionTable) -> tuple[int, ...]:
    """Return, by rank, the most (stage, microbatch) pairs held at once.

    Examples
    --------
    >>> from minipipe import schedules
    >>> peak_activations(schedules.gpipe(4, 8))
    (8, 8, 8, 8)
    """
    return tuple(map(int, peaks(map(held_counts, table.actions))))


def peaks(levels: Iterable[Iterable[Level]]) -> tuple[float, ...]:
    """Return, by rank, the most held at once."""
    return tuple(max((during for during, _ in row), default=0.0) for row in levels)


def held_over_time(
    spans: Sequence[tuple[Action, float, float]], levels: Iterable[Level]
) -> Iterator[tuple[float, float]]:
    """Yield (time, amount held) at the start and at the end of each action of a rank: a curve of steps.

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


# -- pairs, named -----------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """(stage, microbatch) pairs, in the order of their F or L, and the memory that they take."""

    pairs: tuple[Pair, ...]
    memory: float


def held_pairs(table: ActionTable, footprint: Footprint) -> list[list[tuple[Held, Held]]]:
    """Return, by rank, the pairs held while each of its actions runs, and after it. The schedule may be illegal.

    Examples
    --------
    >>> from minipipe import schedules
    >>> rank = held_pairs(schedules.one_f_one_b(2, 2), Footprint([1, 1], [1, 1], [0, 0]))[1]
    >>> [during.pairs for during, _ in rank]
    [((1, 0),), ((1, 0),), ((1, 1),), ((1, 1),)]
    """
    return [list(_held_pairs_of(row, footprint)) for row in table.actions]


def _held_pairs_of(row: Sequence[Action], footprint: Footprint) -> Iterator[tuple[Held, Held]]:
    taken: dict[Pair, float] = {}
    ends, recomputed = endings(row), set[Pair]()
    for stage, kind, k in row:
        if kind is F or kind is L:
            taken[stage, k] = footprint.activation[stage]
        elif kind is R and (stage, k) in taken:
            taken[stage, k] += footprint.transient[stage]
            recomputed.add((stage, k))
        before = Held(tuple(taken), sum(taken.values()))
        if (stage, kind) in ends or kind is O:
            taken.pop((stage, k), None)
        elif kind is I and (stage, k) in taken:
            taken[stage, k] = footprint.weight_activation[stage]
        after = Held(tuple(taken), sum(taken.values()))
        transient = footprint.transient[stage] if kind in (B, I) and (stage, k) not in recomputed else 0
        yield before._replace(memory=max(before.memory + transient, after.memory)), after


class Lifetime(NamedTuple):
    """A pair, and the positions of the actions that begin and end a time in memory; None if nothing ends it."""

    stage: int
    microbatch: int
    first: int
    last: int | None


def lifetimes(actions: Sequence[Action]) -> list[Lifetime]:
    """Return the lifetimes of the pairs of a rank, in the order of their F; an L begins a new lifetime.

    Examples
    --------
    >>> from minipipe import schedules
    >>> lifetimes(schedules.gpipe(1, 2).actions[0])[1]
    Lifetime(stage=0, microbatch=1, first=1, last=3)
    """
    ends = endings(actions)
    last = {(s, k): at for at, (s, kind, k) in enumerate(actions) if (s, kind) in ends}
    away = {(s, k): at for at, (s, kind, k) in enumerate(actions) if kind is O}
    return [
        Lifetime(s, k, at, away.get((s, k), last.get((s, k))) if kind is F else last.get((s, k)))
        for at, (s, kind, k) in enumerate(actions)
        if kind is F or kind is L
    ]
