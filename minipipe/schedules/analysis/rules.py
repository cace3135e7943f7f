"""The rules within a row: replicas, slices, overlapped actions, all-reduces and updates, and R, O and L.

Replicas: a stage that several ranks hold, each for microbatches of its own::

    rank 0   0F0       0B0        stage 0 has the replicas 0 and 2, stage 1 the replicas 1 and 3: two pipelines
    rank 1       1F0 1B0          with a microbatch each. 0B0 on rank 2 would need what 0F0 left on rank 0.
    rank 2   0F1       0B1
    rank 3       1F1 1B1

The backward of a microbatch runs on the replica of its forward, which has its activations. At a stage boundary either
all microbatches change ranks or none does, so that a boundary always has messages or never.

Slices: causal attention attends to the slices before, whose keys and values stay on the stage. So all slices of a
sequence are on one replica. The backward of each slice adds to the gradients of the earlier keys and values, so the
backwards run from the last slice to the first.

Overlapped actions: a forward and a backward that begin together and end together::

    rank 0   0F0 (0F1;0B0)         0F1 overlapped with 0B0 waits for the inputs of both, and 1F1 waits for both. This
    rank 1       1F0       1F1 1B0     is a deadlock, since 0B0 needs 1B0. Without the overlap 0F1 would run first.

All-reduces and updates: if its stage has replicas, each gradient belongs to one REDUCE_GRAD. It is applied by one U in
all stages, or in none if the optimiser steps after the schedule.

R, O and L: activations that are dropped or offloaded between a forward and its backward. An R recomputes the
activations that were dropped after F. An O moves the remaining ones off the device, and an L moves them back::

    row        0F0   0O0         0F1         0L0   0R0   0B0    0R1   0B1       a pair of stage and microbatch has them
    0F0 left   inputs    nothing             inputs  all              in this order: F, O, L, R, B or I
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from minipipe.errors import Problem, ScheduleCode
from minipipe.schedules.action import REDUCE_GRAD, Action, ActionKind, B, F, I, L, O, R, Slice, U, W
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.dependencies import Dependencies, Value
from minipipe.schedules.analysis.replicas import gradient_sums
from minipipe.schedules.analysis.updates import Taken, gradients_of, taken

MOST_PROBLEMS = 1000
"""The most problems of one kind that are listed: if one action is missing, thousands often are."""


def row_problems(table: ActionTable) -> list[Problem]:
    """Return the problems of the first rule that a table breaks.

    In this table every action is on a rank of its stage, and each computation occurs once.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> rows = [["0F0", "0B0", "0F1"], ["0F2", "0B2", "0B1"]]
    >>> print(row_problems(Schedule("mine", ((0, 1),), 3, rows))[0].message)
    Rank 1, position 2: 0B1 is on another replica than its forward; 0F1 is on rank 0.
    >>> print(row_problems(Schedule.from_text("0F0.1 0F0.0 0B0.1 0B0.0"))[0].message[:60])
    Rank 0, position 0: 0F0.1 comes before 0F0.0 (position 1); f
    >>> print(row_problems(Schedule("mine", (0,), 1, [["0F0", "0B0"]], overlaps=["0F0"]))[0].message)
    Rank 0, position 0: 0F0 is overlapped with 0B0, which needs it; expected a B or I of another microbatch after it.
    >>> print(row_problems(Schedule.from_text("0F0 0F1 0B0 0U1 0B1"))[0].message)
    Rank 0, position 3: 0U1 comes before 0B1 (position 4), whose gradient it applies.
    >>> print(row_problems(Schedule.from_text("0F0 0B0 0R0"))[0].message)
    Rank 0, position 1: 0B0 comes before 0R0 (position 2), which it needs.
    """
    rules = (rule for applies, rules in _RULES if applies(table) for rule in rules)
    return next(filter(None, (list(islice(rule(table), MOST_PROBLEMS)) for rule in rules)), [])


def problem_at(table: ActionTable, rank: int, position: int, code: ScheduleCode, sentence: str) -> Problem:
    """Return a problem of an action: a sentence of which it is the subject.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> problem_at(Schedule.from_text("0F0 0B0"), 0, 1, ScheduleCode.FROZEN, "is needless.").message
    'Rank 0, position 1: 0B0 is needless.'
    """
    subject = f"Rank {rank}, position {position}: {table.actions[rank][position]}"
    return Problem(code, f"{subject} {sentence}", rank, position)


# -- replicas ----------------------------------------------------------------------------------------------------------


def _elsewhere(table: ActionTable) -> Iterator[Problem]:
    for rank, row in enumerate(table.actions):
        for position, (stage, _, k) in enumerate(row):
            home = table.rank_of(stage, k)
            if home != rank:
                forward = row[position]._replace(kind=F)
                sentence = f"is on another replica than its forward; {forward} is on rank {home}."
                yield problem_at(table, rank, position, ScheduleCode.OTHER_REPLICA, sentence)


def _mixed_cuts(table: ActionTable) -> Iterator[Problem]:
    crosses = Dependencies(table).crosses_ranks
    for rank, row in enumerate(table.actions):
        for position, action in enumerate(row):
            value = Value.consumed_by(action) if action.kind is F else None
            if value is not None and crosses(value) and table.rank_of(value.stage, value.microbatch) == rank:
                sentence = f"stays on the rank of stage {value.stage}; other microbatches change ranks there."
                hint = "At a stage boundary either all microbatches change ranks, or none."
                yield problem_at(table, rank, position, ScheduleCode.MIXED_CUT, f"{sentence} {hint}")


# -- slices ------------------------------------------------------------------------------------------------------------

_WHY_SLICES = {
    F: "forwards of a sequence run from its first slice to its last, each of which needs the keys and values before it",
    B: "backwards of a sequence run from its last slice to its first, which gets gradients from all later ones",
}


def _slices(table: ActionTable) -> Iterator[Problem]:
    for rank, row in enumerate(table.actions):
        at = {(stage, B if kind is I else kind, k): i for i, (stage, kind, k) in enumerate(row) if kind in (F, B, I)}
        for position, (stage, kind, k) in enumerate(row):
            kind = B if kind is I else kind
            if kind not in _WHY_SLICES:
                continue
            other = at.get((stage, kind, _slice_before(kind, k, table.num_slices)), position)
            if other > position:
                sentence = f"comes before {row[other]} (position {other}); {_WHY_SLICES[kind]}."
                yield problem_at(table, rank, position, ScheduleCode.SLICE_ORDER, sentence)
            home = table.rank_of(stage, k._replace(part=0))
            if home != rank:
                first = Action(stage, F, k._replace(part=0))
                sentence = f"is on another replica than {first}, on rank {home}; a slice needs the keys and values of"
                yield problem_at(table, rank, position, ScheduleCode.OTHER_REPLICA, f"{sentence} those before it.")


def _slice_before(kind: ActionKind, k: Slice, num_slices: int) -> Slice:
    """Return the slice of a sequence that comes right before another one; the slice itself, if there is none."""
    part = max(0, k.part - 1) if kind is F else min(k.part + 1, num_slices - 1)
    return k._replace(part=part)


# -- overlapped actions ------------------------------------------------------------------------------------------------


def _joined_with_others(table: ActionTable) -> Iterator[Problem]:
    """Yield the forwards that are overlapped with anything but a backward of another microbatch."""
    wrong = table.overlaps - table.joined.keys()
    for rank, row in enumerate(table.actions if wrong else ()):
        for position, action in enumerate(row):
            if action in wrong:
                sentence = f"is overlapped with {_next(row[position + 1 :], action)}; expected a B or I of another"
                yield problem_at(table, rank, position, ScheduleCode.OVERLAP, f"{sentence} microbatch after it.")


def _next(row: tuple[Action, ...], forward: Action) -> str:
    if not row:
        return "nothing, because it is the last action of its row"
    needs_it = row[0].kind.is_backward and row[0].microbatch == forward.microbatch
    return f"{row[0]}, which needs it" if needs_it else str(row[0])


# -- all-reduces and updates -------------------------------------------------------------------------------------------

_VERBS = {REDUCE_GRAD: "reduces", U: "applies"}
_EARLY = {REDUCE_GRAD: ScheduleCode.EARLY_SUM, U: ScheduleCode.EARLY_UPDATE}


def _untaken(table: ActionTable) -> Iterator[Problem]:
    for rank, row in enumerate(table.actions):
        position_of = {(stage, k): at for at, (stage, kind, k) in enumerate(row) if kind is B or kind is W}
        for kind in _VERBS:
            last: dict[int, Taken] = {}
            for found in taken(row, kind):
                last[found.action.stage] = found
                yield from _wrongly_taken(table, rank, found, position_of)
            for stage, microbatches in gradients_of(row).items():
                k = microbatches[-1]
                if stage in last and last[stage].action.microbatch < k:
                    at = position_of[stage, k]
                    sentence = f"Rank {rank}, position {at}: no {kind} {_VERBS[kind]} the gradient of {row[at]}; "
                    yield Problem(ScheduleCode.SKIPPED, f"{sentence}the last is {last[stage].action}.", rank, at)


def _wrongly_taken(
    table: ActionTable, rank: int, found: Taken, position_of: dict[tuple[int, int], int]
) -> Iterator[Problem]:
    """Yield the problems of the gradients of one REDUCE_GRAD or U."""
    (stage, kind, k), position, microbatches = found
    row = table.actions[rank]
    late = [other for other in microbatches if position_of[stage, other] > position]
    if stage in table.frozen:
        yield problem_at(table, rank, position, ScheduleCode.FROZEN, f"is needless: stage {stage} is frozen.")
    elif not microbatches:
        sentence = f"{_VERBS[kind]} no gradient: the gradients of microbatches up to {k} are already taken."
        yield problem_at(table, rank, position, ScheduleCode.ORDER, sentence)
    elif late:
        other = k if k in late else late[0]
        at = position_of[stage, other]
        is_own = other == k or kind is REDUCE_GRAD
        sentence = f"comes before {row[at]} (position {at}), whose gradient it {_VERBS[kind]}."
        if not is_own:
            sentence = f"skips {row[at]} (position {at}): it applies all gradients of microbatches up to {k}."
        yield problem_at(table, rank, position, _EARLY[kind] if is_own else ScheduleCode.SKIPPED, sentence)


def _unsummed(table: ActionTable) -> Iterator[Problem]:
    """Yield each update of a stage with replicas before which its gradients are not summed."""
    for rank, row in enumerate(table.actions):
        summed: set[Action] = set()
        for position, (stage, kind, k) in enumerate(row):
            if kind is REDUCE_GRAD:
                summed.add(row[position])
            needed, ranks = Action(stage, REDUCE_GRAD, k), table.ranks_of(stage)
            if kind is U and len(ranks) > 1 and needed not in summed:
                replicas = (
                    f"replicas on ranks {' and '.join(map(str, ranks))}, which must all-reduce their gradients first."
                )
                sentence = f"comes without {needed} before it; stage {stage} has {replicas}"
                yield problem_at(table, rank, position, ScheduleCode.NO_SUM, sentence)


def _absent(table: ActionTable) -> Iterator[Problem]:
    """Yield the actions that some stages or replicas have and others lack."""
    for kind in (REDUCE_GRAD, U):
        for rank, row in enumerate(table.actions) if kind in table.kinds else ():
            present = {stage for stage, other, _ in row if other is kind}
            for stage, microbatches in gradients_of(row).items():
                is_needed = stage not in table.frozen and (kind is U or len(table.ranks_of(stage)) > 1)
                if is_needed and stage not in present:
                    action = Action(stage, kind, microbatches[-1])
                    sentence = f"{action} is missing on rank {rank}: either all stages have a {kind}, or none."
                    yield Problem(ScheduleCode.MISSING, sentence, rank)
    for members in gradient_sums(table):
        for rank, member in zip(table.ranks_of(next(filter(None, members)).stage), members):
            if member is None:
                others = " and ".join(str(action) for action in members if action)
                sentence = f"A REDUCE_GRAD is missing on rank {rank}: the partner of {others}."
                yield Problem(ScheduleCode.MISSING, sentence, rank)


# -- R, O and L --------------------------------------------------------------------------------------------------------

_ORDER = {F: 0, O: 1, L: 2, R: 3, B: 4, I: 4}
_NEEDED: dict[ActionKind, tuple[tuple[ActionKind, ...], ...]] = {
    R: ((B, I),),
    O: ((L,), (B, I)),
    L: ((O,), (B, I)),
}  # at least one member of each group is required


def _alone(table: ActionTable) -> Iterator[Problem]:
    """Yield each R without a backward, each O without its L, and each L without its O."""
    for rank, row in enumerate(table.actions):
        present = set(row)
        for position, (stage, kind, k) in enumerate(row):
            groups = ([Action(stage, other, k) for other in kinds] for kinds in _NEEDED.get(kind, ()))
            for others in filter(present.isdisjoint, groups):
                sentence = f"comes without {' or '.join(map(str, others))}; expected both, or neither."
                yield problem_at(table, rank, position, ScheduleCode.UNPAIRED, sentence)
                break


def _disordered(table: ActionTable) -> Iterator[Problem]:
    """Yield each action that comes before an action that it needs."""
    for rank, row in enumerate(table.actions):
        last = {(stage, k): -1 for stage, kind, k in row if kind in _NEEDED}  # by pair, the position of its latest
        for position, (stage, kind, k) in enumerate(row):
            if kind in _ORDER and (stage, k) in last:
                before = last[stage, k]
                if before >= 0 and _ORDER[row[before].kind] > _ORDER[kind]:
                    sentence = f"comes before {row[position]} (position {position}), which it needs."
                    yield problem_at(table, rank, before, ScheduleCode.ORDER, sentence)
                else:
                    last[stage, k] = position


def _far_from_slices(table: ActionTable) -> Iterator[Problem]:
    """Yield each action of a slice while an earlier one of its sequence is offloaded, with its keys and values."""
    for rank, row in enumerate(table.actions if table.num_slices > 1 else ()):
        away: dict[tuple[int, Slice], int] = {}  # by stage and slice, the position of its O
        for position, (stage, kind, k) in enumerate(row):
            if kind is O:
                away[stage, k] = position
            elif kind is L:
                away.pop((stage, k), None)
            elif kind in _ORDER:
                before = [at for (s, other), at in away.items() if s == stage and k._replace(part=0) <= other < k]
                if before:
                    sentence = f"needs keys and values that {row[before[0]]} (position {before[0]}) offloaded."
                    yield problem_at(table, rank, position, ScheduleCode.SLICE_ORDER, sentence)


_Rule = Callable[[ActionTable], Iterator[Problem]]
# Features of a table, and the rules for them. A table has at most the problems of the first rule that it breaks.
_RULES: tuple[tuple[Callable[[ActionTable], bool], tuple[_Rule, ...]], ...] = (
    (lambda table: table.has_replicas, (_elsewhere, _mixed_cuts)),
    (lambda table: table.num_slices > 1, (_slices,)),
    (lambda table: bool(table.overlaps), (_joined_with_others,)),
    (lambda table: not table.kinds.isdisjoint(_VERBS), (_untaken, _unsummed, _absent)),
    (lambda table: not table.kinds.isdisjoint(_NEEDED), (_alone, _disordered, _far_from_slices)),
)
