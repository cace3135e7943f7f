"""The table of actions: for each rank, the list of its actions, in order.

A :class:`Schedule` is a table of computations, a :class:`Program` one of computations,
sends and receives. Both have the same text and CSV, and every analysis reads both
through :class:`ActionTable`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, pairwise
from numbers import Integral
from operator import attrgetter, index, itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from minipipe.core.errors import Code, ScheduleError, counted, misuse, quoted
from minipipe.core.schedules.action import (
    Action,
    ActionKind,
    B,
    F,
    I,
    Rows,
    Slice,
    W,
    number_of,
    numbered,
)
from minipipe.core.schedules.collector import collector_paused as collector_paused
from minipipe.core.schedules.placement import (
    Placed,
    check_index,
    check_placement,
    in_replica_order,
)
from minipipe.core.schedules.written import ShownInNotebooks as ShownInNotebooks
from minipipe.core.schedules.written import Written
from minipipe.core.schedules.written import describe_sizes as describe_sizes
from minipipe.core.specs import SCHEDULE_COUNT

if TYPE_CHECKING:
    from minipipe.core.values import Kind

T = TypeVar("T", bound="ActionTable")
_KIND = attrgetter("kind")
_GRADIENT_KINDS = (B, W)


@dataclass(frozen=True, repr=False)
class ActionTable(Placed, Written):
    """The ordered actions of every rank, legal or not; :func:`minipipe.verify` decides.

    Its attributes are as in :class:`~minipipe.Schedule`.
    """

    name: str
    placement: tuple[int | tuple[int, ...], ...]
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    frozen: frozenset[int] = frozenset()
    overlaps: frozenset[Action] = frozenset()
    num_slices: int = 1
    tied: tuple[tuple[int, ...], ...] = ()
    # Cached walks and results of analyses. A table never changes, so each is computed
    # once.
    _kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        homes = (tuple(it) if isinstance(it, list) else it for it in self.placement)
        self._set(placement=tuple(homes))
        rows = (_as_actions(row, rank) for rank, row in enumerate(self.actions))
        self._set(actions=tuple(rows), frozen=frozenset(self.frozen))
        if not isinstance(self.num_microbatches, Integral):
            count = f"{quoted(self.num_microbatches)} microbatches"
            message = f"{self.name!r} has {count}; expected a whole number."
            raise ScheduleError.of(Code.PLACEMENT, message)
        if not self.actions or not self.placement or self.num_microbatches < 1:
            sizes = f"{self.num_ranks}, {self.num_stages} and {self.num_microbatches}"
            needs = "at least one rank, one stage and one microbatch"
            message = f"A schedule needs {needs}; {self.name!r} has {sizes}."
            raise ScheduleError.of(Code.SYNTAX, message)
        check_placement(self.placement, self.num_ranks)
        groups = (tuple(sorted(set(stages))) for stages in self.tied)
        self._set(tied=tuple(sorted(groups)))
        for stage in chain(self.frozen, *self.tied):
            check_index("stage", stage, self.num_stages)
        self._set(overlaps=frozenset(map(_as_action, self.overlaps)))
        _check_slices(self.name, self.num_microbatches, self.num_slices)
        rows = (tuple(self.overlaps), *self.actions)
        sizes = self.num_slices, self.num_microbatches
        overlaps, *numbered_rows = _with_indices(rows, *sizes)
        self._set(actions=tuple(numbered_rows), overlaps=frozenset(overlaps))
        self._set(placement=in_replica_order(self.placement, self.numbered))
        for action in self.overlaps:
            if action.kind is not F or action not in self.first_rank_with:
                hint = "expected forwards of its rows"
                message = f"{action} is among the overlaps of {self.name!r}; {hint}."
                raise ScheduleError.of(Code.OVERLAP, message)

    def _set(self, **parts: Any) -> None:
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @cached_property
    def microbatches(self) -> Sequence[Any]:
        """The indices of all microbatches: numbers, or each a
        :class:`~minipipe.core.schedules.action.Slice`.
        """
        numbers = range(self.num_microbatches)
        if self.num_slices == 1:
            return numbers
        return tuple(Slice(*divmod(number, self.num_slices)) for number in numbers)

    def number_of(self, microbatch: Any) -> int:
        """Return the number of a microbatch; of a slice, ``sequence * num_slices +
        part``.
        """
        return number_of(microbatch, self.num_slices)

    @cached_property
    def numbered(self) -> Rows:
        """The rows with the number of each microbatch, for engines that calculate with
        it; if unsliced, ``actions``.
        """
        return numbered(self.actions, self.num_slices)

    @cached_property
    def joined(self) -> dict[Action, Action]:
        """Maps each overlapped forward to the next action of its row, a B or I of
        another microbatch.

        Members of ``overlaps`` with another next action, or none, are left out; the
        verifier refuses them.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> {
        ...     str(a): str(b)
        ...     for a, b in Schedule.from_text(
        ...         "0F0 (0F1;0B0)OVERLAP_F_B 0B1"
        ...     ).joined.items()
        ... }
        {'0F1': '0B0'}
        """
        if not self.overlaps:
            return {}
        pairs = {}
        for row in self.actions:
            for a, b in pairwise(row):
                is_second = b.kind.declaration.is_second
                if a in self.overlaps and is_second and a.microbatch != b.microbatch:
                    pairs[a] = b
        return pairs

    @property
    @abstractmethod
    def schedule(self) -> ActionTable:
        """The Schedule of the computations alone."""

    @property
    @abstractmethod
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values between it and the next one travel by a SEND and a
        RECV of this table.
        """

    @cached_property
    def kinds(self) -> frozenset[ActionKind]:
        """The kinds of action that occur."""
        return frozenset(map(_KIND, chain.from_iterable(self.actions)))

    @cached_property
    def rank_kinds(self) -> frozenset[ActionKind]:
        """The kinds that occur and belong to a rank, and to no stage and microbatch."""
        return frozenset(kind for kind in self.kinds if kind.is_of_rank)

    @cached_property
    def is_forward_only(self) -> bool:
        """Whether no stage has any backward action."""
        return not any(kind.is_backward for kind in self.kinds)

    @cached_property
    def first_backward_stage(self) -> int:
        """The first stage with a backward: the first that is not frozen. ``num_stages``
        if all are frozen.
        """
        return min(set(range(self.num_stages)) - self.frozen, default=self.num_stages)

    def without_sums(self) -> Self:
        """Return the table without its REDUCE_GRADs, which take their ranks no time."""
        return self.without_kinds(lambda kind: kind.lane == "" and not kind.message)

    def without_kinds(self, are_left_out: Callable[[Kind], bool]) -> Self:
        """Return the table without the kinds that a function of their declarations
        chooses.
        """
        left_out = {kind for kind in self.kinds if are_left_out(kind.declaration)}
        if not left_out:
            return self
        kept = self.kinds - left_out
        rows = ([it for it in row if it.kind in kept] for row in self.actions)
        return self.with_rows(type(self), rows)

    def as_written(self, action: Action) -> Action:
        """Return an action as the table writes it: I in place of a B whose backward is
        split.
        """
        split = action._replace(kind=I)
        if action.kind is B and split in self.first_rank_with:
            return split
        return action

    @cached_property
    def is_reproducible(self) -> bool:
        """Whether every stage adds its gradients in ascending order of microbatches, as
        one process does.

        The slices of a sequence descend. Floating-point sums depend on their order; if
        the orders agree, the bits agree.
        """
        place = _place_in_sum(self.num_slices)
        kinds = _GRADIENT_KINDS
        every = self.numbered
        rows = ([(s, place(k)) for s, kind, k in row if kind in kinds] for row in every)
        # By stage alone, a sort keeps the order of each stage's microbatches.
        return all(sorted(row, key=itemgetter(0)) == sorted(row) for row in rows)

    def with_rows(self, kind: type[T], rows: Iterable[Iterable[Action]]) -> T:
        """Return a table over the same stages with other rows. Their actions come from
        a table and need no check.
        """
        table = object.__new__(kind)
        table._set(**{**self.__getstate__(), "actions": tuple(map(tuple, rows))})
        return table

    def __getstate__(self) -> dict[str, Any]:
        state = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**state, "_kept": {}}


def check_table(given: object, kind: type[ActionTable] | None = None) -> None:
    """Refuse an argument that is neither a Schedule nor a Program, or not of the
    expected type; say how to get one.

    Raises
    ------
    ScheduleError
        Code ``type``.
    """
    if not isinstance(given, kind or ActionTable):
        expected = "Schedule"
        how = "schedules.build(name, num_ranks) builds a named one"
        how += ", Schedule.from_file(path) reads one"
        if isinstance(given, ActionTable):
            how = f"the computations of a {type(given).__name__} are its .schedule"
            if kind is Program:
                expected = "Program"
                how = "schedules.lower(schedule) returns one"
        message = f"Expected a {expected}, not {quoted(given)}; {how}."
        raise ScheduleError.of(Code.TYPE, message)


def check_range(table: ActionTable) -> None:
    """Refuse stages and microbatches that do not exist, quickly. The verifier reports
    their positions.

    Raises
    ------
    ScheduleError
        Codes ``out-of-range``, and ``missing`` if nearly all actions are missing:
        tables of their events would waste memory.
    """
    if table._kept.get("is in range"):
        return
    counts = {"stage": table.num_stages, "microbatch": table.num_microbatches}
    for part, (name, count) in zip((0, 2), counts.items()):
        for rank, row in enumerate(table.numbered):
            actions: Sequence[Action] = row
            if table.rank_kinds:
                kinds = table.rank_kinds
                actions = [action for action in row if action[1] not in kinds]
            numbers = set(map(itemgetter(part), actions))
            if not all(0 <= number < count for number in numbers):
                problem = f"a {name} that is not among the {count}"
                message = f"Rank {rank} names {problem}; verify(schedule) says where."
                raise ScheduleError.of(Code.OUT_OF_RANGE, message, rank)
    pairs = table.num_stages * table.num_microbatches
    num_actions = sum(map(len, table.actions))
    if pairs > 100 * (num_actions + 100):
        of = f"{counted(pairs, 'pair')} of stage and microbatch"
        message = f"{table.title} has {counted(num_actions, 'action')} for {of}."
        message += " verify(schedule) says what is missing."
        raise ScheduleError.of(Code.MISSING, message)
    table._kept["is in range"] = True


def _as_actions(row: Iterable[Action | str], rank: int) -> tuple[Action, ...]:
    """Read cells such as ``"2F0"``, and kinds such as ``"F"``. A row of actions is
    returned unchanged.
    """
    cells: tuple[Any, ...] = tuple(row)
    if set(map(type, cells)) == {Action}:
        kinds = enumerate((int, ActionKind, int))
        parts = ((itemgetter(part), kind) for part, kind in kinds)
        if all(set(map(type, map(part, cells))) == {kind} for part, kind in parts):
            return cells
    return tuple(_as_action(_with_rank(cell, rank)) for cell in cells)


def _with_rank(cell: Any, rank: int) -> Any:
    if isinstance(cell, str):
        from minipipe.core.schedules.cells import (
            is_of_rank,  # on demand: as in Action.parse
        )

        if is_of_rank(cell):
            return Action(rank, ActionKind(cell), 0)
    return cell


def _as_action(cell: Action | str) -> Action:
    if isinstance(cell, str):
        return Action.parse(cell)
    try:
        stage, kind, microbatch = cell
        is_slice = isinstance(microbatch, tuple)
        number = Slice(*map(index, microbatch)) if is_slice else index(microbatch)
        return Action(index(stage), ActionKind(kind), number)
    except (TypeError, ValueError):
        # on demand: as in Action.parse
        from minipipe.core.schedules.cells import not_an_action

        raise ScheduleError.of(Code.SYNTAX, not_an_action(cell)) from None


def _check_slices(name: str, num_microbatches: int, num_slices: int) -> None:
    """Refuse an invalid number of slices, or one that leaves a sequence of a schedule
    incomplete.
    """
    SCHEDULE_COUNT.check("num_slices", num_slices)
    if num_microbatches % num_slices:
        count = (
            f"{name!r} has {num_microbatches} microbatches, each of which is a slice"
        )
        message = f"num_slices is {num_slices}, and {count};"
        raise misuse(f"{message} expected a multiple of {num_slices}.")


def _with_indices(
    rows: Sequence[tuple[Action, ...]], num_slices: int, num_microbatches: int
) -> Sequence[tuple[Action, ...]]:
    """Return rows whose microbatches are numbers, or slices if a sequence has several.

    Slices of a table with another number of them get their numbers first:
    ``dataclasses.replace(table, num_slices=1)``. If it had fewer, rows that have all
    its slices show it: they have too many sequences for the new number.

    Examples
    --------
    >>> print(
    ...     *_with_indices(
    ...         [(Action(2, ActionKind.FORWARD, 3),)], num_slices=2, num_microbatches=4
    ...     )[0]
    ... )
    2F1.1
    >>> print(
    ...     *_with_indices(
    ...         [(Action(2, ActionKind.FORWARD, Slice(1, 1)),)],
    ...         num_slices=1,
    ...         num_microbatches=4,
    ...     )[0]
    ... )
    2F3
    """
    index = itemgetter(2)
    types = (set(map(type, map(index, row))) for row in rows)
    if num_slices == 1 and not any(Slice in types_of_row for types_of_row in types):
        return rows
    indices = {index(action) for row in rows for action in row}
    most = max((k.part + 1 for k in indices if isinstance(k, Slice)), default=1)
    n = max(most, num_slices)
    if 1 < most < num_slices and len(indices) == num_microbatches:
        whole = {Slice(*divmod(number, most)) for number in range(num_microbatches)}
        if indices == whole:
            n = most
    numbers: dict[Any, Any] = dict(zip(indices, indices))
    numbers |= {k: k.sequence * n + k.part for k in indices if isinstance(k, Slice)}
    if num_slices > 1:
        pairs = numbers.items()
        numbers = {k: Slice(*divmod(number, num_slices)) for k, number in pairs}
    return [tuple(Action(s, kind, numbers[k]) for s, kind, k in row) for row in rows]


def _place_in_sum(num_slices: int) -> Callable[[int], int]:
    """Return, by number of a microbatch, its place in the order in which one process
    adds gradients.

    Sequences ascend, slices descend: the backward of the last slice of a sequence comes
    first, because the others get gradients of their keys and values from it.

    Examples
    --------
    >>> list(map(_place_in_sum(2), range(6)))
    [1, 0, 3, 2, 5, 4]
    """
    if num_slices == 1:
        return int
    return lambda k: k - 2 * (k % num_slices) + num_slices - 1


@dataclass(frozen=True, repr=False)
class Schedule(ActionTable):
    """The computations of every rank, in order: F, B, I and W. It may be illegal;
    :func:`minipipe.verify` decides.

    :func:`minipipe.schedules.lower` adds the sends and receives, which makes a
    :class:`~minipipe.schedules.Program` of it.

    Attributes
    ----------
    name : str
        The name in drawings and reports.
    placement : tuple of int or tuple
        ``placement[stage]`` is the rank that holds the stage, or a tuple of ranks, its
        replicas. Each replica has microbatches of its own: a microbatch runs on the
        rank whose row has it. Replicas are ordered by their lowest microbatches.
    num_microbatches : int
    actions : tuple of tuple of Action
        ``actions[rank]`` are the actions of a rank. Cells such as ``"0F0"`` are read as
        actions.
    frozen : frozenset of int
        Stages without trained parameters, which have no W; those before the first other
        stage have no backward.
    overlaps : frozenset of Action
        Forwards that are overlapped with the next action of their row, a B or I of
        another microbatch: the two begin together, when the inputs of both are
        available, and end together. Cells such as ``"0F3"`` are read as actions.
    num_slices : int
        The slices of a sequence, at least 1. Each slice is a microbatch, and
        ``num_microbatches`` counts slices. The ``microbatch`` of an action is then the
        tuple (sequence, slice), which text writes ``0F1.2``; ``numbered`` has the rows
        with the number ``sequence * num_slices + slice`` in its place, which cells such
        as ``"0F5"`` may give.
    tied : tuple of tuple of int
        The stages that share a parameter, together: ``((0, 3),)`` if the last stage
        uses the embedding of the first.

    Raises
    ------
    ScheduleError
        Code ``type``, if a SEND or a RECV is among the actions; ``overlap``, if a
        member of ``overlaps`` is not a forward in the rows.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.one_f_one_b(num_ranks=2, num_microbatches=3))
    # 1f1b: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(kind.is_communication for kind in self.kinds):
            every = chain.from_iterable(self.actions)
            message = next(action for action in every if action.kind.is_communication)
            why = "it is a Program, and a Schedule has computations alone"
            reads = "Program.from_file, from_text and from_csv read it"
            how = f"{reads}; its .schedule has the computations."
            title = f"{self.title} holds {message}"
            raise ScheduleError.of(Code.TYPE, f"{title}: {why}. {how}")

    @property
    def schedule(self) -> Schedule:
        """Itself: computations alone."""
        return self

    @property
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values travel to the next stage by a SEND and a RECV:
        always False in a schedule.
        """
        return (False,) * self.num_stages


@dataclass(frozen=True, repr=False)
class Program(ActionTable):
    """The computations, sends and receives of every rank, in order: a lowered schedule.

    :func:`minipipe.schedules.lower` makes one that cannot deadlock; a text or CSV file
    with SEND and RECV is also one. It may be illegal; :func:`minipipe.verify` decides.

    Attributes
    ----------
    name, placement, num_microbatches
        As for :class:`~minipipe.Schedule`.
    actions : tuple of tuple of Action
        ``actions[rank]`` are the actions of a rank. A SEND is named after the stage
        that produces the value, a RECV after the stage that consumes it.

    Examples
    --------
    >>> from minipipe.schedules import Program
    >>> program = Program.from_text('''
    ...     rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    ...     rank 1: 1RECV_F0 1F0 1B0 1SEND_B0
    ... ''')
    >>> print(program.schedule)
    # text: 2 ranks, 2 stages, 1 microbatch
    rank 0: 0F0 0B0
    rank 1: 1F0 1B0
    """

    @cached_property
    def schedule(self) -> Schedule:
        """The computations alone, without messages and without what a rank does
        besides.
        """
        alone = self.without_kinds(lambda kind: kind.message != "" or kind.of_rank)
        return self.with_rows(Schedule, alone.actions)

    @property
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values travel to the next stage by a SEND and a RECV: True
        if it is on another rank.
        """
        return self._cuts_between_ranks
