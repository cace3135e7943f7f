"""The table of actions: for each rank, the list of its actions, in order.

A :class:`Schedule` is a table of computations, a :class:`Program` one of computations, sends and receives. Both have
the same text and CSV, and every analysis reads both through :class:`ActionTable`.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, pairwise
from numbers import Integral
from operator import attrgetter, index, itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from minipipe.errors import ScheduleCode, ScheduleError, counted, misuse, quoted, whole_number
from minipipe.io import printable
from minipipe.schedules.action import REDUCE_GRAD, Action, ActionKind, L, O, R, Rows, Slice, U, number_of, numbered
from minipipe.schedules.placement import check_placement, in_replica_order, ranks_in

if TYPE_CHECKING:
    from pathlib import Path

    from minipipe.schedules.text import Cells

T = TypeVar("T", bound="ActionTable")
_KIND = attrgetter("kind")
_GRADIENT_KINDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


class ShownInNotebooks:
    """A schedule or a timeline, which a notebook shows as a picture."""

    def _repr_html_(self: Any) -> str:
        from minipipe.render.notebook import picture_or_text  # loads the drawings on demand

        return picture_or_text(self)


@dataclass(frozen=True, repr=False)
class ActionTable(ShownInNotebooks):
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
    # Cached walks and results of analyses. A table never changes, so each is computed once.
    _kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", tuple(tuple(r) if isinstance(r, list) else r for r in self.placement))
        object.__setattr__(self, "actions", tuple(map(_as_actions, self.actions)))
        object.__setattr__(self, "frozen", frozenset(self.frozen))
        if not isinstance(self.num_microbatches, Integral):
            message = f"{self.name!r} has {quoted(self.num_microbatches)} microbatches; expected a whole number."
            raise ScheduleError.of(ScheduleCode.PLACEMENT, message)
        if not self.actions or not self.placement or self.num_microbatches < 1:
            raise ScheduleError.of(
                ScheduleCode.EMPTY,
                f"A schedule needs at least one rank, one stage and one microbatch; {self.name!r} has "
                f"{self.num_ranks}, {self.num_stages} and {self.num_microbatches}.",
            )
        check_placement(self.placement, self.num_ranks)
        for stage in self.frozen:
            _check_index("stage", stage, self.num_stages)
        object.__setattr__(self, "overlaps", frozenset(map(_as_action, self.overlaps)))
        _check_slices(self.name, self.num_microbatches, self.num_slices)
        overlaps, *rows = _with_indices((tuple(self.overlaps), *self.actions), self.num_slices)
        object.__setattr__(self, "actions", tuple(rows))
        object.__setattr__(self, "overlaps", frozenset(overlaps))
        object.__setattr__(self, "placement", in_replica_order(self.placement, self.numbered))
        for action in self.overlaps:
            if action.kind is not ActionKind.FORWARD or action not in self.first_rank_with:
                message = f"{action} is among the overlaps of {self.name!r}; expected forwards of its rows."
                raise ScheduleError.of(ScheduleCode.OVERLAP, message)

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """The number of stages, all ranks together."""
        return len(self.placement)

    @cached_property
    def microbatches(self) -> Sequence[Any]:
        """The indices of all microbatches: numbers, or each a :class:`~minipipe.schedules.action.Slice`."""
        numbers = range(self.num_microbatches)
        if self.num_slices == 1:
            return numbers
        return tuple(Slice(*divmod(number, self.num_slices)) for number in numbers)

    def number_of(self, microbatch: Any) -> int:
        """Return the number of a microbatch; of a slice, ``sequence * num_slices + part``."""
        return number_of(microbatch, self.num_slices)

    @cached_property
    def numbered(self) -> Rows:
        """The rows with the number of each microbatch, for engines that calculate with it; if unsliced, ``actions``."""
        return numbered(self.actions, self.num_slices)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank holds, ascending.

        Raises
        ------
        ScheduleError
            Code ``out-of-range``, for a rank that does not exist.
        """
        _check_index("rank", rank, self.num_ranks)
        return tuple(stage for stage, home in enumerate(self.placement) if rank in ranks_in(home))

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """Return the rank of a stage, or the ranks of its replicas, ordered by their lowest microbatches.

        Raises
        ------
        ScheduleError
            Code ``out-of-range``, for a stage that does not exist.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> Schedule.from_text("0F1 0B1 \\n 0F0 0B0").ranks_of(0)
        (1, 0)
        """
        _check_index("stage", stage, self.num_stages)
        return ranks_in(self.placement[stage])

    @cached_property
    def has_replicas(self) -> bool:
        """Whether a stage is on several ranks, each with microbatches of its own."""
        return any(len(ranks_in(home)) > 1 for home in self.placement)

    def rank_of(self, stage: int, microbatch: Any) -> int:
        """Return the rank that runs a microbatch on a stage; with replicas, the rank whose row has the microbatch.

        A slice may be given by its index or by its number.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> [Schedule.from_text("0F1 0B1 \\n 0F0 0B0").rank_of(0, k) for k in range(2)]
        [1, 0]
        """
        return self._replica_of.get((stage, microbatch), ranks_in(self.placement[stage])[0])

    @cached_property
    def _replica_of(self) -> dict[tuple[int, Any], int]:
        """By stage and microbatch, the replica that runs its F or, if the F is missing, another of its actions."""
        shared = {stage for stage, home in enumerate(self.placement) if len(ranks_in(home)) > 1}
        found: dict[tuple[int, Any], int] = {}
        for is_forward in (False, True) if shared else ():
            for rank in reversed(range(self.num_ranks)):
                rows = {id(row): row for row in (self.actions[rank], self.numbered[rank])}.values()
                own = (action for row in rows for action in row if (action.kind is ActionKind.FORWARD) == is_forward)
                found.update(((stage, k), rank) for stage, _, k in own if stage in shared)
        return found

    def check_known(self, reader: str, *known: ScheduleCode) -> None:
        """Refuse features of the table that its reader does not support.

        Raises
        ------
        ScheduleError
            Codes ``replicas``, ``slices``, ``updates``, ``recompute`` and, for kinds that a program has declared,
            ``kinds``, unless they are among the known ones.
        """
        own = (U,) if ScheduleCode.REPLICAS in known else (U, REDUCE_GRAD)
        groups = (own, (R, O, L), self.kinds - set(ActionKind))
        updates, kept, others = ([a for row in self.actions for a in row if a.kind in kinds] for kinds in groups)
        shared = [stage for stage, home in enumerate(self.placement) if len(ranks_in(home)) > 1]
        slices = [self.num_slices] if self.num_slices > 1 else []
        for code, found, what in (
            (ScheduleCode.REPLICAS, shared, "has replicas of stages (such as stage {})"),
            (ScheduleCode.SLICES, slices, "splits sequences into {} slices"),
            (ScheduleCode.UPDATES, updates, "has actions for gradient all-reduces or updates (such as {})"),
            (ScheduleCode.RECOMPUTE, kept, "has actions that recompute or offload activations (such as {})"),
            (ScheduleCode.KINDS, others, "has actions of a declared kind (such as {})"),
        ):
            if found and code not in known:
                message = f"{self.title} {what.format(found[0])}, which {reader} does not support;"
                raise ScheduleError.of(code, f"{message} it can be drawn, checked and simulated.")

    def one_rank_each(self, reader: str) -> tuple[int, ...]:
        """Return the rank of each stage, for a reader that knows nothing of what :meth:`check_known` refuses."""
        self.check_known(reader)
        return tuple(ranks_in(home)[0] for home in self.placement)

    @cached_property
    def joined(self) -> dict[Action, Action]:
        """Maps each overlapped forward to the next action of its row, a B or I of another microbatch.

        Members of ``overlaps`` with another next action, or none, are left out; the verifier refuses them.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> {str(a): str(b) for a, b in Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1").joined.items()}
        {'0F1': '0B0'}
        """
        neighbours = (pair for row in self.actions for pair in pairwise(row)) if self.overlaps else ()
        pairs = ((a, b) for a, b in neighbours if a in self.overlaps and a.microbatch != b.microbatch)
        return {a: b for a, b in pairs if b.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)}

    def without_overlaps(self, reader: str) -> Self:
        """Return the table itself, for a reader that does not support overlapped actions; refuse tables with them.

        Raises
        ------
        ScheduleError
            Code ``overlap``.
        """
        if self.overlaps:
            raise ScheduleError.of(
                ScheduleCode.OVERLAP,
                f"{self.title} overlaps forwards with backwards (such as {min(self.overlaps)}), which {reader} does "
                "not support; dataclasses.replace(schedule, overlaps=()) runs them one after the other.",
            )
        return self

    def crosses_ranks(self, stage: int) -> bool:
        """Whether values between a stage and the next one travel between ranks; False for the last stage.

        Raises
        ------
        ScheduleError
            Code ``out-of-range``, for a stage that does not exist.
        """
        _check_index("stage", stage, self.num_stages)
        return self._cuts_between_ranks[stage]

    @cached_property
    def _cuts_between_ranks(self) -> tuple[bool, ...]:
        if not self.has_replicas:
            return (*(a != b for a, b in pairwise(self.placement)), False)
        known = {k for _, k in self._replica_of}  # the verifier checks that one stands for all
        cuts = pairwise(range(self.num_stages))
        return (*(any(self.rank_of(a, k) != self.rank_of(b, k) for k in known) for a, b in cuts), False)

    @property
    @abstractmethod
    def schedule(self) -> ActionTable:
        """The Schedule of the computations alone."""

    @property
    @abstractmethod
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values between it and the next one travel by a SEND and a RECV of this table."""

    @cached_property
    def kinds(self) -> frozenset[ActionKind]:
        """The kinds of action that occur."""
        return frozenset(map(_KIND, chain.from_iterable(self.actions)))

    @cached_property
    def is_forward_only(self) -> bool:
        """Whether no stage has any backward action."""
        return not any(kind.is_backward for kind in self.kinds)

    @cached_property
    def first_backward_stage(self) -> int:
        """The first stage with a backward: the first that is not frozen. ``num_stages`` if all are frozen."""
        return min(set(range(self.num_stages)) - self.frozen, default=self.num_stages)

    def without_sums(self) -> Self:
        """Return the table without its REDUCE_GRADs, which take their ranks no time."""
        if ActionKind.REDUCE_GRAD not in self.kinds:
            return self
        rows = ((action for action in row if action.kind is not ActionKind.REDUCE_GRAD) for row in self.actions)
        return self.with_rows(type(self), rows)

    @cached_property
    def first_rank_with(self) -> dict[Action, int]:
        """The first rank that has each action."""
        return {action: rank for rank in reversed(range(self.num_ranks)) for action in self.actions[rank]}

    def home_of(self, action: Action) -> int | None:
        """Return the rank of an action; if it is missing, the rank of its stage, or None if there is no such stage."""
        home = self.rank_of(action.stage, action.microbatch) if 0 <= action.stage < self.num_stages else None
        return self.first_rank_with.get(action, home)

    def as_written(self, action: Action) -> Action:
        """Return an action as the table writes it: I in place of a B whose backward is split."""
        split = action._replace(kind=ActionKind.BACKWARD_INPUT)
        return split if action.kind is ActionKind.BACKWARD and split in self.first_rank_with else action

    @cached_property
    def is_reproducible(self) -> bool:
        """Whether every stage adds its gradients in ascending order of microbatches, as one process does.

        The slices of a sequence descend. Floating-point sums depend on their order; if the orders agree, the bits
        agree.
        """
        place = _place_in_sum(self.num_slices)
        rows = ([(stage, place(k)) for stage, kind, k in row if kind in _GRADIENT_KINDS] for row in self.numbered)
        # By stage alone, a sort keeps the order of each stage's microbatches.
        return all(sorted(row, key=itemgetter(0)) == sorted(row) for row in rows)

    def with_rows(self, kind: type[T], rows: Iterable[Iterable[Action]]) -> T:
        """Return a table over the same stages with other rows. Their actions come from a table and need no check."""
        table = object.__new__(kind)
        for name, value in {**self.__getstate__(), "actions": tuple(map(tuple, rows))}.items():
            object.__setattr__(table, name, value)
        return table

    def with_numbers(self, kind: type[T], rows: Iterable[Iterable[Action]]) -> T:
        """Return a table over the same stages with other rows, whose microbatches are numbers, as in ``numbered``."""
        if self.num_slices > 1:
            rows = _with_indices(list(map(tuple, rows)), self.num_slices)
        return self.with_rows(kind, rows)

    def __getstate__(self) -> dict[str, Any]:
        own = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**own, "_kept": {}}

    # -- text ---------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The name in one line, and which stages are frozen."""
        frozen = f" (frozen: {', '.join(map(str, sorted(self.frozen)))})" if self.frozen else ""
        return printable(" ".join(self.name.split())) + frozen

    def describe(self, separator: str = ": ") -> str:
        """Return name and sizes: ``1f1b: 4 ranks, 4 stages, 8 microbatches``."""
        sizes = describe_sizes(self.num_ranks, self.num_stages, self.num_microbatches, self.num_slices)
        return f"{self.title}{separator}{sizes}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def to_text(self) -> str:
        """Return one line per rank, cells separated by blanks: the form for people."""
        rows = (f"rank {rank}: {' '.join(self._cells(row))}".rstrip() for rank, row in enumerate(self.actions))
        return "\n".join([f"# {self.describe()}", *rows, ""])

    def to_csv(self) -> str:
        """Return PyTorch's format: one line per rank, cells such as ``0F0``. The ``0U3`` of an update is not PyTorch's.

        Raises
        ------
        ScheduleError
            Code ``slices``, for a table with slices: the format has none, and PyTorch reads ``0F1.0`` as ``0F1``.
            Code ``recompute``, for a table with R, O or L, which the format cannot express.
        """
        if self.num_slices > 1:
            message = (
                f"{self.title} has slices, and PyTorch's CSV has none; write it as text, with to_text() or --format"
            )
            message += " rows, or let every slice be a microbatch, with dataclasses.replace(schedule, num_slices=1)."
            raise ScheduleError.of(ScheduleCode.SLICES, message)
        if unsaid := self.kinds & {R, O, L}:
            message = f"{self.title} has {' and '.join(sorted(unsaid))}, and PyTorch's CSV has no such action; write it"
            raise ScheduleError.of(ScheduleCode.RECOMPUTE, f"{message} as text, with to_text() or --format rows.")
        # A lone comma is an idle rank; an empty line would be skipped when read.
        return "".join((",".join(self._cells(row)) or ",") + "\n" for row in self.actions)

    def _cells(self, row: Iterable[Action]) -> Iterator[str]:
        """Yield the cells of a row. A forward of ``overlaps`` shares one with the next action, as PyTorch writes it."""
        actions = iter(row)
        for action in actions:
            is_joined = self.overlaps and action in self.overlaps
            yield f"({action};{next(actions, '')})OVERLAP_F_B" if is_joined else str(action)

    @classmethod
    def from_text(cls, text: str, name: str = "text", ignore_sharding: bool = False) -> Self:
        """Read the output of :meth:`to_text`; ``#`` starts a comment, ``rank N:`` at a line's start may be left out.

        If each rank holds one stage, cells may omit the stage, ``F0 F1 B0``, as papers write them.

        Parameters
        ----------
        text : str
            One line per rank, cells separated by blanks.
        name : str
        ignore_sharding : bool
            As for :meth:`from_csv`.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with line and cell, for anything that is not an action.
        """
        return cls(name, *_read("text", text, ignore_sharding))

    @classmethod
    def from_csv(cls, text: str, name: str = "csv", ignore_sharding: bool = False) -> Self:
        """Read PyTorch's format. Empty cells are idle time; the line of a stage is its rank.

        ``(0F3;3B1)OVERLAP_F_B`` is an overlapped forward and backward; ``overlaps`` has the forward.

        Parameters
        ----------
        text : str
            One line per rank, cells separated by commas.
        name : str
            The schedule's name; a CSV file carries none.
        ignore_sharding : bool
            Whether to leave out UNSHARD, RESHARD and REDUCE_GRAD, which are not pipeline actions.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with line and cell, for anything that is not an action.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> Schedule.from_csv("0F0,0B0,,\\n").actions[0][1]
        Action(stage=0, kind=<ActionKind.BACKWARD: 'B'>, microbatch=0)
        """
        return cls(name, *_read("csv", text, ignore_sharding))

    @classmethod
    def from_file(cls, path: str | Path, ignore_sharding: bool = False) -> Self:
        """Read a file of text or CSV; its name without the ending becomes the name of the schedule.

        Parameters
        ----------
        path : str or Path
        ignore_sharding : bool
            As for :meth:`from_csv`.

        Raises
        ------
        ScheduleError
            Code ``file``, if the file does not exist or is not text; ``syntax``, with line and cell.
        """
        return cls(_stem(path), *_read("file", path, ignore_sharding))


def check_table(given: object, kind: type[ActionTable] | None = None) -> None:
    """Refuse an argument that is neither a Schedule nor a Program, or not of the expected type; say how to get one.

    Raises
    ------
    ScheduleError
        Code ``not-a-schedule``.
    """
    if not isinstance(given, kind or ActionTable):
        how = "schedules.build(name, num_ranks) makes one of a name, Schedule.from_file(path) reads one"
        if isinstance(given, ActionTable):
            how = f"the computations of a {type(given).__name__} are its .schedule"
        raise ScheduleError.of(ScheduleCode.NOT_A_SCHEDULE, f"Expected a Schedule, not {quoted(given)}; {how}.")


def describe_sizes(num_ranks: int, num_stages: int, num_microbatches: int, num_slices: int = 1) -> str:
    """Return the sizes as text.

    Examples
    --------
    >>> describe_sizes(2, 2, 1), describe_sizes(4, 4, 16, num_slices=2)
    ('2 ranks, 2 stages, 1 microbatch', '4 ranks, 4 stages, 8 sequences of 2 slices')
    """
    parts = [counted(num_ranks, "rank"), counted(num_stages, "stage")]
    if num_slices == 1:
        return ", ".join([*parts, counted(num_microbatches, "microbatch")])
    sizes = ", ".join([*parts, counted(num_microbatches // num_slices, "sequence")])
    return f"{sizes} of {num_slices} slices"


def check_range(table: ActionTable) -> None:
    """Refuse stages and microbatches that do not exist, quickly; the verifier says where they are.

    Raises
    ------
    ScheduleError
        Codes ``out-of-range``, and ``missing`` if nearly all actions are missing: tables of their events would
        waste memory.
    """
    for part, count, name in ((0, table.num_stages, "stage"), (2, table.num_microbatches, "microbatch")):
        for rank, row in enumerate(table.numbered):
            if row and not (min(map(itemgetter(part), row)) >= 0 and max(map(itemgetter(part), row)) < count):
                message = f"Rank {rank} names a {name} that is not among the {count}; verify(schedule) says where."
                raise ScheduleError.of(ScheduleCode.OUT_OF_RANGE, message, rank)
    pairs, actions = table.num_stages * table.num_microbatches, sum(map(len, table.actions))
    if pairs > 100 * (actions + 100):
        message = (
            f"{table.title} has {counted(actions, 'action')} for {counted(pairs, 'pair')} of stage and microbatch."
        )
        raise ScheduleError.of(ScheduleCode.MISSING, f"{message} verify(schedule) says what is missing.")


def _check_index(noun: str, given: Any, count: int) -> None:
    if not isinstance(given, Integral) or isinstance(given, bool) or int(given) not in range(count):
        raise ScheduleError.of(
            ScheduleCode.OUT_OF_RANGE, f"There is no {noun} {quoted(given, 40)}; there are {count}, counted from 0."
        )


def _as_actions(row: Iterable[Action | str]) -> tuple[Action, ...]:
    """Read cells such as ``"2F0"``, and kinds such as ``"F"``. A row of actions is returned unchanged."""
    cells: tuple[Any, ...] = tuple(row)
    if set(map(type, cells)) == {Action}:
        parts = ((itemgetter(part), kind) for part, kind in enumerate((int, ActionKind, int)))
        if all(set(map(type, map(part, cells))) == {kind} for part, kind in parts):
            return cells
    return tuple(map(_as_action, cells))


def _as_action(cell: Action | str) -> Action:
    if isinstance(cell, str):
        return Action.parse(cell)
    try:
        stage, kind, microbatch = cell
        number = Slice(*map(index, microbatch)) if isinstance(microbatch, tuple) else index(microbatch)
        return Action(index(stage), ActionKind(kind), number)
    except (TypeError, ValueError):
        from minipipe.schedules.cells import expected_cell  # on demand: as in Action.parse

        raise ScheduleError.of(ScheduleCode.SYNTAX, f"{quoted(cell)} is not an action. {expected_cell()}") from None


def _check_slices(name: str, num_microbatches: int, num_slices: int) -> None:
    """Refuse an invalid number of slices, or one that leaves a sequence of a schedule incomplete."""
    whole_number("num_slices", num_slices, error=ScheduleError.of, code=ScheduleCode.PARAMETERS)
    if num_microbatches % num_slices:
        message = (
            f"num_slices is {num_slices}, and {name!r} has {num_microbatches} microbatches, each of which is a slice;"
        )
        raise misuse(f"{message} expected a multiple of {num_slices}.")


def _with_indices(rows: Sequence[tuple[Action, ...]], num_slices: int) -> Sequence[tuple[Action, ...]]:
    """Return rows whose microbatches are numbers, or slices if a sequence has several.

    Slices of a table with more of them get their numbers first: ``dataclasses.replace(table, num_slices=1)``.

    Examples
    --------
    >>> print(*_with_indices([(Action(2, ActionKind.FORWARD, 3),)], num_slices=2)[0])
    2F1.1
    >>> print(*_with_indices([(Action(2, ActionKind.FORWARD, Slice(1, 1)),)], num_slices=1)[0])
    2F3
    """
    index = itemgetter(2)
    if num_slices == 1 and all(Slice not in set(map(type, map(index, row))) for row in rows):
        return rows
    given = {index(action) for row in rows for action in row}
    most = max((k.part + 1 for k in given if isinstance(k, Slice)), default=1)
    n = max(most, num_slices)
    numbers = {k: k.sequence * n + k.part if isinstance(k, Slice) else k for k in given}
    if num_slices > 1:
        index_of: dict[Any, Any] = {k: Slice(*divmod(number, num_slices)) for k, number in numbers.items()}
    else:
        index_of = numbers
    return [tuple(Action(stage, kind, index_of[k]) for stage, kind, k in row) for row in rows]


def _place_in_sum(num_slices: int) -> Callable[[int], int]:
    """Return, by number of a microbatch, its place in the order in which one process adds gradients.

    Sequences ascend, slices descend: the backward of the last slice of a sequence comes first, because the others get
    gradients of their keys and values from it.

    Examples
    --------
    >>> list(map(_place_in_sum(2), range(6)))
    [1, 0, 3, 2, 5, 4]
    """
    return int if num_slices == 1 else lambda k: k - 2 * (k % num_slices) + num_slices - 1


def _read(form: str, given: Any, ignore_sharding: bool) -> Cells:
    from minipipe.schedules.text import read  # on demand: most tables are built, not read

    with collector_paused():
        return read(form, given, ignore_sharding)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector inside this block.

    Actions and spans are tuples of numbers and strings, and can form no cycle; yet the collector counts them, and goes
    through all of them each time that their number has grown by a quarter. For a schedule of 1.5 million actions and
    messages that was more than half of the time to build, verify, lower and simulate it.

    The collector belongs to the process. A block that found it on turns it on again, so after overlapping blocks of
    several threads it is on.

    Examples
    --------
    >>> with collector_paused():
    ...     print(gc.isenabled())
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, repr=False)
class Schedule(ActionTable):
    """The computations of every rank, in order: F, B, I and W. It may be illegal; :func:`minipipe.verify` decides.

    :func:`minipipe.schedules.lower` adds the sends and receives, which makes a
    :class:`~minipipe.schedules.Program` of it.

    Attributes
    ----------
    name : str
        The name in drawings and reports.
    placement : tuple of int or tuple
        ``placement[stage]`` is the rank that holds the stage, or a tuple of ranks, its replicas. Each replica has
        microbatches of its own: a microbatch runs on the rank whose row has it. Replicas are ordered by their lowest
        microbatches.
    num_microbatches : int
    actions : tuple of tuple of Action
        ``actions[rank]`` are the actions of a rank. Cells such as ``"0F0"`` are read as actions.
    frozen : frozenset of int
        Stages without trained parameters, which have no W; those before the first other stage have no backward.
    overlaps : frozenset of Action
        Forwards that are overlapped with the next action of their row, a B or I of another microbatch: the two begin
        together, when the inputs of both are available, and end together. Cells such as ``"0F3"`` are read as actions.
    num_slices : int
        The slices of a sequence, at least 1. Each slice is a microbatch, and ``num_microbatches`` counts slices. The
        ``microbatch`` of an action is then the tuple (sequence, slice), which text writes ``0F1.2``; ``numbered`` has
        the rows with the number ``sequence * num_slices + slice`` in its place, which cells such as ``"0F5"`` may give.

    Raises
    ------
    ScheduleError
        Code ``not-a-schedule``, if a SEND or a RECV is among the actions; ``overlap``, if a member of ``overlaps`` is
        not a forward in the rows.

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
            message = next(a for row in self.actions for a in row if a.kind.is_communication)
            raise ScheduleError.of(
                ScheduleCode.NOT_A_SCHEDULE,
                f"{self.title} holds {message}: it is a Program, and a Schedule has computations alone. "
                "Program.from_file, from_text and from_csv read it; its .schedule has the computations.",
            )

    @property
    def schedule(self) -> Schedule:
        """Itself: computations alone."""
        return self

    @property
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values travel to the next stage by a SEND and a RECV: always False in a schedule."""
        return (False,) * self.num_stages


@dataclass(frozen=True, repr=False)
class Program(ActionTable):
    """The computations, sends and receives of every rank, in order: a lowered schedule.

    :func:`minipipe.schedules.lower` makes one that cannot deadlock; a text or CSV file with SEND and RECV is also one.
    It may be illegal; :func:`minipipe.verify` decides.

    Attributes
    ----------
    name, placement, num_microbatches
        As for :class:`~minipipe.Schedule`.
    actions : tuple of tuple of Action
        ``actions[rank]`` are the actions of a rank. A SEND is named after the stage that produces the value, a RECV
        after the stage that consumes it.

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
        """The computations alone."""
        rows = ((action for action in row if not action.kind.is_communication) for row in self.actions)
        return self.with_rows(Schedule, rows)

    @property
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values travel to the next stage by a SEND and a RECV: True if it is on another rank."""
        return self._cuts_between_ranks


def read_schedule(path: str | Path, ignore_sharding: bool = False) -> Schedule | Program:
    """Read a file of text or CSV: a Program if it holds SEND or RECV, otherwise a Schedule.

    Parameters and errors are as in :meth:`minipipe.Schedule.from_file`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.csv")
    ...     _ = path.write_text("0F0,0B0\\n")
    ...     read_schedule(path)
    <Schedule mine: 1 rank, 1 stage, 1 microbatch>
    """
    return _of_its_kind(_stem(path), _read("file", path, ignore_sharding))


def _stem(path: str | Path) -> str:
    from pathlib import Path  # on demand: most tables are built, not read

    return Path(path).stem


def schedule_of_text(text: str, name: str = "text", ignore_sharding: bool = False) -> Schedule | Program:
    """Read text or CSV: a Program if it holds SEND or RECV, otherwise a Schedule.

    Parameters and errors are as in :meth:`minipipe.Schedule.from_text`.

    Examples
    --------
    >>> schedule_of_text("0F0 0B0")
    <Schedule text: 1 rank, 1 stage, 1 microbatch>
    >>> schedule_of_text("0F0 0SEND_F0 0RECV_B0 0B0 \\n 1RECV_F0 1F0 1B0 1SEND_B0")
    <Program text: 2 ranks, 2 stages, 1 microbatch>
    """
    return _of_its_kind(name, _read("either", text, ignore_sharding))


def _of_its_kind(name: str, cells: Cells) -> Schedule | Program:
    is_program = any(action.kind.is_communication for row in cells.actions for action in row)
    return (Program if is_program else Schedule)(name, *cells)
