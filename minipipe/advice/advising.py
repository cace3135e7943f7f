"""Advice for a model: measure once, weigh every choice."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from types import ModuleType
from typing import Any

from minipipe import backend
from minipipe.advice.candidates import Candidate, candidates, numbers_of_microbatches
from minipipe.advice.measurements import Measurements, measure_call, measure_sizes
from minipipe.advice.memory_size import memory_size
from minipipe.advice.messages import Messages, messages_of_this_machine
from minipipe.advice.program import PLANNED, FirstStep
from minipipe.advice.report import Advice
from minipipe.advice.weighing import Weighing
from minipipe.batch.objective import Loss
from minipipe.batch.samples import Pieces, samples
from minipipe.comm import spawn
from minipipe.errors import ArgumentError
from minipipe.job.host import num_cores
from minipipe.nn import Sequential
from minipipe.partition.layers import partition_evenly
from minipipe.pipeline.consistency import check_loss
from minipipe.pipeline.plan import Plan, check_model
from minipipe.profiling.layers import MakeOptimiser
from minipipe.schedules.registry import NUM_MICROBATCHES

REPEATS = 5
SECONDS = 4.0


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
    optimiser: MakeOptimiser | None = None,
    messages: Messages | str | None = None,
    seconds: float | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
    device: str | ModuleType = "cpu",
) -> Advice:
    """Measure a model, and weigh cuts, schedules, chunks, numbers of microbatches and recomputation.

    Local. The layers are measured on this process alone, for each number of microbatches that is weighed: how the time
    depends on the size of a microbatch is measured, and not assumed. Then every choice is simulated. The best is the
    fastest one whose ranks all stay within the memory limit.

    Parameters
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or bundle
        A batch, as for :meth:`minipipe.Pipeline.step`.
    num_ranks : int
    loss : function, optional
        Goes with the targets.
    memory_limit : number or str, optional
        What a rank may take: bytes, or text such as ``"500 MB"`` or ``"2 GiB"``. Counted is what
        :meth:`minipipe.Plan.memory` counts.
    num_microbatches, chunks_per_rank : int, optional
        Only choices with these. Dropout and the last bits of the loss depend on the number of microbatches.
    recompute : bool, optional
        Only choices with recomputation, or without. By default both are weighed where there is a limit.
    optimiser : function, optional
        ``parameters -> Optimiser``, for its state.
    messages : Messages or str, optional
        What messages cost. By default it is measured between ranks that ``mpirun`` starts, or between thread ranks
        where there is no ``mpirun``; with ``"assumed"`` they cost nothing.
    seconds : float, optional
        How long to search for schedules beyond the named ones, all searches together: 4 by default, 0 for none.
    repeats, seed, device
        As for :func:`minipipe.measure_layers`.

    Returns
    -------
    Advice
        It prints as a table. ``Pipeline(model, group, loss=loss, **advice.options)`` runs the best choice.

    Raises
    ------
    ScheduleError
        Code ``memory``, when nothing is within the limit: with the least that there is.
    ArgumentError
        Codes ``value`` and ``type``.
    ModelError, MicrobatchError
        Codes as for :func:`minipipe.measure_layers`.
    PartitionError
        Code ``too-few-layers``, when there are fewer layers than ranks.
    LaunchError
        Code ``no-launcher``, when ``mpirun`` cannot start the ranks.

    Notes
    -----
    Predicted is the time of forward and backward of a batch; the optimiser takes as long with any choice. Ranks that
    share a memory bus are slower than a layer that is measured alone.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import advise, nn, optim
    >>> model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    >>> x = np.ones((16, 16), np.float32)
    >>> free = {"messages": "assumed", "seconds": 0}
    >>> advice = advise(model, x, x, num_ranks=2, loss=nn.MSELoss(), optimiser=optim.Adam, **free)
    >>> advice.best.schedule.num_ranks, len(advice.best.partition) >= 2
    (2, True)
    """
    check_model(model)
    if loss is not None:
        check_loss(loss)
    if (loss is None) != (targets is None):
        given, missing = ("targets", "loss") if loss is None else ("a loss", "targets")
        raise ArgumentError("value", f"advise has {given}, but no {missing}; give both, or neither.")
    if messages is not None and messages != "assumed" and not isinstance(messages, Messages):
        raise ArgumentError("type", f"messages is {messages!r}; expected Messages(latency, bandwidth), or 'assumed'.")
    limit = inf if memory_limit is None else memory_size(memory_limit)
    partition_evenly(len(model.flat_layers), num_ranks)  # which refuses fewer layers than ranks
    counts = counts_of(inputs, num_ranks, num_microbatches)
    if messages is None:
        messages = messages_of_this_machine(num_ranks)
    known = Messages() if isinstance(messages, str) else messages
    xp = backend.module_for(device)
    run = (model, inputs, targets, loss, counts, repeats, seed, xp)
    measured = spawn(lambda group: measurements(*run, known, num_ranks), num_ranks=1)[0]
    weighing = Weighing(model, num_ranks, measured, limit, optimiser)
    return weighed(weighing, chunks_per_rank, recompute, seconds)


def counts_of(inputs: Any, num_ranks: int, wanted: int | None, own: int = NUM_MICROBATCHES) -> list[int]:
    """Return the numbers of microbatches to measure: the one that is wanted, or the given ones, or those worth it."""
    given = samples(inputs, "inputs")
    if wanted is not None:
        return [wanted]
    if isinstance(given, Pieces):
        return [len(given.parts)]
    return numbers_of_microbatches(given.num_samples, num_ranks, own)


def measurements(
    model: Sequential,
    inputs: Any,
    targets: Any,
    loss: Loss | None,
    counts: Iterable[int],
    repeats: int,
    seed: int,
    xp: ModuleType,
    messages: Messages,
    num_ranks: int,
) -> Measurements:
    """Measure layers for each number of microbatches, with as many BLAS threads as there are now. Local."""
    layers = measure_sizes(model, inputs, targets, loss, counts, repeats, seed, xp)
    cores = (messages.cores or num_cores()) if num_cores() < num_ranks else None
    return Measurements(layers, samples(inputs, "inputs").num_samples, messages, cores, measure_call(repeats, xp))


def weighed(
    weighing: Weighing,
    chunks_per_rank: int | None = None,
    recompute: bool | None = None,
    seconds: float | None = None,
) -> Advice:
    """Weigh every candidate; then search schedules for the forms of the best. Parameters are those of advise."""
    seconds = SECONDS if seconds is None else seconds
    if not seconds >= 0:
        raise ArgumentError("value", f"seconds is {seconds!r}; expected a time, at least 0.")
    is_limited = weighing.memory_limit < inf
    cuts = ["given"] if weighing.partition is not None else ["time", "memory"] if is_limited else ["time"]
    again = ([False, True] if is_limited else [False]) if recompute is None else [recompute]
    forms = [(cut, computed_again) for computed_again in again for cut in cuts]
    found = candidates(weighing.num_ranks, len(weighing.model.flat_layers), weighing.measured.layers, chunks_per_rank)
    choices = list(weighing.named(found, forms))
    if choices and chunks_per_rank is None and seconds > 0:
        choices += weighing.searched(choices, seconds)
    if not choices:
        sizes = f"{len(weighing.model.flat_layers)} layers on {weighing.num_ranks} rank{'s' * (weighing.num_ranks > 1)}"
        given = f"chunks_per_rank={chunks_per_rank} and partition={weighing.partition}"
        raise ArgumentError("value", f"No schedule fits {sizes} with {given}; leave one of these out.")
    return Advice(choices, weighing.measured, weighing.memory_limit)


def advise_step(
    step: FirstStep, num_ranks: int, memory_limit: float = inf, num_microbatches: int | None = None
) -> Advice:
    """Return advice for a program, of which the first step is known; with the program's own choice beside the others.

    Local; it starts ``mpirun`` to measure messages. Parameters and errors are those of :func:`advise`, but that the
    limit is in bytes.

    Parameters
    ----------
    step : FirstStep
    num_ranks : int
    memory_limit : float
    num_microbatches : int, optional
    """
    options = step.options
    planned = {name: options[name] for name in (*PLANNED, "inputs_require_grad") if name in options}
    partition_evenly(len(step.model.flat_layers), num_ranks)
    is_known = planned.get("schedule") != "auto" and str(planned.get("partition")) != "measured"
    own = Plan(step.model, num_ranks=num_ranks, **planned) if is_known else None
    usual = NUM_MICROBATCHES if own is None else own.schedule.num_microbatches
    counts = counts_of(step.inputs, num_ranks, num_microbatches, usual)
    messages, seed = messages_of_this_machine(num_ranks), options.get("seed", 0)
    xp = backend.module_for(options.get("device", "cpu"))
    run = (step.model, step.inputs, step.targets, options.get("loss"), counts, REPEATS, seed, xp)
    measured = spawn(lambda group: measurements(*run, messages, num_ranks), num_ranks=1)[0]
    grad = options.get("inputs_require_grad", False)
    weighing = Weighing(step.model, num_ranks, measured, memory_limit, step.optimiser, inputs_require_grad=grad)
    advice = weighed(weighing, recompute=True if options.get("recompute") else None)
    if own is None or usual not in measured.layers:
        return advice
    chunks, again = own.schedule.num_stages // num_ranks, bool(options.get("recompute"))
    cut = "given" if "partition" in planned or "layer_costs" in planned else "parameters"
    choice = weighing.plan(Candidate(own.schedule.name, usual, chunks, cut, again), own, own.schedule)
    return Advice(advice.choices, measured, memory_limit, choice)
