"""Whether the values of a row exist when its instructions read them, or run under them.

A value is given once and taken once. Between the two it can be read, and instructions
that it covers can run (`Noun.covers`)::

    HANDSHAKE  0F0  0B0  FINITE  LOSS  0U0        call covers 0F0 and 0B0
    |----------- call ------------|
                |------- dw -----------|          FINITE and LOSS read dw
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from minipipe.core.flow import Flow
from minipipe.core.nouns import NOUNS, Fault

_Place = tuple[int, int]  # rank and position of an instruction


def gone(flow: Flow) -> Iterator[Fault]:
    """Yield the values that an instruction reads after its row has taken them."""
    known = [rule.numbers for rule in flow.rules if rule.numbers is not None]
    size = flow.table.num_microbatches
    read = {number // size for numbers in known for number in numbers.reads}
    both = read & {number // size for numbers in known for number in numbers.takes}
    for rank, row in enumerate(flow.rows if both else ()):
        takers: dict[int, _Place] = {}
        for position in range(len(row)):
            numbers = flow.numbers(rank, position)
            if numbers is None:
                continue
            for number in numbers.reads:
                if number in takers:
                    value = flow.value_of(number)
                    taker = takers[number]
                    yield Fault("gone", flow, rank, position, value, taker)
            taken = (number for number in numbers.takes if number // size in both)
            takers.update(dict.fromkeys(taken, (rank, position)))


def uncovered(flow: Flow) -> Iterator[Fault]:
    """Yield the instructions that run before or after the value that covers them."""
    names = [name for name in flow.names if NOUNS[name].covers]
    for name in names:
        for rank in range(len(flow.rows)):
            yield from _uncovered(flow, name, rank)


def _uncovered(flow: Flow, name: str, rank: int) -> Iterator[Fault]:
    noun, row = NOUNS[name], flow.rows[rank]
    ends: dict[int, tuple[bool, Fault]] = {}  # by stage, or by rank: what came last
    waiting: dict[int, list[int]] = defaultdict(list)  # before the first value
    for position, (stage, kind, _) in enumerate(row):
        owner = rank if noun.of_rank else stage
        if kind in noun.covers:
            exists, end = ends.get(owner, (False, None))
            if end is None:
                waiting[owner].append(position)
            elif not exists:
                place = end.rank, end.position
                yield Fault("gone", flow, rank, position, end.value, place)
        numbers = flow.numbers(rank, position)
        if numbers is None:
            continue
        for part, is_given in ((numbers.takes, False), (numbers.gives, True)):
            for value in map(flow.value_of, part):
                if value.name != name:
                    continue
                for at in waiting.pop(value.stage, ()):
                    place = rank, position
                    yield Fault("not yet", flow, rank, at, value, place)
                end = Fault("", flow, rank, position, value)
                ends[value.stage] = is_given, end
