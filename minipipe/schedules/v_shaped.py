"""V-shaped schedules: every microbatch passes the ranks in ascending order, then in
descending order.

The first and the last stage are on rank 0, and each rank has two chunks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain, product

from minipipe.core.schedules.action import Action, ActionKind, F, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.schedules.placements import check_two_chunks, v_placement


class Row:
    """The actions of one rank, appended phase by phase.

    A cell names a kind and a chunk of the rank: ``F0`` is the next forward of its first
    stage. The chunk may be omitted and is then 0. The exception is ``W``: without a
    chunk it completes the oldest pending I, whatever its chunk. The microbatches of
    each stage are counted separately for F, for B and I, and for W. ``F0+B1`` are two
    overlapped actions, and ``overlaps`` has the forward.

    Parameters
    ----------
    stages : sequence of int
        The stages of the rank, chunk 0 first.

    Examples
    --------
    >>> row = Row([3])
    >>> row.repeat(2, "F")
    >>> row.repeat(2, "I W")
    >>> print(*row.actions)
    3F0 3F1 3I0 3W0 3I1 3W1
    """

    def __init__(self, stages: Sequence[int]) -> None:
        self.stages = stages
        self.actions: list[Action] = []
        self.overlaps: list[Action] = []
        self._count: Counter[tuple[int, str]] = Counter()
        self._pending: deque[Action] = deque()

    def repeat(self, times: int, cells: str) -> None:
        """Append the actions of the cells, ``times`` times over."""
        for _ in range(times):
            for cell in cells.split():
                actions = [self._next(part) for part in cell.split("+")]
                self.actions += actions
                self.overlaps += actions[:-1]

    def _next(self, cell: str) -> Action:
        if cell == "W":
            return self._pending.popleft()
        stage = self.stages[int(cell[1:] or 0)]
        # a microbatch has a B or an I, never both
        series = "B" if cell[0] in "BI" else cell[0]
        action = Action(stage, ActionKind(cell[0]), self._count[stage, series])
        self._count[stage, series] += 1
        if action.kind is I:
            self._pending.append(action._replace(kind=W))
        return action


def first_microbatches(
    rows: Sequence[Row], num_microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of the first ``num_microbatches`` microbatches.

    Some patterns need a minimum number of microbatches. For fewer, the schedule is
    built with the minimum and then truncated. The rest stays legal, because no
    microbatch depends on another one.

    Examples
    --------
    >>> row = Row([0])
    >>> row.repeat(3, "F I W")
    >>> print(*first_microbatches([row], num_microbatches=2)[0])
    0F0 0I0 0W0 0F1 0I1 0W1
    """
    m = num_microbatches
    kept = ([a for a in row.actions if a.microbatch < m] for row in rows)
    return tuple(map(tuple, kept))


def zb_v(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return ZB-V: no bubble within a rank's own span, and 1F1B's memory on every rank.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
        rank 1:     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

    If F, I and W of a chunk take one unit each, the makespan is 6m + p - 1. Every rank
    holds up to 2p chunks, as much as p undivided stages.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer than 2p - 1 microbatches, the schedule for 2p - 1 is
        truncated.
    chunks_per_rank : int
        2. Rank r has stages r and 2p - 1 - r.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``value``, for a count below 1 or a number of chunks other than 2.

    References
    ----------
    Qi et al. 2024, "Pipeline parallelism with controllable memory", figure 3 (zero
    bubble V).

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_v(4, 8))
    >>> (
    ...     timeline.makespan,
    ...     max(timeline.idle_within_span(rank) for rank in range(4)),
    ...     timeline.peak_activations,
    ... )
    (51.0, 0.0, (8, 8, 8, 8))
    """
    check_two_chunks("zb-v", num_ranks, num_microbatches, chunks_per_rank)
    p = num_ranks
    m = max(num_microbatches, 2 * num_ranks - 1)
    rows = [Row([rank, 2 * p - 1 - rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        row.repeat(2 * (p - r) - 1, "F0")
        row.repeat(r, "F1 F0")
        row.repeat(p - r, "F1 I1 W1")
        forwards_left = m - 2 * p + r + 1
        row.repeat(forwards_left, "F0 I0 W0 F1 I1 W1")
        row.repeat(m - p - forwards_left, "I0 W0 F1 I1 W1")
        row.repeat(r, "I0 I1")
        row.repeat(p - r, "I0 W0")
        row.repeat(r, "W1")
        row.repeat(r, "W0")
    kept = first_microbatches(rows, num_microbatches)
    return Schedule("zb-v", v_placement(p), num_microbatches, kept)


def dualpipe_v(
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int = 2,
    joined: bool = False,
) -> Schedule:
    """Return DualPipe-V: forwards of one chunk alternate with backwards of the other,
    to overlap their messages.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
        rank 1:     1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3

    A backward is split only if that saves time. If F, I and W of a chunk take one unit
    each, the makespan is 6m + p - 1, the same as ZB-V's. Rank r is idle for p - 1 - r
    units within its span and holds at most 2p + 1 chunks.

    With ``joined``, each forward is overlapped with the backward after it, if the
    authors' ``step`` computes both as one. The first pairs of the last rank are not
    overlapped, because its backward would have to wait. A pair gains time only if it
    takes less time than its two actions (``Costs.overlap``); otherwise its values come
    later: 6m + 2(p - 1) at unit costs.

    For fewer than 2p microbatches, the schedule for 2p is truncated. Parameters, result
    and errors are as in :func:`zb_v`.

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 technical report", figure 5 (DualPipe); its V-shaped
    half without a second copy of the parameters, as in PyTorch's ``ScheduleDualPipeV``.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.dualpipe_v(4, 8))
    >>> (
    ...     timeline.makespan,
    ...     [timeline.idle_within_span(rank) for rank in range(4)],
    ...     max(timeline.peak_activations),
    ... )
    (51.0, [3.0, 2.0, 1.0, 0.0], 9)
    """
    check_two_chunks("dualpipe-v", num_ranks, num_microbatches, chunks_per_rank)
    p = num_ranks
    m = max(num_microbatches, 2 * num_ranks)
    rows = [Row([rank, 2 * p - 1 - rank]) for rank in range(p)]
    link = "+" if joined else " "
    first = f"F0{link}B1"
    second = f"F1{link}B0"
    for r, row in enumerate(rows):
        row.repeat(2 * (p - 1 - r), "F0")
        row.repeat(r + 1, "F0 F1")
        row.repeat(p - 1 - r, "I1 W F1")
        start = first
        if r == p - 1:
            start = "F0 B1"
        row.repeat(1, f"{start} {second}")
        row.repeat(m - 2 * p + r, f"{first} {second}")
        row.repeat(p - 1 - r, f"B1 {second}")
        # 2(r + 1) backwards, alternating between the chunks: the first r + 1 are B, the
        # others I.
        turns = ["1", "0"] * (r + 1)
        for i, chunk in enumerate(turns):
            kind = "B" if i <= r else "I"
            row.repeat(1, kind + chunk)
        row.repeat(p - 1 - r, "W I0")
        row.repeat(r + 1, "W")
    # The backward of a pair belongs to an earlier microbatch, so that truncation never
    # splits a pair.
    firsts = chain.from_iterable(row.overlaps for row in rows)
    overlaps = frozenset(a for a in firsts if a.microbatch < num_microbatches)
    kept = first_microbatches(rows, num_microbatches)
    placement = v_placement(p)
    return Schedule("dualpipe-v", placement, num_microbatches, kept, overlaps=overlaps)


# The steps of one microbatch on a rank, in order: (kind, chunk).
_STEPS = ((F, 0), (F, 1), (I, 1), (I, 0))
_PERIOD = 6


def v_half(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return V-Half: half of 1F1B's memory plus one microbatch, alike on all ranks, and
    about half of its bubble.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1     3F0 3I0 3F1 3W0 0F2 0I0 3I1 0W0 3F2 3I2 0I1 3W1 0I2 3W2 0W1 0W2
        rank 1:     1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2

    If activations keep their full size until W, and m >= p, each rank holds up to 2 ((p
    + 2) // 2) chunks: as much as (p + 2) // 2 undivided stages.

    Parameters, result and errors are as in :func:`zb_v`, but any number of microbatches
    will do.

    References
    ----------
    Qi et al. 2024, "Pipeline parallelism with controllable memory", figure 3 (V-Half).

    Examples
    --------
    >>> from minipipe import schedules
    >>> (
    ...     schedules.peak_activations(schedules.v_half(4, 8)),
    ...     schedules.peak_activations(schedules.zb_v(4, 8)),
    ... )
    ((6, 6, 6, 6), (8, 8, 8, 8))
    """
    check_two_chunks("v-half", num_ranks, num_microbatches, chunks_per_rank)
    p = num_ranks
    i = 0 if num_ranks % 2 else 3
    pattern = [
        (2 * r, 3 * p - r - 2, 3 * p + i + 2 * r - 1, 6 * p + i - r - 2)
        for r in range(p)
    ]
    return _from_pattern("v-half", pattern, num_microbatches)


def v_min(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return V-Min: a third of 1F1B's memory plus one microbatch, alike on all ranks,
    and about its bubble.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1     3F0 3I0 3F1 3I1 0I0 3W0 0F2 0I1 3W1 0W0 3F2 3I2 0W1 3W2 0I2 0W2
        rank 1:     1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 1F2 1W0 2F2 2W1 1W1 2I2 1I2 2W2 1W2

    If activations keep their full size until W, and m >= p, each rank holds up to 2 ((p
    + 4) // 3) chunks: as much as (p + 4) // 3 undivided stages.

    Parameters, result and errors are as in :func:`zb_v`, but any number of microbatches
    will do.

    References
    ----------
    Qi et al. 2024, "Pipeline parallelism with controllable memory", figure 3 (V-Min).

    Examples
    --------
    >>> from minipipe import schedules
    >>> (
    ...     schedules.peak_activations(schedules.v_min(4, 8)),
    ...     schedules.peak_activations(schedules.zb_v(4, 8)),
    ... )
    ((4, 4, 4, 4), (8, 8, 8, 8))
    """
    check_two_chunks("v-min", num_ranks, num_microbatches, chunks_per_rank)
    p = num_ranks
    i = 2 if num_ranks % 3 == 0 else 0
    pattern = [(r, 2 * p - r - 1, 2 * p + i + r, 4 * p + i - r - 1) for r in range(p)]
    return _from_pattern("v-min", pattern, num_microbatches)


def _from_pattern(
    name: str, pattern: Sequence[Sequence[int]], num_microbatches: int
) -> Schedule:
    """Repeat the pattern, close its gaps and fill in W.

    ``pattern[rank]`` has the slots of F0, F1, I1 and I0 of microbatch 0; the digit is
    the chunk.
    """
    p = len(pattern)
    m = num_microbatches
    slots = [_Slots(steps, m) for steps in pattern]
    limit = max(held for of_rank in slots for held, _ in of_rank.after)
    # A microbatch goes down the V and up again for F, and once more for I.
    ranks = [*range(p), *reversed(range(p))] * 2
    path = [(rank, number // p) for number, rank in enumerate(ranks)]
    before = dict(zip(path[1:], path))
    visits = product(path, range(m))
    ordered = sorted(
        (slots[rank].slot_of[step, k], rank, step, k) for (rank, step), k in visits
    )
    for _, rank, step, k in ordered:
        needed = slots[rank].slot_of.get((step, k - 1), -1)
        if (rank, step) in before:
            previous, earlier = before[rank, step]
            needed = max(needed, slots[previous].slot_of[earlier, k])
        slots[rank].move_earlier(step, k, 1 + needed, limit)
    stages = ([rank, 2 * p - 1 - rank] for rank in range(p))
    rows = (tuple(rank.actions(chunks)) for rank, chunks in zip(slots, stages))
    return Schedule(name, v_placement(p), m, tuple(rows))


class _Slots:
    """The slots of F and I on one rank. Each empty slot takes the oldest pending W.

    ``after`` has (chunks held, each from its F until its W; W pending) after each slot.
    """

    def __init__(self, pattern: Sequence[int], num_microbatches: int) -> None:
        entries = product(range(len(pattern)), range(num_microbatches))
        self.slot_of = {(step, k): pattern[step] + _PERIOD * k for step, k in entries}
        last = max(self.slot_of.values())
        self.taken: list[tuple[int, int] | None] = [None] * (last + 1)
        for entry, slot in self.slot_of.items():
            self.taken[slot] = entry
        self.after = self._recount(0, last + 1)

    def move_earlier(self, step: int, k: int, earliest: int, limit: int) -> None:
        """Move a step to the first empty slot from ``earliest`` on that keeps the peak
        within the limit, if any.
        """
        present = self.slot_of[step, k]
        for slot in range(earliest, present):
            if self.taken[slot] is None:
                self._place(step, k, slot)
                recounted = self._recount(slot, present)
                if all(held <= limit for held, _ in recounted):
                    self.after[slot : slot + len(recounted)] = recounted
                    return
                self._place(step, k, present)

    def _place(self, step: int, k: int, slot: int) -> None:
        self.taken[self.slot_of[step, k]] = None
        self.taken[slot] = (step, k)
        self.slot_of[step, k] = slot

    def _recount(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the counts after each slot from ``first`` on.

        Counting stops after ``last``, as soon as the counts equal those before the
        move. An empty slot takes a pending W, so the effect of a move soon dies out,
        and a pass over all slots takes linear time.
        """
        held, pending = self.after[first - 1] if first else (0, 0)
        counted: list[tuple[int, int]] = []
        for slot in range(first, len(self.taken)):
            entry = self.taken[slot]
            if entry is None:
                if pending:
                    held -= 1
                    pending -= 1
            elif _STEPS[entry[0]][0] is F:
                held += 1
            else:
                pending += 1
            if slot > last and self.after[slot] == (held, pending):
                break
            counted.append((held, pending))
        return counted

    def actions(self, stages: Sequence[int]) -> Iterator[Action]:
        """Yield the actions of the slots in order, and then the W that are left."""
        pending: deque[Action] = deque()
        for entry in self.taken:
            if entry is not None:
                kind, chunk = _STEPS[entry[0]]
                k = entry[1]
                yield Action(stages[chunk], kind, k)
                if kind is I:
                    pending.append(Action(stages[chunk], W, k))
            elif pending:
                yield pending.popleft()
        yield from pending
