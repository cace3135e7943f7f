"""A draft: a schedule that is still being written, in which actions are missing.

Placed actions are at the beginning of their row, and the rest is added after them, one
microbatch after another. This whole schedule is verified and simulated like any other;
the added actions cannot change the times before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import Action, ActionKind, B, F, I, W
from minipipe.core.schedules.action_table import ActionTable, Schedule
from minipipe.core.schedules.placement import check_placement
from minipipe.core.schedules.text import rows_of
from minipipe.core.values import Uses, Value
from minipipe.errors import Code, Problem, ScheduleError
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.features import rank_of_each_stage, without_overlaps
from minipipe.schedules.reading import schedule_of_text
from minipipe.schedules.simulation.timeline import Timeline

MOST = 20_000  # actions of a draft: after each edit all of them are timed and drawn
Rows = tuple[tuple[Action, ...], ...]


def check_size(num_stages: int, num_microbatches: int) -> None:
    """Refuse a schedule that is too large to be edited, with code ``too-large``."""
    size = 3 * num_stages * num_microbatches
    if size > MOST:
        sizes = f"{num_stages} stages and {num_microbatches} microbatches"
        message = f"{sizes} make {size:,} actions; the editor takes at most {MOST:,}."
        raise ScheduleError.of(Code.TOO_LARGE, message)


class Choice(NamedTuple):
    """An action that a rank may run next, and whether it is ready."""

    action: Action
    is_ready: bool


@dataclass(frozen=True)
class Draft:
    """The actions placed so far.

    Attributes
    ----------
    name : str
    placement : tuple of int
        ``placement[stage]`` is the rank of a stage.
    num_microbatches : int
    rows : tuple of tuple of Action
        ``rows[rank]``.

    Raises
    ------
    ScheduleError
        Codes ``syntax``, ``placement``, and ``too-large`` for more than ``MOST``
        actions.

    Examples
    --------
    >>> draft = Draft("mine", (0, 1), 1, ((), ())).placed(0, Action.parse("0F0"))
    >>> print(draft.whole)
    # mine: 2 ranks, 2 stages, 1 microbatch
    rank 0: 0F0 0B0
    rank 1: 1F0 1B0
    >>> [str(choice.action) for choice in draft.choices()[1] if choice.is_ready]
    ['1F0']
    """

    name: str
    placement: tuple[int, ...]
    num_microbatches: int
    rows: Rows

    def __post_init__(self) -> None:
        check_size(len(self.placement), self.num_microbatches)
        check_placement(self.placement, len(self.rows))

    @classmethod
    def of(cls, table: ActionTable) -> Draft:
        """Return the draft of a schedule: complete, and open for changes.

        Raises
        ------
        ScheduleError
            Code ``unsupported``, for actions that the editor does not support; ``type``
            for a program; ``frozen`` for frozen stages and forward-only schedules.
        """
        placement = rank_of_each_stage(table, "the editor")
        if not isinstance(table, Schedule):
            message = "It has SEND and RECV, which the editor does not support."
            raise ScheduleError.of(Code.TYPE, message)
        if table.frozen or table.is_forward_only:
            what = f"{table.title} does not train all of its stages"
            message = f"{what}; the editor expects a backward of each."
            raise ScheduleError.of(Code.FROZEN, message)
        plain = without_overlaps(table, "the editor")
        return cls(table.name, placement, table.num_microbatches, plain.actions)

    def written(self, text: str) -> Draft:
        """Return the draft of a text or CSV, with the size of this draft if the actions
        fit, otherwise with their own.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with line and cell; codes of
            :func:`minipipe.schedules.schedule_of_text` and :meth:`of`.
        """
        rows, overlaps, num_slices = rows_of(text)
        has_form = len(rows) == len(self.rows) and not overlaps and num_slices < 2
        if has_form and all(map(self._has, range(len(rows)), rows)):
            return replace(self, rows=tuple(rows))
        return Draft.of(schedule_of_text(text, self.name))

    def _has(self, rank: int, row: Sequence[Action]) -> bool:
        """Return whether all actions are of stages and microbatches of a rank."""
        stages = self.whole.stages_of(rank)
        batch = self.num_microbatches
        return all(a.stage in stages and a.microbatch < batch for a in row)

    @cached_property
    def actions(self) -> frozenset[Action]:
        """The placed actions."""
        return frozenset(chain.from_iterable(self.rows))

    @cached_property
    def missing(self) -> tuple[Action, ...]:
        """The missing actions, in an order in which they can run: whole backwards,
        unless they are begun as I.
        """
        stages = range(len(self.placement))
        every = []
        for k in range(self.num_microbatches):
            every += [Action(s, F, k) for s in stages]
            for s in reversed(stages):
                whole = Action(s, B, k)
                halves = (Action(s, I, k), Action(s, W, k))
                if self.actions.isdisjoint(halves) or whole in self.actions:
                    every.append(whole)
                else:
                    every += halves
        return tuple(action for action in every if action not in self.actions)

    @cached_property
    def whole(self) -> Schedule:
        """The schedule with the missing actions after the placed ones."""
        rows: list[list[Action]] = list(map(list, self.rows))
        for action in self.missing:
            rows[self.placement[action.stage]].append(action)
        return Schedule(
            self.name, self.placement, self.num_microbatches, tuple(map(tuple, rows))
        )

    # -- problems ----------------------------------------------------------------------

    def problem(self, memory_limit: float | None = None) -> Problem | None:
        """Return the first problem that the verifier finds among the placed actions."""
        try:
            verify(self.whole, memory_limit)
        except ScheduleError as error:
            first = next((p for p in error.problems if not self._is_late(p)), None)
            if first is not None and first.code is Code.ORDER:
                return self._unmet(first.rank, first.step) or first  # type: ignore[arg-type]
            return first
        return None

    def _is_late(self, problem: Problem) -> bool:
        """Return whether only the missing actions exceed the memory limit, which the
        reader did not place.
        """
        if problem.code is not Code.MEMORY:
            return False
        assert problem.rank is not None and problem.step is not None
        return problem.step >= len(self.rows[problem.rank])

    def refusal(
        self, rank: int, action: Action, memory_limit: float | None = None
    ) -> Problem | None:
        """Return the problem of an action as the next one of a rank, or None."""
        after = self.placed(rank, action)
        problem = after.problem(memory_limit)
        # The problem may concern another action.
        if problem is None or problem.code is Code.ORDER:
            return after._unmet(rank, len(self.rows[rank])) or problem
        return problem

    def _unmet(self, rank: int, position: int) -> Problem | None:
        """Return the problem of an action whose input is not placed; the verifier would
        name an added position.
        """
        action = self.rows[rank][position]
        for value in self._needs(action):
            if value not in self._values:
                stage, kind, k = next(flow_of(self.whole).givers(value))
                needed = self.whole.as_written(Action(stage, ActionKind(kind), k))
                what = f"{action} comes before {needed}, which it needs"
                sentence = f"Rank {rank}, position {position}: {what}."
                return Problem(Code.ORDER, sentence, rank, position)
        return None

    @cached_property
    def _values(self) -> set[Value]:
        """The values that the placed actions give."""
        return {value for action in self.actions for value in self._uses(action).gives}

    def _needs(self, action: Action) -> tuple[Value, ...]:
        """Return the values that an action needs."""
        uses = self._uses(action)
        return uses.takes + uses.reads

    def _uses(self, action: Action) -> Uses:
        uses = flow_of(self.whole).uses_of(action)
        assert uses is not None  # without frozen stages, all computations are declared
        return uses

    # -- changes -----------------------------------------------------------------------

    def placed(self, rank: int, action: Action) -> Draft:
        """Return the draft with one more action at the end of a row."""
        return self._with_row(rank, (*self.rows[rank], action))

    def _with_row(self, rank: int, row: tuple[Action, ...]) -> Draft:
        rows = list(self.rows)
        rows[rank] = row
        return replace(self, rows=tuple(rows))

    def cut(self, timeline: Timeline, time: float) -> Draft:
        """Return the draft without the actions that begin at a time or later in the
        timeline of the whole.
        """
        rows = []
        for row, spans in zip(self.rows, timeline.spans):
            kept = sum(span.start < time for span in spans[: len(row)])
            rows.append(row[:kept])
        return replace(self, rows=tuple(rows))

    def without_last(self, rank: int) -> Draft:
        """Return the draft without the last action of a rank.

        Raises
        ------
        ScheduleError
            Code ``order``, if another action needs it; ``syntax``, if the rank has no
            action.
        """
        if not self.rows[rank]:
            sentence = f"Rank {rank} has no action to take back."
            raise ScheduleError.of(Code.SYNTAX, sentence, rank)
        *others, last = self.rows[rank]
        gives = self._uses(last).gives
        for action in self.actions:
            if not set(self._needs(action)).isdisjoint(gives):
                sentence = (
                    f"{last} cannot be taken back before {action}, which needs it."
                )
                raise ScheduleError.of(Code.ORDER, sentence, rank, len(others))
        return self._with_row(rank, tuple(others))

    # -- choices -----------------------------------------------------------------------

    def choices(self, has_room: Sequence[bool] | None = None) -> list[list[Choice]]:
        """Return, by rank, the next F, B, I and W of each of its stages, the lowest
        microbatch of each first.

        Parameters
        ----------
        has_room : sequence of bool, optional
            By rank, whether memory is left for another microbatch; by default on all.
        """
        done: dict[tuple[int, object], set[int]] = {}
        for stage, kind, k in self.actions:
            done.setdefault((stage, kind), set()).add(k)
        every = range(self.num_microbatches)
        choices: list[list[Choice]] = [[] for _ in self.rows]
        for stage, rank in enumerate(self.placement):
            forwards, whole, halves, weights = (
                done.get((stage, kind), set()) for kind in (F, B, I, W)
            )
            backwards = whole | halves
            weights |= set(every) - halves
            placed = {F: forwards, B: backwards, I: backwards, W: weights}
            for kind, gone in placed.items():
                coming = set(every) - gone
                if coming:
                    action = Action(stage, kind, min(coming))
                    is_ready = self._values.issuperset(self._needs(action))
                    fits = kind is not F or has_room is None or has_room[rank]
                    choices[rank].append(Choice(action, is_ready and fits))
        return choices
