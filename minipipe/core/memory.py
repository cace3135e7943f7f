"""The memory that a rank holds while each instruction of its row runs, and after it.

A value is held from the instruction that gives it until the one that takes it::

    F           I          W                 F   O        L   B
    |-- graph --|-- rest --|                 |-- graph    |-- back

A pair of stage and microbatch is held as long as one of its values. Each version of a
stage's weights is the value of an update: it is held while it is the newest, and while
a pair is held whose forward ran with it. The gradients that an update applies are added
in one accumulator, which is held from the first of them until the update::

    row            0F0  0F1  0B0  0U0  0F2  0B1  0U1  0B2  0U2
    version         0    0        1    1         2         3
    held            0    0    0   0 1  0 1  0 1  1 2  1 2  3
    accumulators              1   1         1    1    1    1
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from minipipe.core.flow import Flow, Rule
from minipipe.core.values import GRADIENTS, KINDS, NOUNS, Value

Level = tuple[float, float]  # what is held: the most while it runs, and after it
Pair = tuple[int, Any]  # stage and microbatch
Sizes = Sequence[float] | Mapping[int, float]  # by stage


class Change(NamedTuple):
    """How an instruction changes what its rank holds.

    Attributes
    ----------
    temporary : float
        The size of what exists only while it runs.
    lost, gained : float
        The sizes of the values that it takes and gives.
    begins, ends : bool
        Whether its pair is held from it on, and until it.
    gives : frozenset of str
        The names of the values that it gives, also of those without a size.
    amounts : tuple of float
        What it adds to the memory, in this order: sums of floats depend on the order. A
        part that it takes and gives is not among them.
    """

    temporary: float = 0
    lost: float = 0
    gained: float = 0
    begins: bool = False
    ends: bool = False
    gives: frozenset[str] = frozenset()
    amounts: tuple[float, ...] = ()


class Changes:
    """How the instructions of a table change what their ranks hold.

    The change of a rule of the flow is found once.

    Parameters
    ----------
    flow : Flow
    sizes : mapping
        By name of a value, its size on each stage. Others have the sizes of their parts
        (:class:`minipipe.core.values.Noun`), or take nothing.
    """

    def __init__(self, flow: Flow, sizes: Mapping[str, Sizes]) -> None:
        self.flow = flow
        self.sizes = sizes
        parts = {name: {name, *noun.parts} for name, noun in NOUNS.items()}
        self._sized = {name for name in parts if not parts[name].isdisjoint(sizes)}
        self._states = {name for name in self._sized if NOUNS[name].keeps_weights}
        self._known: dict[int, Change] = {}  # by code of a rule

    def of_row(self, rank: int) -> Iterator[Change]:
        """Yield the change of each instruction of a rank."""
        codes = self.flow.codes[rank]
        known = self._known
        for code in set(codes) - known.keys():
            known[code] = self._change(self.flow.rules[code])
        return map(known.__getitem__, codes)

    def levels(self, rank: int) -> Iterator[Level]:
        """Yield what is held while each instruction of a rank runs, and after it."""
        held: float = 0
        for temporary, _, _, _, _, _, amounts in self.of_row(rank):
            during = held + temporary
            for amount in amounts:
                held += amount
            yield (during if during > held else held), held

    def _change(self, rule: Rule) -> Change:
        site = rule.site
        uses = KINDS[rule.kind].uses(rule.site)
        if uses is None:
            return Change()  # no legal table has such an instruction
        states = self._states
        takes = [value for value in uses.takes if value.name in self._sized]
        gives = [value for value in uses.gives if value.name in self._sized]
        takes_state = any(value.name in states for value in takes)
        gives_state = any(value.name in states for value in gives)
        is_temporary = uses.temporary in states
        return Change(
            self._size(site.value(uses.temporary)),
            sum(map(self._size, takes)),
            sum(map(self._size, gives)),
            is_temporary or (gives_state and not takes_state),
            is_temporary or (takes_state and not gives_state),
            frozenset(value.name for value in uses.gives),
            tuple(self._amounts(takes, gives)),
        )

    def _amounts(
        self, takes: Iterable[Value], gives: Iterable[Value]
    ) -> Iterator[float]:
        """Yield what the first value taken frees, what all gives need, and the rest."""
        taken = [part for value in takes for part in self._parts(value)]
        given = [part for value in gives for part in self._parts(value)]
        both = {*taken} & {*given}
        taken = [part for part in taken if part not in both]
        given = [part for part in given if part not in both]
        yield from (-self._size(part) for part in taken[:1])
        yield from map(self._size, given)
        yield from (-self._size(part) for part in taken[1:])

    def _parts(self, value: Value) -> list[Value]:
        """Return the values with a size that a value consists of."""
        sizes = self.sizes
        if value.name in sizes:
            return [value]
        parts = NOUNS[value.name].parts if value.name else ()
        return [value._replace(name=name) for name in parts if name in sizes]

    def _size(self, value: Value) -> float:
        if value.name not in self.sizes:
            return sum(map(self._size, self._parts(value)))
        size = self.sizes[value.name][value.stage]
        if NOUNS[value.name].adds_up:
            return size * (1 + value.microbatch % self.flow.num_slices)
        return size


def pairs_of(flow: Flow, with_away: bool = False) -> Changes:
    """Return the changes of the number of pairs that ranks hold.

    A pair whose graph is offloaded counts only with `with_away`.
    """
    held = {name: noun for name, noun in NOUNS.items() if noun.keeps_weights}
    names = [name for name, noun in held.items() if with_away or not noun.is_away]
    return Changes(flow, dict.fromkeys(names, [1] * flow.num_stages))


# -- pairs, named ----------------------------------------------------------------------


class Held(NamedTuple):
    """Pairs, in the order in which they began, and the memory that they take."""

    pairs: tuple[Pair, ...]
    memory: float


def held_pairs(changes: Changes, rank: int) -> Iterator[tuple[Held, Held]]:
    """Yield the pairs held while each instruction of a rank runs, and after it.

    The table may be illegal: a pair that no instruction begins takes nothing.
    """
    sizes: dict[Pair, float] = {}
    row = changes.flow.table.actions[rank]
    for (stage, _, k), change in zip(row, changes.of_row(rank)):
        pair = stage, k
        if change.begins:
            sizes[pair] = 0
        pairs = tuple(sizes)
        most = sum(sizes.values()) + change.temporary
        if change.ends:
            sizes.pop(pair, None)
        elif pair in sizes:
            sizes[pair] = sizes[pair] - change.lost + change.gained
        after = Held(tuple(sizes), sum(sizes.values()))
        yield Held(pairs, max(most, after.memory)), after


class Life(NamedTuple):
    """A time for which a pair is held, from one position of its row until another.

    `last` is None if nothing ends it.
    """

    stage: int
    microbatch: int
    first: int
    last: int | None = None


def lifetimes(changes: Changes, rank: int) -> list[Life]:
    """Return the times for which pairs of a rank are held, in the order of beginnings.

    A pair that is offloaded has one time before that, and another after it is loaded.
    """
    lives: list[Life] = []
    begun: dict[Pair, int] = {}
    row = changes.flow.table.actions[rank]
    for position, change in enumerate(changes.of_row(rank)):
        pair = row[position][0], row[position][2]
        if change.begins:
            begun[pair] = position
        if change.ends and pair in begun:
            lives.append(Life(*pair, begun.pop(pair), position))
    lives += [Life(*pair, first) for pair, first in begun.items()]
    return sorted(lives, key=attrgetter("first"))


# -- versions of weights ---------------------------------------------------------------


class Copies(NamedTuple):
    """The versions of its weights and the accumulators that a rank holds of a stage."""

    stage: int
    versions: int
    sums: int


def applied(
    changes: Changes, rank: int, name: str = "weights"
) -> dict[int, Sequence[int]]:
    """Return, by position of each update of a row, whose gradients it applies.

    Those are all microbatches of its stage in its row up to its own, without those that
    an earlier update applies. With the name "sum", return those that each reduction of
    gradients adds.
    """
    flow = changes.flow
    row = flow.rows[rank]
    result = {}
    for position, change in enumerate(changes.of_row(rank)):
        if name in change.gives:
            stage, kind, _ = row[position]
            result[position] = flow.taken(rank, kind, stage, GRADIENTS)[position]
    return result


def updates_before(flow: Flow, name: str) -> list[list[int]]:
    """Return, by stage and microbatch, the updates before it gives a value of a name.

    With "weights", those before the update that applies its gradients.
    """
    changes = pairs_of(flow)
    counts = [[0] * flow.table.num_microbatches for _ in range(flow.num_stages)]
    rows = flow.rows if "weights" in flow.names else ()
    for rank, row in enumerate(rows):
        so_far: Counter[int] = Counter()
        updates = applied(changes, rank)
        for position, change in enumerate(changes.of_row(rank)):
            stage, _, k = row[position]
            if name in change.gives:
                for microbatch in updates.get(position, (k,)):
                    counts[stage][microbatch] = so_far[stage]
            so_far[stage] += position in updates
    return counts


_NO_COPIES = Copies(-1, 1, 0)  # of an instruction of a rank: it changes none


def copies_held(flow: Flow, rank: int) -> Iterator[tuple[Copies, Copies]]:
    """Yield the copies of the stage of each instruction, while it runs and after it."""
    changes = pairs_of(flow, with_away=True)
    updates = applied(changes, rank)
    row = flow.rows[rank]
    update_of: dict[Pair, int] = {}
    for position, microbatches in updates.items():
        update_of.update(((row[position][0], k), position) for k in microbatches)
    newest: Counter[int] = Counter()  # by stage, as the following
    users: defaultdict[int, Counter[int]] = defaultdict(Counter)  # pairs, by version
    sums: defaultdict[int, set[int | None]] = defaultdict(set)  # updates, by position
    version_of: dict[Pair, int] = {}

    def held(stage: int) -> Copies:
        versions = len(users[stage] | Counter([newest[stage]]))
        return Copies(stage, versions, len(sums[stage]))

    for position, change in enumerate(changes.of_row(rank)):
        stage, kind, k = row[position]
        if kind in flow.rank_kinds:
            yield _NO_COPIES, _NO_COPIES
            continue
        newest[stage] += position in updates
        if change.begins:
            version_of[stage, k] = newest[stage]
            users[stage][newest[stage]] += 1
        if "dw" in change.gives:
            sums[stage].add(update_of.get((stage, k)))
        during = held(stage)
        if change.ends and (stage, k) in version_of:
            users[stage] -= Counter([version_of.pop((stage, k))])
        sums[stage].discard(position)
        yield during, held(stage)


def levels_of_copies(
    flow: Flow, rank: int, weights: Sequence[float]
) -> Iterator[Level]:
    """Yield the memory of all versions of weights, and accumulators, beyond one each.

    Parameters
    ----------
    flow : Flow
    rank : int
    weights : sequence of float
        By stage, the memory of its weights, and so of each of their copies.
    """
    memory: defaultdict[int, float] = defaultdict(float)  # by stage
    for both in copies_held(flow, rank):
        levels = []
        for stage, versions, sums in both:
            memory[stage] = weights[stage] * (versions - 1 + max(0, sums - 1))
            levels.append(sum(memory.values()))
        yield levels[0], levels[1]


# -- rows without a table --------------------------------------------------------------


class Ran:
    """The rows of a timeline, which has no table.

    Stages without a gradient of weights count as frozen. No value needs a message.
    """

    def __init__(self, rows: Sequence[Sequence[Any]], num_slices: int = 1) -> None:
        self.actions = rows
        every = {(stage, kind) for row in rows for stage, kind, _ in row}
        of_ranks = {kind for _, kind in every if KINDS[kind].of_rank}
        present = {(stage, kind) for stage, kind in every if kind not in of_ranks}
        self.numbered = rows
        if num_slices > 1 or of_ranks:
            ranks = enumerate(rows)
            self.numbered = [_numbered(rank, row, num_slices) for rank, row in ranks]
        back = {stage for stage, kind in present if KINDS[kind].is_backward}
        trained = {stage for stage, kind in present if kind in GRADIENTS}
        self.num_stages = _count(stage for stage, _ in present)
        self.num_microbatches = _count(k for row in self.numbered for _, _, k in row)
        self.num_slices = num_slices
        self.frozen = frozenset(range(self.num_stages)) - trained
        self.first_backward_stage = min(back, default=self.num_stages)
        self.is_forward_only = not back
        self.message_cuts = (False,) * self.num_stages
        self.joined: dict[Any, Any] = {}
        self.tied: Sequence[tuple[int, ...]] = ()
        self._stages = [
            {s for s, kind, _ in row if kind not in of_ranks} for row in rows
        ]

    def ranks_of(self, stage: int) -> list[int]:
        """Return the ranks that ran a stage."""
        return [rank for rank, ran in enumerate(self._stages) if stage in ran]


def _numbered(rank: int, row: Sequence[Any], n: int) -> list[tuple[int, str, int]]:
    """Return a row with a number for each of n slices of a sequence."""
    found = []
    for stage, kind, k in row:
        number = k if n == 1 else k[0] * n + k[1]
        is_of_rank = KINDS[
            kind
        ].of_rank  # its row may have another number than its rank
        found.append((rank, kind, 0) if is_of_rank else (stage, kind, number))
    return found


def _count(numbers: Iterable[int]) -> int:
    return 1 + max(numbers, default=0)
