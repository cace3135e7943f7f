"""A recorded run: the schedule that its ranks followed, and the timeline of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.errors import Code, ScheduleError
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.reading import schedule_of_text
from minipipe.schedules.simulation.span import Message, Span, in_groups
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.trace.clocks import Times, clock_offsets
from minipipe.trace.recording import Lane, read_lanes
from minipipe.trace.rows import Ran, overlapped, steps_of

Step = list[list[Ran]]  # by rank


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
    beside : tuple of dict of str to float
        By rank, the seconds of a step in labelled work that is no action of a schedule:
        ``UNSHARD``, ``RESHARD`` and ``REDUCE_GRAD`` of PyTorch.

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
    beside: tuple[dict[str, float], ...] = ()

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

    def times(self) -> dict[tuple[int, ActionKind], list[float]]:
        """Return, by stage and kind, the seconds of each action that ran alone, in all
        steps.
        """
        times: dict[tuple[int, ActionKind], list[float]] = {}
        rows = (row for timeline in self.timelines for row in timeline.spans)
        for group in (group for row in rows for group in in_groups(row)):
            if len(group) == 1:
                action, start, end = group[0]
                times.setdefault((action.stage, action.kind), []).append(end - start)
        return dict(sorted(times.items(), key=_order))

    def spreads(self) -> list[Spread]:
        """Return, by stage and kind, how the times of actions that ran alone vary."""
        rows = []
        for (stage, kind), times in self.times().items():
            spread = 0.0
            if len(times) > 1:
                spread = stdev(times)
            form = (stage, kind.value, len(times), mean(times), spread, max(times))
            rows.append(Spread(*form))
        return rows


def _order(item: tuple[tuple[int, ActionKind], list[float]]) -> tuple[int, int]:
    (stage, kind), _ = item
    return stage, list(ActionKind).index(kind)


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
    lanes_of_steps = [steps_of(lane, rank) for rank, lane in enumerate(lanes)]
    for lane, steps in zip(lanes, lanes_of_steps):
        if not steps:
            problem = f"Rank {lane.rank} has no complete training step in {lane.file}"
            raise ScheduleError.of(Code.MISSING, f"{problem}; record at least one.")
    schedule = _schedule([steps[0] for steps in lanes_of_steps], lanes, name)
    clocks = [(lane.base - lanes[0].base) / 1e9 for lane in lanes]
    shifted = [
        [[_moved(it, clock) for it in step] for step in steps]
        for steps, clock in zip(lanes_of_steps, clocks)
    ]
    common = _same_steps(shifted)
    times = [it for step in common for it in _times(step)]
    offsets = clock_offsets(len(lanes), times)
    aligned = [
        [[_moved(it, by) for it in row] for row, by in zip(step, offsets)]
        for step in common
    ]
    return RecordedRun(
        schedule,
        tuple(_timeline(step, schedule) for step in aligned),
        tuple(offsets),
        tuple(lane.rank for lane in lanes),
        tuple(_beside(lane, len(it)) for lane, it in zip(lanes, lanes_of_steps)),
    )


def _moved(it: Ran, by: float) -> Ran:
    times = ("awaited_from", "start", "end", "sent", "arrived")
    known = ((name, getattr(it, name)) for name in times)
    return it._replace(**{name: at + by for name, at in known if at is not None})


def _same_steps(by_rank: Sequence[Sequence[list[Ran]]]) -> list[Step]:
    """Return the steps that all ranks have: recordings may begin or end apart."""
    fewest = min(by_rank, key=len)
    middles = [_middle(step) for step in fewest]
    chosen = []
    for steps in by_rank:
        distances = {}
        for shift in range(len(steps) - len(fewest) + 1):
            pairs = zip(middles, steps[shift:])
            distances[shift] = sum(abs(at - _middle(step)) for at, step in pairs)
        shift = min(distances, key=distances.__getitem__)
        chosen.append(steps[shift : shift + len(fewest)])
    return [list(step) for step in zip(*chosen)]


def _middle(step: Sequence[Ran]) -> float:
    return (step[0].start + step[-1].end) / 2


# -- the schedule ----------------------------------------------------------------------


def _schedule(rows: Step, lanes: Sequence[Lane], name: str) -> Schedule:
    """Return the schedule of the rows; refuse rows of which some rank is missing."""
    _check_complete(rows, lanes)
    lines = (" ".join(overlapped(row)) for row in rows)
    schedule = schedule_of_text("\n".join(lines), name)
    assert not isinstance(schedule, Program)
    verify(schedule)
    return schedule


def _check_complete(rows: Step, lanes: Sequence[Lane]) -> None:
    homes: dict[Action, Lane] = {}
    for row, lane in zip(rows, lanes):
        for action in (it.action for it in row):
            other = homes.setdefault(action, lane)
            if other is not lane:
                problem = f"Ranks {other.rank} and {lane.rank} both ran {action}"
                files = f"{other.file} and {lane.file}"
                hint = "pass the ranks of one pipeline, each once"
                message = f"{problem}: {files}; {hint}."
                raise ScheduleError.of(Code.DUPLICATE, message)
    stages = {action.stage for action in homes}
    values = (Transfer.produced_by(it.action) for row in rows for it in row if it.sent)
    expected = {value.consumer_stage for value in values if value is not None}
    expected.update(range(max(stages)))
    absent = sorted(stage for stage in expected - stages if stage >= 0)
    if absent:
        missing = ", ".join(map(str, absent))
        have = ", ".join(str(lane.rank) for lane in lanes)
        of_job = ""
        if lanes[0].num_ranks is not None:
            of_job = f" of {lanes[0].num_ranks}"
        problem = f"No trace has stage {missing}"
        if len(absent) > 1:
            problem = f"No trace has the stages {missing}"
        hint = "Pass the traces of all ranks of the pipeline"
        message = f"{problem}; there are traces of rank {have}{of_job}. {hint}"
        raise ScheduleError.of(Code.MISSING, f"{message}.")


# -- timelines -------------------------------------------------------------------------


def _messages(step: Step) -> Iterator[Message]:
    """Yield the messages of a step whose send and receive were both recorded."""
    for source, made, rank, it in _passed(step):
        if made.sent is not None and it.arrived is not None:
            was_awaited = it.awaited_from <= made.sent
            ends = made.action, it.action, source, rank
            yield Message(*ends, made.sent, it.arrived, was_awaited)


def _passed(step: Step) -> Iterator[tuple[int, Ran, int, Ran]]:
    """Yield each value that passes from one rank to another: the rank and the action
    that made it, and those that took it.
    """
    makers = {}
    for rank, row in enumerate(step):
        for it in row:
            makers[Transfer.produced_by(it.action)] = (rank, it)
    for rank, row in enumerate(step):
        for it in row:
            value = Transfer.consumed_by(it.action)
            source, made = makers.get(value, (rank, it))
            if value is not None and source != rank:
                yield source, made, rank, it


def _times(step: Step) -> list[Times]:
    """Return the times of messages. Without any, an action ends after the one whose
    result it takes, which bounds the clocks less closely.
    """
    messages = [
        (it.source, it.destination, it.arrived - it.sent) for it in _messages(step)
    ]
    if messages:
        return messages
    return [
        (source, rank, it.end - made.end) for source, made, rank, it in _passed(step)
    ]


def _timeline(step: Step, schedule: Schedule) -> Timeline:
    origin = min(it.start for row in step for it in row)
    moved = [[_moved(it, -origin) for it in row] for row in step]
    spans = tuple(
        tuple(Span(it.action, it.start, it.end) for it in row) for row in moved
    )
    messages = sorted(_messages(moved), key=attrgetter("sent", "arrived"))
    return Timeline(
        schedule.name,
        spans,
        peak_activations(schedule),
        unit="s",
        measured_messages=tuple(messages),
        is_measured=True,
    )


def _beside(lane: Lane, num_steps: int) -> dict[str, float]:
    """Return the seconds of a step in labels beside the schedule."""
    times: Counter[str] = Counter()
    for it in lane.ranges:
        if it.label.other:
            times[it.label.other] += (it.end - it.start) / num_steps  # type: ignore[assignment]
    return dict(times)
