"""The verifier proves that a schedule is legal and free of deadlock, or lists its problems, the cause first.

A schedule is legal if

1. each (stage, microbatch) has one F, and one B or one I and one W, on the rank of the stage, or all of them on one
   of its replicas (a forward-only schedule has no backward at all);
2. F comes after the F of the previous stage, B and I after the F of the same stage and the B or I of the next stage,
   and W after its I;
3. each rank runs one action at a time, in the given order;
4. the orders of all ranks together have no cycle, even if every send blocks until it is received.

Replicas, slices, overlapped actions, all-reduces and updates obey further rules, in `rules.py`.

For a schedule without SEND and RECV, rule 4 means that its computations have no cycle. The messages that
:func:`minipipe.schedules.lower` adds then cause no deadlock: it places each SEND together with its RECV in one global
order, so that the first unfinished item of that order can always run. A program with SEND and RECV is checked as
written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from minipipe.core.flow import flow_of
from minipipe.core.memory import copies_held
from minipipe.errors import Problem, ScheduleCode, ScheduleError, whole_number
from minipipe.schedules.action import REDUCE_GRAD, Action, ActionKind, B, F, I, L, O, R, U, W
from minipipe.schedules.action_table import ActionTable, check_table
from minipipe.schedules.analysis.activations import Footprint, memory_levels
from minipipe.schedules.analysis.dependencies import Dependencies, Value
from minipipe.schedules.analysis.rules import MOST_PROBLEMS, problem_at, row_problems
from minipipe.schedules.analysis.updates import staleness
from minipipe.schedules.analysis.walk import Blocked, walk
from minipipe.schedules.analysis.workload import amount_per_rank, check_amounts, check_footprint, fits
from minipipe.schedules.placement import stages_by_rank

_STAGE, _MICROBATCH = attrgetter("stage"), attrgetter("microbatch")
_DEADLOCKS = (ScheduleCode.DEADLOCK, ScheduleCode.OVERLAP_DEADLOCK, ScheduleCode.RENDEZVOUS_DEADLOCK)
_SEVERAL = (REDUCE_GRAD, U, R, O, L)  # not one for each microbatch: see `rules.py`
_BIT = {kind: 0 if kind in _SEVERAL else 1 << i for i, kind in enumerate(ActionKind)}


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
    """Prove that a schedule is legal and free of deadlock; otherwise raise an error with all its problems.

    Local: no messages. The time is linear in the number of actions.

    Parameters
    ----------
    schedule : Schedule or Program
        A program is checked as written, a schedule with the messages that :func:`minipipe.schedules.lower` adds.
    memory_limit : int or float, or a sequence of them, optional
        The most that a rank may hold at once: one limit for all ranks, or one for each. Without ``memory`` it
        counts (stage, microbatch) pairs.
    memory : Footprint, optional
        By stage, the memory of one microbatch, in the unit of the limits: ``costs.memory(num_stages)`` of a
        :class:`minipipe.Costs`.
    weights : sequence of float, optional
        By stage, the memory of its weights, ``costs.weight_memory(num_stages)``. Each further version of the weights,
        and each further gradient accumulator that waits for its U, takes as much. The default is no memory.
    keys_values : sequence of float, optional
        By stage, the memory of the keys and values of one slice of a sequence, whose gradients later slices add to.
        The default is no memory.
    max_versions : int, optional
        The most versions of its weights that a stage may hold at once; at least 1. Synchronous schedules hold one.
    max_staleness : int, optional
        The most updates of a stage between an F and the update that applies its gradient; at least 0.

    Raises
    ------
    ScheduleError
        ``.problems`` lists every :class:`~minipipe.errors.Problem` with its code, message, rank and step, the cause
        first, without mere consequences. The codes, in the order of the checks: ``out-of-range``, ``wrong-rank``;
        ``duplicate``, ``tag-collision`` (a repeated SEND or RECV), ``missing``, ``mixed-backward``, ``frozen``,
        ``no-partner``; ``other-replica``, ``mixed-cut`` (only if stages have replicas); ``slice-order`` (slices of a
        sequence out of order); ``overlap`` (a forward overlapped with anything but a backward of another microbatch);
        ``early-sum`` (a REDUCE_GRAD before a gradient), ``early-update``, ``skipped`` (a gradient that no REDUCE_GRAD
        or U takes), ``no-sum``; ``unpaired`` (an O without its L); ``order``, ``deadlock``, ``overlap-deadlock`` (a
        deadlock that only overlapped actions cause), ``rendezvous-deadlock`` (a deadlock that buffered sends would
        avoid); ``memory``, ``versions``, ``staleness``. Code ``parameters``, if a limit or the memory is not valid.

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
    >>> verify(schedules.zb_h2(4, 8), memory_limit=[7, 6, 5, 4], memory=halves.memory(4))
    """
    check_table(schedule)
    if "is legal" not in schedule._kept:
        checks = (_placed_problems, _counted_problems, row_problems, _order_problems)
        problems = next(filter(None, (check(schedule) for check in checks)), [])
        if problems:
            raise ScheduleError(problems, _grid(schedule, problems[0]))
        schedule._kept["is legal"] = True
    problems = _memory_problems(schedule, memory_limit, memory, weights, keys_values)
    problems += _age_problems(schedule, max_versions, max_staleness)
    if problems:
        raise ScheduleError(problems, _grid(schedule, problems[0]))


# -- rule 1: every action, once, on the right rank -------------------------------------------------------------


def _placed_problems(schedule: ActionTable) -> list[Problem]:
    """Check that every action is in range and on the rank of its stage."""
    stages, rows = stages_by_rank(schedule.placement, schedule.num_ranks), schedule.numbered
    strays = [rank for rank, row in enumerate(rows) if not _is_placed(row, stages[rank], schedule.num_microbatches)]
    present = list(map(frozenset, rows)) if strays else []
    found = (_placed_problem(schedule, present, rank, at) for rank in strays for at in range(len(rows[rank])))
    return list(islice((problem for problem in found if problem is not None), MOST_PROBLEMS))


def _is_placed(row: Sequence[Action], stages: Sequence[int], num_microbatches: int) -> bool:
    """Check a whole row at once: it may have a million actions."""
    if not row:
        return True
    first, last = min(map(_MICROBATCH, row)), max(map(_MICROBATCH, row))
    return set(map(_STAGE, row)) <= set(stages) and 0 <= first <= last < num_microbatches


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _placed_problem(table: ActionTable, present: list[frozenset[Action]], rank: int, position: int) -> Problem | None:
    """Check one action; ``present`` has the actions of each rank."""
    action = table.actions[rank][position]
    for noun, number, count in (
        ("stage", action.stage, table.num_stages),
        ("microbatch", table.number_of(action.microbatch), table.num_microbatches),
    ):
        if not 0 <= number < count:
            sentence = f"names {noun} {number}; there are {count}, counted from 0."
            return problem_at(table, rank, position, ScheduleCode.OUT_OF_RANGE, sentence)
    homes = table.ranks_of(action.stage)
    if rank in homes:
        return None
    sentence = f"is on the wrong rank; stage {action.stage} is on {_named(homes)}."
    if any(action in present[home] for home in homes):
        sentence += f" {action} is on rank {table.home_of(action)} as well: a microbatch runs once."
    return problem_at(table, rank, position, ScheduleCode.WRONG_RANK, sentence)


def _counted_problems(schedule: ActionTable) -> list[Problem]:
    """Check that every required action occurs exactly once, and no other."""
    if _is_complete(schedule):
        return []
    counts = Counter(action for row in schedule.actions for action in row)
    single = (action for action in counts if action.kind not in _SEVERAL)
    needless = {action for action in single if action.kind not in _expected_kinds(schedule, counts, *action[::2])}
    rows = enumerate(schedule.actions) if needless else ()
    places = ((rank, at) for rank, row in rows for at, action in enumerate(row) if action in needless)
    unexpected = (_unexpected(schedule, *place) for place in places)
    kinds = (_repeated(schedule), _missing(schedule, counts), unexpected)
    return [problem for problems in kinds for problem in islice(problems, MOST_PROBLEMS)]


def _missing(schedule: ActionTable, counts: Counter[Action]) -> Iterator[Problem]:
    for k in schedule.microbatches:
        for stage in range(schedule.num_stages):
            rank = schedule.rank_of(stage, k)
            for kind in _expected_kinds(schedule, counts, stage, k):
                action = Action(stage, kind, k)
                if not counts[action]:
                    yield Problem(ScheduleCode.MISSING, f"{action} is missing on rank {rank}.", rank)


def _expected_kinds(schedule: ActionTable, counts: Counter[Action], stage: int, k: Any) -> list[ActionKind]:
    """Return the expected kinds of a (stage, microbatch): the complete set of which some kinds are present."""
    is_split = (counts[Action(stage, I, k)] or counts[Action(stage, W, k)]) and not counts[Action(stage, B, k)]
    return _complete_sets(schedule, stage)[-1 if is_split else 0]


def _complete_sets(schedule: ActionTable, stage: int) -> list[list[ActionKind]]:
    """Return the kinds each microbatch may have on a stage: F, B or F, I, W; F, I if frozen; and its messages."""
    backwards = [[B], [I, W]]
    if stage in schedule.frozen:
        backwards = [[I]]
    if schedule.is_forward_only or stage < schedule.first_backward_stage:
        backwards = [[]]
    return [[F, *backward, *_message_kinds(schedule, stage)] for backward in backwards]


def _is_complete(schedule: ActionTable) -> bool:
    """Check quickly that each (stage, microbatch) has a complete set of kinds, each once."""
    m = schedule.num_microbatches
    if schedule.num_stages * m > sum(map(len, schedule.actions)):
        return False
    rows = [list(chain.from_iterable(schedule.actions))] if schedule.has_replicas else schedule.actions
    if any(len(set(row)) < len(row) for row in rows):
        return False
    found = [0] * (schedule.num_stages * m)
    for row in schedule.numbered:
        for stage, kind, k in row:
            found[stage * m + k] |= _BIT[kind]
    for stage in range(schedule.num_stages):
        right = {sum(map(_BIT.__getitem__, kinds)) for kinds in _complete_sets(schedule, stage)}
        if not set(found[stage * m : stage * m + m]) <= right:
            return False
    return True


def _message_kinds(schedule: ActionTable, stage: int) -> list[ActionKind]:
    """Return the kinds of SEND and RECV that a stage has for each microbatch."""
    exists, cuts, found = Dependencies(schedule).exists, schedule.message_cuts, []
    for kind in (F,) if schedule.is_forward_only else (F, B):
        action = Action(stage, kind, 0)
        for value, half in ((Value.produced_by(action), "send"), (Value.consumed_by(action), "receive")):
            if value and exists(value) and cuts[value.cut]:
                found.append(getattr(value, half).kind)
    return found


def _repeated(schedule: ActionTable) -> Iterator[Problem]:
    first: dict[Action, tuple[int, int]] = {}
    for rank, row in enumerate(schedule.actions):
        for position, action in enumerate(row):
            if action in first:
                other, at = first[action]
                code, sentence = ScheduleCode.DUPLICATE, f"is a duplicate of position {at}"
                sentence += "." if other == rank else f" of rank {other}: a microbatch runs on one replica."
                if action.kind.is_communication:
                    code = ScheduleCode.TAG_COLLISION
                    sentence += " Two messages with the same tag cannot be distinguished."
                yield problem_at(schedule, rank, position, code, sentence)
            first.setdefault(action, (rank, position))


def _unexpected(schedule: ActionTable, rank: int, position: int) -> Problem:
    stage, kind, k = schedule.actions[rank][position]
    if kind.is_communication:
        code, sentence = ScheduleCode.NO_PARTNER, f"has no partner: stage {stage} has no such value to exchange with"
        sentence += " another rank."
    elif stage in schedule.frozen:
        code, sentence = ScheduleCode.FROZEN, f"is needless: stage {stage} is frozen."
    else:
        code = ScheduleCode.MIXED_BACKWARD
        sentence = f"comes in addition to {Action(stage, B, k)}, which includes I and W."
        sentence += " Zero-bubble papers write B for the half that minipipe calls I." if kind is W else ""
    return problem_at(schedule, rank, position, code, sentence)


# -- rules 2 to 4: the order -----------------------------------------------------------------------------------


def _order_problems(schedule: ActionTable) -> list[Problem]:
    """Walk in topological order; if ranks remain blocked, report the cycle in which they wait."""
    if not walk(schedule).blocked:
        return []
    blocked = _blocked(schedule)
    cycle, as_written = _cycle(blocked), schedule.as_written
    first = cycle[0]
    if first.awaited == first.action:
        return [_unexpected(schedule, first.rank, first.position)]
    if len(cycle) == 1:
        needed = as_written(first.awaited)
        sentence = f"comes before {needed} (position {schedule.actions[first.rank].index(needed)}), which it needs."
        return [problem_at(schedule, first.rank, first.position, ScheduleCode.ORDER, sentence)]
    waits = [
        f"rank {stuck.rank} cannot run {_with_joined(blocked, stuck.action)} (position {stuck.position}) before "
        f"{as_written(stuck.awaited)}, "
        f"which rank {schedule.rank_of(*stuck.awaited[::2])} runs later"
        for stuck in cycle
    ]
    sentence = "These ranks wait for each other in a cycle: " + "; ".join(waits) + "."
    code = ScheduleCode.DEADLOCK
    if blocked.overlaps:
        code = ScheduleCode.OVERLAP_DEADLOCK
        sentence += " Without the overlaps it would end: overlapped actions wait for the inputs of both."
    elif not walk(blocked, sends_are_buffered=True).blocked:
        code = ScheduleCode.RENDEZVOUS_DEADLOCK
        sentence += " It would finish only if every send were buffered; MPI buffers small messages, but not large ones."
    return [Problem(code, sentence, first.rank, first.position)]


def _blocked(schedule: ActionTable) -> ActionTable:
    """Return a schedule that cannot end; without its overlaps, if they are not the cause."""
    apart = replace(schedule, overlaps=frozenset()) if schedule.overlaps else schedule
    return apart if walk(apart).blocked else schedule


def _with_joined(schedule: ActionTable, action: Action) -> str:
    return f"{action} with {schedule.joined[action]}" if action in schedule.joined else str(action)


def _cycle(schedule: ActionTable) -> list[Blocked]:
    """Follow the waits from the lowest blocked rank of a schedule that cannot end, until a rank repeats."""
    blocked = {stuck.rank: stuck for stuck in walk(schedule).blocked}
    path: list[int] = []
    rank = min(blocked)
    while rank not in path:
        path.append(rank)
        rank = schedule.rank_of(*blocked[rank].awaited[::2])
    return [blocked[rank] for rank in path[path.index(rank) :]]


# -- memory ----------------------------------------------------------------------------------------------------


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
    unit = " (stage, microbatch) pairs" if memory is None else ""
    ones, nothing = (1,) * schedule.num_stages, (0,) * schedule.num_stages
    memory = Footprint(ones, ones, nothing) if memory is None else memory
    check_footprint(memory, schedule.num_stages)
    problems = []
    others = [nothing if given is None else given for given in (weights, keys_values)]
    for name, amounts in zip(("weights", "keys_values"), others):
        check_amounts(name, amounts, schedule.num_stages)
    levels = memory_levels(schedule, memory, *others)
    for rank, (limit, level) in enumerate(zip(amount_per_rank(memory_limit, schedule.num_ranks), levels)):
        for position, (held, _) in enumerate(level):
            if not fits(held, limit):
                sentence = f"Rank {rank}, position {position}: with {schedule.actions[rank][position]} it holds "
                sentence += f"{held:.12g}{unit}; the limit is {limit:.12g}."
                problems.append(Problem(ScheduleCode.MEMORY, sentence, rank, position))
                break
    return problems


def _age_problems(schedule: ActionTable, max_versions: int | None, max_staleness: int | None) -> list[Problem]:
    """Report, for each rank, the first action with too many versions of weights, or with weights that are too old."""
    problems = []
    for name, limit, least in (("max_versions", max_versions, 1), ("max_staleness", max_staleness, 0)):
        if limit is not None:
            whole_number(name, limit, least, error=ScheduleError.of, code=ScheduleCode.PARAMETERS)
    ages = () if max_staleness is None else staleness(schedule)
    for rank, row in enumerate(schedule.actions):
        for position, (held, _) in enumerate(copies_held(flow_of(schedule), rank) if max_versions else ()):
            if max_versions and held.versions > max_versions:
                sentence = f"Rank {rank}, position {position}: with {row[position]} stage {held.stage} has "
                sentence += f"{held.versions} versions of its weights; the limit is {max_versions}."
                problems.append(Problem(ScheduleCode.VERSIONS, sentence, rank, position))
                break
        for position, (stage, kind, k) in enumerate(schedule.numbered[rank] if ages else ()):
            if kind is F and max_staleness is not None and ages[stage][k] > max_staleness:
                sentence = f"runs with weights whose staleness is {ages[stage][k]} when its gradient is applied; the "
                sentence += f"limit is {max_staleness}."
                problems.append(problem_at(schedule, rank, position, ScheduleCode.STALENESS, sentence))
                break
    return problems


# -- the grid under the message --------------------------------------------------------------------------------


def _grid(schedule: ActionTable, problem: Problem, reach: int = 5) -> str:
    """Draw the rows around a problem's cell, marked ``>0B0<``; a cycle has a mark on each of its ranks."""
    if problem.rank is None:
        return ""
    if problem.step is None:  # a missing action has no cell to mark: draw the beginning of its row
        return _draw_row(schedule, problem.rank, reach, reach, is_marked=False)
    marks = {problem.rank: problem.step}
    if problem.code in _DEADLOCKS:
        marks = {stuck.rank: stuck.position for stuck in _cycle(_blocked(schedule))}
    return "\n".join(
        _draw_row(schedule, rank, marks.get(rank, problem.step), reach, is_marked=rank in marks)
        for rank in range(schedule.num_ranks)
    )


def _draw_row(schedule: ActionTable, rank: int, middle: int, reach: int, is_marked: bool) -> str:
    row, start, stop = schedule.actions[rank], max(0, middle - reach), middle + reach + 1
    cells = [
        f">{action}<" if is_marked and i == middle else f" {action} " for i, action in enumerate(row[start:stop], start)
    ]
    before, after = "… " if start > 0 else "", " …" if stop < len(row) else ""
    return f"rank {rank}: {before}{' '.join(cells)}{after}".rstrip()
