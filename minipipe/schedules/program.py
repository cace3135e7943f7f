"""A program: a schedule once lowered, with the sends and receives of every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.text import read_either, read_file


@dataclass(frozen=True, repr=False)
class Program(ActionTable):
    """The computations, sends and receives of every rank, in order: a lowered schedule.

    :func:`minipipe.schedules.lower` makes one that cannot deadlock; a text or CSV file with SEND and RECV is one, too.
    It may be legal or not; :func:`minipipe.verify` tells.

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
        """By stage, whether values travel to the next one by a SEND and a RECV: wherever that is on another rank."""
        return self._cuts_between_ranks


def read_schedule(path: str | Path, ignore_sharding: bool = False) -> Schedule | Program:
    """Read a file of text or CSV: a Program where it holds SEND or RECV, otherwise a Schedule.

    Parameters and errors are those of :meth:`minipipe.Schedule.from_file`.

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
    return schedule_of_text(read_file(path), Path(path).stem, ignore_sharding)


def schedule_of_text(text: str, name: str = "text", ignore_sharding: bool = False) -> Schedule | Program:
    """Read text or CSV: a Program where it holds SEND or RECV, otherwise a Schedule.

    Parameters and errors are those of :meth:`minipipe.Schedule.from_text`.

    Examples
    --------
    >>> schedule_of_text("0F0 0B0")
    <Schedule text: 1 rank, 1 stage, 1 microbatch>
    >>> schedule_of_text("0F0 0SEND_F0 0RECV_B0 0B0 \\n 1RECV_F0 1F0 1B0 1SEND_B0")
    <Program text: 2 ranks, 2 stages, 1 microbatch>
    """
    cells = read_either(text, ignore_sharding)
    is_program = any(action.kind.is_communication for row in cells.actions for action in row)
    return (Program if is_program else Schedule).of_cells(name, cells)
