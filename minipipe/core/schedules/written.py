"""The text of a table: rows for people, and PyTorch's CSV.

Text is read on demand (`text.py`): most tables are built, not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from minipipe.core.errors import Code, ScheduleError, counted
from minipipe.core.schedules.action import Action, L, O, R
from minipipe.core.schedules.collector import collector_paused

if TYPE_CHECKING:
    from pathlib import Path

    from minipipe.core.schedules.text import Cells


class ShownInNotebooks:
    """A schedule or a timeline, which a notebook shows as a picture."""

    def _repr_html_(self: Any) -> str:
        # loads the drawings on demand
        from minipipe.render.notebook import picture_or_text

        return picture_or_text(self)


class Written(ShownInNotebooks):
    """Writes a table as text and CSV, and reads one."""

    name: str
    placement: tuple[int | tuple[int, ...], ...]
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    frozen: frozenset[int]
    overlaps: frozenset[Action]
    num_slices: int
    tied: tuple[tuple[int, ...], ...]

    if TYPE_CHECKING:

        def __init__(self, name: str, *fields: Any) -> None: ...

    @property
    def title(self) -> str:
        """The name in one line, and which stages are frozen or share parameters."""
        stages = ", ".join(map(str, sorted(self.frozen)))
        frozen = f" (frozen: {stages})" if stages else ""
        tied = ", ".join("-".join(map(str, stages)) for stages in self.tied)
        notes = f" (tied: {tied})" * bool(tied) + frozen
        from minipipe.core.texts import printable

        return printable(" ".join(self.name.split())) + notes

    def describe(self, separator: str = ": ") -> str:
        """Return name and sizes: ``1f1b: 4 ranks, 4 stages, 8 microbatches``."""
        counts = len(self.actions), len(self.placement), self.num_microbatches
        sizes = describe_sizes(*counts, self.num_slices)
        return f"{self.title}{separator}{sizes}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def to_text(self) -> str:
        """Return one line per rank, cells separated by blanks: the form for people."""
        rows = []
        for rank, row in enumerate(self.actions):
            rows.append(f"rank {rank}: {' '.join(self._cells(row))}".rstrip())
        return "\n".join([f"# {self.describe()}", *rows, ""])

    def to_csv(self) -> str:
        """Return PyTorch's format: one line per rank, cells such as ``0F0``. The
        ``0U3`` of an update is not PyTorch's.

        Raises
        ------
        ScheduleError
            Code ``unsupported``, for a table with slices: the format has none, and
            PyTorch reads ``0F1.0`` as ``0F1``. Code ``unsupported``, for a table with
            R, O or L, which the format cannot express.
        """
        if self.num_slices > 1:
            has = f"{self.title} has slices, and PyTorch's CSV has none"
            message = f"{has}; write it as text, with to_text() or --format rows"
            message += ", or let every slice be a microbatch, with"
            message += " dataclasses.replace(schedule, num_slices=1)."
            raise ScheduleError.of(Code.UNSUPPORTED, message)
        if unsaid := {a.kind for row in self.actions for a in row} & {R, O, L}:
            has = f"{self.title} has {' and '.join(sorted(unsaid))}"
            message = f"{has}, and PyTorch's CSV has no such action; write it"
            message += " as text, with to_text() or --format rows."
            raise ScheduleError.of(Code.UNSUPPORTED, message)
        # A lone comma is an idle rank; an empty line would be skipped when read.
        lines = (",".join(self._cells(row)) or "," for row in self.actions)
        return "".join(f"{line}\n" for line in lines)

    def _cells(self, row: Iterable[Action]) -> Iterator[str]:
        """Yield the cells of a row. A forward of ``overlaps`` shares one with the next
        action, as PyTorch writes it.
        """
        actions = iter(row)
        for action in actions:
            is_joined = self.overlaps and action in self.overlaps
            if is_joined:
                yield f"({action};{next(actions, '')})OVERLAP_F_B"
            else:
                yield str(action)

    @classmethod
    def from_text(
        cls, text: str, name: str = "text", ignore_sharding: bool = False
    ) -> Self:
        """Read the output of :meth:`to_text`; ``#`` starts a comment, ``rank N:`` at a
        line's start may be left out.

        If each rank holds one stage, cells may omit the stage, ``F0 F1 B0``, as papers
        write them.

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
        return cls(name, *read_cells("text", text, ignore_sharding))

    @classmethod
    def from_csv(
        cls, text: str, name: str = "csv", ignore_sharding: bool = False
    ) -> Self:
        """Read PyTorch's format. Empty cells are idle time; the line of a stage is its
        rank.

        ``(0F3;3B1)OVERLAP_F_B`` is an overlapped forward and backward; ``overlaps`` has
        the forward.

        Parameters
        ----------
        text : str
            One line per rank, cells separated by commas.
        name : str
            The schedule's name; a CSV file carries none.
        ignore_sharding : bool
            Whether to leave out UNSHARD, RESHARD and REDUCE_GRAD, which are not
            pipeline actions.

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
        return cls(name, *read_cells("csv", text, ignore_sharding))

    @classmethod
    def from_file(cls, path: str | Path, ignore_sharding: bool = False) -> Self:
        """Read a file of text or CSV; its name without the ending becomes the name of
        the schedule.

        Parameters
        ----------
        path : str or Path
        ignore_sharding : bool
            As for :meth:`from_csv`.

        Raises
        ------
        ScheduleError
            Code ``unreadable``, if the file does not exist or is not text; ``syntax``,
            with line and cell.
        """
        return cls(stem_of(path), *read_cells("file", path, ignore_sharding))


def describe_sizes(
    num_ranks: int, num_stages: int, num_microbatches: int, num_slices: int = 1
) -> str:
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


def read_cells(form: str, source: Any, ignore_sharding: bool) -> Cells:
    """Read a text or a file: parameters and errors are as in ``text.read``."""
    # on demand: most tables are built, not read
    from minipipe.core.schedules.text import read

    with collector_paused():
        return read(form, source, ignore_sharding)


def stem_of(path: str | Path) -> str:
    """Return the name of a file without its ending."""
    from pathlib import Path  # on demand: most tables are built, not read

    return Path(path).stem
