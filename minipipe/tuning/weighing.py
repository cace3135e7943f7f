"""The candidates, as data, and the predicted time, idle time and memory of each
candidate. Nothing is timed here.

Times of layers are not interpolated: every weighed number of microbatches is measured.
A batch is measured in microbatches of 1, 1/2, 1/4 … of it, one of each size, which
takes little longer than the whole batch.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from statistics import median
from typing import Any, NamedTuple

from minipipe.core.specs import Spec, as_float
from minipipe.errors import Code, ScheduleError, counted
from minipipe.execution.plan import Plan
from minipipe.execution.samples import samples
from minipipe.nn import Sequential
from minipipe.render.descriptions import format_memory
from minipipe.schedules import (
    REGISTRY,
    Costs,
    Objective,
    Schedule,
    build,
    find_schedule,
    lower_bound,
    simulate,
)
from minipipe.schedules.analysis.workload import Workload, fits
from minipipe.schedules.features import check_known
from minipipe.schedules.registry import NUM_MICROBATCHES, default_of
from minipipe.schedules.simulation.comparison import workload_of
from minipipe.tuning.layers import MeasuredLayers
from minipipe.tuning.memory import MakeOptimiser, MemoryPrediction
from minipipe.tuning.stages import Messages

_MEMORY = Spec(expected="an amount above 0, such as '500 MB', '2 GiB' or bytes")
_AMOUNT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]*)\s*", re.ASCII)
_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


def limit_of(memory_limit: float | str | None) -> float:
    """Return a limit of memory in bytes; infinite for None. Errors are as in
    :func:`memory_size`.
    """
    if memory_limit is None:
        return inf
    return memory_size(memory_limit)


def memory_size(amount: Any) -> float:
    """Return an amount of memory in bytes.

    Parameters
    ----------
    amount : str or number
        Bytes, or text such as ``"500 MB"`` (of 1000 x 1000 bytes) or ``"2 GiB"`` (of
        1024 x 1024 x 1024).

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> memory_size("500 MB"), memory_size("1.5KiB"), memory_size(10)
    (500000000.0, 1536.0, 10.0)
    """
    size = 0.0
    if isinstance(amount, str):
        match = _AMOUNT.fullmatch(amount)
        if match and match[2].upper() in _UNITS:
            size = float(match[1]) * _UNITS[match[2].upper()]
    elif isinstance(amount, Real) and not isinstance(amount, bool):
        size = as_float(amount)
    if not 0 < size < inf:
        raise _MEMORY.refusal("memory_limit", amount)
    return size


class CostModel(NamedTuple):
    """The measured costs of a model and of messages, from which the costs of any plan
    follow.

    Attributes
    ----------
    layers : mapping of int to MeasuredLayers
        By the number of microbatches.
    num_samples : int
        The number of samples in the batch.
    messages : Messages
    waited : float
        The fraction of the time in which the process waited for a core, because of
        other programs, while the layers were measured. Known on Linux only; elsewhere
        0.

    Examples
    --------
    >>> CostModel({}, num_samples=64, messages=Messages()).samples_of(microbatches=5)
    13
    """

    layers: Mapping[int, MeasuredLayers]
    num_samples: int
    messages: Messages
    waited: float = 0.0

    def samples_of(self, microbatches: int) -> int:
        """Return the samples of the largest microbatch."""
        return -(-self.num_samples // microbatches)

    def costs(self, plan: Plan, recompute: bool) -> Costs:
        """Return the costs of a plan's stages: sums over layers, and messages.

        Each layer was measured as a stage of its own, so the sum counts the bookkeeping
        of a stage, some 30 µs for F, I and W, for each of its layers. The ranks then
        run the best choices, whose measured times do not depend on it.

        Parameters
        ----------
        plan : Plan
        recompute : bool
        """
        layers = self.layers[plan.schedule.num_microbatches]
        messages = self.messages._asdict()
        del messages["measured_on"]
        costs = layers.costs(plan.partition, plan.pipelines[0], recompute)
        return replace(costs, **messages)


# The options of a pipeline that make its plan.
PLANNED = (
    "schedule",
    "num_microbatches",
    "chunks_per_rank",
    "partition",
    "layer_costs",
    "replicas",
)


@dataclass(frozen=True)
class Question:
    """A model, a batch, and the constraints of a choice.

    Attributes
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or pytree
        A batch, as for :meth:`minipipe.Pipeline.step`.
    options : mapping
        The fixed options of a pipeline, such as ``loss``, ``seed`` and ``device``.
    optimiser : function, optional
        ``parameters -> Optimiser``, for its state.
    memory_limit : float
        Bytes of each rank; infinite if there is no limit.
    num_microbatches, chunks_per_rank, partition, recompute, replicas
        Weigh only choices with these; None if all are weighed. The microbatches of all
        replicas count.
    own : mapping, optional
        Options of a pipeline: the program's own choice, to be weighed beside the
        others.
    """

    model: Sequential
    inputs: Any
    targets: Any
    options: Mapping[str, Any]
    optimiser: MakeOptimiser | None = None
    memory_limit: float = inf
    num_microbatches: int | None = None
    chunks_per_rank: int | None = None
    partition: Sequence[range] | None = None
    recompute: bool | None = None
    own: Mapping[str, Any] | None = None
    replicas: int | None = None

    def plan(self, **options: Any) -> Plan:
        """Return a plan of the model, with these options."""
        grad = self.options.get("inputs_require_grad", False)
        return Plan(self.model, inputs_require_grad=grad, **options)

    def own_plan(self, num_ranks: int, of_one: bool = False) -> Plan | None:
        """Return the plan of the program's own choice, or of one replica of it, if
        there is one.
        """
        if self.own is None:
            return None
        options = {"replicas": 1, **self.own}
        if of_one:
            num_ranks //= options["replicas"]
            options["replicas"] = 1
        return self.plan(num_ranks=num_ranks, **options)

    def counts(self, num_ranks: int) -> list[int]:
        """Return the numbers of microbatches to measure: the requested one, the one of
        a divided batch, or several.
        """
        inputs = samples(self.inputs, "inputs")
        if self.num_microbatches is not None:
            return [self.num_microbatches]
        if inputs.is_cut:
            return [len(inputs.sizes)]
        own = self.own_plan(num_ranks)
        further = NUM_MICROBATCHES
        if own is not None:
            further = own.schedule.num_microbatches
        return numbers_of_microbatches(inputs.num_samples, num_ranks, further)


SEARCHED = "searched"
"""The name of a schedule that no builder made."""
_MOST_CHUNKS = 4
# more leave 1/16 of a bubble at most, and the next doubling would halve that
_MICROBATCHES_PER_RANK = 16


class Candidate(NamedTuple):
    """A choice to weigh.

    Attributes
    ----------
    schedule : str
        A name, or ``"searched"``.
    num_microbatches : int
        The microbatches of all replicas.
    chunks_per_rank : int
    cut : str
        The quantity that the partition balances, ``"time"``, ``"memory"`` or
        ``"parameters"``; or ``"given"``.
    recompute : bool
    replicas : int
        Copies of the pipeline, among which the ranks are divided.

    Examples
    --------
    >>> Candidate("zb-h1", 8).build(num_ranks=4).num_stages
    4
    >>> Candidate("zb-h1", 8, replicas=2).build(num_ranks=4).num_microbatches
    4
    """

    schedule: str
    num_microbatches: int
    chunks_per_rank: int = 1
    cut: str = "time"
    recompute: bool = False
    replicas: int = 1

    def build(self, num_ranks: int) -> Schedule:
        """Return the named schedule of one replica, given the number of ranks of all
        replicas.

        Raises
        ------
        ScheduleError
            Codes ``name`` and ``value``.
        """
        chunks: int | None = self.chunks_per_rank
        if chunks == default_of(REGISTRY[self.schedule], "chunks_per_rank"):
            chunks = None  # not every schedule takes the option
        n = self.replicas
        return build(self.schedule, num_ranks // n, self.num_microbatches // n, chunks)


def candidates(
    num_ranks: int,
    num_layers: int,
    counts: Iterable[int],
    chunks_per_rank: int | None = None,
    replicas: int = 1,
) -> Iterator[Candidate]:
    """Yield every named schedule that is a step of any model and fits the ranks and
    layers, partitioned by time.

    Parameters
    ----------
    num_ranks, num_layers : int
    counts : iterable of int
        The numbers of microbatches.
    chunks_per_rank : int, optional
        Only this number; by default up to 4, as far as the schedule and the number of
        layers allow.
    replicas : int

    Examples
    --------
    >>> sorted(
    ...     {
    ...         candidate.schedule
    ...         for candidate in candidates(2, num_layers=3, counts=[4])
    ...     }
    ... )
    ['1f1b', 'chimera', 'dualpipe', 'eager-1f1b', 'gpipe', 'sequential', 'zb-h1', 'zb-h2']
    """
    counts = list(counts)
    for name, builder in REGISTRY.items():
        default = default_of(builder, "chunks_per_rank")
        numbers: Sequence[int] = range(default, _MOST_CHUNKS + 1)
        if chunks_per_rank is not None:
            numbers = [chunks_per_rank]
        elif default == 1:
            numbers = [1]
        for chunks in numbers:
            for count in counts:
                candidate = Candidate(name, count, chunks, replicas=replicas)
                if _fits(candidate, num_ranks, num_layers):
                    yield candidate


def _fits(candidate: Candidate, num_ranks: int, num_layers: int) -> bool:
    """Whether the schedule exists for these sizes, with a layer for each stage, and
    trains any model step by step.
    """
    n = candidate.replicas
    num_stages = num_ranks // n * candidate.chunks_per_rank
    if num_stages > num_layers or num_ranks % n or candidate.num_microbatches % n:
        return False
    try:
        schedule = candidate.build(num_ranks)
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return False
    is_small = schedule.num_stages <= num_layers
    return is_small and not schedule.is_forward_only and _is_weighed(schedule)


def names_left_out() -> list[str]:
    """Return the named schedules that train but are not candidates.

    A pipeline can run them. Slices need layers that all support them, such as causal
    attention, and the layers are measured without slices. Schedules with U run in
    :meth:`minipipe.Pipeline.run`; their gradients differ from the gradients of a step,
    so their times alone are not comparable.

    Examples
    --------
    >>> names_left_out()
    ['seq1f1b', 'pipedream', 'vertical-sync', '2bw', 'paci']
    """
    return [name for name in REGISTRY if not _is_weighed(build(name, num_ranks=2))]


def _is_weighed(schedule: Schedule) -> bool:
    with suppress(ScheduleError):
        check_known(schedule, "the adviser", "replicas", "overlap")
        return True
    return False


def numbers_of_microbatches(
    num_samples: int, num_ranks: int, own: int | None = None
) -> list[int]:
    """Return the numbers of microbatches to measure: powers of two, and these times the
    number of ranks.

    Parameters
    ----------
    num_samples : int
        The number of samples of a batch.
    num_ranks : int
    own : int, optional
        A further number of microbatches.

    Examples
    --------
    >>> numbers_of_microbatches(num_samples=64, num_ranks=3, own=10)
    [1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48]
    """
    most = min(num_samples, _MICROBATCHES_PER_RANK * num_ranks)
    doublings = range(most.bit_length())
    counts = {start << times for start in (1, num_ranks) for times in doublings}
    counts = {count for count in counts if count <= most}
    if own and own <= num_samples:
        counts.add(own)
    return sorted(counts)


def models_for_search(
    num_ranks: int, num_layers: int, num_microbatches: int
) -> list[Schedule]:
    """Return a named schedule for each placement to search on: a stage on each rank, or
    two in a V.

    Examples
    --------
    >>> [
    ...     schedule.placement
    ...     for schedule in models_for_search(3, num_layers=6, num_microbatches=8)
    ... ]
    [(0, 1, 2), (0, 1, 2, 2, 1, 0)]
    """
    of_one = ("1f1b", 1)
    of_two = ("zb-v", 2)
    forms = [Candidate(name, num_microbatches, v) for name, v in (of_one, of_two)]
    fitting = (form for form in forms if _fits(form, num_ranks, num_layers))
    return [form.build(num_ranks) for form in fitting]


_ACTIONS_A_SECOND = 200_000  # of schedules that are tried, on one core of 2024
_SLOWEST = 4  # times as long as that core the search may take


def searched_schedule(workload: Workload, seconds: float) -> Schedule | None:
    """Search a schedule for a workload; return None if one microbatch exceeds its
    memory.

    Parameters
    ----------
    workload : Workload
    seconds : float
        The effort, above 0: the search tries as many schedules as an idle core tries in
        this time. The result does not depend on the machine or its load, unless these
        slow the search down more than four times: then it stops.

    Examples
    --------
    >>> from minipipe import Costs
    >>> searched_schedule(
    ...     Costs().workload((0, 1), num_microbatches=4, memory_limit=0.5), seconds=0.1
    ... ) is None
    True
    """
    try:
        actions = 3 * workload.num_stages * workload.num_microbatches
        evaluations = int(seconds * _ACTIONS_A_SECOND / actions) + 1
        limit = _SLOWEST * seconds
        return find_schedule(
            workload, Objective.MAKESPAN, limit, evaluations=evaluations
        ).schedule
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return None


def least_makespan(workload: Workload, cores: float | None) -> tuple[float, str]:
    """Return a lower bound for the makespan of every schedule of a workload, and the
    reason.

    Parameters
    ----------
    workload : Workload
    cores : float, optional
        The cores that the ranks share.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs(forward=[1, 3]).workload((0, 1), num_microbatches=4)
    >>> least_makespan(workload, cores=None)[0], least_makespan(workload, cores=1)
    (21.0, (32.0, 'All ranks together compute for 32 on cores that they share.'))
    """
    bound = lower_bound(workload, Objective.MAKESPAN)
    work = sum(map(workload.work, range(workload.num_ranks)))
    if cores is not None and work / cores > bound.value:
        why = f"All ranks together compute for {work:g} on cores that they share."
        return work / cores, why
    return bound.value, bound.reason


# numbers of microbatches, with partitions, of the best named schedules for which
# schedules are searched
_FORMS = 2

# the quantity that the partition balances, and whether activations are recomputed
Form = tuple[str, bool]


class Choice(NamedTuple):
    """A candidate with its predicted time and memory.

    Attributes
    ----------
    candidate : Candidate
    schedule : Schedule
        The schedule of one replica.
    partition : tuple of range
        The layers of each stage.
    time : float
        Seconds of forward and backward of a batch, from the first start to the last end
        on any rank.
    bubble_fraction : float
        The idle fraction of the ranks' time.
    idle : dict of str to float
        By cause, its part of ``bubble_fraction``.
    memory : tuple of int
        By rank, the bytes of parameters, gradients, optimiser state, activations and
        messages.
    bound : float
        Seconds: a lower bound for every schedule over the same stages, with any memory.
    bound_by : str
        The reason.
    is_within_limit : bool
        Whether every rank's memory is within the limit.
    measured : float or None
        The median seconds of a step, if the choice ran; None if it is only predicted.
    num_steps : int
        The number of these steps. In a benchmark, faster choices run longer.
    spread : float
        How noisy the machine was: the interquartile range of these steps, relative to
        the median.
    compiled : float or None
        The median seconds of a compiled step, if the choice ran compiled as well.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import advise, nn
    >>> x = np.ones((4, 2), np.float32)
    >>> best = advise(
    ...     nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
    ...     x,
    ...     num_ranks=2,
    ...     messages="assumed",
    ...     seconds=0,
    ... ).best
    >>> list(best.options), best.bound <= best.time
    (['schedule', 'replicas', 'partition', 'recompute'], True)
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
    compiled: float | None = None

    @property
    def gap(self) -> float:
        """How far the time is above the bound, relative to the bound."""
        if not self.bound:
            return 0.0
        return self.time / self.bound - 1

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for ``Pipeline(model, group, loss=…, **options)``."""
        return {
            "schedule": self.schedule,
            "replicas": self.candidate.replicas,
            "partition": list(self.partition),
            "recompute": self.candidate.recompute,
        }

    @property
    def program(self) -> Hashable:
        """Equal for choices that run the same: with one microbatch, for example, 1F1B
        is GPipe.
        """
        schedule = self.schedule
        return schedule.actions, schedule.placement, self.partition, self.candidate[-2:]

    def ran(self, times: Sequence[float] | None) -> Choice:
        """Return the choice with the seconds of its steps in a benchmark; unchanged, if
        it did not run.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import advise, nn
        >>> x = np.ones((4, 2), np.float32)
        >>> best = advise(
        ...     nn.Sequential(nn.Linear(2, 2)),
        ...     x,
        ...     num_ranks=1,
        ...     messages="assumed",
        ...     seconds=0,
        ... ).best
        >>> best.ran([2.0, 9.0, 2.25, 1.75, 2.0])[-4:-1]
        (2.0, 5, 0.125)
        """
        if not times:
            return self
        ordered = sorted(times)
        middle = median(times)
        spread = (ordered[3 * len(times) // 4] - ordered[len(times) // 4]) / middle
        return self._replace(measured=middle, num_steps=len(times), spread=spread)

    def row(self) -> dict[str, Any]:
        """Return the choice as plain data: strings, numbers and lists."""
        figures = self._asdict()
        del figures["schedule"]
        candidate = figures.pop("candidate")
        partition = figures.pop("partition")
        layers = [[part.start, part.stop] for part in partition]
        figures |= {"memory": list(self.memory), "gap": self.gap}
        return {**candidate._asdict(), "layers": layers, **figures}


class Weighing:
    """Weighs candidates for one model by one cost model.

    Parameters
    ----------
    question : Question
    num_ranks : int
    cost_model : CostModel
    """

    def __init__(
        self, question: Question, num_ranks: int, cost_model: CostModel
    ) -> None:
        self.question = question
        self.num_ranks = num_ranks
        self.cost_model = cost_model

    def named(
        self,
        candidates: Iterable[Candidate],
        forms: Sequence[Form] = (("time", False),),
    ) -> Iterator[Choice]:
        """Yield candidates with named schedules, weighed, each in the first form that
        is within the limit.

        Forms beyond the limit are yielded before it. A given partition excludes
        schedules with other numbers of stages.

        Parameters
        ----------
        candidates : iterable of Candidate
        forms : sequence of (str, bool)
            Partition and recomputation, the fastest form first.
        """
        for candidate in candidates:
            schedule = candidate.build(self.num_ranks)  # replicas only multiply it
            if not self._fits(schedule):
                continue
            for cut, again in forms:
                form = candidate._replace(cut=cut, recompute=again)
                choice = self.plan(form, self._cut(form, schedule), schedule)
                yield choice
                if choice.is_within_limit:
                    break

    def searched(self, choices: Iterable[Choice], seconds: float) -> Iterator[Choice]:
        """Yield searched schedules, for the numbers of microbatches, partitions and
        recomputation of the best choices.

        Parameters
        ----------
        choices : iterable of Choice
            Choices with named schedules.
        seconds : float
            The effort of all searches together, as for
            :func:`~minipipe.tuning.weighing.searched_schedule`.
        """
        ranked = [choice.candidate for choice in sorted(choices, key=by_worth)]
        best = [candidate for candidate in ranked if candidate.replicas == 1]
        forms = dict.fromkeys((c.num_microbatches, c.cut, c.recompute) for c in best)
        num_layers = len(self.question.model.flat_layers)
        searches = []
        for count, cut, again in list(forms)[:_FORMS]:
            for like in models_for_search(self.num_ranks, num_layers, count):
                chunks = like.num_stages // like.num_ranks
                searched = Candidate(SEARCHED, count, chunks, cut, again)
                if self._fits(like):
                    searches.append((searched, like))
        for searched, like in searches:
            yield from self._searched(searched, like, seconds / len(searches))

    def _searched(
        self, candidate: Candidate, model: Schedule, seconds: float
    ) -> Iterator[Choice]:
        """Yield a schedule searched for the stages of another one, if there is one
        within the limit.
        """
        like = self._cut(candidate, model)
        costs = self.cost_model.costs(like, candidate.recompute)
        memory = self._memory(like, candidate.recompute)
        most = self.question.memory_limit
        free = [most - of_rank.total + of_rank.activations for of_rank in memory]
        # the search does not support frozen stages
        if like.schedule.frozen or min(free) <= 0:
            return
        limit = None if most == inf else free
        problem = costs.workload(model.placement, candidate.num_microbatches, limit)
        schedule = searched_schedule(problem, seconds)
        if schedule is not None and schedule.is_reproducible:
            plan = self.question.plan(schedule=schedule, partition=like.partition)
            yield self.plan(candidate, plan, schedule)

    def _fits(self, schedule: Schedule) -> bool:
        partition = self.question.partition
        return partition is None or len(partition) == schedule.num_stages

    def _cut(self, candidate: Candidate, schedule: Schedule) -> Plan:
        """Return the plan of a schedule, with the partition and the replicas of the
        candidate.
        """
        layers = self.cost_model.layers[candidate.num_microbatches]
        partition = self.question.partition
        if partition is None:
            partition = layers.balance(
                by=candidate.cut,
                schedule=schedule,
                optimiser=self.question.optimiser,
                recompute=candidate.recompute,
            )
        n = candidate.replicas
        return self.question.plan(schedule=schedule, partition=partition, replicas=n)

    def _memory(self, plan: Plan, recompute: bool) -> MemoryPrediction:
        layers = self.cost_model.layers[plan.schedule.num_microbatches]
        optimiser = self.question.optimiser
        return layers.memory(plan, optimiser=optimiser, recompute=recompute)

    def plan(self, candidate: Candidate, plan: Plan, schedule: Schedule) -> Choice:
        """Return a plan, weighed.

        Parameters
        ----------
        candidate : Candidate
            Its name in the table.
        plan : Plan
        schedule : Schedule
            The schedule passed to the plan, of one replica; the plan may have removed
            actions of frozen stages.
        """
        costs = self.cost_model.costs(plan, candidate.recompute)
        timeline = simulate(plan.schedule, costs)
        idle: dict[str, float] = {}
        for slot in (slot for row in timeline.idle for slot in row):
            part = (slot.end - slot.start) / (self.num_ranks * timeline.makespan)
            idle[slot.cause.value] = idle.get(slot.cause.value, 0.0) + part
        predicted = self._memory(plan, candidate.recompute)
        memory = tuple(of_rank.total for of_rank in predicted)
        bound, bound_by = self._bound(plan, schedule, costs)
        limit = self.question.memory_limit
        is_within_limit = all(fits(total, limit) for total in memory)
        return Choice(
            candidate,
            schedule,
            plan.partition,
            timeline.makespan,
            timeline.bubble_fraction,
            idle,
            memory,
            bound,
            bound_by,
            is_within_limit,
        )

    def _bound(self, plan: Plan, schedule: Schedule, costs: Costs) -> tuple[float, str]:
        """Return a lower bound for the makespan: for one replica or, if the schedule
        has replicas, for all work.
        """
        cores = self.cost_model.messages.cores
        n = plan.schedule.num_ranks // schedule.num_ranks
        if not schedule.has_replicas:
            alone = plan
            if n > 1:
                alone = self.question.plan(schedule=schedule, partition=plan.partition)
            if cores is not None:
                cores /= n
            return least_makespan(workload_of(alone.schedule, costs), cores)
        times = costs.durations(plan.schedule.num_stages)
        rows = plan.schedule.without_sums().actions
        work = sum(times[kind][stage] for row in rows for stage, kind, _ in row)
        why = f"All ranks together compute for {work:g}"
        if cores is not None and cores < self.num_ranks:
            why += f" on {cores:g} cores"
        return work / min(self.num_ranks, cores or inf), f"{why}."


def best_of(choices: Iterable[Choice], memory_limit: float) -> Choice:
    """Return the best choice within the limit, by the order of :func:`by_worth`.

    Raises
    ------
    ScheduleError
        Code ``memory``, if none is within the limit; the message has the least memory
        of any.
    """
    ordered = sorted(choices, key=by_worth)
    if ordered[0].is_within_limit:
        return ordered[0]
    least = min(ordered, key=lambda choice: max(choice.memory))
    fullest = max(least.memory)
    needed, limit = (format_memory(size, "bytes") for size in (fullest, memory_limit))
    where = f"{needed}, as predicted, on rank {least.memory.index(fullest)}"
    raise ScheduleError.of(
        Code.MEMORY,
        f"No choice needs at most {limit} on every rank. The least is {where}: "
        f"{described(least.candidate)}. Raise the limit, or use more ranks, smaller "
        "batches or a smaller model.",
    )


def by_worth(choice: Choice) -> tuple[bool, int, float, bool, int]:
    """Return the sort key of a choice, the best first; among equally fast choices,
    named schedules first.

    Choices that ran precede the others, which were predicted to be slower.
    """
    time = choice.time
    if choice.measured is not None:
        time = choice.measured
    is_searched = choice.candidate.schedule == SEARCHED
    is_beyond = not choice.is_within_limit
    return is_beyond, -choice.num_steps, time, is_searched, max(choice.memory)


def described(candidate: Candidate) -> str:
    """Return a description of a candidate.

    Examples
    --------
    >>> described(Candidate("zb-v", 8, 2, recompute=True))
    'zb-v, 8 microbatches, recomputed, partitioned by time'
    >>> described(Candidate("1f1b", 8, replicas=2))
    '1f1b, 2 replicas, 8 microbatches, partitioned by time'
    """
    copies = f", {candidate.replicas} replicas" * (candidate.replicas > 1)
    again = ", recomputed" * candidate.recompute
    cut = f"partitioned by {candidate.cut}"
    if candidate.cut == "given":
        cut = "given partition"
    return f"{candidate.schedule}{copies}, {counted(candidate.num_microbatches, 'microbatch')}{again}, {cut}"
