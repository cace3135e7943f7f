"""List scheduling: a free rank takes the action of its policy, or waits for another.

::

    rank 0:  F0 F1 F2 . I0 W0 F3 I1 W1 ...
                      ^ waits for an arriving gradient instead of starting a W that
                      would delay it
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from minipipe.core.schedules.action import ActionKind, B, F, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.specs import SCHEDULE_NUMBER
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.workload import amount_per_rank, check_memory
from minipipe.schedules.simulation.costs import Costs
from minipipe.search.clock import Clock, Op, ProblemData, schedule_of


class EventScheduler(Clock):
    """The walk of list scheduling, event by event; a policy chooses.

    An event is that a rank is free, or that a value reaches it.
    """

    def run_all(self) -> None:
        """Let ranks act until all is done, or none of them can."""
        steps = self.problem.steps
        free = self.free
        events = [(0.0, self.problem.rank_of[0])]
        while events:
            now, rank = heappop(events)
            if free[rank] <= now and (chosen := self.choose(rank, now)) is not None:
                self.run(rank, [chosen], now)
                heappush(events, (free[rank], rank))
                end = self.ended[self.rows[rank][-1]]
                for receiver, delay in steps[chosen].sends:
                    heappush(events, (max(end + delay, free[receiver]), receiver))

    @abstractmethod
    def choose(self, rank: int, now: float) -> Op | None:
        """Return the action that a free rank begins now; None, if it waits."""

    def forwards_left(self, rank: int) -> tuple[int, int]:
        """Return the oldest microbatch that lacks an F on a rank; how many it lacks."""
        forwards = [self.done[F, s] for s in self.problem.stages_of[rank]]
        return min(forwards), forwards.count(min(forwards))


class Policy(NamedTuple):
    """How a rank chooses: first an I that can run, then an F within memory, then a W.

    Attributes
    ----------
    in_flight : int
        The most microbatches with F done and I not, each counted for every stage of the
        rank.
    before_first, before_forward, before_weight, before_last : float
        For an F before the first I, for a later F, for a W, and for a W after the last
        F: the action starts only if no known gradient arrives before this part of its
        time is over. With 0 it never waits.
    """

    in_flight: int
    before_first: float = 0.0
    before_forward: float = 0.0
    before_weight: float = 0.0
    before_last: float = 0.0


class ListScheduler(EventScheduler):
    """One run of the list scheduler under the policies of all ranks.

    Ranks cannot fill up with microbatches of which none can finish: a rank starts the F
    of a microbatch only if memory remains to finish the oldest one that waits for an I,
    once every W that can run has run.
    """

    def __init__(self, problem: ProblemData, policies: Sequence[Policy]) -> None:
        super().__init__(problem)
        self.policies = policies
        self.run_all()

    def choose(self, rank: int, now: float) -> Op | None:
        """Let a free rank act by its policy, or wait until it knows more."""
        stages = self.problem.stages_of[rank]
        policy = self.policies[rank]
        steps = self.problem.steps
        gradient, gradient_at = self._gradient(rank, now)
        if gradient is not None and self.fits(rank, steps[I, gradient].during):
            return I, gradient
        forward, forward_at, is_blocked = self._forward(rank, now)
        if forward is not None and gradient is None:
            is_later = any(self.done[I, s] for s in stages)
            part = policy.before_forward if is_later else policy.before_first
            if gradient_at >= now + part * steps[F, forward].time:
                return F, forward
        oldest = self.oldest_weight(rank)
        soon = min(gradient_at, forward_at)
        if oldest is not None:
            is_last = all(
                self.done[F, s] == self.problem.num_microbatches for s in stages
            )
            part = policy.before_last if is_last else policy.before_weight
            is_free = soon >= now + part * steps[W, oldest].time
            if is_free or is_blocked or gradient is not None:
                return W, oldest
        return None

    def _gradient(self, rank: int, now: float) -> tuple[int | None, float]:
        """Return the stage of the oldest gradient, and when the next one arrives."""
        oldest = inf
        oldest_stage = None
        soon = inf
        for stage in self.problem.stages_of[rank]:
            time = self.next_at((I, stage))
            k = self.done[I, stage]
            if time > now:
                soon = min(soon, time)
            elif k < oldest:
                oldest = k
                oldest_stage = stage
        return oldest_stage, soon

    def _forward(self, rank: int, now: float) -> tuple[int | None, float, bool]:
        """Return the stage whose F may start, and when the next F may start.

        The third result says whether only memory prevents one.
        """
        stages = self.problem.stages_of[rank]
        oldest, needed = self.forwards_left(rank)
        ready_stage = None
        soon = inf
        is_blocked = False
        # The ready F of the last stage is of the lowest microbatch, as its input came
        # through the others.
        for stage in reversed(stages):
            k = self.done[F, stage]
            time = self.next_at((F, stage))
            if time < inf and (k == oldest or self._has_room(rank, needed)):
                if not self._leaves_enough(rank, stage, k):
                    is_blocked = is_blocked or time <= now
                elif time > now:
                    soon = min(soon, time)
                elif ready_stage is None:
                    ready_stage = stage
        return ready_stage, soon, is_blocked and ready_stage is None

    def _has_room(self, rank: int, needed: int) -> bool:
        """Tell whether a policy permits one more microbatch in flight."""
        stages = self.problem.stages_of[rank]
        in_flight = sum(self.done[F, s] - self.done[I, s] for s in stages)
        return in_flight + 1 + needed <= self.policies[rank].in_flight * len(stages)

    def _leaves_enough(self, rank: int, stage: int, k: int) -> bool:
        """Tell whether an F fits now, and leaves enough memory.

        It must suffice to finish the oldest microbatch that waits for an I.
        """
        problem = self.problem
        done = self.done
        amount = self.problem.steps[F, stage].change
        if not self.fits(rank, amount):
            return False
        oldest = min(done[I, s] for s in problem.stages_of[rank])
        others = 0.0
        for s in problem.stages_of[rank]:
            is_oldest = done[I, s] == oldest < done[F, s]
            others += (done[F, s] - done[I, s] - is_oldest) * problem.steps[F, s].change
        return (
            k == oldest
            or others + amount + problem.least[rank] <= problem.capacity[rank]
        )


def greedy(
    num_microbatches: int,
    costs: Costs,
    placement: Sequence[int],
    memory_limit: float | Sequence[float] | None = None,
    priority: str = "BF",
) -> Schedule:
    """Return a greedy schedule: no rank waits while it could work (list scheduling).

    An idle rank takes the first kind of ``priority`` with an action that is ready and
    within the memory limit. Among several of that kind it takes the lowest microbatch,
    then the lowest stage.

    With equal costs, ``"BF"`` and limits p - r give 1F1B, and ``"FB"`` without a limit
    gives GPipe. The scheduler does not look ahead. For uneven stages, try several
    priorities and limits, ``"IFW"`` first, and simulate the results.

    Parameters
    ----------
    num_microbatches : int
        At least 1.
    costs : Costs
        The costs of the simulation that builds the schedule.
    placement : sequence of int
        The rank of each stage.
    memory_limit : float or sequence of float, optional
        The largest number of (stage, microbatch) pairs that a rank may hold: one limit
        for all ranks, or one for each. It is at least the number of stages of the rank.
    priority : str
        The kinds, most urgent first: B and F, or I, W and F for a split backward.

    Returns
    -------
    Schedule
        A legal schedule. Gradients accumulate in ascending order of microbatches.

    Raises
    ------
    ScheduleError
        Code ``value``.

    Notes
    -----
    Without a reserve, memory could fill up with microbatches that cannot finish. So a
    forward of a later microbatch starts only if memory remains for all pending forwards
    of the rank's oldest unfinished microbatch. The oldest microbatch of all ranks can
    then always make progress.

    References
    ----------
    Graham 1969, "Bounds on multiprocessing timing anomalies" (list scheduling).

    Examples
    --------
    >>> from minipipe import Costs
    >>> print(greedy(2, Costs(forward=[1, 3]), placement=(0, 1)))
    # greedy: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """
    if not isinstance(placement, Sequence) or not placement:
        expected = "the rank of each stage, such as (0, 1, 2, 3)"
        raise SCHEDULE_NUMBER.refusal("placement", placement, expected)
    known = ["B", "F"], ["F", "I", "W"]
    if not isinstance(priority, str) or sorted(priority) not in known:
        expected = "an order of B and F, or of F, I and W, such as 'BF' or 'IFW'"
        raise SCHEDULE_NUMBER.refusal("priority", priority, expected)
    workload = costs.workload(placement, num_microbatches)
    limits = workload.memory_limit
    if memory_limit is not None:
        limits = amount_per_rank(memory_limit, workload.num_ranks)
    one = (1,) * workload.num_stages
    pairs = Footprint(one, one, (0,) * workload.num_stages)
    workload = workload._replace(overhead=0.0, footprint=pairs, memory_limit=limits)
    check_memory(workload)
    backward = (B,) if "B" in priority else (I, W)
    greedy_run = _Greedy(ProblemData(workload, backward), priority)
    return schedule_of(greedy_run.orders, workload, "greedy")


class _Greedy(EventScheduler):
    def __init__(self, problem: ProblemData, priority: str) -> None:
        super().__init__(problem)
        self.kinds = list(map(ActionKind, priority))
        self.run_all()

    def choose(self, rank: int, now: float) -> Op | None:
        oldest, left = self.forwards_left(rank)
        for kind in self.kinds:
            stages = self.problem.stages_of[rank]
            ready = [s for s in stages if self.next_at((kind, s)) <= now]
            if ready:
                k, stage = min((self.done[kind, s], s) for s in ready)
                amount = 1 if k == oldest else 1 + left
                if kind is not F or self.fits(rank, amount):
                    return kind, stage
        return None
