"""Whether the values of a table fit: each is given once, and taken where it must be.

:func:`faults` finds every reason why a table is illegal, except the order of its rows;
`core/order.py` finds those. :func:`fits` is the quick check for large tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import ge
from typing import NamedTuple

from minipipe.core.flow import Flow
from minipipe.core.values import KINDS, NOUNS, Meeting, Value

_Place = tuple[int, int]  # rank and position of an instruction


class Fault(NamedTuple):
    """A reason why a table is illegal.

    Attributes
    ----------
    reason : str
        One of: "placement", "overlap", "undeclared", "given twice", "taken twice",
        "never given", "elsewhere", "mixed cut", "never taken", "meeting".
    rank, position : int
        The instruction; -1 if there is none.
    value : Value or None
    """

    reason: str
    rank: int = -1
    position: int = -1
    value: Value | None = None


def faults(flow: Flow) -> Iterator[Fault]:
    """Yield why a table is illegal, apart from the order of its rows."""
    yield from _misplaced(flow)
    givers: dict[int, _Place] = {}
    takers: dict[int, _Place] = {}
    needs: list[tuple[int, _Place]] = []
    for rank, row in enumerate(flow.table.actions):
        for position in range(len(row)):
            place = rank, position
            numbers = flow.numbers(rank, position)
            if numbers is None:
                yield Fault("undeclared", rank, position)
                continue
            for number in numbers.gives:
                if givers.setdefault(number, place) != place:
                    yield Fault("given twice", rank, position, flow.value_of(number))
            for number in numbers.takes:
                if takers.setdefault(number, place) != place:
                    yield Fault("taken twice", rank, position, flow.value_of(number))
            needs += ((number, place) for number in (*numbers.takes, *numbers.reads))
    yield from _ungiven(flow, givers, needs)
    yield from _untaken(flow, givers, takers)
    yield from _absent(flow, givers)
    yield from _lonely(flow)


def _misplaced(flow: Flow) -> Iterator[Fault]:
    """Yield the instructions on a wrong rank, and overlaps that are no pair."""
    table = flow.table
    for rank, row in enumerate(table.actions):
        for position, action in enumerate(row):
            if rank not in table.ranks_of(action[0]):
                yield Fault("placement", rank, position)
            if table.overlaps and action in table.overlaps and action not in flow.pairs:
                yield Fault("overlap", rank, position)


def _ungiven(
    flow: Flow, givers: dict[int, _Place], needs: list[tuple[int, _Place]]
) -> Iterator[Fault]:
    """Yield the values that are needed, and not given or not there.

    All microbatches change ranks at a stage boundary, or none.
    """
    crossed: dict[tuple[str, int], bool] = {}
    for number, (rank, position) in needs:
        value = flow.value_of(number)
        if number not in givers:
            yield Fault("never given", rank, position, value)
            continue
        is_elsewhere = givers[number][0] != rank
        boundary = value.name, value.stage
        if not NOUNS[value.name].travels:
            if is_elsewhere:
                yield Fault("elsewhere", rank, position, value)
        elif crossed.setdefault(boundary, is_elsewhere) != is_elsewhere:
            yield Fault("mixed cut", rank, position, value)


def _untaken(
    flow: Flow, givers: dict[int, _Place], takers: dict[int, _Place]
) -> Iterator[Fault]:
    for number, (rank, position) in givers.items():
        value = flow.value_of(number)
        if number in takers or NOUNS[value.name].may_stay(flow, value.stage):
            continue
        yield Fault("never taken", rank, position, value)


def _absent(flow: Flow, givers: dict[int, _Place]) -> Iterator[Fault]:
    """Yield the results that nothing gives."""
    for name, noun in NOUNS.items():
        for stage in range(flow.num_stages):
            if not noun.is_required(flow, stage):
                continue
            for k in range(flow.table.num_microbatches):
                value = Value(name, stage, k)
                if flow.number_of(value) not in givers:
                    yield Fault("never given", value=value)


def _lonely(flow: Flow) -> Iterator[Fault]:
    """Yield the instructions that do not meet as many others as they should."""
    met: defaultdict[Meeting, list[_Place]] = defaultdict(list)
    for rank, row in enumerate(flow.table.actions):
        for position, (_, name, _) in enumerate(row):
            if KINDS[name].meets is not None:
                met[flow.meeting(rank, position)].append((rank, position))
    for meeting, places in met.items():
        if len(places) != meeting.size:
            yield Fault("meeting", *places[0])


# -- the quick check -------------------------------------------------------------------


def fits(flow: Flow) -> bool:
    """Whether all values of a table fit, in a time for a million instructions.

    It says nothing of placement, meetings and replicas.
    """
    given, taken = bytearray(flow.num_values), bytearray(flow.num_values)
    try:
        for rank in range(len(flow.table.actions)):
            _count(flow, rank, given, taken)
    except (KeyError, ValueError):  # undeclared; more often than a byte can count
        return False
    return all(
        _block_fits(flow, name, stage, given, taken)
        for name in flow.names
        for stage in range(flow.num_stages)
    )


def _count(flow: Flow, rank: int, given: bytearray, taken: bytearray) -> None:
    rules, shaped = flow.rules, flow.shaped
    for position, (stage, kind, k) in enumerate(flow.table.actions[rank]):
        rule = rules[kind][stage]
        if rule is None:
            rule, k = shaped[rank, position]
        takes, gives, _ = rule
        for number in takes:
            taken[number + k] += 1
        for number in gives:
            given[number + k] += 1


def _block_fits(
    flow: Flow, name: str, stage: int, given: bytearray, taken: bytearray
) -> bool:
    """Check one name and stage: each value given at most once, and then taken."""
    begin = flow.number_of(Value(name, stage, 0))
    end = begin + flow.table.num_microbatches
    gives, takes = given[begin:end], taken[begin:end]
    if max(gives) > 1:
        return False
    noun = NOUNS[name]
    if noun.is_required(flow, stage) and min(gives) == 0:
        return False
    if noun.may_stay(flow, stage):
        return all(map(ge, gives, takes))
    return gives == takes
