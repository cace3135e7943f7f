"""The public verifier: a legal schedule, within limits of memory and of the versions
and the age of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import F
from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.schedules.analysis import verifier
from minipipe.core.schedules.analysis.verifier import problem_at, refusal
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import Code, Problem
from minipipe.schedules.analysis.activations import Footprint, memory_levels
from minipipe.schedules.analysis.copies import copies_held

if TYPE_CHECKING:
    from minipipe.schedules.analysis.updates import ByMicrobatch


def verify(
    schedule: ActionTable,
    memory_limit: float | Sequence[float] | None = None,
    memory: Footprint | None = None,
    *,
    weights: Sequence[float] | None = None,
    keys_values: Sequence[float] | None = None,
    max_versions: int | None = None,
    max_staleness: int | None = None,
) -> None:
    """Prove that a schedule is legal and free of deadlock; otherwise raise an error
    with all its problems.

    Local: no messages. The time is linear in the number of actions.

    Parameters
    ----------
    schedule : Schedule or Program
        A program is checked as written, a schedule with the messages that
        :func:`minipipe.schedules.lower` adds.
    memory_limit : int or float, or a sequence of them, optional
        The most that a rank may hold at once: one limit for all ranks, or one for each.
        Without ``memory`` it counts (stage, microbatch) pairs.
    memory : Footprint, optional
        By stage, the memory of one microbatch, in the unit of the limits:
        ``costs.memory(num_stages)`` of a :class:`minipipe.Costs`. If sequences have
        slices, of one slice: ``costs.sliced(num_slices).memory(num_stages)``.
    weights : sequence of float, optional
        By stage, the memory of its weights, ``costs.weight_memory(num_stages)``. Each
        further version of the weights, and each further gradient accumulator that waits
        for its U, takes as much. The default is no memory.
    keys_values : sequence of float, optional
        By stage, the memory of the keys and values of one slice of a sequence, whose
        gradients later slices add to. The default is no memory.
    max_versions : int, optional
        The most versions of its weights that a stage may hold at once; at least 1.
        Synchronous schedules hold one.
    max_staleness : int, optional
        The most updates of a stage between an F and the update that applies its
        gradient; at least 0.

    Raises
    ------
    ScheduleError
        ``.problems`` lists every :class:`~minipipe.errors.Problem` with its code,
        message, rank and step, the cause first, without mere consequences. The codes:
        ``out-of-range``; ``placement`` (an action on another rank than its stage, or
        than the rest of its microbatch); ``duplicate``; ``missing`` (an action, or the
        partner of one); ``unexpected`` (an I or W beside a B); ``frozen``; ``overlap``
        (a forward overlapped with anything but a backward of another microbatch);
        ``order`` (an action before one that it needs); ``deadlock``,
        ``rendezvous-deadlock`` (a deadlock that buffered sends would avoid);
        ``memory``; ``staleness`` (more versions of weights, or older ones, than the
        limits). Code ``value``, if a limit or the memory is not valid.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> verify(Schedule.from_text("rank 0: 0B0 0F0"))
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [order] Rank 0, position 0: 0B0 comes before 0F0 (position 1), which it needs.
    <BLANKLINE>
    rank 0: >0B0<  0F0

    Half of an activation is kept from I until W.

    >>> from minipipe import Costs, schedules
    >>> halves = Costs(activation=1, weight_activation=0.5)
    >>> verify(
    ...     schedules.zb_h2(4, 8), memory_limit=[7, 6, 5, 4], memory=halves.memory(4)
    ... )
    """
    verifier.verify(schedule)
    problems = _memory_problems(schedule, memory_limit, memory, weights, keys_values)
    problems += _age_problems(schedule, max_versions, max_staleness)
    if problems:
        raise refusal(schedule, problems)


def _memory_problems(
    schedule: ActionTable,
    memory_limit: float | Sequence[float] | None,
    memory: Footprint | None,
    weights: Sequence[float] | None,
    keys_values: Sequence[float] | None,
) -> list[Problem]:
    """Report, for each rank, the first action that exceeds its memory limit."""
    if memory_limit is None:
        return []
    from minipipe.schedules.analysis.workload import (  # most schedules have no limit
        amount_per_rank,
        check_amounts,
        check_footprint,
        fits,
    )

    unit = ""
    nothing = (0,) * schedule.num_stages
    if memory is None:
        unit = " (stage, microbatch) pairs"
        ones = (1,) * schedule.num_stages
        memory = Footprint(ones, ones, nothing)
    check_footprint(memory, schedule.num_stages)
    amounts = {"weights": weights, "keys_values": keys_values}
    by_stage: dict[str, Sequence[float]] = dict.fromkeys(amounts, nothing)
    by_stage |= {name: value for name, value in amounts.items() if value is not None}
    for name, values in by_stage.items():
        check_amounts(name, values, schedule.num_stages)
    levels = memory_levels(schedule, memory, **by_stage)
    limits = amount_per_rank(memory_limit, schedule.num_ranks)
    problems = []
    for rank, (limit, level) in enumerate(zip(limits, levels)):
        for position, (held, _) in enumerate(level):
            if not fits(held, limit):
                where = f"Rank {rank}, position {position}"
                sentence = f"{where}: with {schedule.actions[rank][position]} it holds "
                sentence += f"{held:.12g}{unit}; the limit is {limit:.12g}."
                problems.append(Problem(Code.MEMORY, sentence, rank, position))
                break
    return problems


def _age_problems(
    schedule: ActionTable, max_versions: int | None, max_staleness: int | None
) -> list[Problem]:
    """Report, for each rank, the first action with too many versions of weights, and
    the first with weights that are too old.
    """
    limits = {"max_versions": (max_versions, 1), "max_staleness": (max_staleness, 0)}
    for name, (limit, least) in limits.items():
        if limit is not None:
            SCHEDULE_COUNT._replace(minimum=least).check(name, limit)
    ages: ByMicrobatch = ()
    if max_staleness is not None:
        from minipipe.schedules.analysis.updates import staleness

        ages = staleness(schedule)
    problems: list[Problem] = []
    for rank in range(schedule.num_ranks):
        if max_versions is not None:
            more = _with_more_versions(schedule, rank, max_versions)
            problems += islice(more, 1)
        if max_staleness is not None:
            older = _with_older_weights(schedule, rank, ages, max_staleness)
            problems += islice(older, 1)
    return problems


def _with_more_versions(
    schedule: ActionTable, rank: int, limit: int
) -> Iterator[Problem]:
    copies = copies_held(flow_of(schedule), rank)
    for position, (action, (held, _)) in enumerate(zip(schedule.actions[rank], copies)):
        if held.versions > limit:
            where = f"Rank {rank}, position {position}: with {action}"
            sentence = f"{where} stage {held.stage} has {held.versions} versions"
            sentence += f" of its weights; the limit is {limit}."
            yield Problem(Code.STALENESS, sentence, rank, position)


def _with_older_weights(
    schedule: ActionTable, rank: int, ages: ByMicrobatch, limit: int
) -> Iterator[Problem]:
    for position, (stage, kind, k) in enumerate(schedule.numbered[rank]):
        if kind is F and ages[stage][k] > limit:
            sentence = f"runs with weights whose staleness is {ages[stage][k]} when"
            sentence += f" its gradient is applied; the limit is {limit}."
            yield problem_at(schedule, rank, position, Code.STALENESS, sentence)
