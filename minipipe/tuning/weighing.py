"""The predicted time, idle time and memory of each candidate, from a cost model alone. Nothing is timed here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.execution.plan import Plan
from minipipe.render.descriptions import format_memory
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import Objective, Workload, fits
from minipipe.schedules.search.finding import find_schedule
from minipipe.schedules.simulation.comparison import workload_of
from minipipe.schedules.simulation.simulator import simulate
from minipipe.tuning.candidates import SEARCHED, Candidate, Question, models_for_search
from minipipe.tuning.cost_model import CostModel
from minipipe.tuning.memory import MemoryPrediction

_ACTIONS_A_SECOND = 200_000  # of schedules that are tried, on one core of 2024
_SLOWEST = 4  # times as long as that core the search may take


def searched_schedule(workload: Workload, seconds: float) -> Schedule | None:
    """Search a schedule for a workload; return None if one microbatch exceeds its memory.

    Parameters
    ----------
    workload : Workload
    seconds : float
        How much to search, above 0: the number of schedules that a quiet core tries in this time. The result does not
        depend on the machine or its load, unless these slow the search down more than four times: then it stops.

    Examples
    --------
    >>> from minipipe import Costs
    >>> searched_schedule(Costs().workload((0, 1), num_microbatches=4, memory_limit=0.5), seconds=0.1) is None
    True
    """
    try:
        evaluations = int(seconds * _ACTIONS_A_SECOND / (3 * workload.num_stages * workload.num_microbatches)) + 1
        limit = _SLOWEST * seconds
        return find_schedule(workload, Objective.MAKESPAN, limit, evaluations=evaluations).schedule
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return None


def least_makespan(workload: Workload, cores: float | Sequence[float] | None) -> tuple[float, str]:
    """Return a lower bound for the makespan of every schedule of a workload, and the reason.

    Parameters
    ----------
    workload : Workload
    cores : float or sequence of float, optional
        The cores that the ranks share; by host, if there are several.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs(forward=[1, 3]).workload((0, 1), num_microbatches=4)
    >>> least_makespan(workload, cores=None)[0], least_makespan(workload, cores=1)
    (21.0, (32.0, 'All ranks together compute for 32 on cores that they share.'))
    """
    bound = lower_bound(workload, Objective.MAKESPAN)
    work = sum(map(workload.work, range(workload.num_ranks)))
    shared = float(np.sum(cores)) if cores is not None else inf
    if work / shared > bound.value:
        return work / shared, f"All ranks together compute for {work:g} on cores that they share."
    return bound.value, bound.reason


_FORMS = 2  # numbers of microbatches, with their cuts, for which schedules are searched: those of the best named ones

Form = tuple[str, bool]  # what the cut balances, and whether activations are computed again


class Choice(NamedTuple):
    """A candidate with its predicted time and memory.

    Attributes
    ----------
    candidate : Candidate
    schedule : Schedule
    partition : tuple of range
        The layers of each stage.
    time : float
        Seconds of forward and backward of a batch, from the first start to the last end on any rank.
    bubble_fraction : float
        The idle share of the ranks' time.
    idle : dict of str to float
        By cause, its part of ``bubble_fraction``.
    memory : tuple of int
        By rank, the bytes of parameters, gradients, optimiser state, activations and messages.
    bound : float
        Seconds: a lower bound for every schedule over the same stages, with any memory.
    bound_by : str
        The reason.
    is_within_limit : bool
        Whether every rank's memory is within the limit.
    measured : float or None
        The median seconds of a step, if the choice ran; None if it is only predicted.
    num_steps : int
        The number of these steps. In a race, faster choices run longer.
    spread : float
        How noisy the machine was: the interquartile range of these steps, relative to the median.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import advise, nn
    >>> x = np.ones((4, 2), np.float32)
    >>> best = advise(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), x, num_ranks=2, messages="assumed", seconds=0).best
    >>> list(best.options), best.bound <= best.time
    (['schedule', 'partition', 'recompute'], True)
    """

    candidate: Candidate
    schedule: Schedule
    partition: tuple[range, ...]
    time: float
    bubble_fraction: float
    idle: dict[str, float]
    memory: tuple[int, ...]
    bound: float
    bound_by: str
    is_within_limit: bool
    measured: float | None = None
    num_steps: int = 0
    spread: float = 0.0

    @property
    def gap(self) -> float:
        """How far the time is above the bound, relative to the bound."""
        return self.time / self.bound - 1 if self.bound else 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for ``Pipeline(model, group, loss=…, **options)``."""
        return {
            "schedule": self.schedule,
            "partition": list(self.partition),
            "recompute": self.candidate.recompute,
        }

    @property
    def program(self) -> Hashable:
        """Equal for choices that run the same: with one microbatch, for example, 1F1B is GPipe."""
        return self.schedule.actions, self.schedule.placement, self.partition, self.candidate.recompute

    def row(self) -> dict[str, Any]:
        """Return it as plain data: strings, numbers and lists."""
        figures = self._asdict()
        candidate, _, partition = (figures.pop(name) for name in ("candidate", "schedule", "partition"))
        layers = [[part.start, part.stop] for part in partition]
        return {**candidate._asdict(), "layers": layers, **figures, "memory": list(self.memory), "gap": self.gap}


class Weighing:
    """Weighs candidates for one model by one cost model.

    Parameters
    ----------
    question : Question
    num_ranks : int
    measured : CostModel
    """

    def __init__(self, question: Question, num_ranks: int, measured: CostModel) -> None:
        self.model, self.memory_limit, self.optimiser = question.model, question.memory_limit, question.optimiser
        self.num_ranks, self.measured, self.partition = num_ranks, measured, question.partition
        self.inputs_require_grad = question.options.get("inputs_require_grad", False)

    def named(self, candidates: Iterable[Candidate], forms: Sequence[Form] = (("time", False),)) -> Iterator[Choice]:
        """Yield candidates with named schedules, weighed, each in the first form that is within the limit.

        Forms beyond the limit are yielded before it. A given partition excludes schedules with other numbers of stages.

        Parameters
        ----------
        candidates : iterable of Candidate
        forms : sequence of (str, bool)
            Cut and recomputation, the fastest form first.
        """
        for candidate in candidates:
            schedule = candidate.build(self.num_ranks)
            for cut, again in forms if self._fits(schedule) else ():
                form = candidate._replace(cut=cut, recompute=again)
                choice = self.plan(form, self._cut(form, schedule), schedule)
                yield choice
                if choice.is_within_limit:
                    break

    def searched(self, choices: Iterable[Choice], seconds: float) -> Iterator[Choice]:
        """Yield searched schedules, for the numbers of microbatches, cuts and recomputation of the best choices.

        Parameters
        ----------
        choices : iterable of Choice
            Named ones.
        seconds : float
            For all searches together, as for :func:`~minipipe.tuning.weighing.searched_schedule`.
        """
        best = [choice.candidate for choice in sorted(choices, key=by_worth)]
        forms = list(dict.fromkeys((c.num_microbatches, c.cut, c.recompute) for c in best))[:_FORMS]
        num_layers, wanted = len(self.model.flat_layers), []
        for count, cut, again in forms:
            for like in filter(self._fits, models_for_search(self.num_ranks, num_layers, count)):
                wanted.append((Candidate(SEARCHED, count, like.num_stages // like.num_ranks, cut, again), like))
        for candidate, like in wanted:
            yield from self._searched(candidate, like, seconds / len(wanted))

    def _searched(self, candidate: Candidate, model: Schedule, seconds: float) -> Iterator[Choice]:
        """Yield a schedule searched for the stages of another one, if there is one within the limit."""
        like = self._cut(candidate, model)
        costs = self.measured.costs(like, candidate.recompute)
        free = [self.memory_limit - own.total + own.activations for own in self._memory(like, candidate.recompute)]
        if like.schedule.frozen or min(free) <= 0:  # the search does not support frozen stages
            return
        limit = None if self.memory_limit == inf else free
        found = searched_schedule(costs.workload(model.placement, candidate.num_microbatches, limit), seconds)
        if found is not None and found.is_reproducible:
            yield self.plan(candidate, self._plan(found, like.partition), found)

    def _fits(self, schedule: Schedule) -> bool:
        return self.partition is None or len(self.partition) == schedule.num_stages

    def _cut(self, candidate: Candidate, schedule: Schedule) -> Plan:
        """Return the plan of a schedule, cut as the candidate says."""
        if self.partition is not None:
            return self._plan(schedule, self.partition)
        layers, again = self.measured.layers[candidate.num_microbatches], candidate.recompute
        cut = layers.balance(by=candidate.cut, schedule=schedule, optimiser=self.optimiser, recompute=again)
        return self._plan(schedule, cut)

    def _plan(self, schedule: Schedule, partition: Sequence[range]) -> Plan:
        return Plan(self.model, schedule, partition=partition, inputs_require_grad=self.inputs_require_grad)

    def _memory(self, plan: Plan, recompute: bool) -> MemoryPrediction:
        layers = self.measured.layers[plan.schedule.num_microbatches]
        return layers.memory(plan, optimiser=self.optimiser, recompute=recompute)

    def plan(self, candidate: Candidate, plan: Plan, schedule: Schedule) -> Choice:
        """Return a plan, weighed.

        Parameters
        ----------
        candidate : Candidate
            Its name in the table.
        plan : Plan
        schedule : Schedule
            As given to the plan, which may have removed actions of frozen stages.
        """
        costs = self.measured.costs(plan, candidate.recompute)
        timeline = simulate(plan.schedule, costs)
        idle: dict[str, float] = {}
        for slot in (slot for row in timeline.idle for slot in row):
            share = (slot.end - slot.start) / (self.num_ranks * timeline.makespan)
            idle[slot.cause.value] = idle.get(slot.cause.value, 0.0) + share
        memory = tuple(own.total for own in self._memory(plan, candidate.recompute))
        bound, bound_by = least_makespan(workload_of(plan.schedule, costs), costs.cores)
        is_within_limit = all(fits(own, self.memory_limit) for own in memory)
        time, bubble = timeline.makespan, timeline.bubble_fraction
        return Choice(candidate, schedule, plan.partition, time, bubble, idle, memory, bound, bound_by, is_within_limit)


def best_of(choices: Iterable[Choice], memory_limit: float) -> Choice:
    """Return the best choice within the limit, as :func:`by_worth` has it.

    Raises
    ------
    ScheduleError
        Code ``memory``, when none is within the limit; the message has the least memory of any.
    """
    ordered = sorted(choices, key=by_worth)
    if ordered[0].is_within_limit:
        return ordered[0]
    least = min(ordered, key=lambda choice: max(choice.memory))
    raise ScheduleError.of(
        ScheduleCode.MEMORY,
        f"No choice needs at most {format_memory(memory_limit, 'bytes')} on every rank. The least is "
        f"{format_memory(max(least.memory), 'bytes')}, as predicted, on rank {least.memory.index(max(least.memory))}: "
        f"{described(least.candidate)}. Raise the limit, or take more ranks, smaller batches or a smaller model.",
    )


def by_worth(choice: Choice) -> tuple[bool, int, float, bool, int]:
    """Return the sort key of a choice, the best first; of equally fast ones, named schedules first.

    Choices that ran precede the others, which were predicted to be slower.
    """
    time = choice.time if choice.measured is None else choice.measured
    is_searched = choice.candidate.schedule == SEARCHED
    return not choice.is_within_limit, -choice.num_steps, time, is_searched, max(choice.memory)


def described(candidate: Candidate) -> str:
    """Return a candidate in words.

    Examples
    --------
    >>> described(Candidate("zb-v", 8, 2, recompute=True))
    'zb-v, 8 microbatches, recomputed, cut by time'
    """
    count = candidate.num_microbatches
    again = ", recomputed" * candidate.recompute
    cut = "cut as given" if candidate.cut == "given" else f"cut by {candidate.cut}"
    return f"{candidate.schedule}, {count} microbatch{'es' * (count != 1)}{again}, {cut}"
