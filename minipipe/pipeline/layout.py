"""How a model, a schedule and a number of ranks fit together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.errors import ModelError, RankError, ScheduleCode, ScheduleError
from minipipe.nn import Module, Sequential
from minipipe.pipeline.partition import check_partition, partition_by_cost
from minipipe.schedules.chunks import first_stages, spread_stages
from minipipe.schedules.placement import check_counts, neighbouring_placement
from minipipe.schedules.program import Program, read_schedule
from minipipe.schedules.registry import REGISTRY, build
from minipipe.schedules.schedule import Schedule
from minipipe.version import __version__

__all__ = ["check_arguments", "description", "divide_layers", "resolve_schedule", "schedule_of_modules"]


def resolve_schedule(
    schedule: str | Path | Schedule | Program, num_ranks: int, num_microbatches: int | None, chunks_per_rank: int | None
) -> Schedule | Program:
    """Return the schedule that was given, named or written in a file, after checking that everything fits together.

    Raises
    ------
    ScheduleError
        Codes ``unknown``, ``parameters``, ``file`` and ``syntax``.
    RankError
        Code ``wrong-number``, when a given schedule is made for another number of ranks.
    """
    if isinstance(schedule, Path) or (isinstance(schedule, str) and schedule.endswith((".csv", ".txt"))):
        schedule = read_schedule(schedule)
    if isinstance(schedule, Schedule | Program):
        return _checked(schedule, num_ranks, num_microbatches, chunks_per_rank)
    return build(schedule, num_ranks, num_microbatches, chunks_per_rank)


def _checked(
    schedule: Schedule | Program, num_ranks: int, num_microbatches: int | None, chunks_per_rank: int | None
) -> Schedule | Program:
    if schedule.num_ranks != num_ranks:
        raise RankError(
            "wrong-number",
            f"{schedule.name} is made for {schedule.num_ranks} ranks, but there are {num_ranks}. "
            f"Start {schedule.num_ranks} (mpirun -n, or spawn's num_ranks), or make the schedule for {num_ranks}.",
        )
    chunks = schedule.num_stages / schedule.num_ranks
    for name, given, own in (
        ("num_microbatches", num_microbatches, schedule.num_microbatches),
        ("chunks_per_rank", chunks_per_rank, chunks),
    ):
        if given not in (None, own):
            message = f"{name} is {given}, but the schedule {schedule.name} has {own:g}; leave {name} out."
            raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    return schedule


def divide_layers(
    model: Sequential, num_stages: int, partition: Sequence[range] | None, layer_costs: Sequence[float] | None
) -> list[range]:
    """Return the layers of each stage: as given, or so that the largest stage is as small as can be.

    Raises
    ------
    PartitionError
        Codes ``zero-stages``, ``too-few-layers``, ``invalid-cost`` and ``not-a-partition``.
    """
    if partition is not None:
        return check_partition(partition, len(model), num_stages)
    costs = [layer.num_parameters for layer in model] if layer_costs is None else layer_costs
    if len(costs) != len(model):
        raise ValueError(f"layer_costs has {len(costs)} values; expected one for each of {len(model)} layers.")
    return partition_by_cost(costs, num_stages)


def schedule_of_modules(
    num_modules: int, num_ranks: int, schedule: str | Path | Schedule | Program | None, num_microbatches: int | None
) -> Schedule | Program:
    """Return a schedule with a stage for each module; by default 1F1B, interleaved where ranks hold several.

    A named schedule is built with as many chunks on each rank as the fullest rank needs. In a straight schedule the
    modules are spread over the ranks, neighbours together; in others the stages beyond the modules are left out.

    Raises
    ------
    RankError
        Code ``wrong-number``, when there is no module, or the schedule has another number of stages.
    """
    if num_modules < 1:
        raise RankError("wrong-number", "There is no module; expected at least one for the stages of the pipeline.")
    chunks = -(-num_modules // num_ranks)
    if schedule is None:
        schedule = "1f1b" if chunks == 1 else "interleaved-1f1b"
    if isinstance(schedule, str) and schedule in REGISTRY:
        if num_microbatches is None:
            num_microbatches = 4 * num_modules
        built = _built(schedule, num_ranks, num_microbatches, chunks, num_modules)
        if chunks > 1 and built.placement == neighbouring_placement(num_ranks, chunks):
            return spread_stages(build(schedule, num_ranks, num_microbatches, 1), num_modules)
        return first_stages(built, num_modules)
    resolved = resolve_schedule(schedule, num_ranks, num_microbatches, None)
    if resolved.num_stages != num_modules:
        raise RankError(
            "wrong-number",
            f"{resolved.name} on {num_ranks} ranks has {resolved.num_stages} stages; expected as many modules, "
            f"not {num_modules}.",
        )
    return resolved


def _built(name: str, num_ranks: int, num_microbatches: int, chunks: int, num_modules: int) -> Schedule:
    """Build a named schedule, and say in modules what does not fit."""
    check_counts(num_ranks, num_microbatches)
    try:
        return build(name, num_ranks, num_microbatches, chunks)
    except ScheduleError as error:
        message = (
            f"{num_modules} modules on {num_ranks} ranks are up to {chunks} on a rank. {error.problems[0].message} "
            f"Expected {num_ranks + 1} to {2 * num_ranks} modules."
        )
        raise RankError("wrong-number", message) from None


def check_arguments(model: Any, loss: Any, timeout: float | None) -> None:
    """Refuse what cannot be trained, before any rank sends anything."""
    if not isinstance(model, Sequential) or type(model).forward is not Sequential.forward:
        own = ", with a forward of its own" if isinstance(model, Sequential) else ""
        raise ModelError(
            "not-a-sequence",
            f"A pipeline cuts an nn.Sequential between its layers; this model is {type(model).__name__}{own}. "
            "Write nn.Sequential(*layers), or Pipeline.from_modules([part, …], group, …).",
        )
    if not callable(loss) or isinstance(loss, type):
        raise ModelError("loss", f"The loss is {loss!r}; expected a function or an object such as nn.MSELoss().")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout}; expected seconds, more than 0.")
    if isinstance(loss, Module) and loss.num_parameters:
        raise ModelError("loss-with-parameters", "The loss has parameters of its own; make them a layer of the model.")


def description(
    model: Sequential, schedule: Schedule | Program, partition: Sequence[range], seed: int, loss: Any
) -> dict[str, str]:
    """Return, in words, what must be the same on all ranks."""
    parameters = [(name, p.shape, str(p.dtype)) for name, p in model.named_parameters()]
    return {
        "minipipe version": __version__,
        "NumPy version": np.__version__,
        "model": f"{model!r} {parameters}",
        "schedule": str(schedule),
        "partition": str(partition),
        "seed": str(seed),
        "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
    }
