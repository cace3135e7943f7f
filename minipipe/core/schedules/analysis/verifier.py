"""The verifier proves that a schedule is legal and free of deadlock, or lists its
problems, the cause first.

A schedule is legal if

1. each (stage, microbatch) has one F, and one B or one I and one W, on the rank of the
   stage, or all of them on one of its replicas (a forward-only schedule has no backward
   at all);
2. F comes after the F of the previous stage, B and I after the F of the same stage and
   the B or I of the next stage, and W after its I;
3. each rank runs one action at a time, in the given order;
4. the orders of all ranks together have no cycle, even if every send blocks until it is
   received.

Rules 1 and 2 follow from the values that each kind of action takes and gives:
``core/values.py`` declares them, ``core/legality.py`` applies the declarations, and
``core/nouns.py`` has the sentences. For other kinds of action, and for stages on
several ranks, they mean:

Replicas: a stage that several ranks hold, each for microbatches of its own::

    rank 0   0F0       0B0        stage 0 has the replicas 0 and 2, stage 1 the replicas 1 and 3: two pipelines
    rank 1       1F0 1B0          with a microbatch each. 0B0 on rank 2 would need what 0F0 left on rank 0.
    rank 2   0F1       0B1
    rank 3       1F1 1B1

The backward of a microbatch runs on the replica of its forward, which has its
activations. At a stage boundary either all microbatches change ranks or none does, so
that a boundary always has messages or never.

Slices: causal attention attends to the slices before, whose keys and values stay on the
stage. So all slices of a sequence are on one replica. The backward of each slice adds
to the gradients of the earlier keys and values, so the backwards run from the last
slice to the first.

Overlapped actions: a forward and a backward that begin together and end together::

    rank 0   0F0 (0F1;0B0)         0F1 overlapped with 0B0 waits for the inputs of both, and 1F1 waits for both. This
    rank 1       1F0       1F1 1B0     is a deadlock, since 0B0 needs 1B0. Without the overlap 0F1 would run first.

All-reduces and updates: if its stage has replicas, each gradient belongs to one
REDUCE_GRAD. It is applied by one U in all stages, or in none if the optimiser steps
after the schedule.

R, O and L: activations that are dropped or offloaded between a forward and its
backward. An R recomputes the activations that were dropped after F. An O moves the
remaining ones off the device, and an L moves them back::

    row        0F0   0O0         0F1         0L0   0R0   0B0    0R1   0B1       a pair of stage and microbatch has them
    0F0 left   inputs    nothing             inputs  all              in this order: F, O, L, R, B or I

For a schedule without SEND and RECV, rule 4 means that its computations have no cycle.
The messages that :func:`minipipe.schedules.lower` adds then cause no deadlock: it
places each SEND together with its RECV in one global order, so that the first
unfinished item of that order can always run. A program with SEND and RECV is checked as
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minipipe.core.errors import Code, Problem, ScheduleError
from minipipe.core.flow import flow_of
from minipipe.core.legality import misplaced, remarks
from minipipe.core.schedules.action import Action
from minipipe.core.schedules.action_table import ActionTable, check_table
from minipipe.core.schedules.analysis.walk import Blocked, walk
from minipipe.core.schedules.collector import collector_paused

_DEADLOCKS = (Code.DEADLOCK, Code.RENDEZVOUS_DEADLOCK)


def verify(schedule: ActionTable) -> None:
    """Prove that a schedule is legal and free of deadlock; otherwise raise an error
    with all its problems.

    Local: no messages. The time is linear in the number of actions.

    Parameters
    ----------
    schedule : Schedule or Program
        A program is checked as written, a schedule with the messages that
        :func:`minipipe.schedules.lower` adds.

    Raises
    ------
    ScheduleError
        ``.problems`` lists every :class:`~minipipe.errors.Problem`, with the codes of
        :func:`minipipe.verify`, which also checks limits.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> verify(Schedule.from_text("rank 0: 0B0 0F0"))
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [order] Rank 0, position 0: 0B0 comes before 0F0 (position 1), which it needs.
    <BLANKLINE>
    rank 0: >0B0<  0F0
    """
    check_table(schedule)
    if "is legal" in schedule._kept:
        return
    with collector_paused():
        remarked = misplaced(schedule) or remarks(flow_of(schedule))
    schedule._kept["is in range"] = not remarked  # the walk need not look again
    problems = [Problem(Code(one.code), *one[1:4]) for one in remarked]
    problems = problems or _order_problems(schedule)
    if problems:
        raise refusal(schedule, problems)
    schedule._kept["is legal"] = True


def refusal(schedule: ActionTable, problems: Sequence[Problem]) -> ScheduleError:
    """Return the error of a schedule with problems, which draws the rows around the
    first.
    """
    return ScheduleError(problems, _grid(schedule, problems[0]))


def problem_at(
    table: ActionTable, rank: int, position: int, code: Code, sentence: str
) -> Problem:
    """Return a problem of an action: a sentence of which it is the subject."""
    subject = f"Rank {rank}, position {position}: {table.actions[rank][position]}"
    return Problem(code, f"{subject} {sentence}", rank, position)


# -- rules 2 to 4: the order -----------------------------------------------------------


def _order_problems(schedule: ActionTable) -> list[Problem]:
    """Walk in topological order; if ranks remain blocked, report the cycle in which
    they wait.
    """
    if not walk(schedule).blocked:
        return []
    blocked = _blocked(schedule)
    cycle = _cycle(blocked)
    first = cycle[0]
    if len(cycle) > 1:
        return [_deadlock(blocked, cycle)]
    needed = schedule.as_written(first.awaited)
    code = Code.MISSING
    sentence = "waits for ever for a partner that does not exist."
    if first.awaited != first.action:
        code = Code.ORDER
        at = schedule.actions[first.rank].index(needed)
        sentence = f"comes before {needed} (position {at}), which it needs."
    return [problem_at(schedule, first.rank, first.position, code, sentence)]


def _deadlock(blocked: ActionTable, cycle: Sequence[Blocked]) -> Problem:
    """Return the problem of ranks that wait for each other; overlaps of the table are
    part of the cause.
    """
    waits = []
    for stuck in cycle:
        actions = _with_overlapped(blocked, stuck.action)
        stopped = f"{actions} (position {stuck.position})"
        needed = blocked.as_written(stuck.awaited)
        home = blocked.home_of(stuck.awaited)
        cannot = f"rank {stuck.rank} cannot run {stopped} before {needed}"
        waits.append(f"{cannot}, which rank {home} runs later")
    sentence = "These ranks wait for each other in a cycle: " + "; ".join(waits) + "."
    code = Code.DEADLOCK
    if blocked.overlaps:
        sentence += " Without the overlaps it would end: overlapped actions wait for"
        sentence += " the inputs of both."
    elif not walk(blocked, sends_are_buffered=True).blocked:
        code = Code.RENDEZVOUS_DEADLOCK
        sentence += " It would finish only if every send were buffered;"
        sentence += " MPI buffers small messages, but not large ones."
    return Problem(code, sentence, cycle[0].rank, cycle[0].position)


def _blocked(schedule: ActionTable) -> ActionTable:
    """Return a schedule that cannot end; without its overlaps, if they are not the
    cause.
    """
    if not schedule.overlaps:
        return schedule
    apart = replace(schedule, overlaps=frozenset())
    return apart if walk(apart).blocked else schedule


def _with_overlapped(schedule: ActionTable, action: Action) -> str:
    if action not in schedule.joined:
        return str(action)
    return f"{action} with {schedule.joined[action]}"


def _cycle(schedule: ActionTable) -> list[Blocked]:
    """Follow the waits from the lowest blocked rank of a schedule that cannot end,
    until a rank repeats.
    """
    blocked = {stuck.rank: stuck for stuck in walk(schedule).blocked}
    path: list[int] = []
    rank = min(blocked)
    while rank not in path:
        path.append(rank)
        home = schedule.home_of(blocked[rank].awaited)
        assert home is not None
        rank = home
    return [blocked[rank] for rank in path[path.index(rank) :]]


# -- the grid under the message --------------------------------------------------------


def _grid(schedule: ActionTable, problem: Problem, reach: int = 5) -> str:
    """Draw the rows around a problem's cell, marked ``>0B0<``; a cycle has a mark on
    each of its ranks.
    """
    if problem.rank is None:
        return ""
    # a missing action has no cell to mark: draw the beginning of its row
    if problem.step is None:
        return _draw_row(schedule, problem.rank, reach, reach, is_marked=False)
    marks = {problem.rank: problem.step}
    if problem.code in _DEADLOCKS:
        marks = {stuck.rank: stuck.position for stuck in _cycle(_blocked(schedule))}
    rows = []
    for rank in range(schedule.num_ranks):
        middle = marks.get(rank, problem.step)
        rows.append(_draw_row(schedule, rank, middle, reach, is_marked=rank in marks))
    return "\n".join(rows)


def _draw_row(
    schedule: ActionTable, rank: int, middle: int, reach: int, is_marked: bool
) -> str:
    row = schedule.actions[rank]
    start = max(0, middle - reach)
    stop = middle + reach + 1
    cells = [f" {action} " for action in row[start:stop]]
    if is_marked:
        cells[middle - start] = f">{row[middle]}<"
    before = "… " if start > 0 else ""
    after = " …" if stop < len(row) else ""
    return f"rank {rank}: {before}{' '.join(cells)}{after}".rstrip()
