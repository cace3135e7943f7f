"""A recorded run: the schedule that its ranks followed, and the timeline of each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.errors import Code, ScheduleError
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.reading import schedule_of_text
from minipipe.schedules.simulation.span import Message, Span, in_groups
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.trace.clocks import clock_offsets
from minipipe.trace.recording import Lane, read_lanes
from minipipe.trace.rows import Ran, steps_of

Step = Sequence[Sequence[Ran]]  # by rank


class Spread(NamedTuple):
    """The times of one kind of action on one stage, in seconds.

    Attributes
    ----------
    stage : int
    kind : str
    number : int
        Of actions, in all steps.
    mean, spread, largest : float
        The spread is the standard deviation.
    """

    stage: int
    kind: str
    number: int
    mean: float
    spread: float
    largest: float


@dataclass(frozen=True)
class RecordedRun:
    """Training steps of a pipeline, as profilers recorded them on each rank.

    Attributes
    ----------
    schedule : Schedule
        The computations of each rank in their order. Its ranks count from 0.
    timelines : tuple of Timeline
        By step, measured: in seconds from its first action, by the clock of rank 0.
    offsets : tuple of float
        By rank, the seconds that were added to its clock; see
        :func:`~minipipe.trace.clocks.clock_offsets`.
    ranks : tuple of int
        By rank of the schedule, the rank in the job.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> schedule = schedules.gpipe(2, 4)
    >>> run = RecordedRun(schedule, (simulate(schedule),))
    >>> run.spreads()[0]
    Spread(stage=0, kind='F', number=4, mean=1.0, spread=0.0, largest=1.0)
    """

    schedule: Schedule
    timelines: tuple[Timeline, ...]
    offsets: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()

    @cached_property
    def usual(self) -> int:
        """The index of the step with the median makespan."""
        steps = sorted(range(len(self.timelines)), key=self._makespan)
        return steps[(len(steps) - 1) // 2]

    def _makespan(self, step: int) -> float:
        return self.timelines[step].makespan

    @property
    def has_messages(self) -> bool:
        """Whether the trace has sends and receives. Without them an action includes the
        wait for its input.
        """
        return bool(self.timelines[0].measured_messages) or self.schedule.num_ranks == 1

    def spreads(self) -> list[Spread]:
        """Return, by stage and kind, how the times of actions that ran alone vary."""
        times: dict[tuple[int, int], list[float]] = {}
        kinds = list(ActionKind)
        rows = (row for timeline in self.timelines for row in timeline.spans)
        for group in (group for row in rows for group in in_groups(row)):
            if len(group) == 1:
                action, start, end = group[0]
                key = action.stage, kinds.index(action.kind)
                times.setdefault(key, []).append(end - start)
        spreads = []
        for (stage, kind), each in sorted(times.items()):
            spread = stdev(each) if len(each) > 1 else 0.0
            form = (stage, kinds[kind].value, len(each), mean(each), spread, max(each))
            spreads.append(Spread(*form))
        return spreads


def read_run(
    *files: str | Path, label: str | None = None, name: str = "recorded"
) -> RecordedRun:
    r"""Read a recorded run from the traces of its ranks.

    Local; no messages. Memory holds the labelled ranges, not the files.

    Parameters
    ----------
    *files : str or Path
        Chrome traces of PyTorch's profiler or of other programs, plain or gzip: one for
        each rank of one pipeline, or one for all.
    label : str, optional
        The pattern of names other than PyTorch's; see
        :func:`minipipe.trace.labels.label_reader`.
    name : str
        The name of the schedule.

    Raises
    ------
    FileError
        As for :func:`minipipe.trace.json_stream.events_of`.
    ArgumentError
        Code ``value``, for a pattern that cannot be used.
    ScheduleError
        As for :func:`minipipe.trace.recording.read_lanes`; code ``missing``, if a rank
        or a complete step is missing; ``order``, if steps differ; the codes of
        :func:`minipipe.verify`, if the recorded actions are no legal schedule.

    Examples
    --------
    A timeline that minipipe has written as a trace. It names actions in another way,
    and has no messages.

    >>> import tempfile
    >>> from minipipe import render, schedules, simulate
    >>> timeline = simulate(schedules.zb_v(2, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = render.save(f"{folder}/zb-v.json", timeline)
    ...     pattern = r"^(?P<stage>\d)(?P<kind>[FIW])(?P<microbatch>\d)$"
    ...     run = read_run(path, label=pattern)
    >>> run.schedule.actions == schedules.zb_v(2, 4).actions
    True
    """
    lanes = read_lanes(files, label)
    steps_by_rank = [steps_of(lane, rank) for rank, lane in enumerate(lanes)]
    schedule = _schedule([steps[0] for steps in steps_by_rank], lanes, name)
    for lane, rows in zip(lanes, steps_by_rank):
        for row in rows:
            _move(row, (lane.base - lanes[0].base) / 1e9)
    common = _same_steps(steps_by_rank)
    offsets = _offsets(common)
    for step in common:
        for moved, offset in zip(step, offsets):
            _move(moved, offset)
    timelines = tuple(_timeline(step, schedule) for step in common)
    ranks = tuple(lane.rank for lane in lanes)
    return RecordedRun(schedule, timelines, tuple(offsets), ranks)


def _move(row: Sequence[Ran], by: float) -> None:
    for it in row:
        it.move(by)


def _same_steps(by_rank: Sequence[Sequence[Sequence[Ran]]]) -> list[Step]:
    """Return the steps that all ranks have: recordings may begin or end apart."""
    fewest = min(by_rank, key=len)
    chosen = []
    for steps in by_rank:
        shifts = range(len(steps) - len(fewest) + 1)
        distances = [abs(_middle(steps[i]) - _middle(fewest[0])) for i in shifts]
        shift = distances.index(min(distances))
        chosen.append(steps[shift : shift + len(fewest)])
    return list(zip(*chosen))


def _middle(row: Sequence[Ran]) -> float:
    return (row[0].start + row[-1].end) / 2


# -- the schedule ----------------------------------------------------------------------


def _schedule(step: Step, lanes: Sequence[Lane], name: str) -> Schedule:
    """Return the schedule of a step; refuse one of which some rank is missing."""
    _check_complete(step, lanes)
    rows = []
    for row in step:
        cells: list[str] = []
        for it in row:
            cell = str(it.action)
            if it.is_second:
                cell = f"({cells.pop()};{cell})OVERLAP_F_B"
            cells.append(cell)
        rows.append(" ".join(cells))
    schedule = schedule_of_text("\n".join(rows), name)
    assert not isinstance(schedule, Program)
    verify(schedule)
    return schedule


def _check_complete(step: Step, lanes: Sequence[Lane]) -> None:
    """Refuse rows without a stage that others need: a rank is missing."""
    ran = [it for row in step for it in row]
    stages = {it.action.stage for it in ran}
    sent = (Transfer.produced_by(it.action) for it in ran if it.sent)
    needed = {value.consumer_stage for value in sent if value} - {-1}
    missing = sorted({*range(max(stages)), *needed} - stages)
    if missing:
        have = ", ".join(str(lane.rank) for lane in lanes)
        if lanes[0].num_ranks is not None:
            have += f" of {lanes[0].num_ranks}"
        problem = f"No trace has stage {', '.join(map(str, missing))}"
        hint = f"There are traces of rank {have}; pass all ranks of the pipeline"
        raise ScheduleError.of(Code.MISSING, f"{problem}. {hint}.")


# -- messages and timelines ------------------------------------------------------------


def _passed(step: Step) -> Iterator[tuple[int, Ran, int, Ran]]:
    """Yield each value that passes from one rank to another: the rank and the action
    that made it, and those that took it.
    """
    ran = [(rank, it) for rank, row in enumerate(step) for it in row]
    makers = {Transfer.produced_by(it.action): (rank, it) for rank, it in ran}
    for rank, it in ran:
        value = Transfer.consumed_by(it.action)
        source, made = makers.get(value, (rank, it))
        if value is not None and source != rank:
            yield source, made, rank, it


def _messages(step: Step) -> Iterator[Message]:
    """Yield the messages of a step whose send and receive were both recorded."""
    for source, made, rank, it in _passed(step):
        if made.sent is not None and it.arrived is not None:
            was_awaited = it.awaited_from <= made.sent
            ends = (made.action, it.action, source, rank)
            yield Message(*ends, made.sent, it.arrived, was_awaited)


def _offsets(steps: Sequence[Step]) -> list[float]:
    """Return by rank the seconds to add to its clock. A message arrives after it was
    sent; if it was not recorded, an action ends after the one whose result it takes,
    which bounds the clocks less closely.
    """
    times = []
    for source, made, rank, it in chain.from_iterable(map(_passed, steps)):
        time = it.end - made.end
        if made.sent is not None and it.arrived is not None:
            time = it.arrived - made.sent
        times.append((source, rank, time))
    return clock_offsets(len(steps[0]), times)


def _timeline(step: Step, schedule: Schedule) -> Timeline:
    """Return the timeline of a step, from its first action on."""
    origin = min(it.start for row in step for it in row)
    for row in step:
        _move(row, -origin)
    return Timeline(
        schedule.name,
        tuple(tuple(Span(it.action, it.start, it.end) for it in row) for row in step),
        peak_activations(schedule),
        unit="s",
        measured_messages=tuple(
            sorted(_messages(step), key=attrgetter("sent", "arrived"))
        ),
        is_measured=True,
    )
