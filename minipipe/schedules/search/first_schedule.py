"""What any search begins with: a schedule that fits if one does, and microbatches in ascending order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.activations import held_memory
from minipipe.schedules.analysis.workload import Workload, fits
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.transforms import repeat


def one_after_another(workload: Workload) -> Schedule:
    """Return the schedule that takes one microbatch after another, which no other schedule undercuts in memory.

    Any schedule computes F of a rank's last stage while it holds the same microbatch on all its other stages, since
    their I come later; likewise before each I. This one holds nothing else then.

    Raises
    ------
    ScheduleError
        Code ``parameters``, if not even one microbatch fits; then no schedule does.

    Examples
    --------
    >>> from minipipe import Costs
    >>> print(one_after_another(Costs().workload((0, 1), num_microbatches=2)))
    # one after another: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0I0 0W0 0F1 0I1 0W1
    rank 1: 1F0 1I0 1W0 1F1 1I1 1W1
    """
    one = one_microbatch(workload.placement, workload.num_ranks)
    for rank, (row, limit) in enumerate(zip(one.actions, workload.memory_limit)):
        needed = max((during for during, _ in held_memory(row, workload.footprint)), default=0.0)
        if not fits(needed, limit):
            message = f"memory_limit is {limit:g} on rank {rank}, but one microbatch alone takes {needed:g} there"
            raise ScheduleError.of(ScheduleCode.PARAMETERS, f"{message}; expected at least that.", rank)
    whole = repeat(one, workload.num_microbatches)
    return Schedule("one after another", whole.placement, whole.num_microbatches, whole.actions)


def in_microbatch_order(schedule: Schedule) -> Schedule:
    """Return a schedule with its microbatches renumbered: F, I and W of each stage take them in ascending order.

    It holds as much, and every action can keep its time. Microbatches are equal. When the k-th F of a stage starts, k
    microbatches have passed the stage before, or the stage could not have begun the k-th; so the k-th F there has ended
    and arrived. The same is true between I of neighbouring stages, between F and I of a stage, and between I and W. So
    the k-th F, I and W of every stage may be those of microbatch k. What a rank holds depends on how many of each kind
    it has done, not on which.

    Examples
    --------
    >>> print(in_microbatch_order(Schedule.from_text("0F1 0F0 0I0 0I1 0W0 0W1", name="mine")))
    # mine: 1 rank, 1 stage, 2 microbatches
    rank 0: 0F0 0F1 0I0 0I1 0W0 0W1
    """
    return schedule.with_rows(Schedule, map(_renumbered, schedule.actions))


def _renumbered(row: tuple[Action, ...]) -> Iterator[Action]:
    seen: Counter[tuple[int, str]] = Counter()
    for stage, kind, _ in row:
        yield Action(stage, kind, seen[stage, kind])
        seen[stage, kind] += 1
