"""The values of a whole table: who gives each one, who takes it, and whether that fits.

:class:`Flow` applies the declarations of `core/values.py` to a table. It numbers the
values, so that the loops over all instructions work with lists of numbers. A kind is
declared once for each stage, or for each of its cases if its declaration varies: that
is a :class:`Rule`. Its numbers for another microbatch are as much larger as that is.
Each instruction has the **code** of its rule, so that what follows from a rule is found
once, and looked up by the code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from minipipe.core.errors import misuse
from minipipe.core.values import (
    KINDS,
    NOUNS,
    Kind,
    Meeting,
    Site,
    Sites,
    Uses,
    Value,
    added_by_passes,
    stages_near,
)


class Numbered(NamedTuple):
    """The uses of an instruction as numbers of values."""

    takes: tuple[int, ...]
    gives: tuple[int, ...]
    reads: tuple[int, ...]

    @property
    def needs(self) -> tuple[int, ...]:
        """The values that it takes or reads."""
        return self.takes + self.reads

    def of(self, later: int) -> Numbered:
        """Return the numbers for a microbatch that comes so much later."""
        if not later:
            return self
        takes, gives, reads = (tuple([n + later for n in part]) for part in self)
        return Numbered(takes, gives, reads)


class Rule(NamedTuple):
    """The declaration of instructions of a kind and stage that are alike.

    Attributes
    ----------
    kind : str
    site : Site
        One of them; if no declaration of the kind varies, any place of microbatch 0.
    numbers : Numbered or None
        Its values; None if no legal table has such an instruction.
    """

    kind: str
    site: Site
    numbers: Numbered | None


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
    names : list of str
        The names of the values that occur, in the order of their numbers.
    kinds : frozenset of str
        The kinds that stand in the table.
    message_cuts : sequence of bool
        By stage, whether values to the next stage travel by messages of the table.
    tied : sequence of tuple of int
        Stages that share a parameter, together.
    positions : mapping
        By kind and stage, the index in its row of the instruction of each microbatch;
        empty if no declaration varies.
    rank_kinds : frozenset of str
        The kinds whose instructions belong to a rank, and to no stage.
    num_owners : int
        The number of stages; with such kinds, at least the number of ranks: the values
        of a rank are numbered like the values of a stage.
    num_values : int
    varied : frozenset of str
        The kinds whose declarations vary.
    rules : list of Rule
    codes : list of list of int
        By rank and position, the index of the rule of an instruction.
    orders : dict
        What `core/order.py` found, by whether sends block.
    """

    def __init__(self, table: Any) -> None:
        if not added_by_passes() and (table.num_slices > 1 or table.has_replicas):
            message = f"{table.title} has slices or replicas; the core alone declares "
            raise misuse(f"{message}neither: minipipe.passes does.")
        self.table = table
        self.num_stages = table.num_stages
        self.num_slices = table.num_slices
        self.frozen = table.frozen
        self.is_forward_only = table.is_forward_only
        self.first_backward_stage = table.first_backward_stage
        self.message_cuts = table.message_cuts
        self.tied = table.tied
        self.rows: Sequence[Sequence[Any]] = table.numbered
        self.num_ranks = len(self.rows)
        kinds_of = map(itemgetter(1), chain.from_iterable(self.rows))
        self.kinds: frozenset[str] = frozenset(kinds_of)
        self.rank_kinds = frozenset(kind for kind in self.kinds if KINDS[kind].of_rank)
        self.num_owners = self.num_stages
        if self.rank_kinds:
            self.num_owners = max(self.num_stages, self.num_ranks)
        pairs = ((stage, kind, table.number_of(k)) for stage, kind, k in table.joined)
        self.pairs = frozenset(pairs)
        self._homes = [table.ranks_of(s) for s in range(table.num_stages)]
        self.positions: dict[tuple[str, int], dict[int, int]] = {}
        self._rows: dict[tuple[int, str, int], Sites] = {}
        self._taken: dict[object, dict[int, Sequence[int]]] = {}
        self.varied = frozenset(filter(self._varies, self.kinds))
        self.names: list[str] = []
        self._blocks: dict[str, int] = {}  # by name, its index
        self.rules: list[Rule] = []
        self.codes = self._plain_codes()
        if self.varied:
            self._scan()
            self._vary()
        size = self.num_owners * table.num_microbatches
        self.num_values = len(self._blocks) * size
        self.orders: dict[bool, Any] = {}

    # -- what declarations ask -----------------------------------------------------

    def num_replicas(self, stage: int) -> int:
        """Return how many ranks hold a stage."""
        return len(self._homes[stage])

    def ranks_of(self, stage: int) -> Sequence[int]:
        """Return the ranks that hold a stage."""
        return self._homes[stage]

    def local_stages(self, rank: int) -> Sequence[int]:
        """Return the stages that a rank holds, ascending."""
        return self._stages_by_rank[rank]

    @cached_property
    def _stages_by_rank(self) -> list[list[int]]:
        stages: list[list[int]] = [[] for _ in self.rows]
        for stage, ranks in enumerate(self._homes):
            for rank in ranks:
                stages[rank].append(stage)
        return stages

    def taken(
        self, rank: int, kind: str, stage: int, given_by: tuple[str, ...]
    ) -> Mapping[int, Sequence[int]]:
        """Return the microbatches of what instructions take of a whole row.

        By position, those are all that instructions of the kinds `given_by` give in the
        row, up to its own microbatch, and that no earlier instruction of its kind took.
        At position -1 are all that the row gives.
        """
        key = rank, kind, stage, given_by
        if key not in self._taken:
            givers = [self.sites(rank, giver, stage) for giver in given_by]
            every = sorted(chain.from_iterable(giver.microbatches for giver in givers))
            taken = self._taken[key] = {}
            begin = 0
            for position, k in self.sites(rank, kind, stage).places:
                end = bisect_right(every, k)
                taken[position] = every[begin:end]
                begin = max(begin, end)
            taken[-1] = every
        return self._taken[key]

    def sites(self, rank: int, kind: str, stage: int) -> Sites:
        """Return the instructions of a kind and stage in a row, if any kind varies."""
        found = self._rows.get((rank, kind, stage))
        return found or Sites(self, rank, kind, stage, (), ())

    def cell(self, stage: int, kind: str, microbatch: int) -> str:
        """Return an instruction as text."""
        if KINDS[kind].of_rank:
            return kind
        return f"{stage}{kind}{self.table.microbatches[microbatch]}"

    def _varies(self, kind: str) -> bool:
        """Whether the instructions of a stage differ in values, or in their times."""
        has_parts = self.num_slices > 1 and KINDS[kind].is_of_slice
        return has_parts or KINDS[kind].varies(self)

    # -- the rules -----------------------------------------------------------------

    def _plain_codes(self) -> list[list[int]]:
        """Declare each kind for each stage, and return the codes by rank and position.

        Kinds that vary have rules without numbers, which :meth:`_vary` replaces.
        """
        codes: dict[str, list[int]] = {}
        for kind in sorted(self.kinds):  # so that values get the same numbers each time
            sites = [Site(self, 0, 0, stage, 0) for stage in range(self.num_stages)]
            if kind in self.rank_kinds:
                sites = [Site(self, rank, 0, rank, 0) for rank in range(self.num_ranks)]
            codes[kind] = [
                self._add_rule(kind, site, kind in self.varied) for site in sites
            ]
        return [[codes[kind][stage] for stage, kind, _ in row] for row in self.rows]

    def _add_rule(self, kind: str, site: Site, is_open: bool = False) -> int:
        uses = None if is_open else KINDS[kind].uses(site)
        self.rules.append(Rule(kind, site, self._numbered(uses)))
        return len(self.rules) - 1

    def _scan(self) -> None:
        """Note the positions that varying declarations depend on."""
        for rank, (row, codes) in enumerate(zip(self.rows, self.codes)):
            groups: defaultdict[int, list[int]] = defaultdict(list)
            for position, code in enumerate(codes):
                groups[code].append(position)
            for code, positions in groups.items():
                kind, (_, _, _, stage, _), _ = self.rules[code]
                ks = [row[position][2] for position in positions]
                sites = Sites(self, rank, kind, stage, positions, ks)
                self._rows[rank, kind, stage] = sites
                known = self.positions.setdefault((kind, stage), {})
                known.update(zip(ks, positions))

    def _vary(self) -> None:
        """Declare each case of the kinds that vary."""
        codes_of: defaultdict[tuple[str, int], dict[object, int]] = defaultdict(dict)
        for (rank, kind, stage), sites in self._rows.items():
            if kind not in self.varied:
                continue
            known = codes_of[kind, stage]
            codes = self.codes[rank]
            cases = KINDS[kind].cases(sites)
            for position, k, case in zip(sites.positions, sites.microbatches, cases):
                if case not in known:
                    site = Site(self, rank, position, stage, k)
                    known[case] = self._add_rule(kind, site)
                codes[position] = known[case]

    def _numbered(self, uses: Uses | None) -> Numbered | None:
        if uses is None:
            return None
        parts = uses.takes, uses.gives, uses.reads
        return Numbered(*(tuple(map(self.number_of, part)) for part in parts))

    def number_of(self, value: Value) -> int:
        """Return the number of a value."""
        if value.name not in self._blocks:
            self._blocks[value.name] = len(self.names)
            self.names.append(value.name)
        block = self._blocks[value.name]
        pair = block * self.num_owners + value.stage
        return pair * self.table.num_microbatches + int(value.microbatch)

    @cached_property
    def stages_of(self) -> dict[int, set[int]]:
        """The stages that give and need a value, by its name and own stage."""
        size = self.table.num_microbatches
        stages: defaultdict[int, set[int]] = defaultdict(set)
        for _, site, numbers in self.rules:
            for number in () if numbers is None else numbers.needs + numbers.gives:
                stages[number // size].add(site.stage)
        return stages

    def value_of(self, number: int) -> Value:
        """Return the value that has a number."""
        pair, microbatch = divmod(number, self.table.num_microbatches)
        return Value(self.name_of(number), pair % self.num_owners, microbatch)

    def name_of(self, number: int) -> str:
        """Return the name of the value that has a number."""
        return self.names[number // (self.table.num_microbatches * self.num_owners)]

    def uses(self, rank: int, position: int) -> Uses | None:
        """Return the declaration of an instruction."""
        stage, kind, k = self.rows[rank][position]
        return KINDS[kind].uses(Site(self, rank, position, stage, k))

    def numbers(self, rank: int, position: int) -> Numbered | None:
        """Return the declaration of an instruction as numbers."""
        _, site, numbers = self.rules[self.codes[rank][position]]
        if numbers is None:
            return None
        return numbers.of(self.rows[rank][position][2] - site.microbatch)

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
        noun = NOUNS.get(value.name)
        is_of_rank = noun is not None and noun.of_rank
        near = stages_near(value, self.num_stages)
        owners = [value.stage] if is_of_rank else near
        for kind in KINDS.values():
            for owner in owners if kind.of_rank == is_of_rank else ():
                yield kind, self._site((owner, kind.name, value.microbatch))

    def _site(self, action: tuple[int, str, int]) -> Site:
        """Return the site of an action; a missing one could stand at the end."""
        stage, name, k = action
        rank = stage if KINDS[name].of_rank else self.table.rank_of(stage, k)
        places = self.sites(rank, name, stage).places
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


def delay_of(flow: Flow, number: int, message_times: Sequence[float]) -> float:
    """Return how long a value travels; nothing on the stage that gives it."""
    stages = flow.stages_of.get(number // flow.table.num_microbatches, ())
    if not stages or not NOUNS[flow.name_of(number)].travels:
        return 0.0
    cuts = range(min(stages), max(stages))
    return max((message_times[cut] for cut in cuts), default=0.0)
