"""The labelled ranges of each rank in the files of a trace, in order of time.

A range is one event (``X``) or a begin and an end (``B``, ``E``). Ranges of the same
actions that overlap are one: a program may label an action twice.

In a trace of a GPU, a range stands several times: when Python launched its kernels, and
on each stream when they ran. Kineto gives all of these the same external id. Those of
the streams count, as one range; sends and receives have streams of their own::

    Python          |0F0|0SEND_F0|
    compute stream      |====0F0====|
    stream of sends                 |-- 0SEND_F0 --|
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from minipipe.errors import Code, ScheduleError, quoted
from minipipe.trace.json_stream import Event, events_of
from minipipe.trace.labels import SUCH, Label, LabelReader, label_reader

_ON_GPU = "gpu_user_annotation"
_NAMED = ("user_annotation", _ON_GPU)
_RANK = re.compile(r"(?<![a-z])rank[ _:=-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_MOST_NAMES = 1000  # other labels that are remembered for a message
_SHOWN = 12

Thread = tuple[str, str]  # process and thread


@dataclass(slots=True)
class Range:
    """A labelled range of time on one rank.

    Attributes
    ----------
    label : Label
    start, end : float
        In seconds, by the clock of the rank.
    thread : tuple of str
    number : int or None
        The external id of a range on a GPU, 0 if it is unknown; None for other ranges.
    sent : float or None
        When the first send inside began.
    arrived : float or None
        When the last receive inside ended.
    """

    label: Label
    start: float
    end: float
    thread: Thread = ("", "")
    number: int | None = None
    sent: float | None = None
    arrived: float | None = None

    @property
    def computes(self) -> bool:
        """Whether it is an action, and no message."""
        return any(not action.kind.is_communication for action in self.label.actions)

    def has_number_of(self, other: Range) -> bool:
        """Whether both were launched by one range of Python."""
        return bool(self.number) and self.number == other.number

    def take(self, transfer: Range) -> None:
        """Note the time of a send or receive that began inside."""
        if transfer.label.transfer == "recv":
            self.arrived = max(self.arrived or transfer.end, transfer.end)
        elif self.sent is None:
            self.sent = transfer.start


class Lane(NamedTuple):
    """The ranges of one rank.

    Attributes
    ----------
    rank : int
        The rank in the trace, which may be one of a larger job.
    file : str
    ranges : list of Range
        In order of their starts.
    base : int
        The time of the clock's zero, in nanoseconds. Apart from the times, because
        their sum as a float is not exact.
    num_ranks : int or None
        The ranks of the job, if the trace says so.
    """

    rank: int
    file: str
    ranges: list[Range]
    base: int = 0
    num_ranks: int | None = None


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
    by_rank: dict[int, Lane] = {}
    for file in files:
        for lane in _File(file, reader).lanes(len(by_rank)):
            if lane.rank in by_rank:
                twice = f"{by_rank[lane.rank].file} and {lane.file}"
                problem = f"Rank {lane.rank} has two traces, {twice}"
                message = f"{problem}; pass one of each rank."
                raise ScheduleError.of(Code.DUPLICATE, message)
            by_rank[lane.rank] = lane
    if not by_rank:
        message = "There are no traces; pass the traces of all ranks of the pipeline."
        raise ScheduleError.of(Code.MISSING, message)
    return [by_rank[rank] for rank in sorted(by_rank)]


class _File:
    """The content of one file that matters here."""

    def __init__(self, path: str | Path, reader: LabelReader) -> None:
        self._path = str(path)
        self._reader = reader
        self._ranges: list[Range] = []
        self._names: defaultdict[Any, list[str]] = defaultdict(list)
        self._others: Counter[str] = Counter()
        self._begun: defaultdict[Thread, list[Event]] = defaultdict(list)
        self._header: dict[str, Any] = {}
        for event in events_of(path, self._header):
            self._take(event)

    def _take(self, event: Event) -> None:
        name = event.get("name")
        phase = event.get("ph")
        thread = (str(event.get("pid")), str(event.get("tid")))
        if phase == "M" and isinstance(event.get("args"), dict):
            key = thread if name == "thread_name" else thread[0]
            self._names[key].append(str(event["args"].get("name", "")))
        elif phase == "X":
            self._add(event, thread, _time(event, "dur", 0))
        elif phase == "B":
            self._begun[thread].append(event)
        elif phase == "E":
            for index, begun in enumerate(reversed(self._begun[thread]), 1):
                if name in (None, "", begun.get("name")):
                    del self._begun[thread][-index]
                    self._add(begun, thread, _time(event, "ts") - _time(begun, "ts"))
                    break

    def _add(self, event: Event, thread: Thread, length: float) -> None:
        name = event.get("name")
        category = event.get("cat")
        if not isinstance(name, str):
            return
        label = self._reader(name)
        if label is None:
            if category in _NAMED and len(self._others) < _MOST_NAMES:
                self._others[re.sub(r"\d+", "0", name)] += 1
            return
        start = _time(event, "ts")
        found = Range(label, start / 1e6, (start + length) / 1e6, thread)
        if category == _ON_GPU:
            found.thread = (thread[0], "")  # the streams of a device are one rank
            found.number = _whole(event.get("args"), "External id") or 0
        if found.start <= found.end:  # not if one of them is not a number
            self._ranges.append(found)

    def lanes(self, first: int) -> list[Lane]:
        """Return the ranges of the file; ranks without a number count from ``first``."""
        if any(it.number is not None and it.computes for it in self._ranges):
            self._ranges = [it for it in self._ranges if it.number is not None]
        threads = sorted({it.thread for it in self._ranges if it.computes}, key=_sorted)
        if not threads:
            raise self._no_labels()
        base = _whole(self._header, "baseTimeNanoseconds") or 0
        job = self._header.get("distributedInfo")
        rank = _whole(job, "rank")
        file = ""
        if rank is not None or len(threads) == 1:
            del threads[1:]
            for it in self._ranges:
                it.thread = threads[0]
            file = Path(self._path).name
        lanes = []
        for index, thread in enumerate(threads, first):
            number = self._number(thread, index, file) if rank is None else rank
            ranges = _in_order(it for it in self._ranges if it.thread == thread)
            size = _whole(job, "world_size")
            lanes.append(Lane(number, self._path, ranges, base, size))
        return lanes

    def _number(self, thread: Thread, index: int, file: str = "") -> int:
        """Return the rank that a thread, its process or the file names, or the index."""
        for name in (*self._names[thread], *self._names[thread[0]], *thread, file):
            if match := _RANK.search(name):
                return int(match[1])
        return index

    def _no_labels(self) -> ScheduleError:
        names = [quoted(name, 60) for name, _ in self._others.most_common(_SHOWN)]
        there = "no labelled ranges at all; record them with record_function"
        if names:
            there = f"the labels (digits as 0) {', '.join(names)}"
        hint = f"--label {SUCH} reads others, with a group stage if a rank has several"
        expected = f"Expected PyTorch's labels, such as PP:2F0; {hint} stages"
        message = f"{quoted(self._path, 200)} has {there}. {expected}."
        return ScheduleError.of(Code.MISSING, message)


def _in_order(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges in order of time, with the times of the transfers inside.
    Ranges of the same actions are merged if they overlap or have the same number.
    """
    result: list[Range] = []
    latest: dict[Any, Range] = {}
    for it in sorted(ranges, key=lambda it: (it.start, it.label.transfer)):
        before = latest.get(it.label.actions)
        if it.label.transfer:
            if result and it.start < result[-1].end:
                result[-1].take(it)
        elif before and (it.start < before.end or before.has_number_of(it)):
            before.end = max(before.end, it.end)
        else:
            result.append(it)
            if it.label.actions:
                latest[it.label.actions] = it
    return result


def _time(event: Event, name: str, otherwise: float = nan) -> float:
    """Return a time of an event in microseconds; not a number, if it is none that can
    be used.
    """
    with suppress(TypeError, ValueError, OverflowError):
        if isfinite(time := float(event.get(name, otherwise))):
            return time
    return nan


def _whole(members: Any, name: str) -> int | None:
    """Return a whole number among the members of an object; None if there is none."""
    value = members.get(name) if isinstance(members, dict) else None
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return None


def _sorted(thread: Thread) -> list[tuple[int, str]]:
    """Return a key that sorts numbers by size."""
    return [(len(it), it) for it in thread]
