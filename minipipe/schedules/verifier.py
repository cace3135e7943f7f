"""The verifier: proves a schedule legal and free of deadlock, or says what is wrong, the cause first.

A schedule is legal when

1. each (stage, microbatch) has one F, and one B or one I and one W, on the rank that holds the stage
   (a forward-only schedule has no backward at all);
2. F comes after the previous stage's F, B and I after the own F and the next stage's B or I, W after its I;
3. a rank does one action at a time, in its order;
4. the orders of all ranks together have no cycle, even when every send blocks until it is received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.lowering import lower, message_of
from minipipe.schedules.order import Blocked, walk
from minipipe.schedules.schedule import Schedule

__all__ = ["verify"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def verify(schedule: Schedule) -> None:
    """Prove that a schedule is legal and ends on every rank; otherwise say what is wrong.

    Local; no messages. A schedule that already holds SEND and RECV is checked as it stands, otherwise with the ones
    that :func:`minipipe.schedules.lower` adds.

    Parameters
    ----------
    schedule : Schedule

    Raises
    ------
    ScheduleError
        ``.problems`` holds every :class:`~minipipe.errors.Problem` with code, message, rank and step, the cause first.
        Codes: ``out-of-range``, ``wrong-rank``, ``duplicate``, ``missing``, ``mixed-backward``, ``no-partner``,
        ``order``, ``deadlock``.

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
    problems = _placed_problems(schedule) or _counted_problems(schedule) or _order_problems(schedule)
    if not problems and not schedule.has_communication:
        problems = _order_problems(lower(schedule))
    if problems:
        raise ScheduleError(problems, _grid(schedule, problems[0]))


def _placed_problems(schedule: Schedule) -> list[Problem]:
    """Rule 1: every action is in range and on the rank of its stage."""
    problems = []
    for rank, row in enumerate(schedule.actions):
        for step, action in enumerate(row):
            where = f"Rank {rank}, step {step}: {action}"
            if not 0 <= action.stage < schedule.num_stages:
                sentence = f"{where} names stage {action.stage}; there are {schedule.num_stages}, counted from 0."
                problems.append(Problem("out-of-range", sentence, rank, step))
            elif not 0 <= action.microbatch < schedule.num_microbatches:
                sentence = (
                    f"{where} names microbatch {action.microbatch}; "
                    f"there are {schedule.num_microbatches}, counted from 0."
                )
                problems.append(Problem("out-of-range", sentence, rank, step))
            elif schedule.placement[action.stage] != rank:
                sentence = (
                    f"{where} stands here, but stage {action.stage} is on rank {schedule.placement[action.stage]}."
                )
                problems.append(Problem("wrong-rank", sentence, rank, step))
    return problems


def _counted_problems(schedule: Schedule) -> list[Problem]:
    """Rule 1: every action that must be there is there once, and nothing else."""
    counts = Counter(action for row in schedule.actions for action in row)
    problems = list(_repeated(schedule))
    expected: set[Action] = set()
    for stage in range(schedule.num_stages):
        for k in range(schedule.num_microbatches):
            wanted = _expected_compute(schedule, counts, stage, k)
            if schedule.has_communication:
                pairs = [message_of(schedule, action) for action in wanted]
                wanted += [half for pair in pairs if pair for half in pair]
            expected.update(wanted)
    for action in sorted(expected, key=lambda action: (action.microbatch, action.stage)):
        if not counts[action]:
            rank = schedule.placement[action.stage]
            problems.append(Problem("missing", f"{action} is missing on rank {rank}.", rank))
    for rank, row in enumerate(schedule.actions):
        for step, action in enumerate(row):
            if action not in expected:
                problems.append(_unexpected(action, rank, step))
    return problems


def _expected_compute(schedule: Schedule, counts: Counter[Action], stage: int, k: int) -> list[Action]:
    """Return F alone, F and B, or F, I and W, whichever (stage, microbatch) seems to mean."""
    forward = Action(stage, F, k)
    if schedule.is_forward_only:
        return [forward]
    split = [Action(stage, I, k), Action(stage, W, k)]
    if any(counts[half] for half in split) and not counts[Action(stage, B, k)]:
        return [forward, *split]
    return [forward, Action(stage, B, k)]


def _repeated(schedule: Schedule) -> Iterator[Problem]:
    for rank, row in enumerate(schedule.actions):
        first: dict[Action, int] = {}
        for step, action in enumerate(row):
            if action in first:
                sentence = f"Rank {rank}, step {step}: {action} stands here again; it was done at step {first[action]}."
                yield Problem("duplicate", sentence, rank, step)
            first.setdefault(action, step)


def _unexpected(action: Action, rank: int, step: int) -> Problem:
    where = f"Rank {rank}, step {step}: {action}"
    if action.kind.is_communication:
        sentence = f"{where} has nobody to talk to: no value of stage {action.stage} crosses ranks there."
        return Problem("no-partner", sentence, rank, step)
    whole = Action(action.stage, B, action.microbatch)
    return Problem("mixed-backward", f"{where} stands beside {whole}, which is I and W in one already.", rank, step)


def _order_problems(schedule: Schedule) -> list[Problem]:
    """Rules 2 to 4: walk through it; whoever cannot go on waits in a circle."""
    blocked = {stuck.rank: stuck for stuck in walk(schedule).blocked}
    if not blocked:
        return []
    cycle = _cycle(schedule, blocked)
    first = cycle[0]
    if len(cycle) == 1:
        later = schedule.actions[first.rank].index(_equivalent(schedule, first))
        sentence = (
            f"Rank {first.rank}, step {first.position}: {first.action} comes before "
            f"{_equivalent(schedule, first)} (step {later}), which it needs."
        )
        return [Problem("order", sentence, first.rank, first.position)]
    waits = [
        f"rank {stuck.rank} cannot do {stuck.action} (step {stuck.position}) before {_equivalent(schedule, stuck)}, "
        f"which rank {schedule.placement[stuck.awaited.stage]} does later"
        for stuck in cycle
    ]
    sentence = "These ranks wait for each other in a circle: " + "; ".join(waits) + "."
    return [Problem("deadlock", sentence, first.rank, first.position)]


def _cycle(schedule: Schedule, blocked: dict[int, Blocked]) -> list[Blocked]:
    """Follow who waits for whom from the lowest blocked rank until a rank comes up again."""
    path: list[int] = []
    rank = min(blocked)
    while rank not in path:
        path.append(rank)
        rank = schedule.placement[blocked[rank].awaited.stage]
    return [blocked[rank] for rank in path[path.index(rank) :]]


def _equivalent(schedule: Schedule, stuck: Blocked) -> Action:
    """Name the awaited action as the schedule writes it: the gradient may come from an I instead of a B."""
    stage, kind, k = stuck.awaited
    if kind is B and stuck.awaited not in schedule.actions[schedule.placement[stage]]:
        return Action(stage, I, k)
    return stuck.awaited


def _grid(schedule: Schedule, problem: Problem, reach: int = 5) -> str:
    """Draw the rows around a problem's step, its cell marked ``>so<``."""
    if problem.rank is None or problem.step is None:
        return ""
    start, stop = max(0, problem.step - reach), problem.step + reach + 1
    lines = []
    for rank, row in enumerate(schedule.actions):
        cells = [
            f">{action}<" if (rank, step) == (problem.rank, problem.step) else f" {action} "
            for step, action in enumerate(row)
        ]
        before, after = "… " if start > 0 else "", " …" if stop < len(row) else ""
        lines.append(f"rank {rank}: {before}{' '.join(cells[start:stop])}{after}".rstrip())
    return "\n".join(lines)
