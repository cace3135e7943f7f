"""Whether a table is legal: each value is given once, and taken if it must be.

:func:`remarks` says why a table is illegal, except for the order of its rows that
follows from other rows, which `core/order.py` finds. Three checks follow one another:

1. :func:`misplaced`: each instruction is in range, on a rank of its stage.
2. :class:`_Stages`: each stage has all regular instructions of each microbatch, once.
   Microbatches that have the same ones are alike, so that each set of instructions is
   looked at once: it takes a second for some million instructions.
3. The values of the table fit, if its declarations vary: `core/balance.py` looks at
   each rule once, and :func:`faults` lists the values that do not. Replicas, overlaps
   and meetings are in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from minipipe.core.balance import is_balanced
from minipipe.core.flow import Flow
from minipipe.core.lifetimes import gone, uncovered
from minipipe.core.nouns import (
    CHECKS,
    NEEDLESS,
    NOUNS,
    ONCE,
    REGULAR,
    Fault,
    Remark,
    Tell,
    mixed,
    needless,
    plainly,
)
from minipipe.core.order import order
from minipipe.core.values import KINDS, Meeting, Site

MOST_REMARKS = 1000
"""The most remarks of one kind: if one instruction is missing, thousands often are."""

_Place = tuple[int, int]  # rank and position of an instruction


def remarks(flow: Flow) -> list[Remark]:
    """Return why a table is illegal, the cause first; empty if only its order can be.

    Parameters
    ----------
    flow : Flow
        Of a table without misplaced instructions.
    """
    stages = _Stages(flow)
    if not stages.fit():
        return stages.remarks()
    said = list(dict.fromkeys(_told(flow)))
    first = min((remark.turn for remark in said), default=0)
    of_turn = [remark for remark in said if remark.turn == first]
    return sorted(of_turn, key=lambda remark: remark.place)[:MOST_REMARKS]


def _instructions(flow: Flow) -> Iterator[tuple[int, int, Any]]:
    for rank, row in enumerate(flow.rows):
        for position, action in enumerate(row):
            yield rank, position, action


def of_stages(flow: Flow) -> Iterator[tuple[int, int, Any]]:
    """Yield rank, position and action of all instructions that belong to a stage."""
    for rank, position, action in _instructions(flow):
        if action[1] not in flow.rank_kinds:
            yield rank, position, action


# -- placement -------------------------------------------------------------------------


def misplaced(table: Any) -> list[Remark]:
    """Return the instructions out of range or on a wrong rank."""
    strays = [rank for rank in range(table.num_ranks) if not _is_placed(table, rank)]
    present = list(map(frozenset, table.actions)) if strays else []
    places = ((rank, at) for rank in strays for at in range(len(table.actions[rank])))
    found = (_misplaced(table, present, *place) for place in places)
    return list(islice(chain.from_iterable(found), MOST_REMARKS))


def _is_placed(table: Any, rank: int) -> bool:
    """Check a whole row at once: it may have a million instructions."""
    row = table.numbered[rank]
    kinds = {kind for kind in set(map(itemgetter(1), row)) if KINDS[kind].of_rank}
    if kinds:
        own = [action[::2] for action in row if action[1] in kinds]
        row = [action for action in row if action[1] not in kinds]
        if set(own) != {(rank, 0)}:
            return False
    stages, numbers = (set(map(itemgetter(i), row)) for i in (0, 2))
    if not stages <= set(range(table.num_stages)):
        return False
    is_in_range = (
        not numbers or 0 <= min(numbers) <= max(numbers) < table.num_microbatches
    )
    return is_in_range and all(rank in table.ranks_of(stage) for stage in stages)


def _misplaced(
    table: Any, present: list[frozenset[Any]], rank: int, position: int
) -> Iterator[Remark]:
    action = table.actions[rank][position]
    stage, kind, k = table.numbered[rank][position]
    subject = f"Rank {rank}, position {position}: {action}"
    if KINDS[kind].of_rank:
        if (stage, k) != (rank, 0):
            message = f"{subject} names rank {stage} and microbatch {k}; an"
            message += f" instruction of a rank names its own rank, {rank}, and 0."
            yield Remark("placement", message, rank, position)
        return
    counts = {"stage": (stage, table.num_stages)}
    counts["microbatch"] = (k, table.num_microbatches)
    for noun, (number, count) in counts.items():
        if not 0 <= number < count:
            message = f"{subject} names {noun} {number}; there are {count}, counted "
            yield Remark("out-of-range", f"{message}from 0.", rank, position)
            return
    homes = table.ranks_of(stage)
    if rank in homes:
        return
    noun = "rank" if len(homes) == 1 else "ranks"
    names = ", ".join(map(str, homes))
    message = f"{subject} is on the wrong rank; stage {stage} is on {noun} {names}."
    if any(action in present[home] for home in homes):
        message += f" {action} is on rank {table.home_of(action)} as well: a "
        message += "microbatch runs once."
    yield Remark("placement", message, rank, position)


# -- regular instructions --------------------------------------------------------------


_Wrong = tuple[list[str], dict[str, str]]  # missing kinds; why others are needless


class _Stages:
    """Which regular instructions each stage has of each microbatch.

    Attributes
    ----------
    kinds : list or dict of int
        By stage and microbatch, a bit for each kind.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.plain = copy(flow)
        self.plain.num_slices = 1
        self.plain.positions = {}
        self.plain.kinds = frozenset()
        self.pairs: dict[tuple[int, int], _Wrong] = {}
        m = flow.table.num_microbatches
        rows = flow.rows
        bits = dict.fromkeys(KINDS, 0)
        bits.update((kind, 1 << number) for number, kind in enumerate(REGULAR))
        self.is_dense = flow.num_stages * m <= sum(map(len, rows))
        kinds: Any = defaultdict(int)
        if self.is_dense:
            kinds = [0] * (flow.num_owners * m)
        for row in rows:
            for stage, kind, k in row:
                kinds[stage * m + k] |= bits[kind]
        self.kinds = kinds

    def fit(self) -> bool:
        """Whether nothing is missing, needless or repeated."""
        table = self.flow.table
        rows = self.flow.rows
        if table.has_replicas:  # a microbatch could run on two of them
            rows = [list(chain.from_iterable(rows))]
        if not self.is_dense or any(len(set(row)) < len(row) for row in rows):
            return False
        m = table.num_microbatches
        for stage in range(table.num_stages):
            for kinds in set(self.kinds[stage * m : stage * m + m]):
                if any(self.pair(stage, kinds)):
                    return False
        return True

    def pair(self, stage: int, kinds: int) -> _Wrong:
        key = stage, kinds
        if key not in self.pairs:
            names = [name for i, name in enumerate(REGULAR) if kinds & 1 << i]
            self.pairs[key] = self._pair(stage, names)
        return self.pairs[key]

    def _pair(self, stage: int, present: list[str]) -> _Wrong:
        """Find the most instructions that give or take no value twice."""
        missing: list[str] = []
        needless: dict[str, str] = {}
        ends: set[Any] = set()
        for name in dict.fromkeys((*present, *REGULAR)):
            uses = KINDS[name].uses(Site(self.plain, 0, 0, stage, 0))
            own = () if uses is None else (("takes", uses.takes), ("gives", uses.gives))
            own_ends = {(end, value) for end, values in own for value in values}
            if uses is not None and ends.isdisjoint(own_ends):
                ends |= own_ends
                if name not in present:
                    missing.append(name)
            elif name in present:
                needless[name] = "undeclared" if uses is None else "beside"
        return missing, needless

    def remarks(self) -> list[Remark]:
        kinds = (self.repeated(), self.missing(), self.unexpected())
        return [remark for found in kinds for remark in islice(found, MOST_REMARKS)]

    def repeated(self) -> Iterator[Remark]:
        first: dict[Any, _Place] = {}
        for rank, position, action in _instructions(self.flow):
            other, at = first.setdefault(action, (rank, position))
            if (other, at) == (rank, position):
                continue
            sentence = f"is a duplicate of position {at}"
            if other != rank:
                sentence += f" of rank {other}: a microbatch runs on one replica"
            sentence += "."
            if KINDS[action[1]].message:
                sentence += " Two messages with the same tag cannot be distinguished."
            fault = Fault("repeated", self.flow, rank, position)
            yield fault.remark(1, "duplicate", sentence)

    def missing(self) -> Iterator[Remark]:
        table = self.flow.table
        m = self.flow.table.num_microbatches
        for k in range(m):
            for stage in range(table.num_stages):
                names, _ = self.pair(stage, self.kinds[stage * m + k])
                for name in sorted(names, key=REGULAR.index):
                    rank = table.rank_of(stage, k)
                    cell = self.flow.cell(stage, name, k)
                    message = f"{cell} is missing on rank {rank}."
                    yield Remark("missing", message, rank)

    def unexpected(self) -> Iterator[Remark]:
        m = self.flow.table.num_microbatches
        for rank, position, (stage, kind, k) in of_stages(self.flow):
            _, reasons = self.pair(stage, self.kinds[stage * m + k])
            if kind in reasons:
                fault = Fault(reasons[kind], self.flow, rank, position)
                tell = mixed if fault.reason == "beside" else _teller(fault)
                yield from tell(fault)


# -- the values of a whole table -------------------------------------------------------


def faults(flow: Flow) -> Iterator[Fault]:
    """Yield the values that do not fit in a table with all regular instructions."""
    givers: dict[int, _Place] = {}
    takers: dict[int, _Place] = {}
    needs: list[tuple[int, _Place]] = []
    for rank, position, _ in _instructions(flow):
        place = rank, position
        numbers = flow.numbers(rank, position)
        if numbers is None:
            yield Fault("undeclared", flow, rank, position)
            continue
        for ends, values, reason in (
            (givers, numbers.gives, "given twice"),
            (takers, numbers.takes, "taken twice"),
        ):
            for number in values:
                first = ends.setdefault(number, place)
                if first != place:
                    value = flow.value_of(number)
                    yield Fault(reason, flow, rank, position, value, first)
        needs += ((number, place) for number in numbers.needs)
    yield from _unfit(flow, givers, needs)
    yield from _unused(flow, givers, takers, needs)
    yield from gone(flow)
    yield from uncovered(flow)


def _unfit(
    flow: Flow, givers: dict[int, _Place], needs: list[tuple[int, _Place]]
) -> Iterator[Fault]:
    """Yield the values that an instruction needs and lacks.

    Those that travel may be anywhere. `core/order.py` finds whether they come in time,
    and others too, unless their noun tells of that.
    """
    for number, (rank, position) in needs:
        giver = givers.get(number)
        noun = NOUNS[flow.name_of(number)]
        if giver is None:
            reason = "never given"
        elif noun.travels or (giver[0] == rank and giver[1] <= position):
            continue
        else:
            reason = "late" if giver[0] == rank else "elsewhere"
        if reason != "late" or reason in noun.tells:
            yield Fault(reason, flow, rank, position, flow.value_of(number), giver)


def _unused(
    flow: Flow,
    givers: dict[int, _Place],
    takers: dict[int, _Place],
    needs: list[tuple[int, _Place]],
) -> Iterator[Fault]:
    """Yield the values that are not taken, or not read by each reader of their row."""
    used = {(number, flow.rows[rank][at][1]) for number, (rank, at) in needs}
    for number, (rank, position) in givers.items():
        value = flow.value_of(number)
        noun = NOUNS[value.name]
        if number not in takers and not noun.may_stay(flow, value.stage):
            yield Fault("never taken", flow, rank, position, value)
        for kind in noun.readers:
            is_there = flow.sites(rank, kind, value.stage).positions
            if is_there and (number, kind) not in used:
                yield Fault("unread", flow, rank, position, value)


# -- the words -------------------------------------------------------------------------


def _told(flow: Flow) -> Iterator[Remark]:
    """Yield what is said of the faults of a table with all regular instructions."""
    table = flow.table
    for check in CHECKS:
        yield from check(flow)
    if table.overlaps:
        yield from _overlaps(flow)
    if flow.kinds <= set(REGULAR) and not flow.varied:
        return
    yield from _meetings(flow)
    is_in_order = next(chain(gone(flow), uncovered(flow)), None) is None
    if is_in_order and is_balanced(flow) and not order(flow).blocked:
        return  # a value that came late would block its rank
    done: set[tuple[Tell, int, int]] = set()
    for fault in faults(flow):
        tell = _teller(fault)
        stage = fault.action[0]
        if (tell, fault.rank, stage) not in done:
            yield from tell(fault)
        if tell in ONCE:
            done.add((tell, fault.rank, stage))


def _teller(fault: Fault) -> Tell:
    if fault.value is None:
        return NEEDLESS.get(fault.action[1], needless)
    return NOUNS[fault.value.name].tells.get(fault.reason, plainly)


def _overlaps(flow: Flow) -> Iterator[Remark]:
    for rank, position, numbered in _instructions(flow):
        row = flow.table.actions[rank]
        action = row[position]
        if action not in flow.table.overlaps or numbered in flow.pairs:
            continue
        behind = "nothing, because it is the last action of its row"
        for other in row[position + 1 : position + 2]:
            needs_it = other[2] == action[2] and KINDS[other[1]].is_backward
            behind = f"{other}, which needs it" if needs_it else str(other)
        sentence = f"is overlapped with {behind}; expected a B or I of another "
        fault = Fault("overlap", flow, rank, position)
        yield fault.remark(5, "overlap", f"{sentence}microbatch after it.")


def _meetings(flow: Flow) -> Iterator[Remark]:
    """Yield the ranks of a stage that do not come to a meeting of all of them.

    Those of messages are complete if their microbatch is.
    """
    kinds = [KINDS[name] for name in flow.kinds]
    names = {kind.name for kind in kinds if kind.meets and not kind.message}
    met: defaultdict[Meeting, dict[int, Any]] = defaultdict(dict)
    for rank, position, (_, name, _) in _instructions(flow) if names else ():
        if name in names:
            written = flow.table.actions[rank][position]
            met[flow.meeting(rank, position)][rank] = written
    for number, (meeting, actions) in enumerate(met.items()):
        if len(actions) == meeting.size:
            continue
        stage, name, _ = next(iter(actions.values()))
        ranks = _ranks_of(flow, name, stage, meeting)
        others = " and ".join(str(actions[rank]) for rank in ranks if rank in actions)
        for index, rank in enumerate(ranks):
            if rank not in actions:
                message = (
                    f"A {name} is missing on rank {rank}: the partner of {others}."
                )
                if name in flow.rank_kinds:
                    message = (
                        f"{name} is missing on rank {rank}; the others wait for it."
                    )
                place = len(KINDS), stage, number, index
                yield Remark("missing", message, rank, None, 8, place)


def _ranks_of(flow: Flow, name: str, stage: int, meeting: Meeting) -> Sequence[int]:
    """Return the ranks whose instructions of a kind should come to a meeting."""
    kind = KINDS[name]
    if not kind.of_rank or kind.meets is None:
        return flow.ranks_of(stage)
    sites = [Site(flow, rank, 0, rank, 0) for rank in range(flow.num_ranks)]
    own = [site for site in sites if kind.uses(site) is not None]
    return [site.rank for site in own if kind.meets(site) == meeting]
