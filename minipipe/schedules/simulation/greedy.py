"""A greedy list scheduler for any stage costs, placement and memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from numbers import Integral

from minipipe.errors import ScheduleCode, ScheduleError, quoted
from minipipe.schedules.action import Action, ActionKind, B, F, I, W
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.dependencies import Dependencies, Value
from minipipe.schedules.analysis.workload import amount_per_rank
from minipipe.schedules.placement import check_placement, check_sizes, stages_by_rank
from minipipe.schedules.simulation.costs import Costs


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
        message = f"placement is {quoted(placement)}; expected the rank of each stage, such as (0, 1, 2, 3)."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    placement = tuple(placement)
    num_ranks = 1 + max((int(rank) for rank in placement if isinstance(rank, Integral)), default=0)
    check_placement(placement, num_ranks)
    check_sizes(num_ranks, num_microbatches)
    if not isinstance(priority, str) or sorted(priority) not in (["B", "F"], ["F", "I", "W"]):
        raise ScheduleError.of(
            ScheduleCode.PARAMETERS,
            f"priority is {quoted(priority)}; expected an order of B and F, or of F, I and W, such as 'BF' or 'IFW'.",
        )
    stages = stages_by_rank(placement, num_ranks)
    no_limit = num_microbatches * len(placement)
    limits = amount_per_rank(no_limit if memory_limit is None else memory_limit, num_ranks)
    for rank, (own, limit) in enumerate(zip(stages, limits)):
        if limit < len(own):
            raise ScheduleError.of(
                ScheduleCode.PARAMETERS,
                f"memory_limit is {limit:g} on rank {rank}, but one microbatch takes {len(own)} pairs on its "
                f"{len(own)} stages; expected at least {len(own)}.",
            )
    ranks = [_RankState(own, num_microbatches, limit, priority) for own, limit in zip(stages, limits)]
    blank = Schedule("greedy", placement, num_microbatches, ((),) * num_ranks)
    _run(blank, costs, ranks, whole="B" in priority)
    return Schedule("greedy", placement, num_microbatches, tuple(tuple(rank.done) for rank in ranks))


class _RankState:
    """The state of one rank: ready actions, activations held, and actions started."""

    def __init__(self, stages: list[int], num_microbatches: int, limit: float, priority: str) -> None:
        self.limit = limit
        self.kinds = [ActionKind(letter) for letter in priority]
        self.ready: dict[ActionKind, list[tuple[int, int]]] = {kind: [] for kind in self.kinds}
        self.forwards_left = [len(stages)] * num_microbatches
        self.oldest = 0  # the first microbatch with pending forwards on this rank
        self.held = 0
        self.busy = False
        self.done: list[Action] = []

    def offer(self, action: Action) -> None:
        """Add an action to the ready ones."""
        heappush(self.ready[action.kind], (action.microbatch, action.stage))

    def choose(self) -> Action | None:
        """Start the most urgent ready action within the memory limit; return None if there is none."""
        for kind in self.kinds:
            if self.ready[kind] and (kind is not F or self._fits(self.ready[F][0][0])):
                k, stage = heappop(self.ready[kind])
                action = Action(stage, kind, k)
                self._account(action)
                self.done.append(action)
                return action
        return None

    def _fits(self, microbatch: int) -> bool:
        reserved = 0 if microbatch == self.oldest else self.forwards_left[self.oldest]
        return self.held + 1 + reserved <= self.limit

    def _account(self, action: Action) -> None:
        self.held += (action.kind is F) - (action.kind in (B, W))
        if action.kind is F:
            self.forwards_left[action.microbatch] -= 1
            while self.oldest < len(self.forwards_left) and not self.forwards_left[self.oldest]:
                self.oldest += 1


def _run(blank: Schedule, costs: Costs, ranks: list[_RankState], whole: bool) -> None:
    """Simulate event by event: an action ends, or a value arrives."""
    durations, message_times = costs.durations(blank.num_stages), costs.message_times(blank)
    gradient_kind = B if whole else I
    dependencies = Dependencies(blank)
    events: list[tuple[float, Action, bool]] = []  # (time, action, whether it ends; otherwise it becomes ready)
    for k in range(blank.num_microbatches):
        heappush(events, (0.0, Action(0, F, k), False))
    while events:
        now = events[0][0]
        touched = set()
        while events and events[0][0] == now:
            _, action, ends = heappop(events)
            touched.add(blank.placement[action.stage])
            rank = ranks[blank.placement[action.stage]]
            if not ends:
                rank.offer(action)
                continue
            rank.busy = False
            if action.kind is I:
                rank.offer(action._replace(kind=W))
            value = Value.produced_by(action)
            if value is not None and dependencies.exists(value):
                consumer = value.consumer if action.kind is F else value.consumer._replace(kind=gradient_kind)
                heappush(events, (now + message_times[value.cut], consumer, False))
            elif action.kind is F:  # the loss turns the last activation into the first gradient
                rank.offer(action._replace(kind=gradient_kind))
        for rank in (ranks[index] for index in sorted(touched)):
            chosen = None if rank.busy else rank.choose()
            if chosen is not None:
                rank.busy = True
                heappush(events, (now + durations[chosen.kind][chosen.stage], chosen, True))
