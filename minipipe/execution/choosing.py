"""The schedule of a plan, from a name, a file or a table, for a number of ranks and of
replicas.
"""

from __future__ import annotations

from pathlib import Path

from minipipe.core.schedules.action import REDUCE_GRAD
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.core.schedules.placement import (
    check_counts,
    neighbouring_placement,
)
from minipipe.core.specs import COUNT
from minipipe.errors import (
    ArgumentError,
    Code,
    RankError,
    ScheduleError,
    counted,
)
from minipipe.schedules import (
    REGISTRY,
    Program,
    Schedule,
    build,
)
from minipipe.schedules.analysis.replicas import pipelines_of
from minipipe.schedules.registry import NUM_MICROBATCHES, check_sizes_of, spelled, takes


def _resolved(
    schedule: str | Path | Schedule | Program,
    num_ranks: int | None,
    num_microbatches: int | None,
    chunks_per_rank: int | None,
) -> Schedule | Program:
    """Return the schedule, from its name or file if necessary, after checking that the
    numbers fit it.
    """
    if isinstance(schedule, Path) or (
        isinstance(schedule, str) and schedule.endswith((".csv", ".txt"))
    ):
        from minipipe.schedules import read_schedule

        schedule = read_schedule(schedule)
    if not isinstance(schedule, Schedule | Program):
        if num_ranks is None:
            message = (
                f"The schedule {schedule!r} needs a number of ranks: Plan(model, "
                f"{schedule!r}, num_ranks=4)."
            )
            raise RankError("wrong-number", message)
        return build(schedule, num_ranks, num_microbatches, chunks_per_rank)
    if num_ranks not in (None, schedule.num_ranks):
        raise RankError(
            "wrong-number",
            f"{schedule.name} is made for {counted(schedule.num_ranks, 'rank')}, but "
            f"there are {num_ranks}. Start {schedule.num_ranks} (mpirun -n, or spawn's "
            f"num_ranks), or make the schedule for {num_ranks}.",
        )
    check_sizes_of(
        f"the schedule {schedule.name}",
        ("num_microbatches", num_microbatches, schedule.num_microbatches),
        ("chunks_per_rank", chunks_per_rank, schedule.num_stages / schedule.num_ranks),
    )
    return schedule


def replicated(
    schedule: str | Path | Schedule | Program,
    num_ranks: int | None,
    num_microbatches: int | None,
    chunks_per_rank: int | None,
    replicas: int,
) -> Schedule | Program:
    """Return the schedule of all replicas, with the sums of their gradients."""
    of_each = None
    if num_ranks is not None:
        of_each = ranks_of_each(num_ranks, replicas)
    found = _resolved(schedule, of_each, num_microbatches, chunks_per_rank)
    if replicas == 1 and (not found.has_replicas or REDUCE_GRAD in found.kinds):
        return found
    if isinstance(found, Program):
        message = (
            f"{found.name} has sends and receives; replicas need only its "
            "computations: schedule.schedule."
        )
        raise ScheduleError.of(Code.TYPE, message)
    verify(found)
    if not found.is_forward_only:
        from minipipe.schedules import data_parallel

        return data_parallel(found, replicas)
    p = found.num_ranks
    m = found.num_microbatches
    ways = [
        tuple(d * p + rank for rank in way)
        for d in range(replicas)
        for way in pipelines_of(found)
    ]
    from minipipe.schedules.sequential import forward_only_through

    return forward_only_through(ways, replicas * m, replicas * p)


def ranks_of_each(num_ranks: int, replicas: int) -> int:
    """Return the number of ranks of each replica."""
    COUNT.check("replicas", replicas)
    if num_ranks % replicas:
        given = counted(num_ranks, "rank")
        raise RankError(
            "wrong-number",
            f"{given} cannot be divided among {replicas} replicas, each with equally "
            f"many ranks. Start {replicas} times as many ranks as a replica has.",
        )
    return num_ranks // replicas


def checked_blocks(given: int | None, schedule: Schedule | Program) -> int:
    """Return the number of blocks of microbatches whose gradients are summed
    separately: one per replica by default.

    Raises
    ------
    ArgumentError
        Code ``value``, if the replicas of some stage cannot have equally many, or if
        the blocks of a replica would not add up in separate pairs.
    """
    replicas = [len(schedule.ranks_of(stage)) for stage in range(schedule.num_stages)]
    if given is None:
        return max(replicas)
    blocks = COUNT.check("gradient_blocks", given)
    for n in replicas:
        of_each = blocks // n
        if blocks % n or (n > 1 and of_each & (of_each - 1)):
            raise ArgumentError(
                f"gradient_blocks is {blocks}, for {counted(n, 'replica')}; expected "
                "1, 2, 4, 8 … blocks for each."
            )
    return blocks


def schedule_of_modules(
    num_modules: int,
    num_ranks: int,
    schedule: str | Path | Schedule | Program | None,
    num_microbatches: int | None,
) -> Schedule | Program:
    """Return the schedule argument, or the default, with a stage for each module."""
    if num_modules < 1:
        raise RankError(
            "wrong-number",
            "There is no module; expected at least one for the stages of the pipeline.",
        )
    chunks = -(-num_modules // num_ranks)
    if schedule is None:
        schedule = "1f1b" if chunks == 1 else "interleaved-1f1b"
    schedule = spelled(schedule)
    if isinstance(schedule, str) and schedule in REGISTRY:
        if num_microbatches is None:
            num_microbatches = NUM_MICROBATCHES
        from minipipe.schedules.transforms import first_stages, spread_stages

        built = _built(schedule, num_ranks, num_microbatches, chunks, num_modules)
        if chunks > 1 and built.placement == neighbouring_placement(num_ranks, chunks):
            return spread_stages(
                build(schedule, num_ranks, num_microbatches, 1), num_modules
            )
        return first_stages(built, num_modules)
    resolved = _resolved(schedule, num_ranks, num_microbatches, None)
    if resolved.num_stages != num_modules:
        raise RankError(
            "wrong-number",
            f"{resolved.name} on {counted(num_ranks, 'rank')} has "
            f"{counted(resolved.num_stages, 'stage')}; "
            f"expected as many modules, not {num_modules}.",
        )
    return resolved


def _built(
    name: str, num_ranks: int, num_microbatches: int, chunks: int, num_modules: int
) -> Schedule:
    """Build a named schedule; an error speaks of modules."""
    check_counts(num_ranks, num_microbatches)
    takes_chunks = takes(name, "chunks_per_rank")
    try:
        return build(
            name,
            num_ranks,
            num_microbatches,
            chunks if takes_chunks or chunks > 1 else None,
        )
    except ScheduleError as error:
        fits = f"at most {num_ranks}"
        if takes_chunks:
            fits = f"{num_ranks + 1} to {2 * num_ranks}"
        message = (
            f"{counted(num_modules, 'module')} on {counted(num_ranks, 'rank')} are "
            f"up to {chunks} on a rank. "
            f"{error.problems[0].message} Expected {fits} modules."
        )
        raise RankError("wrong-number", message) from None
