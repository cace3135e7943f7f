"""Whether the values of a row exist when its instructions read them, or run under them.

A value is given once and taken once. Between the two it can be read, and instructions
that it covers can run (`Noun.covers`)::

    HANDSHAKE  0F0  0B0  FINITE  LOSS  0U0        call covers 0F0 and 0B0
    |----------- call ------------|
                |------- dw -----------|          FINITE and LOSS read dw
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from minipipe.core.flow import Flow, Numbered
from minipipe.core.nouns import NOUNS, Fault
from minipipe.core.values import Value

_Place = tuple[int, int]  # rank and position of an instruction


def gone(flow: Flow) -> Iterator[Fault]:
    """Yield the values that an instruction reads after its row has taken them."""
    size = flow.table.num_microbatches
    known = [rule.numbers or Numbered((), (), ()) for rule in flow.rules]
    reads = [{number // size for number in numbers.reads} for numbers in known]
    if not any(reads):
        return
    takes = [{number // size for number in numbers.takes} for numbers in known]
    both = set().union(*reads) & set().union(*takes)
    concerned = {
        code for code in range(len(known)) if both & (reads[code] | takes[code])
    }
    for rank in range(len(flow.rows) if both else 0):
        takers: dict[int, _Place] = {}
        for position, numbers in _numbers_of(flow, rank, concerned):
            for number in numbers.reads:
                if number in takers:
                    value = flow.value_of(number)
                    yield Fault("gone", flow, rank, position, value, takers[number])
            takers.update(dict.fromkeys(numbers.takes, (rank, position)))


def _numbers_of(
    flow: Flow, rank: int, codes: set[int]
) -> Iterator[tuple[int, Numbered]]:
    """Yield the positions of instructions with some rules, and their values."""
    for position, code in enumerate(flow.codes[rank]):
        if code in codes:
            numbers = flow.numbers(rank, position)
            if numbers is not None:
                yield position, numbers


def uncovered(flow: Flow) -> Iterator[Fault]:
    """Yield the instructions that run before or after the value that covers them."""
    size = flow.table.num_microbatches * flow.num_owners
    for block, name in enumerate(flow.names):
        if not NOUNS[name].covers:
            continue
        codes = set()
        for code, (_, _, numbers) in enumerate(flow.rules):
            ends = () if numbers is None else numbers.takes + numbers.gives
            if any(number // size == block for number in ends):
                codes.add(code)
        for rank in range(len(flow.rows)):
            yield from _uncovered(flow, name, rank, codes)


def _uncovered(flow: Flow, name: str, rank: int, codes: set[int]) -> Iterator[Fault]:
    noun = NOUNS[name]
    row = flow.rows[rank]
    ends: defaultdict[int, list[_End]] = defaultdict(list)  # by stage, or by rank
    for position, numbers in _numbers_of(flow, rank, codes):
        for part, is_given in ((numbers.takes, False), (numbers.gives, True)):
            for value in map(flow.value_of, part):
                if value.name == name:
                    ends[value.stage].append(_End(position, is_given, value))
    for position, (stage, kind, _) in enumerate(row if ends else ()):
        owner = rank if noun.of_rank else stage
        if kind not in noun.covers or owner not in ends:
            continue
        before = bisect_left(ends[owner], (position,))
        first = ends[owner][0]
        if before == 0 and first.is_given:  # otherwise nothing gives it
            place = rank, first.position
            yield Fault("not yet", flow, rank, position, first.value, place)
        elif before > 0 and not ends[owner][before - 1].is_given:
            last = ends[owner][before - 1]
            place = rank, last.position
            yield Fault("gone", flow, rank, position, last.value, place)


class _End(NamedTuple):
    """An instruction that gives or takes a value which covers others."""

    position: int
    is_given: bool
    value: Value
