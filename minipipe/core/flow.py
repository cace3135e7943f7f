"""The values of a whole table: who gives each one, who takes it, and whether that fits.

:class:`Flow` applies the declarations of `core/values.py` to a table. It numbers the
values, so that the loops over all instructions work with lists of numbers. A kind is
declared once for each stage, or for each of its cases if its declaration varies:
the numbers for microbatch k are those for microbatch 0 plus k.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

from minipipe.core.values import (
    KINDS,
    NOUNS,
    Kind,
    Meeting,
    Site,
    Uses,
    Value,
    stages_near,
)


class Numbered(NamedTuple):
    """The uses of an instruction as numbers of values; for microbatch k, add k."""

    takes: tuple[int, ...]
    gives: tuple[int, ...]
    reads: tuple[int, ...]

    @property
    def needs(self) -> tuple[int, ...]:
        """The values that it takes or reads."""
        return self.takes + self.reads

    def of(self, k: int) -> Numbered:
        """Return the uses with the numbers of microbatch k."""
        takes, gives, reads = (tuple([number + k for number in part]) for part in self)
        return Numbered(takes, gives, reads)


class Flow:
    """The declared values of a table.

    Parameters
    ----------
    table : Schedule or Program
        Legal or not, with stages and microbatches that exist. An action is (stage,
        kind, microbatch); `numbered` has the rows with a number for each microbatch or
        slice; `overlaps` has the forwards that run as one with the next action of their
        row.

    Attributes
    ----------
    rows : sequence of sequence of (int, str, int)
        By rank, the actions, with numbers of microbatches.
    pairs : frozenset
        The overlapped forwards that have a backward of another microbatch behind them.
    num_values : int
    rules : dict
        By kind and stage, its :class:`Numbered`; None if `varied` has one for each
        instruction, or if no legal table has such an instruction.
    varied : dict
        By rank and position, the :class:`Numbered` of an instruction.
    cases : dict
        By kind, stage and case, the same objects, each with a microbatch that has it.
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self.num_stages, self.num_slices = table.num_stages, table.num_slices
        self.frozen, self.is_forward_only = table.frozen, table.is_forward_only
        self.first_backward_stage = table.first_backward_stage
        self.message_cuts = table.message_cuts
        self.rows: Sequence[Sequence[Any]] = table.numbered
        kinds_of = map(itemgetter(1), chain.from_iterable(self.rows))
        self.kinds: frozenset[str] = frozenset(kinds_of)
        self.pairs = frozenset(
            self.rows[rank][position]
            for rank, row in enumerate(table.actions if table.overlaps else ())
            for position, action in enumerate(row)
            if action in table.overlaps and _is_pair(row, position)
        )
        self._replicas = [len(table.ranks_of(s)) for s in range(table.num_stages)]
        self.positions: dict[tuple[str, int, int], int] = {}
        self._rows: dict[tuple[int, str, int], list[tuple[int, int]]] = {}
        self._taken: dict[tuple[int, str, int, tuple[str, ...]], dict[int, list[int]]]
        self._taken = {}
        self._scan()
        self._blocks: dict[str, int] = {}
        self.rules: dict[str, list[Numbered | None]] = {}
        self.varied: dict[tuple[int, int], Numbered] = {}
        self.cases: dict[tuple[str, int, object], tuple[Numbered | None, int]] = {}
        self._declare()
        size = table.num_stages * table.num_microbatches
        self.num_values = len(self._blocks) * size

    # -- what declarations ask -----------------------------------------------------

    def num_replicas(self, stage: int) -> int:
        """Return how many ranks hold a stage."""
        return self._replicas[stage]

    def taken(self, site: Site, kind: str, given_by: tuple[str, ...]) -> Sequence[int]:
        """Return the microbatches of what an instruction takes of a whole row."""
        key = site.rank, kind, site.stage, given_by
        if key not in self._taken:
            self._taken[key] = self._taken_by_all(*key)
        taken = self._taken[key]
        if site.position in taken:
            return taken[site.position]
        every = taken[-1]  # an instruction that the row lacks could take any of them
        return every[: bisect_right(every, site.microbatch)]

    def _taken_by_all(
        self, rank: int, kind: str, stage: int, given_by: tuple[str, ...]
    ) -> dict[int, list[int]]:
        givers = [self._rows.get((rank, giver, stage), ()) for giver in given_by]
        numbers = sorted(k for of_kind in givers for _, k in of_kind)
        result: dict[int, list[int]] = {-1: numbers}
        begin = 0
        for position, k in self._rows.get((rank, kind, stage), ()):
            end = bisect_right(numbers, k)
            result[position] = numbers[begin:end]
            begin = max(begin, end)
        return result

    def index(self, site: Site, kind: str) -> int:
        """Return how many instructions of a kind and stage stand earlier in the row."""
        places = self._rows.get((site.rank, kind, site.stage), ())
        return bisect_left(places, (site.position, -1))

    def places(self, rank: int, kind: str, stage: int) -> Sequence[tuple[int, int]]:
        """Return positions and microbatches of a kind and stage in a row."""
        return self._rows.get((rank, kind, stage), ())

    def cell(self, stage: int, kind: str, microbatch: int) -> str:
        """Return an instruction as text."""
        return f"{stage}{kind}{self.table.microbatches[microbatch]}"

    def _scan(self) -> None:
        """Note the positions that varying declarations depend on."""
        if not any(KINDS[name].varies(self) for name in self.kinds):
            return
        rows: defaultdict[tuple[int, str, int], list[tuple[int, int]]]
        rows = defaultdict(list)
        for rank, row in enumerate(self.rows):
            for position, (stage, kind, k) in enumerate(row):
                rows[rank, kind, stage].append((position, k))
                self.positions[kind, stage, k] = position
        self._rows = dict(rows)

    # -- numbers -------------------------------------------------------------------

    def _declare(self) -> None:
        varied = {name for name in self.kinds if KINDS[name].varies(self)}
        for name in self.kinds:
            self.rules[name] = [None] * self.num_stages
            if name not in varied:
                for stage in range(self.num_stages):
                    uses = KINDS[name].uses(Site(self, 0, 0, stage, 0))
                    self.rules[name][stage] = self._numbered(uses)
        if not varied:
            return
        for rank, row in enumerate(self.rows):
            for position, (stage, kind, k) in enumerate(row):
                if kind in varied:
                    numbered = self._numbered_case(
                        kind, Site(self, rank, position, stage, k)
                    )
                    if numbered is not None:
                        self.varied[rank, position] = numbered

    def _numbered_case(self, kind: str, site: Site) -> Numbered | None:
        """Return the numbers of a site. Those of equal cases are one object."""
        key = kind, site.stage, KINDS[kind].case(site)
        if key not in self.cases:
            k = site.microbatch
            self.cases[key] = self._numbered(KINDS[kind].uses(site), k), k
        return self.cases[key][0]

    def _numbered(self, uses: Uses | None, k: int = 0) -> Numbered | None:
        if uses is None:
            return None
        parts = uses.takes, uses.gives, uses.reads
        numbers = (tuple(self.number_of(value) - k for value in part) for part in parts)
        return Numbered(*numbers)

    def number_of(self, value: Value) -> int:
        """Return the number of a value."""
        block = self._blocks.setdefault(value.name, len(self._blocks))
        pair = block * self.num_stages + value.stage
        return pair * self.table.num_microbatches + int(value.microbatch)

    @cached_property
    def stages_of(self) -> dict[int, set[int]]:
        """The stages that give and need a value, by its name and own stage."""
        size = self.table.num_microbatches
        stages: dict[int, set[int]] = {}
        rules = [
            (stage, rule, 0)
            for of_kind in self.rules.values()
            for stage, rule in enumerate(of_kind)
        ]
        rules += [(stage, *case) for (_, stage, _), case in self.cases.items()]
        for stage, rule, k in rules:
            for number in () if rule is None else rule.needs + rule.gives:
                stages.setdefault((number + k) // size, set()).add(stage)
        return stages

    @property
    def names(self) -> list[str]:
        """The names of the values that occur, in the order of their numbers."""
        return list(self._blocks)

    def value_of(self, number: int) -> Value:
        """Return the value that has a number."""
        pair, microbatch = divmod(number, self.table.num_microbatches)
        return Value(self.name_of(number), pair % self.num_stages, microbatch)

    def name_of(self, number: int) -> str:
        """Return the name of the value that has a number."""
        block = number // (self.table.num_microbatches * self.num_stages)
        return next(islice(self._blocks, block, None))

    def uses(self, rank: int, position: int) -> Uses | None:
        """Return the declaration of an instruction."""
        stage, kind, k = self.rows[rank][position]
        return KINDS[kind].uses(Site(self, rank, position, stage, k))

    def numbers(self, rank: int, position: int) -> Numbered | None:
        """Return the declaration of an instruction as numbers."""
        stage, kind, k = self.rows[rank][position]
        rule = self.rules[kind][stage] or self.varied.get((rank, position))
        return None if rule is None else rule.of(k)

    def is_pair(self, rank: int, position: int) -> bool:
        """Whether an instruction is overlapped with the next one of its row."""
        row = self.rows[rank]
        return row[position] in self.pairs and _is_pair(row, position)

    def meeting(self, rank: int, position: int) -> Meeting:
        """Return the meeting of an instruction whose kind meets others."""
        stage, name, k = self.rows[rank][position]
        meets = KINDS[name].meets
        assert meets is not None
        return meets(Site(self, rank, position, stage, k))

    def uses_of(self, action: tuple[int, str, int]) -> Uses | None:
        """Return the declaration of an action, which the table may lack."""
        return KINDS[action[1]].uses(self._site(action))

    def givers(self, value: Value) -> Iterator[tuple[int, str, int]]:
        """Yield the actions that would give a value, whether they exist or not.

        A slice may also give a value of the slice before it.
        """
        nearby = value.microbatch, value.microbatch + 1
        for k in nearby[: self.table.num_microbatches - value.microbatch]:
            for kind, site in self._sites_near(value.of(k)):
                uses = kind.uses(site)
                if uses is not None and value in uses.gives:
                    yield site.stage, kind.name, k

    def other_half(self, rank: int, position: int) -> tuple[int, str, int] | None:
        """Return the action that meets a SEND or RECV, whether it exists or not."""
        stage, name, k = self.rows[rank][position]
        meeting = self.meeting(rank, position)
        for kind, site in self._sites_near(Value(name, stage, k)):
            if kind.meets is None or not kind.message or kind.name == name:
                continue
            if kind.meets(site) == meeting:
                return site.stage, kind.name, k
        return None

    def members(self, rank: int, position: int) -> Iterator[tuple[int, int]]:
        """Yield rank and position of what meets an instruction on other ranks.

        Those are of its kind: it is no message.
        """
        name = self.rows[rank][position][1]
        meeting = self.meeting(rank, position)
        for other, row in enumerate(self.rows):
            for at, (_, kind, _) in enumerate(row if other != rank else ()):
                if kind == name and self.meeting(other, at) == meeting:
                    yield other, at

    def _sites_near(self, value: Value) -> Iterator[tuple[Kind, Site]]:
        """Yield each kind at the stages around a value."""
        for kind in KINDS.values():
            for stage in stages_near(value, self.num_stages):
                yield kind, self._site((stage, kind.name, value.microbatch))

    def _site(self, action: tuple[int, str, int]) -> Site:
        """Return the site of an action; a missing one could stand at the end."""
        stage, name, k = action
        rank = self.table.rank_of(stage, k)
        places = self._rows.get((rank, name, stage), ())
        end = len(self.rows[rank])
        position = next((at for at, number in places if number == k), end)
        return Site(self, rank, position, stage, k)


def flow_of(table: Any) -> Flow:
    """Return the flow of a table, which never changes: it is computed once and kept."""
    if "flow" not in table._kept:
        table._kept["flow"] = Flow(table)
    return table._kept["flow"]


def _is_pair(row: Sequence[Any], position: int) -> bool:
    """Whether an overlapped action has a backward of another microbatch behind it."""
    if position + 1 == len(row):
        return False
    _, name, k = row[position + 1]
    return KINDS[name].is_second and k != row[position][2]


def delay_of(flow: Flow, value: Value, message_times: Sequence[float]) -> float:
    """Return how long a value travels; nothing on the stage that gives it."""
    if not NOUNS[value.name].travels:
        return 0.0
    place = flow.number_of(value) // flow.table.num_microbatches
    stages = flow.stages_of.get(place, {value.stage})
    cuts = range(min(stages), max(stages))
    return max((message_times[cut] for cut in cuts), default=0.0)
