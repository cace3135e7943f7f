"""Reading of a table from a file or a text that may be a Schedule or a Program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.written import read_cells, stem_of

if TYPE_CHECKING:
    from pathlib import Path

    from minipipe.core.schedules.text import Cells


def read_schedule(
    path: str | Path, ignore_sharding: bool = False
) -> Schedule | Program:
    """Read a file of text or CSV: a Program if it holds SEND or RECV, otherwise a
    Schedule.

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
    return _of_its_kind(stem_of(path), read_cells("file", path, ignore_sharding))


def schedule_of_text(
    text: str, name: str = "text", ignore_sharding: bool = False
) -> Schedule | Program:
    """Read text or CSV: a Program if it holds SEND or RECV, otherwise a Schedule.

    Parameters and errors are as in :meth:`minipipe.Schedule.from_text`.

    Examples
    --------
    >>> schedule_of_text("0F0 0B0")
    <Schedule text: 1 rank, 1 stage, 1 microbatch>
    >>> schedule_of_text("0F0 0SEND_F0 0RECV_B0 0B0 \\n 1RECV_F0 1F0 1B0 1SEND_B0")
    <Program text: 2 ranks, 2 stages, 1 microbatch>
    """
    return _of_its_kind(name, read_cells("either", text, ignore_sharding))


def _of_its_kind(name: str, cells: Cells) -> Schedule | Program:
    kinds = {action.kind for row in cells.actions for action in row}
    is_program = any(kind.is_communication or kind.is_of_rank for kind in kinds)
    if is_program:
        return Program(name, *cells)
    return Schedule(name, *cells)
