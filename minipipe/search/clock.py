"""The clock of all searches: it runs the actions of ranks one after another.

Every stage runs its F, its I and its W in ascending order of microbatches. So a search
represents a row by its ``Order``, a list of (kind, stage) pairs. The microbatch of an
action is the number of earlier actions with its kind and stage::

    order: F F I W I W
    row:   F0 F1 I0 W0 I1 W1

:class:`Clock` says when an action can start, and whether its memory fits. What an
action needs, and from whom, follows from the values that it declares
(`core/values.py`). A search needs only ends and the critical path, which take a
fraction of the time of a whole timeline. The tests compare both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf
from typing import NamedTuple

from minipipe.core.flow import Flow, delay_of
from minipipe.core.memory import Change, Changes
from minipipe.core.schedules.action import Action, ActionKind, F, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.schedules.analysis.activations import sizes_of
from minipipe.schedules.analysis.workload import ROUNDING, Workload, check_memory
from minipipe.schedules.features import without_overlaps
from minipipe.schedules.placements import stages_by_rank
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.transforms import repeat

Op = tuple[ActionKind, int]  # (kind, stage)
Order = list[Op]  # of one rank
# Actions between two looks at the time; they take some hundredths of a second.
_UNTIL_A_LOOK = 4096


def one_after_another(workload: Workload) -> Schedule:
    """Return the schedule that runs one microbatch after another: with least memory.

    Any schedule computes F of a rank's last stage while it holds the same microbatch on
    all its other stages, since their I come later; likewise before each I. This
    schedule holds nothing else at these times.

    If not even one microbatch fits, it raises code ``value``, because then no
    schedule fits.

    Examples
    --------
    >>> from minipipe import Costs
    >>> print(one_after_another(Costs().workload((0, 1), num_microbatches=2)))
    # one after another: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0I0 0W0 0F1 0I1 0W1
    rank 1: 1F0 1I0 1W0 1F1 1I1 1W1
    """
    check_memory(workload)
    one = one_microbatch(workload.placement, workload.num_ranks)
    rows = repeat(one, workload.num_microbatches).actions
    name = "one after another"
    return Schedule(name, workload.placement, workload.num_microbatches, rows)


# -- orders ----------------------------------------------------------------------------


def orders_of(schedule: Schedule) -> list[Order]:
    """Return the order of each rank of a schedule: a list of (kind, stage)."""
    return [[(kind, stage) for stage, kind, _ in row] for row in schedule.actions]


def schedule_of(orders: Sequence[Order], workload: Workload, name: str) -> Schedule:
    """Return the schedule with the orders of all ranks.

    Examples
    --------
    >>> from minipipe import Costs
    >>> order = [(F, 0), (F, 0), (I, 0), (W, 0), (I, 0), (W, 0)]
    >>> print(schedule_of([order], Costs().workload((0,), 2), "mine"))
    # mine: 1 rank, 1 stage, 2 microbatches
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    """
    rows = tuple(tuple(_row(order)) for order in orders)
    return Schedule(name, workload.placement, workload.num_microbatches, rows)


def in_microbatch_order(schedule: Schedule) -> Schedule:
    """Return a schedule with its microbatches renumbered, ascending in each stage.

    It holds as much memory, and every action can keep its time. Microbatches are equal.
    When the k-th F of a stage starts, k microbatches have passed the stage before, so
    the k-th F there has ended and its value has arrived. The same is true between I of
    neighbouring stages, between F and I of a stage, and between I and W. So the k-th F,
    I and W of every stage may belong to microbatch k. The memory of a rank depends only
    on how many actions of each kind it has done.

    Examples
    --------
    >>> mine = Schedule.from_text("0F1 0F0 0I0 0I1 0W0 0W1", name="mine")
    >>> print(in_microbatch_order(mine))
    # mine: 1 rank, 1 stage, 2 microbatches
    rank 0: 0F0 0F1 0I0 0I1 0W0 0W1
    """
    rows = map(_row, orders_of(schedule))
    return without_overlaps(schedule, "a search").with_rows(Schedule, rows)


def _row(order: Order) -> Iterator[Action]:
    done: Counter[Op] = Counter()
    for kind, stage in order:
        yield Action(stage, kind, done[kind, stage])
        done[kind, stage] += 1


# -- what actions need -----------------------------------------------------------------


class Step(NamedTuple):
    """The actions of an op as numbers; for microbatch k, add k to the event.

    Attributes
    ----------
    event : int
        Its end.
    time : float
    needs : list of (int, float)
        The events before it, each with the time that the value travels.
    during, change : float
        The additional memory of the rank while an action runs, and the change after it.
    sends : list of (int, float)
        The other ranks that take what it gives, each with the time in flight.
    """

    event: int
    time: float
    needs: list[tuple[int, float]]
    during: float
    change: float
    sends: list[tuple[int, float]]

    @property
    def in_flight(self) -> float:
        """How long what it gives travels to another rank, if it does."""
        return max((delay for _, delay in self.sends), default=0.0)


class ProblemData:
    """The data of a workload that a search needs often, computed once.

    Parameters
    ----------
    workload : Workload
    backward : sequence of ActionKind
        I and W, or B.
    look_at_clock : function
        Called now and then while a large schedule is built; it may raise
        :class:`OutOfTime`.

    Attributes
    ----------
    ops : list of Op
        Each comes after the ops that it needs. The events of op i are numbered from
        i * num_microbatches on.
    steps : dict of Op to Step
    stages_of : list of list of int
        By rank, its stages.
    capacity : list of float
        By rank, its memory, with an allowance for rounding.
    least : list of float
        By rank, the memory for one microbatch alone.
    """

    def __init__(
        self,
        workload: Workload,
        backward: Sequence[ActionKind] = (I, W),
        look_at_clock: Callable[[], None] = lambda: None,
    ) -> None:
        self.workload = workload
        self.look_at_clock = look_at_clock
        self.num_microbatches = workload.num_microbatches
        self.rank_of = workload.placement
        self.overhead = workload.overhead
        self.stages_of = stages_by_rank(workload.placement, workload.num_ranks)
        self.capacity = [limit * (1 + ROUNDING) for limit in workload.memory_limit]
        self.least = list(map(workload.least_memory, range(workload.num_ranks)))
        stages = range(workload.num_stages)
        self.ops = [*product([F], stages), *product(backward, reversed(stages))]
        self.steps: dict[Op, Step] = {}
        self._declare()

    def op_of(self, event: int) -> Op:
        """Return the op of the action whose end is an event."""
        return self.ops[event // self.num_microbatches]

    def _declare(self) -> None:
        """Derive the steps from the values that each op declares."""
        rows: list[list[Action]] = [[] for _ in self.stages_of]
        for kind, stage in self.ops:
            rows[self.rank_of[stage]].append(Action(stage, kind, 0))
        flow = Flow(Schedule("ops", self.rank_of, 1, tuple(map(tuple, rows))))
        sizes = sizes_of(self.workload.footprint)
        changes = Changes(flow, sizes)
        change_of: dict[Action, Change] = {}
        for rank, row in enumerate(rows):
            change_of.update(zip(row, changes.of_row(rank)))
        durations = self.workload.durations
        op_of: dict[int, Op] = {}
        for number, op in enumerate(self.ops):
            kind, stage = op
            rank = self.rank_of[stage]
            numbers = flow.numbers(rank, rows[rank].index(Action(stage, kind, 0)))
            assert numbers is not None
            op_of |= dict.fromkeys(numbers.gives, op)
            temporary, lost, gained, *_ = change_of[Action(stage, kind, 0)]
            change = gained - lost
            during = max(0.0, temporary, change)
            event = number * self.num_microbatches
            time = durations[kind][stage]
            self.steps[op] = Step(event, time, [], during, change, [])
            for needed in numbers.needs:
                giver = self.steps[op_of[needed]]
                delay = delay_of(flow, needed, self.workload.message)
                self.steps[op].needs.append((giver.event, delay))
                if self.rank_of[stage] != self.rank_of[op_of[needed][1]]:
                    giver.sends.append((self.rank_of[stage], delay))


# -- the clock -------------------------------------------------------------------------


class OutOfTime(Exception):
    """Ends the building of a schedule whose search has used its time."""


class Clock:
    """A schedule to which actions are added, each with its time.

    Attributes
    ----------
    done : dict of Op to int
        How many actions of each op have run.
    ended : list of float
        By event, its time; infinite until it is known.
    awaited : list of int or None
        By event, the one for which its rank waited, while it was free.
    rows : list of list of int
        By rank, the events of its actions.
    held : list of float
        By rank, the memory after its last action.
    begins, free : list of float
        By rank: its first start, and its last end with the overhead after it.
    """

    def __init__(self, problem: ProblemData) -> None:
        num_ranks = len(problem.stages_of)
        self.problem = problem
        self.done = dict.fromkeys(problem.ops, 0)
        num_events = len(problem.ops) * problem.num_microbatches
        self.ended = [inf] * num_events
        self.awaited: list[int | None] = [None] * num_events
        self.rows: list[list[int]] = [[] for _ in range(num_ranks)]
        self.held = [0.0] * num_ranks
        self.free = [0.0] * num_ranks
        self.begins = [inf] * num_ranks

    @property
    def orders(self) -> list[Order]:
        """The actions of each rank."""
        return [list(map(self.problem.op_of, row)) for row in self.rows]

    @property
    def ends(self) -> list[float]:
        """The last end of each rank."""
        return [self.ended[row[-1]] if row else 0.0 for row in self.rows]

    def run(self, rank: int, order: Order, not_before: float = 0.0) -> set[int]:
        """Run actions of a rank, each as early as it can, until one cannot run.

        An action cannot run if a value does not exist yet, or its memory does not fit.
        Returns the other ranks that take what the actions give. The hot loop.
        """
        problem = self.problem
        done, ended, awaited = self.done, self.ended, self.awaited
        steps, overhead = problem.steps, problem.overhead
        capacity = problem.capacity[rank]
        row, held = self.rows[rank], self.held[rank]
        free = max(self.free[rank], not_before)
        receivers: set[int] = set()
        for op in order:
            event, time, needs, during, change, sends = steps[op]
            k = done[op]
            start = free
            for needed, delay in needs:
                available_at = ended[needed + k] + delay
                if available_at > start:
                    start = available_at
                    awaited[event + k] = needed + k
            if start == inf or held + during > capacity:
                awaited[event + k] = None
                break
            if not row:
                self.begins[rank] = start
            done[op] = k + 1
            held += change
            end = start + time
            free = end + overhead
            ended[event + k] = end
            row.append(event + k)
            for receiver, _ in sends:
                receivers.add(receiver)
        self.held[rank] = held
        self.free[rank] = free
        if row and row[-1] % _UNTIL_A_LOOK == _UNTIL_A_LOOK - 1:
            problem.look_at_clock()
        return receivers

    def undo(self, rank: int, held: float) -> None:
        """Take back the last action of a rank, which held so much before it."""
        row = self.rows[rank]
        event = row.pop()
        self.ended[event] = inf
        self.awaited[event] = None
        self.done[self.problem.op_of(event)] -= 1
        self.held[rank] = held
        if row:
            self.free[rank] = self.ended[row[-1]] + self.problem.overhead
        else:
            self.begins[rank] = inf
            self.free[rank] = 0.0

    def fits(self, rank: int, amount: float) -> bool:
        """Tell whether an additional amount fits into the memory of a rank."""
        return self.held[rank] + amount <= self.problem.capacity[rank]

    def next_at(self, op: Op) -> float:
        """Return when the values for the next action of an op exist, if that is known.

        Otherwise, or if no action is left, it is infinite.
        """
        k = self.done[op]
        if k == self.problem.num_microbatches:
            return inf
        soonest = 0.0
        for needed, delay in self.problem.steps[op].needs:
            available_at = self.ended[needed + k] + delay
            if available_at > soonest:
                soonest = available_at
        return soonest

    def oldest_weight(self, rank: int) -> int | None:
        """Return the stage of the W of the lowest microbatch that waits for it."""
        done = self.done
        stages = self.problem.stages_of[rank]
        pending = (s for s in stages if done[W, s] < done[I, s])
        return min(pending, key=lambda s: done[W, s], default=None)
