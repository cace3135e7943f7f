"""The verifier: proves a schedule legal and free of deadlock, or says what is wrong, the cause first.

A schedule is legal when

1. each (stage, microbatch) has one F, and one B or one I and one W, on the rank that holds the stage
   (a forward-only schedule has no backward at all);
2. F comes after the previous stage's F, B and I after the own F and the next stage's B or I, W after its I;
3. a rank does one action at a time, in its order;
4. the orders of all ranks together have no cycle, even when every send blocks until it is received.

Without SEND and RECV, rule 4 is the absence of a cycle among the computations: :func:`minipipe.schedules.lower` puts
each SEND and its RECV at one place of one order of everything, so that the first unfinished item of that order can
always run. Programs that hold SEND and RECV already are checked as they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from minipipe.analysis.activations import held_after, per_rank
from minipipe.analysis.dependencies import Blocked, Dependencies, Direction, Value, walk
from minipipe.errors import Problem, ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import ActionTable, check_table
from minipipe.schedules.placement import stages_by_rank

__all__ = ["verify"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

_STAGE, _MICROBATCH = attrgetter("stage"), attrgetter("microbatch")
_MOST_MISSING = 1000  # are listed; where one is missing thousands often are
_BIT = {kind: 1 << i for i, kind in enumerate(ActionKind)}


def verify(schedule: ActionTable, memory_limit: int | Sequence[int] | None = None) -> None:
    """Prove that a schedule is legal and ends on every rank; otherwise say what is wrong.

    Local; no messages. Time is linear in the number of actions.

    Parameters
    ----------
    schedule : Schedule
        With SEND and RECV it is checked as it stands, otherwise with the ones that
        :func:`minipipe.schedules.lower` adds.
    memory_limit : int or sequence of int, optional
        The most (stage, microbatch) pairs that a rank may hold at once, for all ranks alike or by rank.

    Raises
    ------
    ScheduleError
        ``.problems`` holds every :class:`~minipipe.errors.Problem` with code, message, rank and step, the cause first,
        and no mere consequence of it. Codes, in the order in which they are looked for: ``out-of-range``,
        ``wrong-rank``; ``duplicate``, ``tag-collision`` (a SEND or RECV twice), ``missing``, ``mixed-backward``,
        ``no-partner``; ``order``, ``deadlock``, ``rendezvous-deadlock`` (one that buffered sends would avoid);
        ``memory``.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> verify(Schedule.from_text("rank 0: 0B0 0F0"))
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [order] Rank 0, step 0: 0B0 comes before 0F0 (step 1), which it needs.
    <BLANKLINE>
    rank 0: >0B0<  0F0
    """
    check_table(schedule)
    if "is legal" not in schedule._kept:
        problems = _placed_problems(schedule) or _counted_problems(schedule) or _order_problems(schedule)
        if problems:
            raise ScheduleError(problems, _grid(schedule, problems[0]))
        schedule._kept["is legal"] = True
    problems = _memory_problems(schedule, memory_limit)
    if problems:
        raise ScheduleError(problems, _grid(schedule, problems[0]))


# -- rule 1: what is there -------------------------------------------------------------------------------------


def _placed_problems(schedule: ActionTable) -> list[Problem]:
    """Every action is in range and on the rank of its stage."""
    problems = []
    stages = stages_by_rank(schedule.placement, schedule.num_ranks)
    for rank, row in enumerate(schedule.actions):
        if not _is_placed(row, stages[rank], schedule.num_microbatches):
            problems += [_placed_problem(schedule, action, rank, step) for step, action in enumerate(row)]
    return [problem for problem in problems if problem is not None]


def _is_placed(row: Sequence[Action], stages: Sequence[int], num_microbatches: int) -> bool:
    """Tell at once whether all is well with a row: it may have a million actions."""
    if not row:
        return True
    first, last = min(map(_MICROBATCH, row)), max(map(_MICROBATCH, row))
    return set(map(_STAGE, row)) <= set(stages) and 0 <= first <= last < num_microbatches


def _placed_problem(schedule: ActionTable, action: Action, rank: int, step: int) -> Problem | None:
    where = f"Rank {rank}, step {step}: {action}"
    if not 0 <= action.stage < schedule.num_stages:
        sentence = f"{where} names stage {action.stage}; there are {schedule.num_stages}, counted from 0."
        return Problem(ScheduleCode.OUT_OF_RANGE, sentence, rank, step)
    if not 0 <= action.microbatch < schedule.num_microbatches:
        count = schedule.num_microbatches
        sentence = f"{where} names microbatch {action.microbatch}; there are {count}, counted from 0."
        return Problem(ScheduleCode.OUT_OF_RANGE, sentence, rank, step)
    if schedule.placement[action.stage] != rank:
        sentence = f"{where} stands here, but stage {action.stage} is on rank {schedule.placement[action.stage]}."
        return Problem(ScheduleCode.WRONG_RANK, sentence, rank, step)
    return None


def _counted_problems(schedule: ActionTable) -> list[Problem]:
    """Every action that must be there is there once, and nothing else."""
    if _is_complete(schedule):
        return []
    counts = Counter(action for row in schedule.actions for action in row)
    problems = [*_repeated(schedule), *islice(_missing(schedule, counts), _MOST_MISSING)]
    for rank, row in enumerate(schedule.actions):
        for step, action in enumerate(row):
            if action.kind not in _expected_kinds(schedule, counts, action.stage, action.microbatch):
                problems.append(_unexpected(action, rank, step))
    return problems


def _missing(schedule: ActionTable, counts: Counter[Action]) -> Iterator[Problem]:
    for k in range(schedule.num_microbatches):
        for stage, rank in enumerate(schedule.placement):
            for kind in _expected_kinds(schedule, counts, stage, k):
                action = Action(stage, kind, k)
                if not counts[action]:
                    yield Problem(ScheduleCode.MISSING, f"{action} is missing on rank {rank}.", rank)


def _expected_kinds(schedule: ActionTable, counts: Counter[Action], stage: int, k: int) -> list[ActionKind]:
    """Return F alone, F and B, or F, I and W, whichever (stage, microbatch) seems to mean, and its messages."""
    kinds = [F]
    if not schedule.is_forward_only:
        has_half = counts[Action(stage, I, k)] or counts[Action(stage, W, k)]
        kinds += [I, W] if has_half and not counts[Action(stage, B, k)] else [B]
    return kinds + _message_kinds(schedule, stage)


def _is_complete(schedule: ActionTable) -> bool:
    """Tell at once whether each (stage, microbatch) has the right set of kinds, each once."""
    m = schedule.num_microbatches
    if schedule.num_stages * m > sum(map(len, schedule.actions)):
        return False
    if any(len(set(row)) < len(row) for row in schedule.actions):
        return False
    found = [0] * (schedule.num_stages * m)
    for row in schedule.actions:
        for stage, kind, k in row:
            found[stage * m + k] |= _BIT[kind]
    for stage in range(schedule.num_stages):
        messages = sum(_BIT[kind] for kind in _message_kinds(schedule, stage))
        backwards = (0,) if schedule.is_forward_only else (_BIT[B], _BIT[I] | _BIT[W])
        right = {_BIT[F] | backward | messages for backward in backwards}
        if not set(found[stage * m : stage * m + m]) <= right:
            return False
    return True


def _message_kinds(schedule: ActionTable, stage: int) -> list[ActionKind]:
    """Return the SENDs and RECVs that belong to a stage, for each microbatch."""
    forward, backward = Action(stage, F, 0), Action(stage, B, 0)
    values = (
        (Value.produced_by(forward), "send"),
        (Value.consumed_by(backward), "receive"),
        (Value.consumed_by(forward), "receive"),
        (Value.produced_by(backward), "send"),
    )
    return [getattr(value, half).kind for value, half in values if value and _is_message(schedule, value)]


def _is_message(schedule: ActionTable, value: Value) -> bool:
    exists = value.cut >= 0 and not (schedule.is_forward_only and value.direction is Direction.BACKWARD)
    return exists and schedule.message_cuts[value.cut]


def _repeated(schedule: ActionTable) -> Iterator[Problem]:
    for rank, row in enumerate(schedule.actions):
        first: dict[Action, int] = {}
        for step, action in enumerate(row):
            if action in first:
                sentence = f"Rank {rank}, step {step}: {action} stands here again; it was done at step {first[action]}"
                if action.kind.is_communication:
                    sentence += ", and two messages under one tag cannot be told apart"
                    yield Problem(ScheduleCode.TAG_COLLISION, f"{sentence}.", rank, step)
                else:
                    yield Problem(ScheduleCode.DUPLICATE, f"{sentence}.", rank, step)
            first.setdefault(action, step)


def _unexpected(action: Action, rank: int, step: int) -> Problem:
    where = f"Rank {rank}, step {step}: {action}"
    if action.kind.is_communication:
        sentence = f"{where} has nobody to talk to: no value of stage {action.stage} crosses ranks there."
        return Problem(ScheduleCode.NO_PARTNER, sentence, rank, step)
    whole = Action(action.stage, B, action.microbatch)
    return Problem(
        ScheduleCode.MIXED_BACKWARD, f"{where} stands beside {whole}, which is I and W in one already.", rank, step
    )


# -- rules 2 to 4: in which order ------------------------------------------------------------------------------


def _order_problems(schedule: ActionTable) -> list[Problem]:
    """Walk through it; whoever cannot go on waits in a circle."""
    blocked = {stuck.rank: stuck for stuck in walk(schedule).blocked}
    if not blocked:
        return []
    cycle, as_written = _cycle(schedule, blocked), Dependencies(schedule).as_written
    first = cycle[0]
    if len(cycle) == 1:
        needed = as_written(first.awaited)
        later = schedule.actions[first.rank].index(needed)
        sentence = (
            f"Rank {first.rank}, step {first.position}: {first.action} comes before {needed} (step {later}), "
            "which it needs."
        )
        return [Problem(ScheduleCode.ORDER, sentence, first.rank, first.position)]
    waits = [
        f"rank {stuck.rank} cannot do {stuck.action} (step {stuck.position}) before {as_written(stuck.awaited)}, "
        f"which rank {schedule.placement[stuck.awaited.stage]} does later"
        for stuck in cycle
    ]
    sentence = "These ranks wait for each other in a circle: " + "; ".join(waits) + "."
    if not walk(schedule, sends_are_buffered=True).blocked:
        sentence += " It would end only if every send were buffered, as small messages are and large ones are not."
        return [Problem(ScheduleCode.RENDEZVOUS_DEADLOCK, sentence, first.rank, first.position)]
    return [Problem(ScheduleCode.DEADLOCK, sentence, first.rank, first.position)]


def _cycle(schedule: ActionTable, blocked: dict[int, Blocked]) -> list[Blocked]:
    """Follow who waits for whom from the lowest blocked rank until a rank comes up again."""
    path: list[int] = []
    rank = min(blocked)
    while rank not in path:
        path.append(rank)
        rank = schedule.placement[blocked[rank].awaited.stage]
    return [blocked[rank] for rank in path[path.index(rank) :]]


# -- memory ----------------------------------------------------------------------------------------------------


def _memory_problems(schedule: ActionTable, memory_limit: int | Sequence[int] | None) -> list[Problem]:
    """Say for each rank where it first holds more than it may."""
    if memory_limit is None:
        return []
    problems = []
    for rank, limit in enumerate(per_rank("memory_limit", memory_limit, schedule.num_ranks)):
        for step, held in enumerate(held_after(schedule.actions[rank], schedule.is_forward_only)):
            if held > limit:
                action = schedule.actions[rank][step]
                sentence = (
                    f"Rank {rank}, step {step}: with {action} it holds {held} (stage, microbatch) pairs; "
                    f"the limit is {limit}."
                )
                problems.append(Problem(ScheduleCode.MEMORY, sentence, rank, step))
                break
    return problems


# -- the drawing beside the message ----------------------------------------------------------------------------


def _grid(schedule: ActionTable, problem: Problem, reach: int = 5) -> str:
    """Draw the rows around a problem's step, its cell marked ``>so<``; of ranks that wait in a circle, every one's."""
    if problem.rank is None:
        return ""
    if problem.step is None:  # what is missing stands nowhere: the beginning of its row, no cell marked
        return _drawn_row(schedule, problem.rank, reach, reach, is_marked=False)
    marks = {problem.rank: problem.step}
    if problem.code in (ScheduleCode.DEADLOCK, ScheduleCode.RENDEZVOUS_DEADLOCK):
        blocked = {stuck.rank: stuck for stuck in walk(schedule).blocked}
        marks = {stuck.rank: stuck.position for stuck in _cycle(schedule, blocked)}
    return "\n".join(
        _drawn_row(schedule, rank, marks.get(rank, problem.step), reach, is_marked=rank in marks)
        for rank in range(schedule.num_ranks)
    )


def _drawn_row(schedule: ActionTable, rank: int, step: int, reach: int, is_marked: bool) -> str:
    row, start, stop = schedule.actions[rank], max(0, step - reach), step + reach + 1
    cells = [
        f">{action}<" if is_marked and at == step else f" {action} " for at, action in enumerate(row[start:stop], start)
    ]
    before, after = "… " if start > 0 else "", " …" if stop < len(row) else ""
    return f"rank {rank}: {before}{' '.join(cells)}{after}".rstrip()
