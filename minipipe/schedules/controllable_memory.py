"""Controllable memory: zero-bubble schedules over a V that hold half, or a third, of what 1F1B holds.

Every microbatch repeats one pattern of slots, six slots after the one before: F and I of both chunks in fixed places,
W in whatever is left. How soon I follows F in the pattern is how much is held; a pass over the slots then closes gaps
as far as the memory stays what it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.placement import check_two_chunks, v_placement
from minipipe.schedules.schedule import Schedule

__all__ = ["v_half", "v_min"]

F, I, W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

# What one microbatch does on a rank, in this order: (kind, chunk).
_STEPS = ((F, 0), (F, 1), (I, 1), (I, 0))
_PERIOD = 6


def v_half(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return V-Half: half of 1F1B's memory, alike on all ranks, and about half of its bubble.

    ::

        rank 0 holds stages 0 and 3, rank 1 holds stages 1 and 2
        rank 0: 0F0 0F1     3F0 3I0 3F1 3W0 0F2 0I0 3I1 0W0 3F2 3I2 0I1 3W1 0I2 3W2 0W1 0W2
        rank 1:     1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2

    Where I and W hold as much as F did, and m >= p, each rank holds (p + 2) // 2 stages' worth, both chunks counted.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        2: rank r holds stages r and 2p - 1 - r.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, for another number of chunks.

    References
    ----------
    Qi et al. 2024, "Pipeline parallelism with controllable memory", figure 3 (V-Half).

    Examples
    --------
    >>> from minipipe import schedules
    >>> schedules.peak_activations(schedules.v_half(4, 8)), schedules.peak_activations(schedules.zb_v(4, 8))
    ((6, 6, 6, 6), (8, 8, 8, 8))
    """
    check_two_chunks("v-half", num_ranks, num_microbatches, chunks_per_rank)
    p, i = num_ranks, 0 if num_ranks % 2 else 3
    pattern = [(2 * r, 3 * p - r - 2, 3 * p + i + 2 * r - 1, 6 * p + i - r - 2) for r in range(p)]
    return _from_pattern("v-half", pattern, num_microbatches)


def v_min(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return V-Min: a third of 1F1B's memory, alike on all ranks, and about its bubble.

    ::

        rank 0 holds stages 0 and 3, rank 1 holds stages 1 and 2
        rank 0: 0F0 0F1     3F0 3I0 3F1 3I1 0I0 3W0 0F2 0I1 3W1 0W0 3F2 3I2 0W1 3W2 0I2 0W2
        rank 1:     1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 1F2 1W0 2F2 2W1 1W1 2I2 1I2 2W2 1W2

    Where I and W hold as much as F did, and m >= p, each rank holds (p + 4) // 3 stages' worth, both chunks counted.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        2: rank r holds stages r and 2p - 1 - r.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, for another number of chunks.

    References
    ----------
    Qi et al. 2024, "Pipeline parallelism with controllable memory", figure 3 (V-Min).

    Examples
    --------
    >>> from minipipe import schedules
    >>> schedules.peak_activations(schedules.v_min(4, 8)), schedules.peak_activations(schedules.zb_v(4, 8))
    ((4, 4, 4, 4), (8, 8, 8, 8))
    """
    check_two_chunks("v-min", num_ranks, num_microbatches, chunks_per_rank)
    p, i = num_ranks, 2 if num_ranks % 3 == 0 else 0
    pattern = [(r, 2 * p - r - 1, 2 * p + i + r, 4 * p + i - r - 1) for r in range(p)]
    return _from_pattern("v-min", pattern, num_microbatches)


def _from_pattern(name: str, pattern: list[tuple[int, int, int, int]], num_microbatches: int) -> Schedule:
    """Repeat the pattern (by rank, the slots of F0, F1, I1, I0 of microbatch 0), close its gaps, and fill in W."""
    slots = [_Slots(steps, num_microbatches) for steps in pattern]
    limit = max(rank_slots.peak() for rank_slots in slots)
    visits = sorted(
        (slot, rank, step, k) for rank, rank_slots in enumerate(slots) for (step, k), slot in rank_slots.slot_of.items()
    )
    for _, rank, step, k in visits:
        slots[rank].move_earlier(step, k, _earliest(slots, rank, step, k), limit)
    p = len(pattern)
    rows = tuple(tuple(slots[rank].actions((rank, 2 * p - 1 - rank))) for rank in range(p))
    return Schedule(name, v_placement(p), num_microbatches, rows)


def _earliest(slots: list[_Slots], rank: int, step: int, k: int) -> int:
    """Return the first slot after everything that a step of a microbatch waits for."""
    before = []
    neighbour = rank - 1 if step in (0, 2) else rank + 1  # F0 and I1 come up the ranks, F1 and I0 come down
    if 0 <= neighbour < len(slots):
        before.append(slots[neighbour].slot_of[step, k])
    if step > 0:
        before.append(slots[rank].slot_of[step - 1, k])
    if k > 0:
        before.append(slots[rank].slot_of[step, k - 1])
    return 1 + max(before, default=-1)


class _Slots:
    """One rank's slots: where F and I of each microbatch stand. W fill the empty ones, as early as they can."""

    def __init__(self, pattern: tuple[int, int, int, int], num_microbatches: int) -> None:
        self.slot_of = {
            (step, k): slot + _PERIOD * k for step, slot in enumerate(pattern) for k in range(num_microbatches)
        }
        self.taken: list[tuple[int, int] | None] = [None] * (1 + max(self.slot_of.values()))
        for entry, slot in self.slot_of.items():
            self.taken[slot] = entry
        self.after = self._recount(0, len(self.taken))

    def peak(self) -> int:
        """Return the most chunks held at once, from F until the W that fills an empty slot."""
        return max(held for held, _ in self.after)

    def move_earlier(self, step: int, k: int, earliest: int, limit: int) -> None:
        """Move a step to the first empty slot from ``earliest`` on that keeps the peak within the limit, if any."""
        own = self.slot_of[step, k]
        for slot in range(earliest, own):
            if self.taken[slot] is None:
                self._place(step, k, slot)
                recounted = self._recount(slot, own)
                if all(held <= limit for held, _ in recounted):
                    self.after[slot : slot + len(recounted)] = recounted
                    return
                self._place(step, k, own)

    def _place(self, step: int, k: int, slot: int) -> None:
        self.taken[self.slot_of[step, k]] = None
        self.taken[slot] = (step, k)
        self.slot_of[step, k] = slot

    def _recount(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return (chunks held, W owed) after each slot from ``first`` on, until after ``last`` all is as it was.

        An empty slot takes a W if one is owed. So a change is felt only for a while, and a pass over all slots takes
        time in proportion to their number.
        """
        held, owed = self.after[first - 1] if first else (0, 0)
        counted = []
        for slot in range(first, len(self.taken)):
            entry = self.taken[slot]
            if entry is None:
                held, owed = (held - 1, owed - 1) if owed else (held, owed)
            elif _STEPS[entry[0]][0] is F:
                held += 1
            else:
                owed += 1
            if slot > last and self.after[slot] == (held, owed):
                break
            counted.append((held, owed))
        return counted

    def actions(self, stages: tuple[int, int]) -> Iterator[Action]:
        """Yield what the slots hold, each empty one filled with the W that has waited longest."""
        owed: deque[Action] = deque()
        for entry in self.taken:
            if entry is None:
                if owed:
                    yield owed.popleft()
                continue
            (kind, chunk), k = _STEPS[entry[0]], entry[1]
            yield Action(stages[chunk], kind, k)
            if kind is I:
                owed.append(Action(stages[chunk], W, k))
        yield from owed
