"""A schedule is data: for each rank, the list of its actions, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from numbers import Integral
from operator import attrgetter, index, itemgetter
from pathlib import Path
from typing import Any

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import EXPECTED_CELL, Action, ActionKind
from minipipe.schedules.text import read_csv, read_either, read_text, write_csv, write_text

__all__ = ["Schedule", "check_range", "check_schedule"]

_KIND = attrgetter("kind")
_GRADIENT_KINDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


@dataclass(frozen=True, repr=False)
class Schedule:
    """What every rank does, in order. It may be legal or not; :func:`minipipe.verify` tells.

    Attributes
    ----------
    name : str
        The name under which it is drawn and reported.
    placement : tuple of int
        ``placement[stage]`` is the rank that holds the stage.
    num_microbatches : int
    actions : tuple of tuple of Action
        ``actions[rank]`` is the program of a rank. Cells such as ``"0F0"`` are read as actions.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.one_f_one_b(num_ranks=2, num_microbatches=3))
    # 1f1b: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """

    name: str
    placement: tuple[int, ...]
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    # Kept by order.py: a schedule never changes, so neither does the walk through it.
    _walks: dict[bool, tuple] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", tuple(self.placement))
        object.__setattr__(self, "actions", tuple(map(_as_actions, self.actions)))
        numbers = (self.num_microbatches, *self.placement)
        if not all(isinstance(number, Integral) for number in numbers):
            raise _refused("placement", f"{self.name!r} has {numbers!r:.60} microbatches and ranks; expected integers.")
        if not self.actions or not self.placement or self.num_microbatches < 1:
            raise _refused(
                "empty",
                f"A schedule needs at least one rank, one stage and one microbatch; {self.name!r} has "
                f"{self.num_ranks}, {self.num_stages} and {self.num_microbatches}.",
            )
        for stage, rank in enumerate(self.placement):
            if not 0 <= rank < self.num_ranks:
                raise _refused("placement", f"Stage {stage} is placed on rank {rank} of {self.num_ranks}.")

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """The number of stages, all ranks together."""
        return len(self.placement)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank holds, ascending."""
        return tuple(stage for stage, owner in enumerate(self.placement) if owner == rank)

    def crosses_ranks(self, stage: int) -> bool:
        """Tell whether a message is needed between ``stage`` and ``stage + 1``."""
        return stage + 1 < self.num_stages and self.placement[stage] != self.placement[stage + 1]

    @cached_property
    def kinds(self) -> frozenset[ActionKind]:
        """The kinds of action that occur."""
        return frozenset(map(_KIND, chain.from_iterable(self.actions)))

    @property
    def has_communication(self) -> bool:
        """Whether SEND and RECV actions stand in it already."""
        return any(kind.is_communication for kind in self.kinds)

    @property
    def is_forward_only(self) -> bool:
        """Whether no stage has any backward action."""
        return not any(kind.is_backward for kind in self.kinds)

    @cached_property
    def is_reproducible(self) -> bool:
        """Whether every stage adds its gradients in ascending order of microbatches, as one process does.

        Floating-point sums depend on their order; where the orders agree, the bits agree.
        """
        for row in self.actions:
            latest: dict[int, int] = {}
            for action in row:
                if action.kind in _GRADIENT_KINDS:
                    if action.microbatch < latest.get(action.stage, -1):
                        return False
                    latest[action.stage] = action.microbatch
        return True

    def __getstate__(self) -> dict[str, Any]:
        own = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**own, "_walks": {}}

    def without_communication(self) -> Schedule:
        """Return the same schedule with its SEND and RECV actions left out."""
        if not self.has_communication:
            return self
        rows = tuple(tuple(a for a in row if not a.kind.is_communication) for row in self.actions)
        return Schedule(self.name, self.placement, self.num_microbatches, rows)

    # -- text ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Schedule {self.to_text().splitlines()[0][2:]}>"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def to_text(self) -> str:
        """Return one line per rank, cells separated by blanks: what a person reads and writes."""
        return write_text(self.name, self.num_stages, self.num_microbatches, self.actions)

    @classmethod
    def from_text(cls, text: str, name: str = "text", ignore_sharding: bool = False) -> Schedule:
        """Read what :meth:`to_text` writes; ``#`` starts a comment, ``rank N:`` at a line's start may be left out.

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
        _check_text(text)
        return cls(name, *read_text(text, ignore_sharding))

    def to_csv(self) -> str:
        """Return PyTorch's format: one line per rank, cells such as ``0F0``."""
        return write_csv(self.actions)

    @classmethod
    def from_csv(cls, text: str, name: str = "csv", ignore_sharding: bool = False) -> Schedule:
        """Read PyTorch's format. Empty cells are idle time; a stage belongs to the rank in whose line it stands.

        ``(0F3;3B1)OVERLAP_F_B``, two actions that PyTorch runs at once, is read as the one, then the other.

        Parameters
        ----------
        text : str
            One line per rank, cells separated by commas.
        name : str
            The schedule's name; a CSV file carries none.
        ignore_sharding : bool
            Whether to leave out UNSHARD, RESHARD and REDUCE_GRAD, which are no actions of a pipeline.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with line and cell, for anything that is not an action.

        Examples
        --------
        >>> Schedule.from_csv("0F0,0B0,,\\n").actions[0][1]
        Action(stage=0, kind=<ActionKind.BACKWARD: 'B'>, microbatch=0)
        """
        _check_text(text)
        return cls(name, *read_csv(text, ignore_sharding))

    @classmethod
    def from_file(cls, path: str | Path, ignore_sharding: bool = False) -> Schedule:
        """Read a file of text or CSV, whichever it holds; its name without the ending becomes the schedule's.

        Parameters
        ----------
        path : str or Path
        ignore_sharding : bool
            As for :meth:`from_csv`.

        Raises
        ------
        ScheduleError
            Code ``file``, when there is no such file or it is no text; ``syntax``, with line and cell.
        """
        try:
            content = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise _refused("file", f"The schedule {str(path)!r} cannot be read: {reason}.") from None
        return cls(Path(path).stem, *read_either(content, ignore_sharding))


def check_schedule(given: object) -> None:
    """Refuse what is no schedule, and say how to get one.

    Raises
    ------
    ScheduleError
        Code ``not-a-schedule``.
    """
    if not isinstance(given, Schedule):
        how = "schedules.build(name, num_ranks) makes one of a name, Schedule.from_file(path) reads one"
        raise _refused("not-a-schedule", f"Expected a Schedule, not {given!r:.60}; {how}.")


def check_range(schedule: Schedule) -> None:
    """Refuse stages and microbatches that are not there, quickly; the verifier says where they stand.

    Raises
    ------
    ScheduleError
        Codes ``out-of-range``, and ``missing`` where nearly everything is, so that no memory is spent on it.
    """
    for part, count, name in ((0, schedule.num_stages, "stage"), (2, schedule.num_microbatches, "microbatch")):
        for rank, row in enumerate(schedule.actions):
            if row and not (min(map(itemgetter(part), row)) >= 0 and max(map(itemgetter(part), row)) < count):
                message = f"Rank {rank} names a {name} that is not among the {count}; verify(schedule) says where."
                raise ScheduleError([Problem("out-of-range", message, rank)])
    places, actions = schedule.num_stages * schedule.num_microbatches, sum(map(len, schedule.actions))
    if places > 100 * (actions + 100):
        message = f"{schedule.name} has {actions} actions for {places} pairs of stage and microbatch."
        raise ScheduleError([Problem("missing", f"{message} verify(schedule) says what is missing.")])


def _as_actions(row: Iterable[Action | str]) -> tuple[Action, ...]:
    """Read cells such as ``"2F0"``, and kinds such as ``"F"``; what needs no reading is left as it is, quickly."""
    cells: tuple[Any, ...] = tuple(row)
    if set(map(type, cells)) == {Action}:
        parts = zip(zip(*cells), (int, ActionKind, int))
        if all(set(map(type, part)) == {expected} for part, expected in parts):
            return cells
    return tuple(map(_as_action, cells))


def _as_action(cell: Action | str) -> Action:
    if isinstance(cell, str):
        return Action.parse(cell)
    try:
        stage, kind, microbatch = cell
        return Action(index(stage), ActionKind(kind), index(microbatch))
    except (TypeError, ValueError):
        raise _refused("syntax", f"{cell!r} is not an action. {EXPECTED_CELL}") from None


def _check_text(text: object) -> None:
    is_path = isinstance(text, Path) or (isinstance(text, str) and text.strip().endswith((".csv", ".txt")))
    if is_path or not isinstance(text, str):
        raise _refused("syntax", f"Expected the text of a schedule, not {text!r:.60}; Schedule.from_file reads a file.")


def _refused(code: str, message: str) -> ScheduleError:
    return ScheduleError([Problem(code, message)])
