"""The benchmark: the ranks of a pipeline measure together, run the best choices in
turns, and take the fastest.

A pipeline is made for each turn and dropped after it, so a rank has the memory of one
at a time. Each choice has some turns of a few steps; then the faster half has twice as
many, its faster half four times, until two are left. Turns are short and alternate
because the steps of one turn are alike. With ranks that shared cores, the medians of
two turns of one choice differed by a fifth, depending on the system's placement of the
ranks, and steps within a turn by less than half as much.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from itertools import chain
from random import Random
from statistics import median
from time import perf_counter
from typing import Any
from weakref import ref

from minipipe.comm import ProcessGroup, objects
from minipipe.core.execution.payload import Payload
from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import ArgumentError, counted
from minipipe.execution.samples import Microbatches, as_given, samples
from minipipe.io import MARK, is_terminal
from minipipe.nn import Parameter
from minipipe.tuning import advising
from minipipe.tuning.advising import check_num_layers, checked_seconds, measure, weigh
from minipipe.tuning.measuring import batch_of, measured_partition
from minipipe.tuning.memory import MakeOptimiser
from minipipe.tuning.report import Advice, AdviceReport, ChosenPlan
from minipipe.tuning.stages import measure_messages
from minipipe.tuning.weighing import Choice, Question, described, limit_of

# with 20, six choices of one model took 1.00 to 1.09 of the fastest; with 40, three at
# most 1.00
RACE_SECONDS = 40.0
_RUNNERS = 32  # how many choices run at most
# of a turn, after one that is not measured because the caches have no parameters yet
_STEPS = 2
# steps of a turn that are not measured: an eager one, a recorded one, and the first
# program
_UNTIL_COMPILED = 3
_COMPILED_TURNS = 4
_LAST_TURNS = 16  # of the last two, at least
# fraction of the benchmark's time; the turns of each half, quarter, … take about as
# long
_FIRST_TURNS = 0.2
_CALL = 'schedule="auto"'

MakePipeline = Callable[..., Any]  # (model, group, **options) -> Pipeline
Tell = Callable[[str], None]  # takes a line about the progress


def silent(line: str) -> None:
    """Print nothing."""


def teller(group: ProcessGroup, progress: bool | None) -> Tell:
    """Return a function that prints a line to standard error on rank 0, or does
    nothing. Local.

    Parameters
    ----------
    group : ProcessGroup
    progress : bool, optional
        Whether to print; by default if standard error is a terminal.

    Examples
    --------
    >>> from minipipe.comm import OneRankGroup
    >>> teller(OneRankGroup(), progress=False)("ready")
    """
    if group.rank or sys.stderr is None:  # as in a daemon
        return silent
    if progress is None:
        progress = is_terminal(sys.stderr)
    if not progress:
        return silent
    return lambda line: print(f"{MARK}{line}", file=sys.stderr, flush=True)


# -- the choice for a pipeline ---------------------------------------------------------


def decided(
    model: Any,
    group: ProcessGroup,
    options: Mapping[str, Any],
    pipeline: type,
    recompute: bool,
    **run: Any,
) -> tuple[Any, dict[str, Any], bool]:
    """Return a pipeline's model and options, with measured choices filled in, and
    whether to recompute.

    Collective. ``schedule="auto"`` calls :func:`chosen`. ``partition="measured"``
    measures the layers on rank 0.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    options : mapping
        The options of :class:`minipipe.Plan`, and ``sample=(inputs, targets)``, which
        only rank 0 needs. With ``schedule="auto"`` also the options of :func:`chosen`.
    pipeline : type
        The class that takes these options, and makes the pipelines of the benchmark.
    recompute : bool
    **run
        Further options of the pipeline: loss, seed and device among them.

    Raises
    ------
    ArgumentError
        Code ``value``: without a sample, or for layers that cannot be measured on one
        rank.
    """
    if any(one.is_divided for one in model.parameters()):
        raise ArgumentError(
            "Tensor-parallel and fully sharded layers cannot be measured on one rank, "
            'as schedule="auto" and partition="measured" would; pass the name of a '
            "schedule, and a partition or layer_costs."
        )
    if options.get("schedule") == "auto":
        return chosen(model, group, pipeline, recompute, **run, **options)
    partition = measured_partition(
        model, group, options, recompute, run["loss"], run["seed"], run["device"]
    )
    others = {name: value for name, value in options.items() if name != "sample"}
    return model, {**others, "partition": partition}, recompute


def chosen(
    model: Any,
    group: ProcessGroup,
    make: MakePipeline,
    recompute: bool,
    *,
    sample: Any = None,
    memory_limit: float | str | None = None,
    optimiser: MakeOptimiser | None = None,
    progress: bool | None = None,
    schedule: str = "auto",
    partition: Any = None,
    num_microbatches: int | None = None,
    chunks_per_rank: int | None = None,
    layer_costs: Any = None,
    replicas: int | None = None,
    gradient_blocks: int | None = None,
    **others: Any,
) -> tuple[ChosenPlan, dict[str, Any], bool]:
    """Return the fastest plan of the benchmark, no further options, and whether to
    recompute.

    Collective; see :func:`advice_on_ranks`. Rank 0 prints that it begins, and the
    choice.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    make : function
        Makes a pipeline: ``(model, group, **options)``.
    recompute : bool
        Whether to weigh only choices with recomputation.
    sample : (inputs, targets)
        Needed on one rank at least.
    memory_limit, optimiser
        As for :func:`minipipe.advise`.
    progress : bool, optional
        Whether rank 0 prints each phase; by default if standard error is a terminal.
    schedule, partition, num_microbatches, chunks_per_rank
        As for :class:`minipipe.Plan`: weigh only choices with these.
    layer_costs
        Refused.
    replicas
        As for :class:`minipipe.Plan`. If it is not given, ``num_microbatches`` counts
        all replicas together.
    gradient_blocks
        Refused.
    **others
        Further options of the plan and the pipeline.

    Raises
    ------
    ArgumentError
        Code ``value``: without a sample, or with costs of layers.
    PartitionError
        Code ``too-few``, if there are fewer layers than ranks.
    ScheduleError
        Code ``memory``: on rank 0, if no choice is within the limit.
    """
    _refuse(layer_costs=layer_costs, gradient_blocks=gradient_blocks)
    if sample is None:
        sample = (None, None)
    inputs, targets = batch_of(sample, _CALL)
    if str(partition) == "measured":
        partition = None
    question = Question(
        model,
        inputs,
        targets,
        others,
        optimiser,
        memory_limit=limit_of(memory_limit),
        num_microbatches=num_microbatches and num_microbatches * (replicas or 1),
        chunks_per_rank=chunks_per_rank,
        partition=partition,
        recompute=recompute or None,
        replicas=replicas,
    )
    return _chosen_plan(question, group, make, progress)


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            instead = "measures layers and chooses replicas"
            raise ArgumentError(f'schedule="auto" {instead}; leave {name} out.')


def _chosen_plan(
    question: Question, group: ProcessGroup, make: MakePipeline, progress: bool | None
) -> tuple[ChosenPlan, dict[str, Any], bool]:
    # even without a terminal: it takes a minute
    announce = teller(group, progress is not False)
    time = RACE_SECONDS + advising.SECONDS
    about = f"about {time:.2g} s, more for a large model"
    announce(f"{_CALL} measures choices on the ranks: {about}")
    advice = advice_on_ranks(
        question, group, make, "the ranks of this job", tell=teller(group, progress)
    )
    best = []
    report = None
    if advice is not None:
        best = [advice.best]
        report = AdviceReport.of(advice)._asdict()
    (choice,) = choices_of_rank_0(group, best)
    shared = AdviceReport(**objects.broadcast(group, 0, report, _CALL))
    recompute = choice.pop("recompute")
    choice["inputs_require_grad"] = question.options.get("inputs_require_grad", False)
    plan = ChosenPlan(shared, question.model, num_ranks=group.size, **choice)
    announce(plan.sentence)
    return plan, {}, recompute


def advice_on_ranks(
    question: Question,
    group: ProcessGroup,
    make: MakePipeline,
    where: str,
    seconds: float | None = None,
    tell: Tell = silent,
) -> Advice | None:
    """Return advice from measurements on the ranks of a group, on rank 0; None on the
    others.

    Collective. Messages are measured between all ranks, layers on rank 0. Rank 0 weighs
    all choices; the best ones and the program's own choice then run in turns on all
    ranks.

    Parameters
    ----------
    question : Question
        One rank at least has the batch.
    group : ProcessGroup
    make : function
        As for :func:`chosen`.
    where : str
        A description of the ranks, for the report.
    seconds : float, optional
        The length of the benchmark: 40 by default. With 0, or without a loss, no choice
        runs.
    tell : function
        Called with a line about each phase.

    Raises
    ------
    PartitionError, ArgumentError, ScheduleError
        As for :func:`minipipe.advise`: on every rank for sizes, ``seconds`` and a
        missing batch, otherwise on rank 0.
    """
    seconds = checked_seconds(seconds, RACE_SECONDS)
    check_num_layers(question, group.size)
    race = Race(question, group, make)
    tell(f"measuring messages between {counted(group.size, 'rank')}")
    messages = measure_messages(group, where)
    advice = None
    if group.rank == 0:
        how = "with several microbatch sizes, then simulating all choices"
        tell(f"measuring layers on rank 0 {how}")
        measured = measure(race.question, group.size, messages, group.local_rank)
        advice = weigh(race.question, group.size, measured)
    if question.options.get("loss") is None or seconds == 0:
        return advice
    return _with_times(advice, race, seconds, tell)


def _with_times(
    advice: Advice | None, race: Race, seconds: float, tell: Tell
) -> Advice | None:
    """Run the best choices on all ranks; return the advice with their times."""
    field: list[Choice] = []
    num_kept = 0
    if advice is not None:
        field, num_kept = field_of(advice)
    best = f"the best {counted(len(field), 'choice')} in turns"
    tell(f"running {best}, for {seconds:g} s")
    options = choices_of_rank_0(race.group, field)
    names = [described(choice.candidate) for choice in field]
    times = race.run(options, seconds, range(num_kept), tell, names)
    fastest = sorted(times, key=lambda number: median(times[number]))[:1]
    num_kept = objects.broadcast(race.group, 0, num_kept, _CALL)
    kept = {number for number in range(num_kept) if number in times}
    compiled = race.compiled(options, sorted(kept.union(fastest)))
    if advice is None:
        return None
    numbers = {choice.program: number for number, choice in enumerate(field)}

    def ran_by(choice: Choice) -> Choice:
        number = numbers.get(choice.program, -1)
        return choice.ran(times.get(number))._replace(compiled=compiled.get(number))

    ran = list(map(ran_by, advice.choices))
    own = advice.own and ran_by(advice.own)
    return Advice(ran, advice.measured, advice.memory_limit, own)


def field_of(advice: Advice) -> tuple[list[Choice], int]:
    """Return the choices to run, the most promising first, and how many run to the end:
    the program's own one.

    Choices that run the same program run once. The best choice of each number of
    microbatches, and of replicas, comes first: actions are slower if all ranks compute,
    by a factor that depends on the size of a microbatch and is not predicted.
    """
    own = _allowed(filter(None, [advice.own]))
    ranked = _allowed(advice.choices)
    best_of_count: dict[tuple[int, bool], Choice] = {}
    for choice in ranked:
        best_of_count.setdefault((choice.candidate.num_microbatches, False), choice)
        best_of_count.setdefault((choice.candidate.replicas, True), choice)
    programs = dict[Hashable, Choice]()
    for choice in (*own, *best_of_count.values(), *ranked):
        programs.setdefault(choice.program, choice)
    return list(programs.values())[: _RUNNERS + len(own)], len(own)


def _allowed(choices: Iterable[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.is_within_limit]


# -- choices that run ------------------------------------------------------------------


class Race:
    """Pipelines of one model, run on the ranks of a group with one batch. Collective.

    Parameters
    ----------
    question : Question
        Its inputs are taken from the lowest rank that has some, its targets likewise.
    group : ProcessGroup
    make : function
        Makes a pipeline: ``(model, group, **options)``.

    Raises
    ------
    ArgumentError
        Code ``value``, on every rank: no rank has inputs.
    TensorError, MicrobatchError
        For an invalid batch, on the rank that has it.
    """

    def __init__(
        self, question: Question, group: ProcessGroup, make: MakePipeline
    ) -> None:
        inputs = _shared(group, question.inputs)
        targets = _shared(group, question.targets)
        if inputs is None:
            where = "pass sample=(inputs, targets), on at least one rank"
            raise ArgumentError(f"{_CALL} needs a batch to measure: {where}.")
        self.question = replace(question, inputs=inputs, targets=targets)
        self.group = group
        self._make = make
        self._last_parameters = list[ref[Parameter]]()

    def turn(self, choice: Mapping[str, Any]) -> list[float]:
        """Return the seconds of some steps: from the first start to the last end on any
        rank. Collective.

        The pipeline is made for these steps: two pipelines of one choice have different
        addresses in memory, so that one may be consistently faster by some percent.

        Parameters
        ----------
        choice : mapping
            Options of a pipeline.
        """
        pipeline = self._pipeline(choice)
        seconds = []
        is_compiled = {**self.question.options, **choice}.get("compile")
        others = _UNTIL_COMPILED if is_compiled else 1
        for _ in range(others + _STEPS):
            self.group.barrier()
            pipeline.step(self.question.inputs, self.question.targets)
            seconds.append(pipeline.timeline().makespan)
        return seconds[others:]

    def compiled(
        self, choices: Sequence[Mapping[str, Any]], numbers: Iterable[int]
    ) -> dict[int, float]:
        """Return the median seconds of compiled steps, by number of a choice.
        Collective.

        Nothing runs if the steps of the benchmark were compiled already.
        """
        times: dict[int, float] = {}
        if self.question.options.get("compile"):
            return times
        for number in numbers:
            choice = {**choices[number], "compile": "where-possible"}
            turns = (self.turn(choice) for _ in range(_COMPILED_TURNS))
            times[number] = median(chain.from_iterable(turns))
        return times

    def run(
        self,
        choices: Sequence[Mapping[str, Any]],
        seconds: float,
        kept: Collection[int] = (),
        tell: Tell = silent,
        names: Sequence[str] = (),
    ) -> dict[int, list[float]]:
        """Run choices in turns; return, by number, the seconds of the steps of each.
        The winner has most steps.

        Collective.

        Parameters
        ----------
        choices : sequence of mapping
            The most promising first: the last ones do not run if time is short.
        seconds : float
            The approximate total time, on rank 0.
        kept : collection of int
            Numbers of choices that run to the end.
        tell : function
            Called with the leader, after 8, 16, 32, … turns.
        names : sequence of str
            Descriptions of the choices, for these lines.
        """
        times: dict[int, list[float]] = {}
        coming = turns(len(choices), seconds, times, kept)
        while True:
            number = None
            if self.group.rank == 0:
                number = next(coming, None)
            number = objects.broadcast(self.group, 0, number, _CALL)
            if number is None:
                return times
            times.setdefault(number, []).extend(self.turn(choices[number]))
            num_turns = sum(map(len, times.values())) // _STEPS
            if names and num_turns >= 8 and num_turns.bit_count() == 1:
                lead = max(
                    times, key=lambda each: (len(times[each]), -median(times[each]))
                )
                time = f"{1e3 * median(times[lead]):.3f} ms per step"
                tell(f"after {num_turns} turns {names[lead]} leads, measured {time}")

    def _pipeline(self, choice: Mapping[str, Any]) -> Any:
        """Make a pipeline for a choice, after the memory of the previous one is
        free.
        """
        if any(parameter() is not None for parameter in self._last_parameters):
            gc.collect()  # a layer of the user is part of a reference cycle
        options = {**self.question.options, **choice}
        options |= {"check_agreement": False, "check_finite": "off"}
        pipeline = self._make(self.question.model, self.group, **options)
        self._last_parameters = list(map(ref, pipeline.parameters()))
        return pipeline


def turns(
    number: int,
    seconds: float,
    times: Mapping[int, Sequence[float]],
    kept: Collection[int] = (),
) -> Iterator[int]:
    """Yield the number of the choice that runs next.

    First each has a turn, or several; then, repeatedly, the faster half has twice as
    many as before. Their order is shuffled, because a choice affects the caches and the
    memory of the next one.

    Parameters
    ----------
    number : int
        The number of choices.
    seconds : float
        The length of the benchmark. The first turns take a fifth of it: choices without
        a turn by then are out.
    times : mapping of int to sequence of float
        The steps of each choice so far. The caller adds to it between two turns.
    kept : collection of int
        These have as many turns as the fastest.

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(turns(3, seconds=60, times={}, kept=[2]), 3))
    [2, 0, 1]
    """
    begun = perf_counter()
    rivals = list[int]()
    chance = Random(0)

    def shuffled(choices: list[int]) -> list[int]:
        return chance.sample(choices, len(choices))

    for choice in [*kept, *(each for each in range(number) if each not in kept)]:
        if rivals and perf_counter() - begun > _FIRST_TURNS * seconds:
            break
        yield choice
        if choice not in kept:
            rivals.append(choice)
    num_turns = 1
    while perf_counter() - begun < _FIRST_TURNS * seconds:
        num_turns += 1
        yield from shuffled([*kept, *rivals])
    while len(rivals) > 2 or num_turns < _LAST_TURNS:
        num_turns *= 2
        rivals.sort(key=lambda choice: median(times[choice]))
        rivals = rivals[: max(2, -(-len(rivals) // 2))]
        for _ in range(num_turns):
            if perf_counter() - begun > seconds:
                return
            yield from shuffled([*kept, *rivals])


# -- the batch and the choices on every rank -------------------------------------------


def choices_of_rank_0(
    group: ProcessGroup, choices: Sequence[Choice]
) -> list[dict[str, Any]]:
    """Return the choices of rank 0 on every rank, as options of a pipeline: schedule,
    replicas, partition, recompute.

    Collective.

    Parameters
    ----------
    group : ProcessGroup
    choices : sequence of Choice
        Read on rank 0.
    """
    data = objects.broadcast(group, 0, list(map(_as_data, choices)), _CALL)
    return list(map(_as_options, data))


def _as_data(choice: Choice) -> dict[str, Any]:
    schedule = choice.schedule
    ends = [part.stop for part in choice.partition]
    data = {"name": schedule.name, "csv": schedule.to_csv(), "ends": ends}
    data["frozen"] = sorted(schedule.frozen)
    candidate = choice.candidate
    return {**data, "recompute": candidate.recompute, "replicas": candidate.replicas}


def _as_options(data: Mapping[str, Any]) -> dict[str, Any]:
    parts = [range(start, end) for start, end in zip([0, *data["ends"]], data["ends"])]
    schedule = Schedule.from_csv(data["csv"], data["name"])
    schedule = replace(schedule, frozen=frozenset(data["frozen"]))
    plan = {"schedule": schedule, "partition": parts}
    return {**plan, "recompute": data["recompute"], "replicas": data["replicas"]}


def _shared(group: ProcessGroup, argument: Any) -> Any:
    """Return the inputs, or targets, of the lowest rank that has some, on every rank.
    Collective.
    """
    has_some = objects.gather(group, argument is not None, _CALL)
    if True not in has_some:
        return None
    root = has_some.index(True)
    sent = None
    if group.rank == root:
        local = samples(argument, "sample")
        sent = {"is_cut": local.is_cut, "parts": list(map(_as_message, local.parts))}
    received = objects.broadcast(group, root, sent, _CALL)
    parts = list(map(_from_message, received["parts"]))
    if received["is_cut"]:
        return Microbatches(parts)
    return parts[0]


def _as_message(part: Payload) -> dict[str, Any]:
    return {"payload": part.to_message(), "replicated": sorted(part.replicated)}


def _from_message(message: Mapping[str, Any]) -> Any:
    payload = Payload.from_message(message["payload"])
    return as_given(payload._replace(replicated=frozenset(message["replicated"])))
