"""A list scheduler: a rank that is free takes what its policy finds most urgent, or waits for something better.

Every stage runs its F, its I and its W in ascending order of microbatches, so a row is a word of (kind, stage), and
the microbatch of an action is the number of its kind and stage before it::

    rank 0:  F0 F0 F0 . I0 W0 F0 I0 W0 ...
                      ^ waits for a gradient on its way, rather than begin a W that would delay it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.activations import held_memory
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.analysis.workload import Workload, fits
from minipipe.schedules.placement import stages_by_rank
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


F, I, W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
Cell = tuple[ActionKind, int]  # (kind, stage)
Word = list[Cell]  # of one rank


class Policy(NamedTuple):
    """How a rank chooses: first a gradient that is there (I), then an F within memory, then a W.

    Attributes
    ----------
    in_flight : int
        The most microbatches with F done and I not, each counted for every stage of the rank.
    before_first, before_forward, before_weight, before_last : float
        For an F before the first I, and a later one, for a W, and one after the last F: it starts only if no known
        gradient arrives before this part of its time is over. 0 never waits.
    """

    in_flight: int
    before_first: float = 0.0
    before_forward: float = 0.0
    before_weight: float = 0.0
    before_last: float = 0.0


class Facts:
    """What a search asks of a workload again and again, looked up once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.num_microbatches = workload.num_microbatches
        self.rank_of = workload.placement
        self.own = stages_by_rank(workload.placement, workload.num_ranks)
        self.times = {F: workload.forward, I: workload.backward_input, W: workload.backward_weight}
        self.consumer: dict[tuple[ActionKind, int], tuple[int, float]] = {}  # (stage, time in flight) of a value
        for kind in (F, I):
            for stage in range(workload.num_stages):
                value = Value.produced_by(Action(stage, kind, 0))
                if value is not None and 0 <= value.consumer_stage < workload.num_stages:
                    self.consumer[kind, stage] = value.consumer_stage, workload.message[value.cut]
        stages = range(workload.num_stages)
        self.before: dict[Cell, Cell | None] = {(F, s): None for s in stages}  # by cell, the one that it needs
        self.before.update({(kind, s): (need, s) for kind, need in ((I, F), (W, I)) for s in stages})
        self.activation, self.weight_activation, _ = workload.footprint
        self.grows = [
            max(0.0, transient, after - before) for before, after, transient in zip(*workload.footprint)
        ]  # by stage: the memory that I takes beyond that of its F
        self.least = [workload.least_memory(rank) for rank in range(workload.num_ranks)]


class ListScheduler:
    """One run of the list scheduler, event by event: a rank is free, or a value reaches it.

    Ranks cannot fill up with microbatches of which none can finish: a rank starts the F of a microbatch only if memory
    remains to finish the oldest one that waits for an I, once every W that can run has run.

    Attributes
    ----------
    words : list of Word
    begins, ends : list of float
        By rank.
    """

    def __init__(self, facts: Facts, policies: Sequence[Policy]) -> None:
        self.facts, self.policies = facts, policies
        num_stages, num_ranks = len(facts.rank_of), len(facts.own)
        self.forwards, self.gradients, self.weights = ([0] * num_stages for _ in range(3))  # done, by stage
        self.inputs_at: list[list[float]] = [[] for _ in range(num_stages)]  # by stage and microbatch
        self.gradients_at: list[list[float]] = [[] for _ in range(num_stages)]
        self.inputs_at[0] = [0.0] * facts.num_microbatches
        self.held, self.live = [0.0] * num_ranks, [0.0] * num_ranks  # memory: all, and that of F without I
        self.in_flight = [0] * num_ranks
        self.free, self.begins, self.ends = [0.0] * num_ranks, [inf] * num_ranks, [0.0] * num_ranks
        self.words: list[Word] = [[] for _ in range(num_ranks)]
        self.events = [(0.0, facts.rank_of[0])]
        while self.events:
            now, rank = heappop(self.events)
            if self.free[rank] <= now:
                self._act(rank, now)

    def _act(self, rank: int, now: float) -> None:
        """Let a rank that is free do what its policy says, or wait until it knows more."""
        gradient, gradient_at = self._gradient(rank, now)
        limit = self.facts.workload.memory_limit[rank]
        if gradient is not None and fits(self.held[rank] + self.facts.grows[gradient], limit):
            return self._start(rank, I, gradient, now)
        forward, forward_at, is_blocked = self._forward(rank, now)
        policy, times = self.policies[rank], self.facts.times
        if forward is not None and gradient is None:
            has_begun = any(self.gradients[s] for s in self.facts.own[rank])
            patience = policy.before_forward if has_begun else policy.before_first
            if gradient_at >= now + patience * times[F][forward]:
                return self._start(rank, F, forward, now)
        pending = [s for s in self.facts.own[rank] if self.weights[s] < self.gradients[s]]
        soon = min(gradient_at, forward_at)
        if pending:
            oldest = min(pending, key=self.weights.__getitem__)
            is_last = all(self.forwards[s] == self.facts.num_microbatches for s in self.facts.own[rank])
            patience = policy.before_last if is_last else policy.before_weight
            if is_blocked or gradient is not None or soon >= now + patience * times[W][oldest]:
                return self._start(rank, W, oldest, now)
        if soon < inf:
            heappush(self.events, (soon, rank))
        return None

    def _gradient(self, rank: int, now: float) -> tuple[int | None, float]:
        """Return the stage of the oldest gradient that is there, and when the next one arrives, as far as is known."""
        oldest, found, soon = inf, None, inf
        for stage in self.facts.own[rank]:
            k, times = self.gradients[stage], self.gradients_at[stage]
            if k < len(times):
                if times[k] > now:
                    soon = min(soon, times[k])
                elif k < oldest:
                    oldest, found = k, stage
        return found, soon

    def _forward(self, rank: int, now: float) -> tuple[int | None, float, bool]:
        """Return the stage whose F may start, when the next one may, and whether memory alone forbids one."""
        policy, own = self.policies[rank], self.facts.own[rank]
        oldest = min(self.forwards[s] for s in own)
        needed = sum(self.forwards[s] == oldest for s in own)
        has_room = self.in_flight[rank] + 1 + needed <= policy.in_flight * len(own)
        found, soon, is_blocked = None, inf, False
        for stage in reversed(own):  # whose ready F is of the lowest microbatch, as its input came through the others
            k, times = self.forwards[stage], self.inputs_at[stage]
            if k < len(times) and (k == oldest or has_room):
                if not self._fits(rank, stage, k):
                    is_blocked = is_blocked or times[k] <= now
                elif times[k] > now:
                    soon = min(soon, times[k])
                elif found is None:
                    found = stage
        return found, soon, is_blocked and found is None

    def _fits(self, rank: int, stage: int, k: int) -> bool:
        """Tell whether an F fits now, and leaves enough memory to finish the oldest microbatch that waits for I."""
        facts, limit = self.facts, self.facts.workload.memory_limit[rank]
        amount, oldest = facts.activation[stage], min(self.gradients[s] for s in facts.own[rank])
        if not fits(self.held[rank] + amount, limit):
            return False
        own = (s for s in facts.own[rank] if self.gradients[s] == oldest < self.forwards[s])
        others = self.live[rank] - sum(facts.activation[s] for s in own)
        return k == oldest or fits(others + amount + facts.least[rank], limit)

    def _start(self, rank: int, kind: ActionKind, stage: int, now: float) -> None:
        facts = self.facts
        end = now + facts.times[kind][stage]
        activation, weight_activation = facts.activation[stage], facts.weight_activation[stage]
        if kind is F:
            self.forwards[stage] += 1
            self.in_flight[rank] += 1
            self.held[rank] += activation
            self.live[rank] += activation
        elif kind is I:
            self.gradients[stage] += 1
            self.in_flight[rank] -= 1
            self.held[rank] += weight_activation - activation
            self.live[rank] -= activation
        else:
            self.weights[stage] += 1
            self.held[rank] -= weight_activation
        self._deliver(kind, stage, end)
        if not self.words[rank]:
            self.begins[rank] = now
        self.words[rank].append((kind, stage))
        self.ends[rank], self.free[rank] = end, end + facts.workload.overhead
        heappush(self.events, (self.free[rank], rank))

    def _deliver(self, kind: ActionKind, stage: int, end: float) -> None:
        """Tell the consumer when the value arrives; after the last forward, the loss turns it into a gradient."""
        if (kind, stage) in self.facts.consumer:
            consumer, in_flight = self.facts.consumer[kind, stage]
            (self.inputs_at if kind is F else self.gradients_at)[consumer].append(end + in_flight)
            receiver = self.facts.rank_of[consumer]
            heappush(self.events, (max(end + in_flight, self.free[receiver]), receiver))
        elif kind is F:
            self.gradients_at[stage].append(end)


def schedule_of(words: Sequence[Word], workload: Workload, name: str) -> Schedule:
    """Return the schedule of the words of all ranks.

    Examples
    --------
    >>> from minipipe import Costs
    >>> word = [(F, 0), (F, 0), (I, 0), (W, 0), (I, 0), (W, 0)]
    >>> print(schedule_of([word], Costs().workload((0,), 2), "mine"))
    # mine: 1 rank, 1 stage, 2 microbatches
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    """
    return Schedule(name, workload.placement, workload.num_microbatches, tuple(map(_row, words)))


def _row(word: Word) -> tuple[Action, ...]:
    done: dict[tuple[ActionKind, int], int] = {}
    row = []
    for kind, stage in word:
        k = done.get((kind, stage), 0)
        done[kind, stage] = k + 1
        row.append(Action(stage, kind, k))
    return tuple(row)
