"""Advice for a model: measure its layers once, and evaluate every choice."""

from __future__ import annotations

from math import inf
from types import ModuleType
from typing import Any

from minipipe.comm import ProcessGroup, spawn
from minipipe.comm.job.host import core_times, num_cores
from minipipe.core.autograd import backend
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, counted
from minipipe.execution.objective import Loss
from minipipe.execution.partition import partition_evenly
from minipipe.execution.plan import check_model
from minipipe.execution.samples import samples
from minipipe.nn import Sequential
from minipipe.tuning.measuring import REPEATS, check_question, measure_on_this_rank
from minipipe.tuning.memory import MakeOptimiser
from minipipe.tuning.report import Advice
from minipipe.tuning.stages import Messages, messages_of_this_machine
from minipipe.tuning.weighing import (
    Candidate,
    Choice,
    CostModel,
    Question,
    Weighing,
    by_worth,
    candidates,
    limit_of,
)

_MESSAGES = Spec(
    Messages | None, expected="Messages(latency, bandwidth), or 'assumed'", code="type"
)
SECONDS = 4.0
_REPLICATED = 3  # schedules that are also weighed with replicas: the best ones without


def advise(
    model: Sequential,
    inputs: Any,
    targets: Any = None,
    *,
    num_ranks: int,
    loss: Loss | None = None,
    memory_limit: float | str | None = None,
    num_microbatches: int | None = None,
    chunks_per_rank: int | None = None,
    recompute: bool | None = None,
    replicas: int | None = None,
    optimiser: MakeOptimiser | None = None,
    messages: Messages | str | None = None,
    seconds: float | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
    device: str | ModuleType = "cpu",
) -> Advice:
    """Measure a model, and weigh partitions, schedules, chunks, replicas, numbers of
    microbatches and recomputation.

    Local. The layers are measured on this process alone, for each number of
    microbatches that is weighed, because the time of a layer need not be proportional
    to the size of a microbatch. Then every choice is simulated. The best is the fastest
    one within the memory limit on every rank.

    Parameters
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or pytree
        A batch, as for :meth:`minipipe.Pipeline.step`.
    num_ranks : int
    loss : function, optional
        Required with targets.
    memory_limit : number or str, optional
        The limit of each rank: bytes, or text such as ``"500 MB"`` or ``"2 GiB"``.
        Memory is counted as by :meth:`minipipe.Plan.memory`.
    num_microbatches, chunks_per_rank : int, optional
        Weigh only choices with these. Dropout and the last bits of the loss depend on
        the number of microbatches, which counts the microbatches of all replicas
        together.
    recompute : bool, optional
        Weigh only choices with recomputation, or only choices without it. The default
        is both if there is a limit.
    replicas : int, optional
        Weigh only choices with this number. The default is every number that divides
        the ranks, with 1F1B and the schedules that are best without replicas.
    optimiser : function, optional
        ``parameters -> Optimiser``, for its state.
    messages : Messages or str, optional
        The costs of messages. By default they are measured between ranks that
        ``mpirun`` starts, or between thread ranks if there is no ``mpirun``; with
        ``"assumed"`` messages cost nothing.
    seconds : float, optional
        The total time to search for schedules beyond the named ones, in seconds of an
        idle core: 4 by default, 0 for no search. It determines the number of trials;
        the clock only stops a search that takes four times as long.
    repeats, seed, device
        As for :func:`minipipe.measure_layers`.

    Returns
    -------
    Advice
        It prints as a table. ``Pipeline(model, group, loss=loss, **advice.options)``
        runs the best choice.

    Raises
    ------
    ScheduleError
        Code ``memory``, if no choice is within the limit; the message has the least
        memory of any.
    ArgumentError
        Codes ``value`` and ``type``.
    ModelError, MicrobatchError
        Codes as for :func:`minipipe.measure_layers`.
    PartitionError
        Code ``too-few``, if there are fewer layers than ranks.
    LaunchError
        Code ``unavailable``, if ``mpirun`` cannot start the ranks.

    Notes
    -----
    The predicted time covers the forward and the backward of a batch; the optimiser
    takes equally long with any choice. Actions may take longer if several ranks compute
    at the same time. ``minipipe advise`` and ``Pipeline(…, schedule="auto")`` therefore
    benchmark the best choices on their ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import advise, nn, optim
    >>> model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    >>> x = np.ones((16, 16), np.float32)
    >>> free = {"messages": "assumed", "seconds": 0}
    >>> advice = advise(
    ...     model, x, x, num_ranks=2, loss=nn.MSELoss(), optimiser=optim.Adam, **free
    ... )
    >>> advice.best.schedule.num_ranks * advice.best.candidate.replicas
    2
    """
    check_question("advise", model, targets, loss)
    if messages != "assumed":
        _MESSAGES.check("messages", messages)
    options = {"loss": loss, "seed": seed, "device": device}
    question = Question(
        model,
        inputs,
        targets,
        options,
        optimiser,
        memory_limit=limit_of(memory_limit),
        num_microbatches=num_microbatches,
        chunks_per_rank=chunks_per_rank,
        recompute=recompute,
        replicas=replicas,
    )
    check_num_layers(question, num_ranks)
    link = _link(messages, num_ranks)

    def run(group: ProcessGroup) -> CostModel:
        return measure(question, num_ranks, link, repeats=repeats)

    return weigh(question, num_ranks, spawn(run, num_ranks=1)[0], seconds)


def _link(messages: Messages | str | None, num_ranks: int) -> Messages:
    """Return the messages that are counted with: measured here, if None."""
    if messages is None:
        messages = messages_of_this_machine(num_ranks)
    elif isinstance(messages, str):
        messages = Messages()
    if messages.cores is None and num_cores() < num_ranks:
        messages = messages._replace(cores=num_cores())
    return messages


def check_num_layers(question: Question, num_ranks: int) -> None:
    """Refuse fewer layers than ranks.

    Raises
    ------
    PartitionError
        Code ``too-few``.
    """
    check_model(question.model)
    partition_evenly(len(question.model.flat_layers), num_ranks)


def checked_seconds(seconds: float | None, default: float) -> float:
    """Return a time limit, or the default.

    Raises
    ------
    ArgumentError
        Code ``value``, for a negative or infinite time.
    """
    if seconds is None:
        return default
    times = Spec(float, minimum=0, expected="a finite time, at least 0")
    return times.check("seconds", seconds)


def measure(
    question: Question,
    num_ranks: int,
    messages: Messages,
    rank: int = 0,
    repeats: int = REPEATS,
) -> CostModel:
    """Measure the layers for each number of microbatches, with the current number of
    BLAS threads. Local.

    Parameters
    ----------
    question : Question
    num_ranks : int
    messages : Messages
    rank : int
        The local rank of this process, for its device.
    repeats : int
    """
    options = question.options
    num_samples = samples(question.inputs, "inputs").num_samples
    xp = backend.module_for(options.get("device", "cpu"), rank)
    before = core_times()
    counts = question.counts(num_ranks)
    layers = {
        count: measure_on_this_rank(
            question.model,
            question.inputs,
            question.targets,
            options.get("loss"),
            count,
            repeats,
            options.get("seed", 0),
            xp,
        )
        for count in counts
    }
    had, waited = (after - begun for after, begun in zip(core_times(), before))
    part = waited / (had + waited) if waited else 0.0
    return CostModel(layers, num_samples, messages, part)


def weigh(
    question: Question,
    num_ranks: int,
    cost_model: CostModel,
    seconds: float | None = None,
) -> Advice:
    """Weigh every candidate; then search schedules for the forms of the best.
    Deterministic, unless very slow.

    Parameters
    ----------
    question : Question
    num_ranks : int
    cost_model : CostModel
    seconds : float, optional
        As for :func:`advise`.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """
    seconds = checked_seconds(seconds, SECONDS)
    weighing = Weighing(question, num_ranks, cost_model)
    choices = _named_choices(weighing)
    is_searched = any(choice.candidate.replicas == 1 for choice in choices)
    if is_searched and question.chunks_per_rank is None and seconds > 0:
        choices += weighing.searched(choices, seconds)
    if not choices:
        layers = counted(len(question.model.flat_layers), "layer")
        sizes = f"{layers} on {counted(num_ranks, 'rank')}"
        chunks = f"chunks_per_rank={question.chunks_per_rank}"
        options = f"{chunks} and partition={question.partition}"
        message = f"No schedule fits {sizes} with {options}; leave one of these out."
        raise ArgumentError(message)
    own = _own_choice(weighing)
    return Advice(choices, cost_model, question.memory_limit, own)


def _named_choices(weighing: Weighing) -> list[Choice]:
    """Weigh the named schedules; with replicas, only the best ones without."""
    question = weighing.question
    num_ranks = weighing.num_ranks
    counts = weighing.cost_model.layers
    cuts = ["time"]
    again = [False]
    if question.memory_limit < inf:
        cuts.append("memory")
        again.append(True)
    if question.partition is not None:
        cuts = ["given"]
    if question.recompute is not None:
        again = [question.recompute]
    forms = [(cut, recompute) for recompute in again for cut in cuts]
    num_layers = len(question.model.flat_layers)
    numbers = [n for n in range(1, num_ranks + 1) if num_ranks % n == 0]
    if question.replicas is not None:
        numbers = [question.replicas]
    choices: list[Choice] = []
    for replicas in numbers:
        fitting = candidates(
            num_ranks, num_layers, counts, question.chunks_per_rank, replicas
        )
        if question.replicas is None and replicas > 1:
            ranked = sorted(choices, key=by_worth)
            best = dict.fromkeys(choice.candidate.schedule for choice in ranked)
            names = {"1f1b", *[*best][:_REPLICATED]}
            fitting = (each for each in fitting if each.schedule in names)
        choices += weighing.named(fitting, forms)
    return choices


def _own_choice(weighing: Weighing) -> Choice | None:
    """Weigh the program's own choice, if it has one of a count that was measured."""
    question = weighing.question
    own = question.own_plan(weighing.num_ranks)
    one = question.own_plan(weighing.num_ranks, of_one=True)
    counts = weighing.cost_model.layers
    if own is None or one is None or own.schedule.num_microbatches not in counts:
        return None
    cut = "parameters"
    if not {"partition", "layer_costs"}.isdisjoint(question.own or ()):
        cut = "given"
    named = Candidate(
        one.schedule.name,
        own.schedule.num_microbatches,
        chunks_per_rank=len(one.schedule.stages_of(0)),
        cut=cut,
        recompute=bool(question.recompute),
        replicas=own.schedule.num_ranks // one.schedule.num_ranks,
    )
    return weighing.plan(named, own, one.schedule)
