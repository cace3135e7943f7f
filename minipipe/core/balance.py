"""Whether the values of a table fit; `core/legality.py` says which ones do not.

The instructions of a row that have one rule are looked at together. A set of
microbatches is a whole number with a bit for each, so that one operation compares all
values of a name and stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from minipipe.core.flow import Flow, Rule
from minipipe.core.values import NOUNS


def is_balanced(flow: Flow) -> bool:
    """Return whether each value is given once, where it is needed, and taken once.

    It may be given too late: `core/order.py` finds that.
    """
    balance = _Balance(flow)
    return all(map(balance.add_row, range(len(flow.rows)))) and balance.is_settled()


class _Balance:
    """Sets of microbatches, by name and stage of their values: those that are given."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.size = flow.table.num_microbatches
        self.nouns = [
            NOUNS[name] for name in flow.names for _ in range(flow.num_owners)
        ]
        self.given: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        self.needed: Counter[int] = Counter()

    def add_row(self, rank: int) -> bool:
        """Add the values of a row; return whether they fit."""
        given: Counter[int] = Counter()
        needed: Counter[tuple[str, int]] = Counter()  # also by kind
        for rule, ks in self.by_rule(rank):
            if rule.numbers is None:
                return False
            bits = self.bits(ks)
            ends = (rule.numbers.gives, given), (rule.numbers.takes, self.taken)
            for numbers, sets in ends:
                for place, offsets in self.places(rule, numbers):
                    values = self.sums(bits, ks, offsets)
                    count = len(ks) * len(offsets)
                    if values & sets[place] or values.bit_count() < count:
                        return False
                    sets[place] |= values
            for place, offsets in self.places(rule, rule.numbers.needs):
                needed[rule.kind, place] |= self.sums(bits, ks, offsets)
        return self.has_needs(given, needed) and self.is_read(rank, given, needed)

    def by_rule(self, rank: int) -> Iterator[tuple[Rule, list[int]]]:
        """Yield the rules of a row, each with the microbatches that have it."""
        microbatches: defaultdict[int, list[int]] = defaultdict(list)
        for (_, _, k), code in zip(self.flow.rows[rank], self.flow.codes[rank]):
            microbatches[code].append(k)
        for code, ks in microbatches.items():
            yield self.flow.rules[code], ks

    def places(
        self, rule: Rule, numbers: Sequence[int]
    ) -> Iterable[tuple[int, list[int]]]:
        """Return the names and stages of values of a rule, with their offsets."""
        offsets: defaultdict[int, list[int]] = defaultdict(list)
        for number in numbers:
            place, k = divmod(number, self.size)
            offsets[place].append(k - rule.site.microbatch)
        return offsets.items()

    def sums(self, bits: int, ks: Sequence[int], offsets: Sequence[int]) -> int:
        """Return the set of all sums of a microbatch and an offset."""
        if len(offsets) > len(ks):
            bits = self.bits(offsets)
            offsets = ks
        found = 0
        for shift in offsets:
            found |= bits << shift if shift > 0 else bits >> -shift
        return found

    def bits(self, numbers: Sequence[int]) -> int:
        """Return the set of some numbers, from -size to size."""
        digits = bytearray(b"0") * (2 * self.size)
        for number in numbers:
            digits[self.size - 1 - number] = ord("1")
        return int(digits, 2)

    def has_needs(self, given: Counter[int], needed: Counter[tuple[str, int]]) -> bool:
        """Add what a row needs; return whether it gives what cannot travel to it."""
        for (_, place), values in needed.items():
            if values & ~given[place] and not self.nouns[place].travels:
                return False
            self.needed[place] |= values
        return True

    def is_read(
        self, rank: int, given: Counter[int], needed: Counter[tuple[str, int]]
    ) -> bool:
        """Add what a row gives; return whether all readers in the row read it."""
        flow = self.flow
        for place, values in given.items():
            if values & self.given[place]:
                return False
            self.given[place] |= values
            for kind in self.nouns[place].readers:
                is_there = flow.sites(rank, kind, place % flow.num_owners).positions
                if is_there and values & ~needed[kind, place]:
                    return False
        return True

    def is_settled(self) -> bool:
        """Whether all needs are given, and all that is given is taken if it must be."""
        for place, noun in enumerate(self.nouns):
            given = self.given[place]
            taken = self.taken[place]
            if self.needed[place] & ~given:
                return False
            if given != taken and not noun.may_stay(
                self.flow, place % self.flow.num_owners
            ):
                return False
        return True
