"""What the ranks of a pipeline leave to measurements: they measure together, and rank 0 decides for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from math import inf
from types import ModuleType
from typing import Any

from minipipe.comm import ProcessGroup
from minipipe.comm.job.launcher import LOCAL_SIZE, told
from minipipe.errors import ArgumentError
from minipipe.execution.objective import Loss
from minipipe.execution.plan import Plan
from minipipe.hints import check_pipeline_options
from minipipe.schedules.simulation.costs import Costs
from minipipe.tuning import advising
from minipipe.tuning.advising import check_sizes, checked_seconds, measure, weigh
from minipipe.tuning.balancing import measured_partition
from minipipe.tuning.candidates import Question, memory_size
from minipipe.tuning.layers import MakeOptimiser
from minipipe.tuning.messages import measure_messages
from minipipe.tuning.progress import silent, teller
from minipipe.tuning.report import Advice, ChosenPlan
from minipipe.tuning.text import choices_of_rank_0, report_of_rank_0
from minipipe.tuning.trial import MakePipeline, Trial
from minipipe.tuning.weighing import Choice, described

RACE_SECONDS = 40.0  # with 20, six choices of one model took 1.00 to 1.09 of the fastest; with 40, three at most 1.00
_RUNNERS = 32  # how many choices race at most
_PROBES, _OF_PROBES = 3, 0.25  # how many choices run before, to measure costs at work; the time, of that of the race


def decided(
    model: Any,
    group: ProcessGroup,
    options: Mapping[str, Any],
    pipeline: type,
    make: MakePipeline,
    loss: Loss,
    seed: int,
    device: str | ModuleType,
    recompute: bool,
    **others: Any,
) -> tuple[Any, dict[str, Any], bool]:
    """Return the model and the options of a pipeline with what was left to measurements, and whether to recompute.

    Collective. With ``schedule="auto"`` as :func:`chosen` says. With ``partition="measured"`` rank 0 measures.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    options : mapping
        Those of :class:`minipipe.Plan`, and ``sample``: inputs and targets, of which only rank 0 needs some. With
        ``schedule="auto"`` also those of :func:`chosen`.
    pipeline : type
        Whose options these are.
    make : function
        Makes a pipeline to measure: ``(model, group, **options)``.
    loss : function
    seed : int
    device : str or module
    recompute : bool
    **others
        Further options of the pipeline, such as ``loss_weight``.

    Raises
    ------
    ArgumentError
        Code ``name``, for an option that does not exist, before anything is measured. Code ``value``: without a sample.
    """
    check_pipeline_options(pipeline, Plan, chosen, options)
    run: dict[str, Any] = {"loss": loss, "seed": seed, "device": device}
    if options.get("schedule") == "auto":
        return chosen(model, group, make, recompute, **run, **others, **options)
    partition = measured_partition(model, group, options, **run, recompute=recompute)
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
    inputs_require_grad: bool = False,
    **others: Any,
) -> tuple[ChosenPlan, dict[str, Any], bool]:
    """Return the plan that measurements choose, no further options, and whether to recompute.

    Collective; see :func:`advice_on_ranks`. Rank 0 says that it begins, and what was chosen.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    make : function
        As for :func:`decided`.
    recompute : bool
        Whether to weigh only choices with recomputation.
    sample : (inputs, targets)
        Of which only one rank needs some.
    memory_limit, optimiser
        As for :func:`minipipe.advise`.
    progress : bool, optional
        Whether rank 0 says everything, or nothing; by default everything to a terminal.
    schedule, partition, num_microbatches, chunks_per_rank, layer_costs, inputs_require_grad
        As for :class:`minipipe.Plan`: only choices with these. No costs of layers.
    **others
        Options of the pipeline.

    Raises
    ------
    ArgumentError
        Code ``value``: without a sample, or with costs of layers.
    PartitionError
        Code ``too-few-layers``, when there are fewer layers than ranks.
    ScheduleError
        Code ``memory``: on rank 0, when nothing is within the limit.
    """
    if layer_costs is not None:
        message = 'schedule="auto" balances times that it measures; expected no layer_costs beside it.'
        raise ArgumentError("value", message)
    sample = (None, None) if sample is None else sample
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ArgumentError("value", 'schedule="auto" needs a batch to measure: sample=(inputs, targets).')
    limit = inf if memory_limit is None else memory_size(memory_limit)
    cut = None if str(partition) == "measured" else partition
    others |= {"inputs_require_grad": inputs_require_grad}
    asked = num_microbatches, chunks_per_rank, cut, recompute or None
    question = Question(model, sample[0], sample[1], others, optimiser, limit, *asked)
    announce = teller(group, progress is not False)  # without a terminal too: it takes a minute
    time = (1 + _OF_PROBES) * RACE_SECONDS + advising.SECONDS
    announce(f'schedule="auto" measures and races choices on the ranks: about {time:.2g} s, more for a large model')
    advice = advice_on_ranks(question, group, make, "the ranks of this job", tell=teller(group, progress))
    choice = choices_of_rank_0(group, None if advice is None else [advice.best])[0]
    recompute, report = choice.pop("recompute"), report_of_rank_0(group, advice)
    plan = ChosenPlan(report, model, num_ranks=group.size, inputs_require_grad=inputs_require_grad, **choice)
    announce(plan.told)
    return plan, {}, recompute


def advice_on_ranks(
    question: Question,
    group: ProcessGroup,
    make: MakePipeline,
    where: str,
    seconds: float | None = None,
    tell: Callable[[str], None] = silent,
) -> Advice | None:
    """Return advice from measurements on the ranks at hand, on rank 0; None on the others.

    Collective. Messages are measured between all ranks, layers on rank 0. The best choices of a few numbers of
    microbatches then run, to tell what actions and messages cost where all ranks work; all choices are weighed again by
    that, and the best ones race.

    Parameters
    ----------
    question : Question
        Of the batch one rank needs some.
    group : ProcessGroup
    make : function
        As for :func:`decided`.
    where : str
        On which ranks, for the report.
    seconds : float, optional
        Of the race: 40 by default. With 0, or without a loss, no choice runs.
    tell : function
        Takes a sentence about what comes next.

    Raises
    ------
    PartitionError, ArgumentError, ScheduleError
        As for :func:`minipipe.advise`: on every rank for sizes, ``seconds`` and where there is no batch, otherwise on
        rank 0.
    """
    seconds = checked_seconds(seconds, RACE_SECONDS)
    check_sizes(question, group.size)
    trial = Trial(question, group, make)
    question, may_run = trial.question, trial.trains and seconds > 0
    tell(f"measuring messages between {group.size} rank{'s' * (group.size > 1)}")
    messages, advice = measure_messages(group, where), None
    if group.rank == 0:
        tell("measuring layers on rank 0, in microbatches of several sizes; then weighing all choices")
        is_one_host = told(os.environ, LOCAL_SIZE, group.size) == group.size
        measured = measure(question, group.size, messages, group.local_rank, shares=is_one_host)
        advice = weigh(question, group.size, measured, 0 if may_run else None)
    if not may_run:
        return advice
    probes = None if advice is None else _probes(advice)
    tell(f"running {len(probes or ())} choices, to measure actions where all ranks work")
    costs = trial.probes(choices_of_rank_0(group, probes), _OF_PROBES * seconds)
    if advice is not None and probes is not None:
        runs: dict[int, list[tuple[Costs, Costs]]] = {}
        for number, found in costs:
            choice = probes[number]
            expected = measured.costs(_plan(question, choice), choice.candidate.recompute)
            runs.setdefault(choice.candidate.num_microbatches, []).append((expected, found))
        advice = weigh(question, group.size, measured.with_runs(runs))
    return _raced(trial, advice, seconds, tell)


def _raced(trial: Trial, advice: Advice | None, seconds: float, tell: Callable[[str], None]) -> Advice | None:
    """Return advice whose best choices ran, and the own one. Collective."""
    programs, num_kept = dict[Hashable, Choice](), 0
    if advice is not None:
        own = [] if advice.own is None else _allowed([advice.own])
        num_kept = len(own)
        for choice in (*own, *_allowed(advice.choices)):
            programs.setdefault(choice.program, choice)
    field = None if advice is None else list(programs.values())[: _RUNNERS + num_kept]
    tell(f"the best {len(field or ())} choices race, for {seconds:g} s")
    names = [described(choice.candidate) for choice in field or ()]
    runs = trial.race(choices_of_rank_0(trial.group, field), seconds, range(num_kept), tell, names)
    if advice is None:
        return None
    by_program = dict(zip(programs, map(runs.get, range(len(programs)))))

    def with_run(choice: Choice) -> Choice:
        run = by_program.get(choice.program)
        return choice if run is None else choice._replace(**run._asdict())

    own_choice = None if advice.own is None else with_run(advice.own)
    return Advice(list(map(with_run, advice.choices)), advice.measured, advice.memory_limit, own_choice)


def _allowed(choices: Iterable[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.is_within_limit]


def _probes(advice: Advice) -> list[Choice]:
    """Return the best choices, of different numbers of microbatches, and the own one."""
    best: dict[int, Choice] = {}
    for choice in _allowed(advice.choices):
        if len(best) < _PROBES:
            best.setdefault(choice.candidate.num_microbatches, choice)
    own = [] if advice.own is None else _allowed([advice.own])
    return [*best.values(), *own]


def _plan(question: Question, choice: Choice) -> Plan:
    return Plan(question.model, choice.schedule, partition=choice.partition)
