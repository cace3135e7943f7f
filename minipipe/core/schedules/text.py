"""Reading of schedules from text and CSV.

The CSV format is PyTorch's: one line per rank, with cells such as ``0F0``. Reading is
strict, and errors name the line and the cell.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from minipipe.core.errors import ArgumentError, Code, FileError, ScheduleError, quoted
from minipipe.core.limits import MOST_ACTIONS, MOST_BYTES, MOST_STAGES
from minipipe.core.schedules.action import Action, B, F, I, Slice, number_of
from minipipe.core.schedules.cells import is_cell, is_of_rank, may_omit_stage
from minipipe.core.texts import printable

# An overlapped forward and backward, as PyTorch writes them: (0F3;3B1)OVERLAP_F_B.
_OVERLAP = re.compile(r"\(([^;]*);([^;]*)\)OVERLAP_F_B", re.ASCII)
# Cells of PyTorch's fully sharded data parallelism; they are not pipeline actions. A
# REDUCE_GRAD with a microbatch is.
_SHARDING = re.compile(r"\d{1,9}((UNSHARD|RESHARD)\d{0,9}|REDUCE_GRAD)", re.ASCII)

# of a sequence, after its number: 2F0.1
_SLICE = re.compile(r"(?<=\d)\.(\d{1,9})(?![\w.])", re.ASCII)
_SLICED = re.compile(r"([^.]+)\.(\d{1,9})", re.ASCII)
_FROZEN = re.compile(r"\ufeff?# .*\(frozen: (\d{1,9}(?:, \d{1,9})*)\): ", re.ASCII)
_GROUP = r"\d{1,9}(?:-\d{1,9})+"
_TIED = re.compile(rf"\ufeff?# .*\(tied: ({_GROUP}(?:, {_GROUP})*)\)[ :]", re.ASCII)
_WITH_STAGE = re.compile(r"\(?\d+[A-Z]", re.ASCII)
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"\d", re.ASCII)
_unreadable = partial(ScheduleError.of, Code.SYNTAX)
_KNOWN = 2**16  # cells that are parsed once, however often they occur


class Cells(NamedTuple):
    """The content of a text: all fields of a table except its name."""

    placement: tuple[int | tuple[int, ...], ...]
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    frozen: frozenset[int] = frozenset()
    overlaps: frozenset[Action] = frozenset()
    num_slices: int = 1
    tied: tuple[tuple[int, ...], ...] = ()


# The number of a line and its cells, blank ones among them. Only the cells of one line
# are in memory at a time.
_Row = tuple[int, Iterable[str]]


def read(form: str, source: Any, ignore_sharding: bool = False) -> Cells:
    """Read a schedule from ``"text"``, from ``"csv"``, from ``"either"`` of these, or
    from the path of a ``"file"``.

    Comments of text are ignored, except the notes of the first line: ``# 1f1b (tied:
    0-3) (frozen: 1, 2): …``.

    Errors have code ``syntax``, or code ``unreadable`` for a file that cannot be read,
    is too large or is not text.
    """
    text = source
    if form == "file":
        text = _text_of_file(source)
    is_path = not isinstance(text, str) or text.strip().endswith((".csv", ".txt"))
    if form in ("text", "csv") and is_path:
        hint = "Schedule.from_file reads a file"
        message = f"Expected the text of a schedule, not {quoted(text)}; {hint}."
        raise _unreadable(message)
    _check_length(text)
    if form == "csv" or (form != "text" and _is_csv(text)):
        return _from_rows(partial(_rows_of_csv, text), ignore_sharding, frozenset())
    frozen = frozenset(map(int, _note(_FROZEN, text)))
    cells = _from_rows(partial(_rows_of_text, text), ignore_sharding, frozen)
    groups = (group.split("-") for group in _note(_TIED, text))
    return cells._replace(tied=tuple(tuple(map(int, group)) for group in groups))


def _note(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the items of a note in the first line; none without the note."""
    match = pattern.match(text)
    if match is None:
        return []
    return match[1].split(",")


def _is_csv(text: str) -> bool:
    return any("," in line.split("#", 1)[0] for line in text.splitlines())


def _text_of_file(path: str | Path) -> str:
    try:
        from minipipe.io import read_text  # on demand: most texts are in memory

        return read_text(path)
    except FileError as error:
        raise ScheduleError.of(Code.UNREADABLE, f"The schedule {error}") from None


def _rows_of_text(text: str) -> Iterator[_Row]:
    """Read the output of ``Schedule.to_text``. ``#`` starts a comment, and the label
    ``rank N:`` is optional.
    """
    rank = 0
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        label = re.match(r"rank\s+(\d{1,9})\s*:", content, re.ASCII | re.IGNORECASE)
        if not content:
            continue
        if "," in content:
            hint = "Read CSV with Schedule.from_csv"
            raise _unreadable(f"Line {number} has commas. {hint}.")
        if content[:4].lower() == "rank" and not label:
            begins = f"Line {number} begins with {quoted(content[:12])}"
            raise _unreadable(f"{begins}; expected 'rank {rank}:'.")
        if label and int(label[1]) != rank:
            labelled = f"Line {number} is labelled rank {label[1]}"
            hint = "ranks are counted from 0, and each has one line"
            raise _unreadable(f"{labelled}, but the next rank is {rank}; {hint}.")
        if label:
            content = content[label.end() :]
        yield number, (match[0] for match in _WORD.finditer(content))
        rank += 1


def _rows_of_csv(text: str) -> Iterator[_Row]:
    """Read PyTorch's CSV format. Empty cells are idle time."""
    try:
        from minipipe.io import parse_csv

        yield from parse_csv(text)
    except ArgumentError as error:
        raise _unreadable(f"The text cannot be parsed: {error.message}.") from None


def _check_length(text: str) -> None:
    """Refuse a text that is too long to parse. Commas separate the cells of CSV, which
    is read line by line.
    """
    sizes = {"characters": (len(text), MOST_BYTES)}
    sizes["cells"] = (text.count(","), MOST_ACTIONS)
    for noun, (size, most) in sizes.items():
        if size > most:
            message = f"The text has {size:,} {noun}; the limit is {most:,}."
            raise ScheduleError.of(Code.TOO_LARGE, message)


def _from_rows(
    read: Callable[[], Iterator[_Row]], ignore_sharding: bool, frozen: frozenset[int]
) -> Cells:
    actions, overlaps, num_slices = _rows_in(read, ignore_sharding)
    total = sum(map(len, actions))
    if not total:
        expected = "Expected one line per rank, with cells such as 0F0."
        raise ScheduleError.of(Code.SYNTAX, f"The text has no action. {expected}")
    largest = max(chain.from_iterable(actions), key=itemgetter(2))
    n = max(1, num_slices)
    k = largest.microbatch
    number = number_of(k, n)
    if number >= total:
        message = f"{largest} names microbatch {k}, but most lower ones are missing."
        raise ScheduleError.of(Code.MISSING, message)
    num_microbatches = (number // n + 1) * n  # whole sequences
    placement = _placement(actions, frozen)
    return Cells(placement, num_microbatches, tuple(actions), frozen, overlaps, n)


_Rows = tuple[list[tuple[Action, ...]], frozenset[Action], int]


def rows_of(text: str) -> _Rows:
    """Return the rows of text or CSV in which anything may be missing, its overlapped
    forwards and number of slices.

    Examples
    --------
    >>> [list(map(str, row)) for row in rows_of("rank 0: 0F0 0F1 \\n rank 1:")[0]]
    [['0F0', '0F1'], []]
    """
    _check_length(text)
    if _is_csv(text):
        return _rows_in(partial(_rows_of_csv, text))
    return _rows_in(partial(_rows_of_text, text))


def _rows_in(
    read: Callable[[], Iterator[_Row]], ignore_sharding: bool = False
) -> _Rows:
    # One cell with a stage is enough, so that a typo in one cell does not affect the
    # others.
    all_cells = (cell for _, cells in read() for cell in cells)
    names_stages = any(_WITH_STAGE.match(cell.strip()) for cell in all_cells)
    num_slices = _num_slices(read)
    overlaps: set[Action] = set()

    @lru_cache(_KNOWN)
    def parse(cell: str) -> tuple[Action, ...]:
        parsed = tuple(_actions_of(cell, ignore_sharding, num_slices))
        overlaps.update(parsed[:-1])
        return parsed

    actions: list[tuple[Action, ...]] = []
    total = 0
    for line, cells in read():
        rank = len(actions)
        whole = (_with_rank(cell, rank, num_slices) for cell in cells)
        stage = None if names_stages else rank
        row = _row(line, whole, stage, parse)
        actions.append(tuple(islice(row, MOST_ACTIONS + 1 - total)))
        total += len(actions[-1])
        if total > MOST_ACTIONS or len(actions) > MOST_STAGES:
            limits = f"{MOST_STAGES:,} ranks and {MOST_ACTIONS:,} actions"
            message = f"Line {line} is beyond the limit of {limits}."
            raise ScheduleError.of(Code.TOO_LARGE, message)
    return actions, frozenset(overlaps), num_slices


def _with_rank(cell: str, rank: int, num_slices: int) -> str:
    """Return the cell of an instruction of a rank with its rank and a microbatch; other
    cells unchanged.
    """
    kind = cell.strip()
    if not is_of_rank(kind):
        return cell
    microbatch = "0.0" if num_slices else "0"
    return f"{rank}{kind}{microbatch}"


def _num_slices(read: Callable[[], Iterator[_Row]]) -> int:
    """Return the number of slices of a sequence, from the largest index; 0 if the first
    cell names no slice.
    """
    all_cells = (cell for _, cells in read() for cell in cells)
    first = next(filter(_NUMBER.search, all_cells), "")
    if not _SLICE.search(first):
        return 0
    cells = (cell for _, cells in read() for cell in cells)
    return 1 + max(int(number) for cell in cells for number in _SLICE.findall(cell))


def _row(
    line: int,
    cells: Iterable[str],
    stage: int | None,
    parse: Callable[[str], tuple[Action, ...]],
) -> Iterator[Action]:
    """Yield the actions of a line. ``stage`` belongs to cells without one."""
    for column, cell in enumerate(map(str.strip, cells), 1):
        if stage is not None and may_omit_stage(cell):
            cell = f"{stage}{cell}"
        try:
            yield from parse(cell)
        except ScheduleError as error:
            reason = error.problems[0].message
            raise _unreadable(f"Line {line}, cell {column}: {reason}") from None


def _actions_of(cell: str, ignore_sharding: bool, num_slices: int) -> list[Action]:
    """Return the actions of a cell: mostly one, two for an overlap, none for idle time
    and PyTorch's sharding.
    """
    if not cell:
        return []
    if _SHARDING.fullmatch(cell) and not is_cell(cell):
        if ignore_sharding:
            return []
        how = "Leave it out, "
        if "_" in cell:
            how = "Name the last microbatch of the sum, as in 0REDUCE_GRAD3; leave it out; "
        hint = f"{how}or read with ignore_sharding=True (minipipe check --ignore-sharding)."
        problem = f"{cell} shards parameters and is not a pipeline action"
        raise _unreadable(f"{problem}. {hint}")
    overlap = _OVERLAP.fullmatch(cell)
    parts = overlap.groups() if overlap else [cell]
    actions = [_action_of(part.strip(), num_slices) for part in parts]
    kinds = [action.kind for action in actions]
    if overlap and kinds not in ([F, B], [F, I]):
        expected = "expected a forward, then a backward, such as (0F3;3B1)OVERLAP_F_B"
        raise _unreadable(f"{printable(cell)} is not a supported overlap; {expected}.")
    return actions


def _action_of(cell: str, num_slices: int) -> Action:
    """Read one action, of a slice or of a whole microbatch; either all cells name a
    slice, or none does.
    """
    hint = "expected the slice of a sequence in each cell, such as 0F1.0, or in none"
    match = _SLICED.fullmatch(cell)
    if match is None:
        action = Action.parse(cell)
        if num_slices:
            raise _unreadable(f"{cell} names no slice; {hint}.")
        return action
    action = Action.parse(match[1])
    if not num_slices:
        problem = f"{cell} names a slice, and the first cell names none"
        raise _unreadable(f"{problem}; {hint}.")
    if num_slices == 1:
        return action
    return action._replace(microbatch=Slice(action.microbatch, int(match[2])))


def _placement(
    actions: Sequence[Sequence[Action]], frozen: frozenset[int]
) -> tuple[int | tuple[int, ...], ...]:
    """Place each stage on the rank with most of its actions, so that the verifier
    reports the stray actions.

    A rank is a replica of a stage if it has the forward and the backward of a
    microbatch: a stray F makes no replica. The first stages, if they are frozen, have
    no backward.
    """
    # by stage and rank: the number of actions
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for rank, row in enumerate(actions):
        of_row = Counter(stage for stage, kind, _ in row if not kind.is_of_rank)
        for stage, count in of_row.items():
            counts[stage][rank] += count
    stages = sorted(counts)
    if len(stages) > MOST_STAGES:
        message = f"The text has {len(stages):,} stages; the limit is {MOST_STAGES:,}."
        raise ScheduleError.of(Code.TOO_LARGE, message)
    if stages != list(range(len(stages))):
        missing = next(index for index, stage in enumerate(stages) if index != stage)
        occurs = f"Stage {stages[-1]} occurs without stage {missing}"
        message = f"{occurs}; stages are counted from 0."
        raise ScheduleError.of(Code.MISSING, message)
    most = [counts[stage].most_common(1)[0][0] for stage in stages]
    if all(len(ranks) == 1 for ranks in counts.values()):
        return tuple(most)
    replicas: defaultdict[int, list[int]] = defaultdict(list)
    one_way = frozen
    for row in actions:
        one_way -= {stage for stage, kind, _ in row if kind in (B, I)}
    for rank, row in enumerate(actions):
        went = {(stage, k) for stage, kind, k in row if kind is F}
        back = [(stage, k) for stage, kind, k in row if kind in (B, I)]
        came_back = {stage for stage, k in back if (stage, k) in went}
        for stage in came_back | {stage for stage, _ in went if stage in one_way}:
            replicas[stage].append(rank)
    return tuple(tuple(replicas[stage]) or rank for stage, rank in zip(stages, most))
