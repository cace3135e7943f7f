"""A schedule is data: for each rank, the list of its actions, in order."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind

__all__ = ["Schedule"]

_GRADIENT_KINDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


@dataclass(frozen=True)
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", tuple(self.placement))
        object.__setattr__(self, "actions", tuple(tuple(map(_as_action, row)) for row in self.actions))
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
    def has_communication(self) -> bool:
        """Whether SEND and RECV actions stand in it already."""
        return any(action.kind.is_communication for row in self.actions for action in row)

    @cached_property
    def is_forward_only(self) -> bool:
        """Whether no stage has any backward action."""
        kinds = {action.kind for row in self.actions for action in row}
        return kinds.isdisjoint({ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT})

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

    def without_communication(self) -> Schedule:
        """Return the same schedule with its SEND and RECV actions left out."""
        if not self.has_communication:
            return self
        rows = tuple(tuple(a for a in row if not a.kind.is_communication) for row in self.actions)
        return Schedule(self.name, self.placement, self.num_microbatches, rows)

    # -- text ---------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def to_text(self) -> str:
        """Return one line per rank, cells separated by blanks: what a person reads and writes."""
        counts = ((self.num_ranks, "rank"), (self.num_stages, "stage"), (self.num_microbatches, "microbatch"))
        head = f"# {self.name}: {', '.join(_number(*count) for count in counts)}"
        lines = [f"rank {rank}: {' '.join(map(str, row))}".rstrip() for rank, row in enumerate(self.actions)]
        return "\n".join([head, *lines, ""])

    @classmethod
    def from_text(cls, text: str, name: str = "text") -> Schedule:
        """Read what :meth:`to_text` writes; ``#`` starts a comment, ``rank N:`` at a line's start may be left out.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with line and cell, for anything that is not an action.
        """
        rows: list[list[tuple[int, int, str]]] = []
        for number, line in enumerate(text.splitlines(), 1):
            content = line.split("#", 1)[0].strip()
            label = re.match(r"rank\s+(\d+)\s*:", content, re.ASCII)
            if not content:
                continue
            if label and int(label[1]) != len(rows):
                raise _refused("syntax", f"Line {number} says rank {label[1]}, but it is the line of rank {len(rows)}.")
            cells = content[label.end() if label else 0 :].split()
            rows.append([(number, column, cell) for column, cell in enumerate(cells, 1)])
        return _from_cells(name, rows)

    def to_csv(self) -> str:
        """Return PyTorch's format: one line per rank, cells such as ``0F0``."""
        # An empty line would be read as no rank; a lone comma is a rank that stays idle.
        return "".join((",".join(map(str, row)) or ",") + "\n" for row in self.actions)

    @classmethod
    def from_csv(cls, text: str, name: str = "csv") -> Schedule:
        """Read PyTorch's format. Empty cells are idle time; a stage belongs to the rank in whose line it stands.

        Parameters
        ----------
        text : str
            One line per rank, cells separated by commas.
        name : str
            The schedule's name; a CSV file carries none.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with line and cell, for anything that is not an action.

        Examples
        --------
        >>> Schedule.from_csv("0F0,0B0,,\\n").actions[0][1]
        Action(stage=0, kind=<ActionKind.BACKWARD: 'B'>, microbatch=0)
        """
        try:
            lines = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=None)))
        except csv.Error as error:
            raise _refused("syntax", f"The text is not CSV: {error}.") from None
        rows = [
            [(number, column, cell.strip()) for column, cell in enumerate(line, 1) if cell.strip()]
            for number, line in enumerate(lines, 1)
            if line
        ]
        return _from_cells(name, rows)


def _from_cells(name: str, rows: Sequence[Iterable[tuple[int, int, str]]]) -> Schedule:
    """Build a schedule from the cells of each rank, given as (line, column, text)."""
    actions: list[list[Action]] = []
    for row in rows:
        actions.append([])
        for line, column, cell in row:
            try:
                actions[-1].append(Action.parse(cell))
            except ScheduleError as error:
                raise _refused("syntax", f"Line {line}, cell {column}: {error.problems[0].message}") from None
    everything = [action for program in actions for action in program]
    if not everything:
        raise _refused("empty", "There is no action in the text. Expected one line per rank, with cells such as 0F0.")
    num_microbatches = 1 + max(action.microbatch for action in everything)
    if num_microbatches > len(everything):
        largest = max(everything, key=lambda action: action.microbatch)
        raise _refused("missing", f"{largest} names microbatch {largest.microbatch}, but most before it do not occur.")
    return Schedule(name, _placement(actions), num_microbatches, tuple(map(tuple, actions)))


def _placement(actions: Sequence[Sequence[Action]]) -> tuple[int, ...]:
    """Place each stage on the rank that has most of its actions, so that a stray one is seen as the stray."""
    counts = [Counter(action.stage for action in row) for row in actions]
    stages = sorted({stage for count in counts for stage in count})
    if stages != list(range(len(stages))):
        missing = next(index for index, stage in enumerate(stages) if index != stage)
        raise _refused("missing", f"Stage {stages[-1]} occurs, but stage {missing} does not.")
    return tuple(max(range(len(actions)), key=lambda rank: counts[rank][stage]) for stage in stages)


def _as_action(cell: Action | str) -> Action:
    """Allow ``"2F0"`` for an action, and ``"F"`` for its kind."""
    if isinstance(cell, str):
        return Action.parse(cell)
    return cell if isinstance(cell.kind, ActionKind) else cell._replace(kind=ActionKind(cell.kind))


def _number(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count} {noun if count == 1 else plural}"


def _refused(code: str, message: str) -> ScheduleError:
    return ScheduleError([Problem(code, message)])
