"""Reading and writing of schedules as text and as CSV.

The CSV format is PyTorch's: one line per rank, with cells such as ``0F0``. Reading is strict, and errors name the line
and the cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action

# PyTorch overlaps a forward and a backward and writes them as (0F3;3B1)OVERLAP_F_B. We run one after the other.
_OVERLAP = re.compile(r"\(([^;]*);([^;]*)\)OVERLAP_F_B", re.ASCII)
# Cells of PyTorch's fully sharded data parallelism; they are not pipeline actions.
_SHARDING = re.compile(r"\d{1,9}(UNSHARD|RESHARD|REDUCE_GRAD)(\d{0,9})", re.ASCII)

# Papers omit the stage if each rank has only one.
_WITHOUT_STAGE = re.compile(r"[FBIW]\d{1,9}", re.ASCII)
_FROZEN = re.compile(r"\ufeff?# .*\(frozen: (\d{1,9}(?:, \d{1,9})*)\): ", re.ASCII)
_WITH_STAGE = re.compile(r"\(?\d+[A-Z]", re.ASCII)


class Cells(NamedTuple):
    """The content of a text: the rank of each stage, the number of microbatches, and each rank's actions."""

    placement: tuple[int, ...]
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    frozen: frozenset[int] = frozenset()


class _Cell(NamedTuple):
    line: int
    column: int
    text: str


def describe_sizes(num_ranks: int, num_stages: int, num_microbatches: int) -> str:
    """Return the sizes in words.

    Examples
    --------
    >>> describe_sizes(2, 2, 1)
    '2 ranks, 2 stages, 1 microbatch'
    """
    counts = ((num_ranks, "rank"), (num_stages, "stage"), (num_microbatches, "microbatch"))
    return ", ".join(_number(*count) for count in counts)


def write_text(description: str, actions: Sequence[Sequence[Action]]) -> str:
    """Return a comment with the description, then one line per rank with cells separated by spaces."""
    lines = [f"rank {rank}: {' '.join(map(str, row))}".rstrip() for rank, row in enumerate(actions)]
    return "\n".join([f"# {description}", *lines, ""])


def read_text(text: str, ignore_sharding: bool = False) -> Cells:
    """Read the output of :func:`write_text`. ``#`` starts a comment, and the label ``rank N:`` is optional.

    Of comments, only the frozen stages of the first line are read: ``# 1f1b (frozen: 0, 1): …``.
    """
    rows: list[list[_Cell]] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        label = re.match(r"rank\s+(\d{1,9})\s*:", content, re.ASCII | re.IGNORECASE)
        if not content:
            continue
        if "," in content:
            raise ScheduleError.of(
                ScheduleCode.SYNTAX, f"Line {number} has commas; if this is CSV, read it with Schedule.from_csv."
            )
        if content.lower().startswith("rank") and not label:
            raise ScheduleError.of(
                ScheduleCode.SYNTAX, f"Line {number} begins with {content[:12]!r}; expected 'rank {len(rows)}:'."
            )
        if label and int(label[1]) != len(rows):
            where = f"Line {number} is labelled rank {label[1]}, but the next rank is {len(rows)}"
            raise ScheduleError.of(ScheduleCode.SYNTAX, f"{where}; ranks are counted from 0, and each has one line.")
        cells = content[label.end() if label else 0 :].split()
        rows.append([_Cell(number, column, cell) for column, cell in enumerate(cells, 1)])
    frozen = _FROZEN.match(text)
    stages = frozenset(map(int, frozen[1].split(","))) if frozen else frozenset()
    return _from_cells(rows, ignore_sharding)._replace(frozen=stages)


def write_csv(actions: Sequence[Sequence[Action]]) -> str:
    """Return one line per rank with cells separated by commas."""
    # A lone comma is an idle rank; an empty line would be skipped when read.
    return "".join((",".join(map(str, row)) or ",") + "\n" for row in actions)


def read_csv(text: str, ignore_sharding: bool = False) -> Cells:
    """Read PyTorch's CSV format. Empty cells are idle time."""
    try:
        lines = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=None)))
    except csv.Error as error:
        raise ScheduleError.of(ScheduleCode.SYNTAX, f"The text is not CSV: {error}.") from None
    rows = [
        [_Cell(number, column, cell.strip()) for column, cell in enumerate(line, 1) if cell.strip()]
        for number, line in enumerate(lines, 1)
        if line
    ]
    return _from_cells(rows, ignore_sharding)


def read_either(text: str, ignore_sharding: bool = False) -> Cells:
    """Read CSV if there is a comma outside comments, otherwise text."""
    is_csv = any("," in line.split("#", 1)[0] for line in text.splitlines())
    return (read_csv if is_csv else read_text)(text, ignore_sharding)


def read_file(path: str | Path) -> str:
    """Return the content of a file.

    Raises
    ------
    ScheduleError
        Code ``file``, if the file does not exist or is not text.
    """
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ScheduleError.of(ScheduleCode.FILE, f"The schedule {str(path)!r} cannot be read: {reason}.") from None


def _from_cells(rows: Sequence[Sequence[_Cell]], ignore_sharding: bool) -> Cells:
    if not any(_WITH_STAGE.match(cell.text) for row in rows for cell in row):  # of a typo, the other cells are read
        rows = [[_with_stage(rank, cell) for cell in row] for rank, row in enumerate(rows)]
    actions = [[action for cell in row for action in _actions_of(cell, ignore_sharding)] for row in rows]
    everything = [action for program in actions for action in program]
    if not everything:
        raise ScheduleError.of(
            ScheduleCode.EMPTY, "There is no action in the text. Expected one line per rank, with cells such as 0F0."
        )
    num_microbatches = 1 + max(action.microbatch for action in everything)
    if num_microbatches > len(everything):
        largest = max(everything, key=lambda action: action.microbatch)
        raise ScheduleError.of(
            ScheduleCode.MISSING, f"{largest} names microbatch {largest.microbatch}, but most lower ones are missing."
        )
    return Cells(_placement(actions), num_microbatches, tuple(map(tuple, actions)))


def _with_stage(stage: int, cell: _Cell) -> _Cell:
    return cell._replace(text=f"{stage}{cell.text}") if _WITHOUT_STAGE.fullmatch(cell.text) else cell


def _actions_of(cell: _Cell, ignore_sharding: bool) -> Iterator[Action]:
    """Yield the actions of a cell: one, two for an overlap, none for PyTorch's sharding of parameters."""
    where = f"Line {cell.line}, cell {cell.column}: "
    if _SHARDING.fullmatch(cell.text):
        if not ignore_sharding:
            hint = "Leave it out, or read with ignore_sharding=True (minipipe check --ignore-sharding)."
            raise ScheduleError.of(
                ScheduleCode.SYNTAX, f"{where}{cell.text} shards parameters and is not a pipeline action. {hint}"
            )
        return
    overlap = _OVERLAP.fullmatch(cell.text)
    try:
        actions = [Action.parse(part.strip()) for part in overlap.groups()] if overlap else [Action.parse(cell.text)]
    except ScheduleError as error:
        raise ScheduleError.of(ScheduleCode.SYNTAX, where + error.problems[0].message) from None
    if overlap and [action.kind.value for action in actions] not in (["F", "B"], ["F", "I"]):
        expected = "expected a forward, then a backward, such as (0F3;3B1)OVERLAP_F_B"
        raise ScheduleError.of(ScheduleCode.SYNTAX, f"{where}{cell.text} is not a supported overlap; {expected}.")
    yield from actions


def _placement(actions: Sequence[Sequence[Action]]) -> tuple[int, ...]:
    """Place each stage on the rank with most of its actions, so that the verifier blames the stray ones."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by stage and rank: the number of actions
    for rank, row in enumerate(actions):
        for stage, count in Counter(action.stage for action in row).items():
            counts[stage][rank] += count
    stages = sorted(counts)
    if stages != list(range(len(stages))):
        missing = next(index for index, stage in enumerate(stages) if index != stage)
        raise ScheduleError.of(
            ScheduleCode.MISSING, f"Stage {stages[-1]} occurs without stage {missing}; stages are counted from 0."
        )
    return tuple(counts[stage].most_common(1)[0][0] for stage in stages)


def _number(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count} {noun if count == 1 else plural}"
