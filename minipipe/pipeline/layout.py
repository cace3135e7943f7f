"""How a model, a schedule and a number of ranks fit together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minipipe.errors import ModelError, Problem, RankError, ScheduleError
from minipipe.nn import Sequential
from minipipe.pipeline.partition import check_partition, partition_by_cost
from minipipe.schedules import Schedule, build

__all__ = ["divide_layers", "resolve_schedule"]


def resolve_schedule(
    schedule: str | Path | Schedule, num_ranks: int, num_microbatches: int | None, chunks_per_rank: int | None
) -> Schedule:
    """Return the schedule that was given, named or written in a file, after checking that everything fits together.

    Raises
    ------
    ScheduleError
        Codes ``unknown``, ``parameters``, ``file`` and ``syntax``.
    RankError
        Code ``wrong-number``, when a given schedule is made for another number of ranks.
    """
    if isinstance(schedule, Path) or (isinstance(schedule, str) and schedule.endswith((".csv", ".txt"))):
        schedule = Schedule.from_file(schedule)
    if isinstance(schedule, Schedule):
        return _checked(schedule, num_ranks, num_microbatches, chunks_per_rank)
    return build(schedule, num_ranks, num_microbatches, chunks_per_rank)


def _checked(schedule: Schedule, num_ranks: int, num_microbatches: int | None, chunks_per_rank: int | None) -> Schedule:
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
            raise ScheduleError([Problem("parameters", message)])
    return schedule


def divide_layers(
    model: Sequential, num_stages: int, partition: Sequence[range] | None, layer_costs: Sequence[float] | None
) -> list[range]:
    """Return the layers of each stage: as given, or so that the largest stage is as small as can be.

    Raises
    ------
    PartitionError, ModelError
        When layers cannot be divided so; code ``tied-across-stages`` when two stages would share a parameter.
    """
    if partition is not None:
        parts = check_partition(partition, len(model), num_stages)
    else:
        costs = [layer.num_parameters for layer in model] if layer_costs is None else layer_costs
        if len(costs) != len(model):
            raise ValueError(f"layer_costs has {len(costs)} values; expected one for each of {len(model)} layers.")
        parts = partition_by_cost(costs, num_stages)
    _refuse_ties(model, parts)
    return parts


def _refuse_ties(model: Sequential, partition: list[range]) -> None:
    owner: dict[int, int] = {}
    for stage, layers in enumerate(partition):
        for layer in layers:
            for name, parameter in model.layers[layer].named_parameters():
                if owner.setdefault(id(parameter), stage) != stage:
                    raise ModelError(
                        "tied-across-stages",
                        f"Layer {layer}, in stage {stage}, shares its {name} with stage {owner[id(parameter)]}. "
                        "Shared parameters must lie in one stage: give partition=.",
                    )
