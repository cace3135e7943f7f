"""Placements of stages on ranks, and the argument checks of the builders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from math import inf
from numbers import Integral
from typing import Any

from minipipe.core.errors import Code, ScheduleError, quoted
from minipipe.core.limits import MOST_ACTIONS, MOST_STAGES
from minipipe.core.schedules.action import Action, F, Slice, number_of, numbered
from minipipe.core.specs import SCHEDULE_COUNT

_misplaced = partial(ScheduleError.of, Code.PLACEMENT)
# by stage, its rank, or the ranks of its replicas
Placement = Sequence[int | tuple[int, ...]]


class Placed:
    """The placement of a table: its ranks and stages, and which rank runs a microbatch
    on a stage.
    """

    placement: tuple[int | tuple[int, ...], ...]
    actions: tuple[tuple[Action, ...], ...]
    num_slices: int

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """The number of stages, all ranks together."""
        return len(self.placement)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank holds, ascending.

        Raises
        ------
        ScheduleError
            Code ``out-of-range``, for a rank that does not exist.
        """
        check_index("rank", rank, self.num_ranks)
        homes = enumerate(self.placement)
        return tuple(stage for stage, home in homes if rank in ranks_in(home))

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """Return the rank of a stage, or the ranks of its replicas, ordered by their
        lowest microbatches.

        Raises
        ------
        ScheduleError
            Code ``out-of-range``, for a stage that does not exist.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> Schedule.from_text("0F1 0B1 \\n 0F0 0B0").ranks_of(0)
        (1, 0)
        """
        check_index("stage", stage, self.num_stages)
        return ranks_in(self.placement[stage])

    @cached_property
    def has_replicas(self) -> bool:
        """Whether a stage is on several ranks, each with microbatches of its own."""
        return any(len(ranks_in(home)) > 1 for home in self.placement)

    def rank_of(self, stage: int, microbatch: Any) -> int:
        """Return the rank that runs a microbatch on a stage; with replicas, the rank
        whose row has the microbatch.

        A slice may be given by its index or by its number.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> [Schedule.from_text("0F1 0B1 \\n 0F0 0B0").rank_of(0, k) for k in range(2)]
        [1, 0]
        """
        number = microbatch
        if isinstance(microbatch, Slice):
            number = number_of(microbatch, self.num_slices)
        return self._replica_of.get((stage, number), ranks_in(self.placement[stage])[0])

    @cached_property
    def _replica_of(self) -> dict[tuple[int, int], int]:
        """By stage and microbatch, the replica that runs its F or, if the F is missing,
        another of its actions.
        """
        homes = enumerate(self.placement)
        replicated = {stage for stage, home in homes if len(ranks_in(home)) > 1}
        forwards: dict[tuple[int, int], int] = {}
        others: dict[tuple[int, int], int] = {}
        if not replicated:
            return others
        rows = numbered(self.actions, self.num_slices)
        for rank, row in reversed([*enumerate(rows)]):
            for stage, kind, k in row:
                if stage in replicated and not kind.is_of_rank:
                    places = forwards if kind is F else others
                    places[stage, k] = rank
        return others | forwards

    def crosses_ranks(self, stage: int) -> bool:
        """Whether values between a stage and the next one travel between ranks; False
        for the last stage.

        Raises
        ------
        ScheduleError
            Code ``out-of-range``, for a stage that does not exist.
        """
        check_index("stage", stage, self.num_stages)
        return self._cuts_between_ranks[stage]

    @cached_property
    def _cuts_between_ranks(self) -> tuple[bool, ...]:
        ranks: Sequence[object] = self.placement
        if self.has_replicas:
            # the verifier checks that one stands for all
            known = {k for _, k in self._replica_of}
            stages = range(self.num_stages)
            ranks = [[self.rank_of(stage, k) for k in known] for stage in stages]
        return (*(a != b for a, b in pairwise(ranks)), False)

    @cached_property
    def first_rank_with(self) -> dict[Action, int]:
        """The first rank that has each action."""
        ranks = reversed(range(self.num_ranks))
        return {action: rank for rank in ranks for action in self.actions[rank]}

    def home_of(self, action: Action) -> int | None:
        """Return the rank of an action; if it is missing, the rank of its stage, or
        None if there is no such stage.
        """
        if action.kind.is_of_rank:
            return action.stage
        home = None
        if 0 <= action.stage < self.num_stages:
            home = self.rank_of(action.stage, action.microbatch)
        return self.first_rank_with.get(action, home)


def looped_placement(num_ranks: int, chunks_per_rank: int = 1) -> tuple[int, ...]:
    """Return the looped placement: chunk j of rank r is stage ``j * num_ranks + r``.

    Examples
    --------
    >>> looped_placement(3, chunks_per_rank=2)
    (0, 1, 2, 0, 1, 2)
    """
    return tuple(range(num_ranks)) * chunks_per_rank


def neighbouring_placement(num_ranks: int, chunks_per_rank: int = 1) -> tuple[int, ...]:
    """Return the placement of adjacent stages: rank r has ``chunks_per_rank`` of them,
    from ``r * chunks_per_rank`` on.

    Examples
    --------
    >>> neighbouring_placement(3, chunks_per_rank=2)
    (0, 0, 1, 1, 2, 2)
    """
    return tuple(rank for rank in range(num_ranks) for _ in range(chunks_per_rank))


def ranks_in(home: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks of a stage: the one that it is placed on, or its replicas.

    Examples
    --------
    >>> ranks_in(3), ranks_in((0, 3))
    ((3,), (0, 3))
    """
    return home if isinstance(home, tuple) else (home,)


def home_on(ranks: Sequence[int]) -> int | tuple[int, ...]:
    """Return the placement of a stage on ranks: the one rank, or all its replicas.

    Examples
    --------
    >>> home_on([3]), home_on([0, 3])
    (3, (0, 3))
    """
    if len(set(ranks)) == 1:
        return ranks[0]
    return tuple(ranks)


def in_replica_order(
    placement: Placement, actions: Sequence[Sequence[Action]]
) -> tuple[int | tuple[int, ...], ...]:
    """Sort the replicas of each stage by their lowest microbatch, the order in which
    their gradients are added.

    The order follows from the rows, so that text and CSV carry it.

    Examples
    --------
    >>> from minipipe import Action
    >>> rows = [
    ...     [Action.parse("0F1"), Action.parse("0B1")],
    ...     [Action.parse("0F0"), Action.parse("0B0")],
    ... ]
    >>> in_replica_order(((0, 1),), rows), in_replica_order(((1,),), rows)
    (((1, 0),), (1,))
    """
    if not any(isinstance(home, tuple) for home in placement):
        return tuple(placement)
    lowest: dict[tuple[int, int], int] = {}
    for rank, row in enumerate(actions):
        for stage, kind, k in row:
            if kind.is_of_rank:
                continue
            lowest[rank, stage] = min(k, lowest.get((rank, stage), k))
    homes: list[int | tuple[int, ...]] = []
    for s, home in enumerate(placement):
        ranks = sorted(ranks_in(home), key=lambda r: (lowest.get((r, s), inf), r))
        homes.append(home_on(ranks))
    return tuple(homes)


def check_placement(placement: Sequence[Any], num_ranks: int) -> None:
    """Refuse a placement that names anything but a rank for each stage, or the
    different ranks of its replicas.

    Examples
    --------
    >>> check_placement((0, 2), num_ranks=2)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [placement] Stage 1 is placed on rank 2 of 2.
    """
    for stage, home in enumerate(placement):
        ranks = ranks_in(home)
        if not ranks or len(set(map(str, ranks))) < len(ranks):
            where = f"Stage {stage} is placed on {quoted(home)}"
            hint = "expected a rank, or the different ranks of its replicas"
            raise _misplaced(f"{where}; {hint}, such as (0, 3).")
    homes = enumerate(map(ranks_in, placement))
    for stage, rank in ((stage, rank) for stage, ranks in homes for rank in ranks):
        if not isinstance(rank, Integral):
            hint = f"expected the number of a rank, 0 to {num_ranks - 1}"
            message = f"Stage {stage} is placed on {quoted(rank)}; {hint}."
            raise _misplaced(message)
        if not 0 <= int(rank) < num_ranks:
            raise _misplaced(f"Stage {stage} is placed on rank {rank} of {num_ranks}.")


def check_counts(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1
) -> None:
    """Refuse counts that are not whole numbers of at least 1, as the arguments of a
    formula.

    Examples
    --------
    >>> check_counts(num_ranks=0, num_microbatches=8)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [value] num_ranks is 0; expected a whole number, at least 1.
    """
    counts = {
        "num_ranks": num_ranks,
        "num_microbatches": num_microbatches,
        "chunks_per_rank": chunks_per_rank,
    }
    for name, value in counts.items():
        SCHEDULE_COUNT.check(name, value)


def check_sizes(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1
) -> None:
    """Refuse counts below 1, and schedules beyond the size limits.

    Examples
    --------
    >>> check_sizes(num_ranks=10**4, num_microbatches=10**6)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [too-large] 10000 stages and 1000000 microbatches take 20000000000 actions, ...
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    check_size(int(num_ranks) * int(chunks_per_rank), int(num_microbatches))


def check_size(num_stages: int, num_microbatches: int) -> None:
    """Refuse more stages, or more forwards and backwards, than the limits allow."""
    num_actions = 2 * num_stages * num_microbatches
    if num_stages > MOST_STAGES or num_actions > MOST_ACTIONS:
        stages = quoted(num_stages)
        actions = quoted(num_actions)
        asked = f"{stages} stages and {quoted(num_microbatches)} microbatches"
        message = f"{asked} take {actions} actions, F and B; the limits are"
        limits = f"{MOST_STAGES} stages and {MOST_ACTIONS} actions"
        raise ScheduleError.of(Code.TOO_LARGE, f"{message} {limits}.")


def check_index(noun: str, index: Any, count: int) -> None:
    """Refuse a stage or a rank that does not exist."""
    is_whole = isinstance(index, Integral) and not isinstance(index, bool)
    if not is_whole or int(index) not in range(count):
        message = f"There is no {noun} {quoted(index, 40)}; there are {count}"
        raise ScheduleError.of(Code.OUT_OF_RANGE, f"{message}, counted from 0.")
