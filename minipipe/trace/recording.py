"""The labelled ranges of each rank in the files of a trace, in order of time.

A range is one event (``X``) or a begin and an end (``B``, ``E``).

In a trace of a GPU, a range stands twice: when Python launched its kernels, and when
they ran. The second one counts, on the stream with most actions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf, isfinite, nan
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from minipipe.core.schedules.action import Action
from minipipe.errors import Code, ScheduleError, quoted
from minipipe.trace.json_stream import Event, events_of
from minipipe.trace.labels import Label, LabelReader, label_reader

_ON_GPU = "gpu_user_annotation"
_NAMED = {"user_annotation", _ON_GPU}
_RANK = re.compile(r"(?<![a-z])rank[ _:=-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_MOST_SHAPES = 1000  # different labels that are remembered for a message
_SHOWN = 12


class Range(NamedTuple):
    """A labelled range of time on one rank.

    Attributes
    ----------
    label : Label
    start, end : float
        In seconds, by the clock of the rank.
    sent : float or None
        When the first send inside began.
    arrived : float or None
        When the last receive inside ended.
    """

    label: Label
    start: float
    end: float
    sent: float | None = None
    arrived: float | None = None


class Lane(NamedTuple):
    """The ranges of one rank.

    Attributes
    ----------
    rank : int
        The rank in the trace, which may be one of a larger job.
    file : str
    ranges : tuple of Range
        In order of their starts.
    base : int
        The time of the clock's zero, in nanoseconds.
    num_ranks : int or None
        The ranks of the job, if the trace says so.
    """

    rank: int
    file: str
    ranges: tuple[Range, ...]
    base: int = 0
    num_ranks: int | None = None


class _Found(NamedTuple):
    """A range as it stands in the file, in microseconds."""

    label: Label
    start: float
    end: float
    thread: tuple[Any, Any]
    on_gpu: bool


def read_lanes(files: Iterable[str | Path], label: str | None = None) -> list[Lane]:
    """Read the ranges of all ranks from traces: one file for each rank, or one for all.

    The rank is ``distributedInfo`` of the file, as PyTorch writes it. Without it, each
    thread with actions is a rank, which its name, the name of its process or, for one
    thread, the name of the file may state (``rank10.json``); otherwise threads count in
    the order of the files, processes and threads.

    Parameters
    ----------
    files : iterable of str or Path
    label : str, optional
        The pattern of other names; see :func:`minipipe.trace.labels.label_reader`.

    Returns
    -------
    list of Lane
        In order of their ranks.

    Raises
    ------
    FileError
        As for :func:`minipipe.trace.json_stream.events_of`.
    ScheduleError
        Code ``missing``, for a file without labels of actions; the message lists other
        labels. Code ``duplicate``, for two traces of one rank.
    """
    reader = label_reader(label)
    lanes: list[Lane] = []
    for file in files:
        lanes += _File(file, reader).lanes(len(lanes))
    by_rank: dict[int, Lane] = {}
    for lane in lanes:
        if lane.rank in by_rank:
            twice = f"{by_rank[lane.rank].file} and {lane.file}"
            problem = f"Rank {lane.rank} has two traces, {twice}"
            raise ScheduleError.of(Code.DUPLICATE, f"{problem}; pass one of each rank.")
        by_rank[lane.rank] = lane
    if not lanes:
        message = "There are no traces; pass the traces of all ranks of the pipeline."
        raise ScheduleError.of(Code.MISSING, message)
    return [by_rank[rank] for rank in sorted(by_rank)]


class _File:
    """The content of one file that matters here."""

    def __init__(self, path: str | Path, reader: LabelReader) -> None:
        self._path = path
        self._found: list[_Found] = []
        self._names: defaultdict[Any, list[str]] = defaultdict(list)
        self._others: Counter[str] = Counter()
        self._begun: defaultdict[Any, list[tuple[Event, float]]] = defaultdict(list)
        self._header: dict[str, Any] = {}
        for event in events_of(path, self._header):
            self._take(event, reader)

    def _take(self, event: Event, reader: LabelReader) -> None:
        name = event.get("name")
        phase = event.get("ph")
        thread = (_key(event.get("pid")), _key(event.get("tid")))
        at = _finite(event.get("ts"))
        if phase == "M" and isinstance(event.get("args"), dict):
            key = thread if name == "thread_name" else thread[0]
            self._names[key].append(str(event["args"].get("name", "")))
        elif phase == "X":
            self._add(event, thread, at, _finite(event.get("dur", 0)), reader)
        elif phase == "B":
            self._begun[thread].append((event, at))
        elif phase == "E":
            for index, (begun, start) in enumerate(reversed(self._begun[thread]), 1):
                if name in (None, "", begun.get("name")):
                    del self._begun[thread][-index]
                    self._add(begun, thread, start, at - start, reader)
                    break

    def _add(
        self,
        event: Event,
        thread: Any,
        start: float,
        length: float,
        reader: LabelReader,
    ) -> None:
        name = event.get("name")
        if not isinstance(name, str):
            return
        category = event.get("cat")
        label = reader(name)
        if label is None:
            if category in _NAMED and len(self._others) < _MOST_SHAPES:
                self._others[re.sub(r"\d+", "0", name)] += 1
            return
        ends = (start, start + length)
        if ends[0] <= ends[1]:  # not if one of them is not a number
            self._found.append(_Found(label, *ends, thread, category == _ON_GPU))

    def lanes(self, first: int) -> list[Lane]:
        """Return the ranks of the file; those without a number count from ``first``."""
        if any(found.on_gpu and _computes(found.label) for found in self._found):
            self._found = [found for found in self._found if found.on_gpu]
        threads = Counter(it.thread for it in self._found if _computes(it.label))
        if not threads:
            raise self._no_labels()
        job = self._header.get("distributedInfo")
        if not isinstance(job, dict) or not isinstance(job.get("rank"), int):
            job = {}
        if job or len(threads) == 1:
            (main, _), *_ = threads.most_common(1)
            kept = [
                it for it in self._found if it.thread == main or not _computes(it.label)
            ]
            rank = job.get("rank", self._number(main, first, Path(self._path).name))
            return [self._lane(rank, kept, job.get("world_size"))]
        lanes = []
        for index, main in enumerate(sorted(threads, key=_sortable), first):
            kept = [it for it in self._found if it.thread == main]
            lanes.append(self._lane(self._number(main, index), kept))
        return lanes

    def _lane(self, rank: int, found: Sequence[_Found], num_ranks: Any = None) -> Lane:
        # apart from the times, because their sum as a float is not exact
        base = self._header.get("baseTimeNanoseconds", 0)
        if not isinstance(base, int) or abs(base) >= 2**63:
            base = 0
        ranges = [
            Range(it.label, it.start / 1e6, it.end / 1e6)
            for it in _outermost(sorted(found, key=attrgetter("start")))
        ]
        if not isinstance(num_ranks, int):
            num_ranks = None
        return Lane(rank, str(self._path), _with_transfers(ranges), base, num_ranks)

    def _number(self, thread: tuple[Any, Any], index: int, file: str = "") -> int:
        """Return the rank that a thread, its process or the file names, or the index."""
        names = (*self._names[thread], *self._names[thread[0]], *map(str, thread), file)
        for name in names:
            if match := _RANK.search(name):
                return int(match[1])
        return index

    def _no_labels(self) -> ScheduleError:
        file = quoted(str(self._path), 200)
        names = [quoted(name, 60) for name, _ in self._others.most_common(_SHOWN)]
        there = "no labelled ranges at all; record them with record_function"
        if names:
            there = f"the labels (digits as 0) {', '.join(names)}"
        how = r"--label '(?P<kind>Forward|Backward) (?P<microbatch>\d+)' reads others"
        hint = "with a group stage if a rank has several stages"
        expected = f"Expected PyTorch's labels, such as PP:2F0; {how}, {hint}"
        message = f"{file} has {there}. {expected}."
        return ScheduleError.of(Code.MISSING, message)


def _computes(label: Label) -> bool:
    return any(not action.kind.is_communication for action in label.actions)


def _outermost(found: Iterable[_Found]) -> Iterator[_Found]:
    """Yield the ranges without those inside of a range of the same actions."""
    ends: dict[tuple[Action, ...], float] = {}
    for it in found:
        actions = it.label.actions
        if not actions or it.start >= ends.get(actions, -inf):
            ends[actions] = it.end
            yield it


def _finite(value: Any) -> float:
    """Return a time in microseconds; not a number, if it is none that can be used."""
    with suppress(TypeError, ValueError, OverflowError):
        if isfinite(number := float(value)):
            return number
    return nan


def _key(value: Any) -> Any:
    """Return the identifier of a process or thread, as a number or text."""
    if isinstance(value, int | float | str):
        return value
    return str(value)


def _sortable(thread: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return a key by which numbers and names can be compared."""
    return tuple((isinstance(it, str), it) for it in thread)


def _with_transfers(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Move the times of sends and receives into the ranges in which they began."""
    labelled = [it for it in ranges if not it.label.transfer]
    starts = [it.start for it in labelled]
    for transfer in ranges:
        index = bisect_right(starts, transfer.start) - 1
        if not transfer.label.transfer or index < 0:
            continue
        inside = labelled[index]
        if transfer.start >= inside.end:
            continue
        if transfer.label.transfer == "send":
            if inside.sent is None:
                labelled[index] = inside._replace(sent=transfer.start)
        else:
            arrived = max(inside.arrived or transfer.end, transfer.end)
            labelled[index] = inside._replace(arrived=arrived)
    return tuple(labelled)
