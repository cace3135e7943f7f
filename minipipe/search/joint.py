"""Search for partition, placement and schedule together, on request with recomputation
and offload.

A choice is a placement, the layers of each stage, whether each stage recomputes its
activations, and whether activations may be offloaded. Choices are weighed in the order
of their lower bounds: first a cheap one, the work of the busiest rank, then the largest
known one. Each gets a short search, and the best get longer ones (successive halving).
As soon as the next bound reaches the best value, all other choices are pruned: none of
them is better.

If any stage may recompute, a choice begins undecided. It is decided stage by stage, as
in branch and bound: the case with the smaller bound goes on, and the other one waits::

    ??? 20 -- .?? 24 waits
           `- R?? 22 -- R.? 22 -- R.. 22: searched
                     |         `- R.R 25 waits
                     `- RR? 25 waits

The lower bound of the result holds for every schedule of every choice. Only layers of
the same order, the placements passed, and unsliced microbatches are choices; replicas,
and recomputation of a part of a stage, are not weighed. If there are too many
partitions, all up to some work of the busiest rank are choices, and this work bounds
the others. With offload, schedules are searched within larger limits and given copies
afterwards. Their bound counts the memory of single actions and the copies during
warm-up and drain only, so a gap may remain.

References
----------
2025, "AdaPtis", arXiv 2509.23722: partition, placement and schedule weighed together.
2025, "OptPipe", arXiv 2510.05186: schedule and offload in one program. Both were read
second hand; nothing of their numbers is used.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from math import inf
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

from minipipe.core.specs import SCHEDULE_COUNT, SCHEDULE_NUMBER, Spec
from minipipe.errors import ScheduleError, counted, misuse
from minipipe.schedules.analysis.workload import ROUNDING, Objective
from minipipe.schedules.simulation.costs import Costs
from minipipe.search.certificate import Certificate
from minipipe.search.choices import (
    Choice,
    Recompute,
    costs_of_stages,
    weight_memory,
    without_weights,
)
from minipipe.search.finding import checked

LAYERS = SCHEDULE_COUNT._replace(maximum=1000)  # of a model, for this search
COPIES = SCHEDULE_NUMBER._replace(maximum=1e6)  # of weights
WEIGHT_COPIES = 4.0  # parameters, gradients, and Adam's two means
_WORK = (1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, inf)  # of the least possible
_MOST = 2000  # partitions of a placement
_FIRST = 130  # evaluations of the first search: all sweeps and policies
_BOUNDED = 20_000  # choices that get a bound, with or without offload; the rest waits
_ORDER = attrgetter("order")
Watch = Callable[[Callable[[], str]], object]
_RECOMPUTE = Spec(str, choices=tuple(map(str, Recompute)), error=ScheduleError.of)


class JointResult(NamedTuple):
    """The best choice that was found, and a bound on all choices.

    Attributes
    ----------
    best : Certificate
        Its schedule, with O and L if it offloads; its workload and value. No schedule
        of any choice is below the ``bound``.
    costs : Costs
        By stage.
    sizes : tuple of int
        By stage, its number of layers.
    recomputed : tuple of bool
        By stage, whether it recomputes. The ``costs`` include it.
    weight_memory : tuple of float
        By rank, the memory of its weights; the memory limits of the workload are what
        it leaves.
    is_offloaded : bool
    choices, searched, waiting, impossible : int
        The numbers of choices: in all; searched; left although their bounds are below
        the value, because a limit ended the search; without a schedule, for lack of
        memory. The others were pruned: their bounds are not below the value.
    is_complete : bool
        Whether every partition was a choice.
    """

    best: Certificate
    costs: Costs
    sizes: tuple[int, ...]
    recomputed: tuple[bool, ...]
    weight_memory: tuple[float, ...]
    is_offloaded: bool
    choices: int
    searched: int
    waiting: int
    impossible: int
    is_complete: bool


def find_joint(
    costs: Costs,
    num_layers: int,
    placements: Sequence[Sequence[int]],
    num_microbatches: int,
    memory_limit: float | None = None,
    objective: Objective = Objective.SPAN,
    offload: bool = False,
    evaluations: int = 20_000,
    seconds: float = inf,
    seed: int = 0,
    recompute: str = Recompute.NONE,
    weight_copies: float = WEIGHT_COPIES,
    watch: Watch = lambda describe: None,
) -> JointResult:
    """Return the best partition, placement and schedule found, with a bound on all.

    Local; no messages, one core.

    Parameters
    ----------
    costs : Costs
        By layer instead of by stage; ``message_size`` of a layer counts if it is the
        last of its stage.
    num_layers : int
    placements : sequence of placements
        The placements to weigh: for each the rank of each stage.
    num_microbatches : int
    memory_limit : float, optional
        The most that a rank may hold, of weights and activations.
    objective : Objective
    offload : bool
        Whether choices with offload are weighed, at ``costs.copy_bandwidth``.
    evaluations : int
        The most schedules that all searches try together. It and the seed determine the
        result, unless the clock ends the search.
    seconds : float
        The time limit.
    seed : int
    recompute : {"none", "uniform", "any"}
        Which stages may recompute: none; all or none; or any of them. Such a stage
        holds its input, see :func:`minipipe.search.choices.recomputing`.
    weight_copies : float
        How often a rank holds ``costs.weights``: by default the parameters, their
        gradients, and the two means of Adam.
    watch : function
        Called with a function that returns a progress message.

    Returns
    -------
    JointResult

    Raises
    ------
    ScheduleError
        Code ``value``, if there are fewer layers than stages, if no choice fits the
        memory, or for offload without a limit; the codes of
        :meth:`minipipe.Costs.workload`.

    Examples
    --------
    The last layer is slow; alone it makes a stage, and the others share two ranks.

    >>> times = [1, 1, 1, 1, 2]
    >>> costs = Costs(times, times, times, activation=2, message_size=1, weights=1)
    >>> joint = find_joint(costs, 5, [(0, 1, 2)], num_microbatches=6)
    >>> joint.best.value, joint.best.gap, joint.sizes, joint.choices, joint.searched
    (36.0, 0.0, (2, 2, 1), 6, 1)

    With less memory, some stages recompute.

    >>> joint = find_joint(costs, 5, [(0, 1, 2)], 6, memory_limit=18, recompute="any")
    >>> joint.best.value, joint.best.bound, joint.sizes, joint.recomputed
    (48.0, 48.0, (2, 2, 1), (True, False, False))
    """
    _check(num_layers, recompute, weight_copies)
    objective = checked(objective, None, evaluations)
    if offload and memory_limit is None:
        raise misuse("offload needs a memory_limit; without one, nothing is offloaded.")
    begun = perf_counter()
    choices: list[Choice] = []
    rest = inf
    groups = [False, True][: 1 + offload]
    for placement in placements:
        forms = list(product(groups, Recompute(recompute).decisions(len(placement))))
        partitions, left = _partitions(costs, num_layers, placement)
        rest = min(rest, num_microbatches * left)
        for sizes in partitions:
            of_stages = costs_of_stages(costs, sizes)
            workload = of_stages.workload(placement, num_microbatches, memory_limit)
            workload = without_weights(workload, of_stages, weight_copies)
            problem = (of_stages, sizes, workload)
            choices += [Choice(*problem, *form) for form in forms]
    weighing = _Weighing(objective, begun + seconds, seed, watch)
    for offloads in groups:
        group = [choice for choice in choices if choice.offloads is offloads]
        weighing.run(group, evaluations // len(groups))
    result = _result(weighing, choices, rest, weight_copies)
    best = result.best._replace(seconds=perf_counter() - begun)
    return result._replace(best=best)


def _check(num_layers: int, recompute: str, weight_copies: float) -> None:
    LAYERS.check("num_layers", num_layers)
    _RECOMPUTE.check("recompute", recompute)
    COPIES.check("weight_copies", weight_copies)


def _result(
    weighing: _Weighing, choices: Sequence[Choice], rest: float, weight_copies: float
) -> JointResult:
    """Return the best choice; ``rest`` is a bound on all partitions left out."""
    best = weighing.best
    if best is None or best.schedule is None:
        hint = "use more ranks, more memory, recomputation or offload"
        raise misuse(f"No schedule of any choice was found within its memory; {hint}.")
    others = filter(weighing.is_below, [*weighing.waiting, *weighing.searched])
    bound = min(best.value, rest, *(choice.bound for choice in others))
    claim = (weighing.objective, best.value, bound, "the least bound of all choices")
    found = (best.schedule, best.workload, *claim, best.found_by, 0.0)
    return JointResult(
        Certificate(*found),
        best.costs,
        best.sizes,
        tuple(map(bool, best.recomputed)),
        weight_memory(best.costs, best.workload, weight_copies),
        best.offloads,
        sum(choice.count for choice in choices),
        len(weighing.searched),
        weighing.num_waiting(),
        weighing.impossible,
        is_complete=rest == inf,
    )


class _Weighing:
    """The choices that wait, and those searched.

    Attributes
    ----------
    objective : Objective
    waiting, searched : list of Choice
    best : Choice or None
    impossible : int
        The number of choices whose memory permits no schedule.
    """

    def __init__(
        self, objective: Objective, deadline: float, seed: int, watch: Watch
    ) -> None:
        self.waiting: list[Choice] = []
        self.searched: list[Choice] = []
        self.best: Choice | None = None
        self.impossible = 0
        self.objective = objective
        self._deadline = deadline
        self._seed = seed
        self._left = 0
        self._bounded = 0
        watch(self.describe)

    @property
    def value(self) -> float:
        """The best value; infinite at the beginning."""
        return inf if self.best is None else self.best.value

    def num_waiting(self) -> int:
        """Return how many choices below the best value were not searched."""
        searched: defaultdict[object, list[Choice]] = defaultdict(list)
        for choice in self.searched:
            searched[choice.problem].append(choice)
        number = 0
        for group in filter(self.is_below, self.waiting):
            number += group.count - sum(map(group.covers, searched[group.problem]))
        return number

    def describe(self) -> str:
        """Return a progress message."""
        done = f"searched {counted(len(self.searched), 'choice')}"
        return f"{done}; the best has {self.value:g}"

    def run(self, choices: Sequence[Choice], evaluations: int) -> None:
        """Search choices until all others are pruned, or a limit is reached."""
        self._left = evaluations
        self._bounded = 0
        begin = len(self.searched)
        self._search_first(choices, evaluations // 2)
        if any(None in choice.recomputed for choice in choices):
            self._search_flipped(evaluations // 4)
        number = 2 * _FIRST
        while self._left > 0 and not self._is_late:
            hopeful = [
                each for each in self.searched[begin:] if self._may_improve(each)
            ]
            if not hopeful:
                break
            hopeful.sort(key=lambda choice: choice.value)
            for choice in hopeful[: max(1, len(hopeful) // 2)]:
                self._improve(choice, number)
            number *= 2

    def _search_first(self, choices: Sequence[Choice], left: int) -> None:
        """Search those with the least bounds of each placement in turn, until so many
        evaluations are left.
        """
        of_placement: dict[Sequence[int], list[Choice]] = {}
        for choice in sorted(choices, key=_ORDER):
            of_placement.setdefault(choice.workload.placement, []).append(choice)
        turns = list(of_placement.values())
        begin = len(self.searched)
        while turns and not (len(self.searched) > begin and self._has_ended(left)):
            group = turns.pop(0)
            found = self._next(group)
            if found is None:
                self.waiting += group
            else:
                self._begin(found)
                turns.append(group)
        self.waiting += chain(*turns)

    def _search_flipped(self, left: int) -> None:
        """Search the best choice with other stages recomputed: in halves, quarters, and
        so on, until so many evaluations are left.

        Bounds say little about large choices that are undecided.
        """
        size = 0 if self.best is None else len(self.best.recomputed)
        stages = range(size)
        while size > 1:
            size = -(-size // 2)
            for first in stages[::size]:
                if self.best is None or self._has_ended(left):
                    return
                choice = self.best.flipped(stages[first : first + size])
                if any(choice.covers(other) for other in self.searched):
                    continue
                if choice.find_bound(self.objective) and self.is_below(choice):
                    self._begin(choice)

    def _has_ended(self, left: int) -> bool:
        """Whether only so many evaluations are left, or no time."""
        return self._left <= left or self._is_late

    def _begin(self, choice: Choice) -> None:
        self.searched.append(choice)
        self._improve(choice, _FIRST)

    def _next(self, group: list[Choice]) -> Choice | None:
        """Take a decided choice from a group, with a bound below the best value; None,
        if there is none, or too many got a bound.
        """
        while group and self.is_below(group[0]) and self._bounded < _BOUNDED:
            choice = group.pop(0)
            if not choice.is_bounded:
                self._add(group, [choice])
                continue
            while None in choice.recomputed:
                others: list[Choice] = []
                self._add(others, choice.decided())
                choice = others.pop(0)
                self._add(group, others)
            if self.is_below(choice):
                return choice
        return None

    def _add(self, group: list[Choice], choices: Iterable[Choice]) -> None:
        """Add the choices that memory permits to a group, each with its bound."""
        for choice in choices:
            self._bounded += not choice.is_bounded
            if choice.is_bounded or choice.find_bound(self.objective):
                insort(group, choice, key=_ORDER)
            else:
                self.impossible += choice.count

    @property
    def _is_late(self) -> bool:
        return perf_counter() >= self._deadline

    def is_below(self, choice: Choice) -> bool:
        """Whether a schedule of a choice may be below the best value."""
        return choice.bound < self.value * (1 - ROUNDING)

    def _may_improve(self, choice: Choice) -> bool:
        return self.is_below(choice) and not choice.is_closed

    def _improve(self, choice: Choice, evaluations: int) -> None:
        number = min(evaluations, max(self._left, 1))
        seconds = max(self._deadline - perf_counter(), 0.0)
        choice.improve(self.objective, number, seconds, self._seed)
        self._left -= number
        if choice.value < self.value:
            self.best = choice


# -- partitions ------------------------------------------------------------------------


def _partitions(
    costs: Costs, num_layers: int, placement: Sequence[int]
) -> tuple[list[tuple[int, ...]], float]:
    """Return all partitions up to some work of the busiest rank for a microbatch, and
    the least work of all others; infinite, if there are none.

    Raises
    ------
    ScheduleError
        Code ``value``, if there are fewer layers than stages.
    """
    if len(placement) > num_layers:
        problem = f"The placement has {counted(len(placement), 'stage')}, and there"
        raise misuse(f"{problem} are {counted(num_layers, 'layer')}.")
    names = ("forward", "backward_input", "backward_weight")
    times = (costs.by_stage(name, num_layers, "layer") for name in names)
    work = [sum(each) for each in zip(*times)]
    least = max(sum(work) / (1 + max(placement)), max(work))
    kept: list[tuple[int, ...]] = []
    reached = least
    for factor in _WORK:
        finder = _Partitions(work, placement, least * factor * (1 + ROUNDING))
        found = list(finder.all())
        if finder.has_stopped and kept:
            return kept, reached
        kept = found or kept
        if finder.has_stopped:
            return kept, least
        reached = least * factor
    return kept, inf


class _Partitions:
    """Enumerates partitions in which no rank has more than some work."""

    def __init__(
        self, work: Sequence[float], placement: Sequence[int], most: float
    ) -> None:
        self._work = work
        self._placement = placement
        self._most = most
        self._loads = [0.0] * (1 + max(placement))
        self._found = 0
        self._tried = 0

    @property
    def has_stopped(self) -> bool:
        """Whether there are too many to enumerate."""
        return self._found > _MOST or self._tried > 50 * _MOST

    def all(self, first: int = 0, sizes: int = 0) -> Iterator[tuple[int, ...]]:
        """Yield the sizes of the stages after some number of sizes, for the layers from
        one on.
        """
        self._tried += 1
        left = len(self._work) - first
        stages_left = len(self._placement) - sizes
        if not stages_left:
            self._found += 1
            yield ()
            return
        rank = self._placement[sizes]
        begin = self._loads[rank]
        for size in range(1, left - stages_left + 2):
            self._loads[rank] += self._work[first + size - 1]
            if self._loads[rank] > self._most or self.has_stopped:
                break
            if stages_left > 1 or size == left:
                for others in self.all(first + size, sizes + 1):
                    yield (size, *others)
        self._loads[rank] = begin
