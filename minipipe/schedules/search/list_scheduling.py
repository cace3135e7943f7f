"""List scheduling: a free rank takes the action that its policy ranks highest, or waits for a better one.

Every stage runs its F, its I and its W in ascending order of microbatches. So a row is a list of (kind, stage), a
``Word``, and the microbatch of an action is the number of earlier actions with its kind and stage::

    rank 0:  F0 F0 F0 . I0 W0 F0 I0 W0 ...
                      ^ waits for an arriving gradient instead of starting a W that would delay it
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import product
from math import inf
from typing import Any, NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError, quoted, unfit
from minipipe.schedules.action import Action, ActionKind, B, F, I, W
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.analysis.workload import Workload, amount_per_rank, check_memory, fits
from minipipe.schedules.placement import stages_by_rank
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.transforms import repeat

Cell = tuple[ActionKind, int]  # (kind, stage)
Word = list[Cell]  # of one rank
_UNTIL_A_LOOK = 4096  # actions between two looks at the clock; they take some hundredths of a second


def one_after_another(workload: Workload) -> Schedule:
    """Return the schedule that runs one microbatch after another, which takes the least memory of all schedules.

    Any schedule computes F of a rank's last stage while it holds the same microbatch on all its other stages, since
    their I come later; likewise before each I. This schedule holds nothing else at these times.

    If not even one microbatch fits, it raises code ``parameters``, because then no schedule fits.

    Examples
    --------
    >>> from minipipe import Costs
    >>> print(one_after_another(Costs().workload((0, 1), num_microbatches=2)))
    # one after another: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0I0 0W0 0F1 0I1 0W1
    rank 1: 1F0 1I0 1W0 1F1 1I1 1W1
    """
    check_memory(workload)
    whole = repeat(one_microbatch(workload.placement, workload.num_ranks), workload.num_microbatches)
    return Schedule("one after another", whole.placement, whole.num_microbatches, whole.actions)


# -- words ------------------------------------------------------------------------------------------------------------


def words_of(schedule: Schedule) -> list[Word]:
    """Return the rows of all ranks of a schedule as words: lists of (kind, stage)."""
    return [[(kind, stage) for stage, kind, _ in row] for row in schedule.actions]


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
    return Schedule(name, workload.placement, workload.num_microbatches, tuple(tuple(_row(word)) for word in words))


def in_microbatch_order(schedule: Schedule) -> Schedule:
    """Return a schedule with its microbatches renumbered: F, I and W of each stage take them in ascending order.

    It holds as much memory, and every action can keep its time. Microbatches are equal. When the k-th F of a stage
    starts, k microbatches have passed the stage before, so the k-th F there has ended and its value has arrived. The
    same is true between I of neighbouring stages, between F and I of a stage, and between I and W. So the k-th F, I and
    W of every stage may belong to microbatch k. The memory of a rank depends only on how many actions of each kind it
    has done.

    Examples
    --------
    >>> print(in_microbatch_order(Schedule.from_text("0F1 0F0 0I0 0I1 0W0 0W1", name="mine")))
    # mine: 1 rank, 1 stage, 2 microbatches
    rank 0: 0F0 0F1 0I0 0I1 0W0 0W1
    """
    return schedule.without_overlaps("a search").with_rows(Schedule, map(_row, words_of(schedule)))


def _row(word: Word) -> Iterator[Action]:
    done: Counter[Cell] = Counter()
    for kind, stage in word:
        yield Action(stage, kind, done[kind, stage])
        done[kind, stage] += 1


# -- a schedule that grows --------------------------------------------------------------------------------------------


class OutOfTime(Exception):
    """Ends the building of a schedule whose search has used its time."""


class Facts:
    """Values of a workload that a search needs often, computed once.

    Attributes
    ----------
    times : dict of Cell to float
    before : dict of Cell to Cell or None
        The cell of the same stage that comes before, for each microbatch.
    consumer : dict of Cell to (Cell, float)
        The consumer of a value, and the time in flight. The loss turns the last activation into the first gradient.
    during, change : dict of Cell to float
        The additional memory of the rank while an action runs; and the change of its memory after the action.
    least : list of float
        By rank, the memory for one microbatch alone.
    look_at_clock : function
        Called now and then while a large schedule is built; it may raise :class:`OutOfTime`.
    """

    def __init__(
        self, workload: Workload, gradient: ActionKind = I, look_at_clock: Callable[[], None] = lambda: None
    ) -> None:
        self.workload, self.gradient, self.look_at_clock = workload, gradient, look_at_clock
        self.num_microbatches, self.rank_of = workload.num_microbatches, workload.placement
        self.own = stages_by_rank(workload.placement, workload.num_ranks)
        self.least = [workload.least_memory(rank) for rank in range(workload.num_ranks)]
        self.times: dict[Cell, float] = {}
        self.before: dict[Cell, Cell | None] = {}
        self.during: dict[Cell, float] = {}
        self.change: dict[Cell, float] = {}
        for s, (activation, kept, transient) in enumerate(zip(*workload.footprint)):
            inputs, weights = workload.backward_input[s], workload.backward_weight[s]
            self.times |= {(F, s): workload.forward[s], (I, s): inputs, (W, s): weights, (B, s): inputs + weights}
            self.before |= {(F, s): None, (I, s): (F, s), (W, s): (I, s)}
            self.during |= {(F, s): activation, (I, s): max(0.0, transient, kept - activation), (W, s): 0.0}
            self.change |= {(F, s): activation, (I, s): kept - activation, (W, s): -kept, (B, s): -activation}
        last = workload.num_stages - 1
        self.consumer: dict[Cell, tuple[Cell, float]] = {(F, last): ((gradient, last), 0.0)}
        for kind, stage in product((F, gradient), range(workload.num_stages)):
            value = Value.produced_by(Action(stage, kind, 0))
            if value is not None and 0 <= value.consumer_stage <= last:
                self.consumer[kind, stage] = (kind, value.consumer_stage), workload.message[value.cut]

    def arrivals(self) -> dict[Cell, list[Any]]:
        """Return, by cell that consumes values, an empty list for the arriving values."""
        return {(kind, stage): [] for kind in (F, self.gradient) for stage in range(self.workload.num_stages)}


class PartialSchedule:
    """A schedule to which actions are added, each with its time.

    Attributes
    ----------
    done : dict of Cell to int
    arrivals : dict of Cell to list of float
        When the values for a cell arrive, by microbatch, as far as is known.
    held : list of float
        By rank, the memory after its last action.
    words : list of Word
    begins, ends, free : list of float
        By rank: its first start, its last end, and the overhead after that.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts, num_ranks = facts, len(facts.own)
        self._added = 0
        self.done = dict.fromkeys(facts.times, 0)
        self.arrivals: dict[Cell, list[float]] = facts.arrivals()
        self.arrivals[F, 0] += [0.0] * facts.num_microbatches
        self.held, self.free, self.ends = [0.0] * num_ranks, [0.0] * num_ranks, [0.0] * num_ranks
        self.begins = [inf] * num_ranks
        self.words: list[Word] = [[] for _ in range(num_ranks)]

    def add(self, cell: Cell, start: float) -> None:
        """Run the next action of a cell from a time on."""
        facts, rank = self.facts, self.facts.rank_of[cell[1]]
        end = start + facts.times[cell]
        self.done[cell] += 1
        self._added += 1
        if not self._added % _UNTIL_A_LOOK:
            facts.look_at_clock()
        self.held[rank] += facts.change[cell]
        self.words[rank].append(cell)
        self.begins[rank] = min(self.begins[rank], start)
        self.ends[rank], self.free[rank] = end, end + facts.workload.overhead
        if cell in facts.consumer:
            consumer, in_flight = facts.consumer[cell]
            self.arrivals[consumer].append(end + in_flight)

    def fits(self, rank: int, amount: float) -> bool:
        """Tell whether an additional amount fits into the memory of a rank."""
        return fits(self.held[rank] + amount, self.facts.workload.memory_limit[rank])

    def next_at(self, cell: Cell) -> float:
        """Return when the next value for a cell arrives, as far as is known; the value for a W is on its rank."""
        k = self.done[cell]
        if cell[0] is W:
            return 0.0 if k < self.done[I, cell[1]] else inf
        times = self.arrivals[cell]
        return times[k] if k < len(times) else inf

    def oldest_weight(self, rank: int) -> int | None:
        """Return the stage of a rank whose W is of the lowest microbatch that waits for it, or None."""
        pending = (s for s in self.facts.own[rank] if self.done[W, s] < self.done[I, s])
        return min(pending, key=lambda s: self.done[W, s], default=None)


# -- list scheduling --------------------------------------------------------------------------------------------------


class EventScheduler(PartialSchedule):
    """The walk of list scheduling, event by event: a rank is free, or a value reaches it. A policy chooses."""

    def run(self) -> None:
        """Let ranks act until all is done, or none of them can."""
        self.events = [(0.0, self.facts.rank_of[0])]
        while self.events:
            now, rank = heappop(self.events)
            if self.free[rank] <= now and (chosen := self.choose(rank, now)) is not None:
                self.add(chosen, now)
                heappush(self.events, (self.free[rank], rank))
                consumer, _ = self.facts.consumer.get(chosen, (chosen, 0.0))
                receiver = self.facts.rank_of[consumer[1]]
                if receiver != rank:
                    heappush(self.events, (max(self.arrivals[consumer][-1], self.free[receiver]), receiver))

    @abstractmethod
    def choose(self, rank: int, now: float) -> Cell | None:
        """Return the action that a free rank begins now; None, if it waits for the next event."""

    def forwards_left(self, rank: int) -> tuple[int, int]:
        """Return the oldest microbatch of a rank that has not passed all its F, and how many of them are left."""
        forwards = [self.done[F, s] for s in self.facts.own[rank]]
        return min(forwards), forwards.count(min(forwards))


class Policy(NamedTuple):
    """How a rank chooses: first a gradient that has arrived (I), then an F within memory, then a W.

    Attributes
    ----------
    in_flight : int
        The most microbatches with F done and I not, each counted for every stage of the rank.
    before_first, before_forward, before_weight, before_last : float
        For an F before the first I, for a later F, for a W, and for a W after the last F: the action starts only if no
        known gradient arrives before this part of its time is over. With 0 it never waits.
    """

    in_flight: int
    before_first: float = 0.0
    before_forward: float = 0.0
    before_weight: float = 0.0
    before_last: float = 0.0


class ListScheduler(EventScheduler):
    """One run of the list scheduler under the policies of all ranks.

    Ranks cannot fill up with microbatches of which none can finish: a rank starts the F of a microbatch only if memory
    remains to finish the oldest one that waits for an I, once every W that can run has run.
    """

    def __init__(self, facts: Facts, policies: Sequence[Policy]) -> None:
        super().__init__(facts)
        self.policies = policies
        self.run()

    def choose(self, rank: int, now: float) -> Cell | None:
        """Let a free rank act by its policy, or wait until it knows more."""
        own, policy, times = self.facts.own[rank], self.policies[rank], self.facts.times
        gradient, gradient_at = self._gradient(rank, now)
        if gradient is not None and self.fits(rank, self.facts.during[I, gradient]):
            return I, gradient
        forward, forward_at, is_blocked = self._forward(rank, now)
        if forward is not None and gradient is None:
            patience = policy.before_forward if any(self.done[I, s] for s in own) else policy.before_first
            if gradient_at >= now + patience * times[F, forward]:
                return F, forward
        oldest, soon = self.oldest_weight(rank), min(gradient_at, forward_at)
        if oldest is not None:
            is_last = all(self.done[F, s] == self.facts.num_microbatches for s in own)
            patience = policy.before_last if is_last else policy.before_weight
            if is_blocked or gradient is not None or soon >= now + patience * times[W, oldest]:
                return W, oldest
        return None

    def _gradient(self, rank: int, now: float) -> tuple[int | None, float]:
        """Return the stage of the oldest gradient that has arrived, and when the next one arrives, if known."""
        oldest, found, soon = inf, None, inf
        for stage in self.facts.own[rank]:
            time, k = self.next_at((I, stage)), self.done[I, stage]
            if time > now:
                soon = min(soon, time)
            elif k < oldest:
                oldest, found = k, stage
        return found, soon

    def _forward(self, rank: int, now: float) -> tuple[int | None, float, bool]:
        """Return the stage whose F may start, when the next F may start, and whether only memory prevents one."""
        own = self.facts.own[rank]
        oldest, needed = self.forwards_left(rank)
        in_flight = sum(self.done[F, s] - self.done[I, s] for s in own)
        has_room = in_flight + 1 + needed <= self.policies[rank].in_flight * len(own)
        found, soon, is_blocked = None, inf, False
        for stage in reversed(own):  # whose ready F is of the lowest microbatch, as its input came through the others
            k, time = self.done[F, stage], self.next_at((F, stage))
            if time < inf and (k == oldest or has_room):
                if not self._leaves_enough(rank, stage, k):
                    is_blocked = is_blocked or time <= now
                elif time > now:
                    soon = min(soon, time)
                elif found is None:
                    found = stage
        return found, soon, is_blocked and found is None

    def _leaves_enough(self, rank: int, stage: int, k: int) -> bool:
        """Tell whether an F fits now, and leaves enough memory to finish the oldest microbatch that waits for I."""
        facts, done, amount = self.facts, self.done, self.facts.change[F, stage]
        if not self.fits(rank, amount):
            return False
        oldest, others = min(done[I, s] for s in facts.own[rank]), 0.0
        for s in facts.own[rank]:
            others += (done[F, s] - done[I, s] - (done[I, s] == oldest < done[F, s])) * facts.change[F, s]
        return k == oldest or fits(others + amount + facts.least[rank], facts.workload.memory_limit[rank])


def greedy(
    num_microbatches: int,
    costs: Costs,
    placement: Sequence[int],
    memory_limit: float | Sequence[float] | None = None,
    priority: str = "BF",
) -> Schedule:
    """Return a greedy schedule: no rank waits while it could work (list scheduling).

    An idle rank takes the first kind of ``priority`` with an action that is ready and within the memory limit. Among
    several of that kind it takes the lowest microbatch, then the lowest stage.

    With equal costs, ``"BF"`` and limits p - r give 1F1B, and ``"FB"`` without a limit gives GPipe. The scheduler does
    not look ahead. For uneven stages, try several priorities and limits, ``"IFW"`` first, and simulate the results.

    Parameters
    ----------
    num_microbatches : int
        At least 1.
    costs : Costs
        The costs of the simulation that builds the schedule.
    placement : sequence of int
        The rank of each stage.
    memory_limit : float or sequence of float, optional
        The largest number of (stage, microbatch) pairs that a rank may hold: one limit for all ranks, or one for each.
        It is at least the number of stages of the rank.
    priority : str
        The kinds, most urgent first: B and F, or I, W and F for a split backward.

    Returns
    -------
    Schedule
        A legal schedule. Gradients accumulate in ascending order of microbatches.

    Raises
    ------
    ScheduleError
        Codes ``parameters`` and ``costs``.

    Notes
    -----
    Without a reserve, memory could fill up with microbatches that cannot finish. So a forward of a later
    microbatch starts only if memory remains for all pending forwards of the rank's oldest unfinished microbatch. The
    oldest microbatch of all ranks can then always make progress.

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
        raise unfit("placement", placement, "the rank of each stage, such as (0, 1, 2, 3)")
    if not isinstance(priority, str) or sorted(priority) not in (["B", "F"], ["F", "I", "W"]):
        raise ScheduleError.of(
            ScheduleCode.PARAMETERS,
            f"priority is {quoted(priority)}; expected an order of B and F, or of F, I and W, such as 'BF' or 'IFW'.",
        )
    workload = costs.workload(placement, num_microbatches)
    limits = workload.memory_limit if memory_limit is None else amount_per_rank(memory_limit, workload.num_ranks)
    pairs = Footprint((1,) * workload.num_stages, (1,) * workload.num_stages, (0,) * workload.num_stages)
    workload = workload._replace(overhead=0.0, footprint=pairs, memory_limit=limits)
    check_memory(workload)
    facts = Facts(workload, gradient=B if "B" in priority else I)
    return schedule_of(_Greedy(facts, priority).words, workload, "greedy")


class _Greedy(EventScheduler):
    def __init__(self, facts: Facts, priority: str) -> None:
        super().__init__(facts)
        self.kinds = list(map(ActionKind, priority))
        self.run()

    def choose(self, rank: int, now: float) -> Cell | None:
        oldest, left = self.forwards_left(rank)
        for kind in self.kinds:
            there = [(self.done[kind, s], s) for s in self.facts.own[rank] if self.next_at((kind, s)) <= now]
            if there:
                k, stage = min(there)
                if kind is not F or self.fits(rank, 1 if k == oldest else 1 + left):
                    return kind, stage
        return None
