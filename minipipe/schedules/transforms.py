"""Transforms of a schedule: other stages, split backwards, frozen stages, copies, or
less memory.

Frozen stages are left out of the table instead of being skipped at run time. Empty
messages would still order the ranks, and predicted times and memory would never be
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby, pairwise, product

from minipipe.core.schedules.action import (
    RECV_B,
    REDUCE_GRAD,
    SEND_B,
    Action,
    ActionKind,
    B,
    F,
    I,
    L,
    O,
    R,
    U,
    W,
)
from minipipe.core.schedules.action_table import ActionTable, Schedule, T, check_table
from minipipe.core.schedules.placement import check_index, check_size
from minipipe.core.schedules.straight import cut_stages as cut_stages
from minipipe.core.schedules.straight import on_stages
from minipipe.core.schedules.straight import straight as straight
from minipipe.core.specs import SCHEDULE_COUNT, SCHEDULE_NUMBER
from minipipe.errors import Code, ScheduleError, misuse
from minipipe.schedules.features import without_overlaps

_STAGES = SCHEDULE_NUMBER._replace(
    kind=Iterable, expected="the numbers of the frozen stages, such as [0]"
)


def spread_stages(schedule: Schedule, num_stages: int) -> Schedule:
    """Cut a schedule with one stage on each rank into more stages, as equally as
    possible; first ranks take one more.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(spread_stages(schedules.gpipe(2, 1), num_stages=3))
    # gpipe: 2 ranks, 3 stages, 1 microbatch
    rank 0: 0F0 1F0 1B0 0B0
    rank 1: 2F0 2B0
    """
    check_size(num_stages, schedule.num_microbatches)
    p = without_overlaps(schedule, "spread_stages").num_ranks
    size, more = divmod(num_stages, p)
    ends = [0, *accumulate(size + (rank < more) for rank in range(p))]
    stages_of = [range(start, end) for start, end in pairwise(ends)]
    rows = tuple(on_stages(row, stages_of.__getitem__) for row in schedule.actions)
    placement = tuple(rank for rank, stages in enumerate(stages_of) for _ in stages)
    return replace(schedule, placement=placement, actions=rows, frozen=frozenset())


def first_stages(schedule: Schedule, num_stages: int) -> Schedule:
    """Return a schedule without its last stages. It stays legal: the loss then follows
    an earlier stage.

    Ranks without a stage stay idle.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(first_stages(schedules.interleaved_1f1b(2, 2), num_stages=3))
    # interleaved-1f1b: 2 ranks, 3 stages, 2 microbatches
    rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    rank 1: 1F0 1F1 1B0 1B1
    """
    check_table(schedule, Schedule)
    stages = f"1 to {schedule.num_stages}, the stages of {schedule.title}"
    counts = SCHEDULE_COUNT._replace(maximum=schedule.num_stages, expected=stages)
    counts.check("num_stages", num_stages)
    kept = ([a for a in row if a.stage < num_stages] for row in schedule.actions)
    rows = tuple(map(tuple, kept))
    pairs = schedule.joined.items()
    overlaps = frozenset(a for a, b in pairs if max(a.stage, b.stage) < num_stages)
    placement = schedule.placement[:num_stages]
    frozen = schedule.frozen & {*range(num_stages)}
    return replace(
        schedule, placement=placement, actions=rows, frozen=frozen, overlaps=overlaps
    )


def split_backward(schedule: Schedule) -> Schedule:
    """Return the schedule with every B replaced by I and W.

    The previous stage then waits for I alone.

    Parameters
    ----------
    schedule : Schedule

    Returns
    -------
    Schedule

    Examples
    --------
    >>> print(split_backward(Schedule.from_text("rank 0: 0F0 0B0", name="mine")))
    # mine: 1 rank, 1 stage, 1 microbatch
    rank 0: 0F0 0I0 0W0
    """
    check_table(schedule, Schedule)
    halves: dict[ActionKind, tuple[ActionKind, ...]] = {B: (I, W)}
    return _with_kinds(schedule, lambda stage, kind: halves.get(kind, (kind,)))


def _with_kinds(
    table: T, kinds_of: Callable[[int, ActionKind], tuple[ActionKind, ...]]
) -> T:
    """Return the table with other actions of the same stage and microbatch, or none, in
    the place of each action.
    """
    rows = []
    for row in table.actions:
        new = ((s, k, kinds_of(s, kind)) for s, kind, k in row)
        rows.append([Action(s, kind, k) for s, k, kinds in new for kind in kinds])
    alone = {a for a, b in table.joined.items() if not kinds_of(b.stage, b.kind)}
    if alone:
        table = replace(table, overlaps=table.overlaps - alone)
    return table.with_rows(type(table), rows)


def neighbouring_weights(row: Iterable[Action]) -> dict[Action, list[int]]:
    """Return, by W, the microbatches whose work it can do: the last of several adjacent
    W of a stage takes all.

    Adjacent W have no other computation between them.

    Examples
    --------
    >>> row = Schedule.from_text("F0 F1 F2 I0 I1 W0 W1 I2 W2").actions[0]
    >>> {str(w): microbatches for w, microbatches in neighbouring_weights(row).items()}
    {'0W0': [], '0W1': [0, 1], '0W2': [2]}
    """
    computations = (action for action in row if not action.kind.is_communication)
    runs = groupby(computations, key=lambda action: (action.kind, action.stage))
    work: dict[Action, list[int]] = {}
    for (kind, _), run in runs:
        if kind is W:
            actions = list(run)
            work.update((action, []) for action in actions)
            work[actions[-1]] = [action.microbatch for action in actions]
    return work


def freeze_stages(table: T, stages: Iterable[int]) -> T:
    """Return the schedule for stages without trained parameters.

    A frozen stage has no W, no REDUCE_GRAD and no U: its B becomes I. No gradient goes
    back beyond the first stage that is not frozen, so the stages before it have no
    backward and exchange no gradients. A forward-only schedule is returned unchanged.

    Parameters
    ----------
    table : Schedule or Program
        A legal schedule.
    stages : iterable of int
        The frozen stages.

    Returns
    -------
    Schedule or Program
        The same type as ``table``.

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, for a stage that does not exist; ``value``, if ``stages``
        is not a sequence of stages.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(freeze_stages(schedules.one_f_one_b(3, 2), [0, 2]))
    # 1f1b (frozen: 0, 2): 3 ranks, 3 stages, 2 microbatches
    rank 0: 0F0 0F1
    rank 1: 1F0 1F1 1B0 1B1
    rank 2: 2F0 2I0 2F1 2I1
    """
    check_table(table)
    _STAGES.check("stages", stages)
    marked = replace(table, frozen=table.frozen | frozenset(stages))
    if table.is_forward_only or not marked.frozen:
        return table
    first = marked.first_backward_stage
    of_frozen: dict[ActionKind, tuple[ActionKind, ...]] = {B: (I,)}
    of_frozen |= dict.fromkeys((W, REDUCE_GRAD, U), ())

    def needed(stage: int, kind: ActionKind) -> tuple[ActionKind, ...]:
        is_gradient = kind.is_backward or kind in (SEND_B, RECV_B, R, O, L)
        if is_gradient and (stage < first or (stage == first and kind is SEND_B)):
            return ()
        if stage in marked.frozen:
            return of_frozen.get(kind, (kind,))
        return (kind,)

    return _with_kinds(marked, needed)


def repeat(table: T, num_steps: int) -> T:
    """Return the schedule of several training steps without a barrier between them.

    Microbatch k of step s is number ``s * num_microbatches + k``. A rank begins its
    next step as soon as its own part of the last one is over, as with
    ``Pipeline.step(…, wait=False)``. With a barrier, n steps take n times the makespan
    of one.

    Parameters
    ----------
    table : Schedule or Program
    num_steps : int
        At least 1.

    Returns
    -------
    Schedule or Program
        The same type as the argument. It is for simulation and drawings: a pipeline
        would treat the steps as one.

    Raises
    ------
    ScheduleError
        Codes ``value`` and ``too-large``.

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", section 4: without a
    synchronisation before the optimiser's step, the bubbles of ZB-H2 between two steps
    overlap.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> one, two, three = (
    ...     simulate(repeat(schedules.zb_h2(4, 8), n)).makespan for n in (1, 2, 3)
    ... )
    >>> one, two - one, three - two
    (27.0, 24.0, 24.0)
    """
    check_table(table)
    repeated = steps_of(table, num_steps)
    if table.rank_kinds and repeated is not table:
        named = f"instructions of a rank, such as {min(table.rank_kinds)}"
        message = f"{table.title} has {named}, and a row has each once;"
        raise misuse(f"{message} repeat the schedule without them.")
    return repeated


def steps_of(table: T, num_steps: int) -> T:
    """Return the table of several steps, for a simulation; it may have instructions of
    a rank once for each step.
    """
    num_steps = SCHEDULE_COUNT.check("num_steps", num_steps)
    if num_steps == 1:
        return table
    m = table.num_microbatches
    check_size(table.num_stages, num_steps * m)
    rows: list[list[Action]] = []
    for row in table.numbered:
        steps = product(range(num_steps), row)
        rows.append([Action(s, kind, n * m + k) for n, (s, kind, k) in steps])
    return replace(
        table,
        name=f"{table.name}, {num_steps} steps",
        num_microbatches=num_steps * m,
        actions=tuple(map(tuple, rows)),
        overlaps=overlaps_of_copies(table, num_steps),
    )


def overlaps_of_copies(table: ActionTable, count: int) -> frozenset[Action]:
    """Return the overlaps of copies of a table, each with microbatches of its own.

    Examples
    --------
    >>> sorted(
    ...     map(
    ...         str,
    ...         overlaps_of_copies(
    ...             Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1"), 2
    ...         ),
    ...     )
    ... )
    ['0F1', '0F3']
    """
    m = table.num_microbatches
    number_of = table.number_of
    copies = ((s, kind, number_of(k)) for s, kind, k in table.overlaps)
    moved = product(range(count), copies)
    return frozenset(Action(s, kind, n * m + k) for n, (s, kind, k) in moved)


# -- less memory -----------------------------------------------------------------------


def recomputed(schedule: Schedule, stages: Iterable[int] | None = None) -> Schedule:
    """Return the schedule with an R right before each B or I: activations are dropped
    after F, and recomputed.

    An R needs no gradient, so it runs while its rank waits for one.

    Parameters
    ----------
    schedule : Schedule
        Any schedule with a backward.
    stages : iterable of int, optional
        The stages that recompute; by default all. If each B follows its F at once, as
        on the last rank of 1F1B, an R saves nothing.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Codes ``unsupported``, and ``out-of-range`` for a stage that does not exist.

    References
    ----------
    Chen et al. 2016, "Training deep nets with sublinear memory cost": recomputation,
    there within the backward.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(recomputed(schedules.one_f_one_b(2, 2)))
    # 1f1b, recomputed: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0F1 0R0 0B0 0R1 0B1
    rank 1: 1F0 1R0 1B0 1F1 1R1 1B1
    """
    check_trains(schedule, "activations to recompute")
    if stages is None:
        stages = range(schedule.num_stages)
    recomputing = frozenset(stages)
    for stage in recomputing:
        check_index("stage", stage, schedule.num_stages)
    all_actions = chain.from_iterable(schedule.actions)
    has = {action[::2] for action in all_actions if action.kind is R}
    rows = []
    for groups in _in_groups(schedule):
        row: list[Action] = []
        for group in groups:
            backwards = ((s, k) for s, kind, k in group if kind in (B, I))
            again = ((s, k) for s, k in backwards if s in recomputing)
            row += [Action(s, R, k) for s, k in again if (s, k) not in has]
            row += group
        rows.append(tuple(row))
    return replace(schedule, name=f"{schedule.name}, recomputed", actions=tuple(rows))


def offloaded(schedule: Schedule, num_held: int) -> Schedule:
    """Return the schedule with O and L, so that no rank holds more than some
    microbatches of its stages at once.

    If an F or an L needs memory, an O offloads the pair that is needed last. An L comes
    one action before its R, B or I, so that its copy runs concurrently with that
    action, if memory permits; otherwise right before its R, B or I.

    Parameters
    ----------
    schedule : Schedule
        Any schedule with a backward, and without O and slices.
    num_held : int
        The most (stage, microbatch) pairs that a rank holds; at least 1. Pairs between
        an I and its W stay on the rank, and may exceed it. With at least two, copies
        can hide behind computations.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Codes ``unsupported`` and ``value``.

    Notes
    -----
    The limit counts copies as instantaneous, as ``verify`` does; slow ones hold memory
    until they have ended.

    References
    ----------
    Wan et al. 2025, "PipeOffload: improving scalability of pipeline parallelism with
    memory optimization": offload of activations with long lifetimes, which copies of
    the same time hide. Belady 1966, "A study of replacement algorithms for a
    virtual-storage computer": to replace what is needed last.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(offloaded(schedules.one_f_one_b(3, 3), 2))
    # 1f1b, offloaded: 3 ranks, 3 stages, 3 microbatches
    rank 0: 0F0 0F1 0O1 0F2 0O2 0L1 0B0 0L2 0B1 0B2
    rank 1: 1F0 1F1 1B0 1F2 1B1 1B2
    rank 2: 2F0 2B0 2F1 2B1 2F2 2B2
    """
    check_trains(schedule, "activations to offload")
    SCHEDULE_COUNT.check("num_held", num_held)
    if O in schedule.kinds or schedule.num_slices > 1:
        feature = "slices, whose keys and values later slices need"
        if O in schedule.kinds:
            feature = "O and L already"
        problem = f"{schedule.title} has {feature}"
        raise misuse(f"{problem}; expected a schedule without them.")
    kept = (_with_offloads(groups, num_held) for groups in _in_groups(schedule))
    rows = tuple(map(tuple, kept))
    return replace(schedule, name=f"{schedule.name}, offloaded", actions=rows)


def _with_offloads(groups: Sequence[Sequence[Action]], most: int) -> list[Action]:
    """Return the actions of a row with O and L."""
    needed: dict[tuple[int, int], int] = {}
    released: dict[tuple[int, int], int] = {}
    for at, action in ((at, it) for at, group in enumerate(groups) for it in group):
        if action.kind in (R, B, I):
            needed.setdefault(action[::2], at)
        if action.kind in (B, I, W):
            released[action[::2]] = at
    due: dict[int, list[tuple[int, int]]] = {}
    for pair, at in needed.items():
        due.setdefault(at, []).append(pair)
    row: list[Action] = []
    held = set[tuple[int, int]]()
    away = set[tuple[int, int]]()
    for at, group in enumerate(groups):
        new = {action[::2] for action in group if action.kind is F} & needed.keys()
        # first the needs of this group, then of the next one
        for until in (at, at + 1):
            loads = away.intersection(due.get(until, ()))
            limit = most
            if loads or until == at:
                limit -= len(new) + len(loads)
            later = (pair for pair in held if needed[pair] > until)
            idle = sorted(later, key=needed.__getitem__)
            while len(held) > limit and idle:
                row.append(Action(idle[-1][0], O, idle[-1][1]))
                held.remove(idle[-1])
                away.add(idle.pop())
            if loads and (until == at or len(held) <= limit):
                row += [Action(stage, L, k) for stage, k in sorted(loads)]
                held |= loads
                away -= loads
        row += group
        held = {pair for pair in held | new if released[pair] != at}
    return row


def _in_groups(schedule: Schedule) -> Iterator[list[list[Action]]]:
    """Yield the actions of each row one by one, but overlapped actions together."""
    for row in schedule.actions:
        groups: list[list[Action]] = []
        for action in row:
            if groups and schedule.joined.get(groups[-1][-1]) == action:
                groups[-1].append(action)
            else:
                groups.append([action])
        yield groups


def check_trains(schedule: Schedule, purpose: str) -> None:
    """Refuse a schedule without a backward, and a value that is not a schedule.

    Examples
    --------
    >>> check_trains(Schedule.from_text("0F0", name="mine"), "gradients to sum")
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [unsupported] mine has no backward, and so no gradients to sum; ...
    """
    check_table(schedule, Schedule)
    if schedule.is_forward_only:
        problem = f"{schedule.title} has no backward, and so no {purpose}"
        message = f"{problem}; expected a schedule that trains."
        raise ScheduleError.of(Code.UNSUPPORTED, message)
