"""Timelines as traces for ui.perfetto.dev and chrome://tracing, which zoom, search,
query and follow messages.

The format is Chrome's Trace Event Format, a list of events in JSON:

====  ==============================================================================
"ph"  here
====  ==============================================================================
M     a name: of a process (a timeline), or of a thread (a rank, its idle time, or
      its concurrent transfers)
X     a slice: an action, an overlapped pair or an idle time, with its start ``ts``
      and its length ``dur`` in us
s, f  a message: its arrow starts in the slice of the producer and ends in the slice
      of the consumer
C     a counter: the activations, or the versions of weights, that a rank holds from
      ``ts`` on
====  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

from minipipe.core.schedules.action import number_of
from minipipe.core.schedules.action_table import ActionTable
from minipipe.errors import ArgumentError
from minipipe.io import note_lines, printable
from minipipe.render.descriptions import describe_idle, describe_message, short_label
from minipipe.render.descriptions import title as title_of
from minipipe.render.panel import Panel, panels_of
from minipipe.schedules import Action, ActionKind, Message, Span, Timeline

Event = dict[str, Any]

# Eighths of a microsecond are exact as floats, also when multiplied by 1000. Viewers
# count in nanoseconds and drop a slice that overlaps the one before. Adjacent slices
# must therefore touch exactly, however a viewer rounds.
_STEPS = 8
# Microseconds per unit of time; an abstract unit is drawn as one millisecond.
_MICROSECONDS = {"s": 1e6}
_LONGEST = 2**53  # steps: beyond this, floats are not exact
# The fixed colours of chrome://tracing closest to palette.py. Perfetto chooses a colour
# by the name of a slice.
_COLOURS: dict[str, str] = {
    ActionKind.FORWARD: "thread_state_runnable",  # blue
    ActionKind.BACKWARD: "thread_state_uninterruptible",  # pink
    ActionKind.BACKWARD_INPUT: "thread_state_iowait",  # orange
    ActionKind.BACKWARD_WEIGHT: "thread_state_running",  # green
    ActionKind.UPDATE: "black",
    ActionKind.REDUCE_GRAD: "olive",
    ActionKind.RECOMPUTE: "yellow",
    "idle": "thread_state_sleeping",  # nearly white
}
_BESIDE = {
    ActionKind.REDUCE_GRAD: "sums",
    ActionKind.OFFLOAD: "offloads",
    ActionKind.LOAD: "loads",
}
_OTHER_COLOUR = "generic_work"  # grey, of SEND and RECV


def perfetto_trace(
    *drawn: ActionTable | Timeline, title: str | None = None, notes: Sequence[str] = ()
) -> str:
    """Write schedules (F, I and W one unit each) or timelines as a trace for
    ui.perfetto.dev or chrome://tracing.

    Each timeline is a process. Each rank has a thread of actions and, below it, a
    thread of idle times with their causes. Arrows are messages, and counters show the
    activations held. All timelines start at 0 for comparison.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        All in the same unit of time.
    title : str, optional
    notes : sequence of str
        Lines about the drawing, such as the machine and the date. The title and the
        notes go to ``otherData``, which viewers display.

    Returns
    -------
    str
        JSON. Times are in microseconds, rounded to an eighth; an abstract unit of time
        is one millisecond. A message has no arrow if its producer or its consumer is
        too short after rounding.

    Raises
    ------
    ArgumentError
        Code ``type``: if an argument is neither a schedule nor a timeline. Code
        ``value``: if there is nothing to draw, if the units differ, or if a timeline is
        longer than the limit of 35 years.

    References
    ----------
    The Chromium authors, "Trace Event Format", 2016.

    Examples
    --------
    >>> import json
    >>> from minipipe import schedules
    >>> trace = json.loads(perfetto_trace(schedules.gpipe(2, 2)))
    >>> next(
    ...     f"{e['name']} at {e['ts']:g} us"
    ...     for e in trace["traceEvents"]
    ...     if e.get("cat") == "B"
    ... )
    'B0 at 5000 us'
    """
    # Processes, threads and messages have distinct numbers, because viewers differ in
    # which of them they match by number.
    numbers = count(1)
    processes = [_Process(panel, numbers) for panel in panels_of(drawn)]
    every = chain.from_iterable(process.events() for process in processes)
    events = [json.dumps(event, allow_nan=False) for event in every]
    about: Event = {"writer": "minipipe"}
    if title:
        about["title"] = printable(title)
    if lines := note_lines(notes):
        about["notes"] = lines
    about["timelines"] = [process.summary() for process in processes]
    other_data = json.dumps(about)
    trace_events = ",\n".join(events)
    return (
        f'{{"displayTimeUnit": "ms",\n"otherData": {other_data},\n"traceEvents": '
        f"[\n{trace_events}\n]}}\n"
    )


class _Process:
    """The events of one timeline."""

    def __init__(self, panel: Panel, numbers: Iterator[int]) -> None:
        self.panel = panel
        self.timeline = timeline = panel.timeline
        self.critical = {span.action for _, span in timeline.critical_path}
        self.numbers = numbers
        self.scale = _STEPS * _MICROSECONDS.get(timeline.unit, 1e3)
        if not timeline.makespan * self.scale < _LONGEST:
            length = f"{timeline.name} takes {timeline.makespan:.3g} {timeline.unit}"
            raise ArgumentError(
                f"{length}, but a trace may last at most "
                f"{_LONGEST / self.scale:.3g}; choose another unit.",
            )
        self.process = next(numbers)
        # The threads of actions and of idle time, by rank.
        self.threads = [(next(numbers), next(numbers)) for _ in timeline.spans]
        # The threads of concurrent transfers, by rank, kind and stage.
        self.beside: dict[tuple[int, ActionKind, int], int] = {}
        for rank in range(timeline.num_ranks):
            for (stage, kind, _), *_ in panel.beside(rank):
                if (rank, kind, stage) not in self.beside:
                    self.beside[rank, kind, stage] = next(numbers)

    def summary(self) -> Event:
        figures = self.timeline.summary()
        return {
            **{name: figures[name] for name in ("name", "origin", "makespan", "unit")},
            "one_unit_in_microseconds": self.scale / _STEPS,
            "bubble_fraction": figures["bubble_fraction"],
            "note": self.timeline.note,
        }

    def events(self) -> Iterator[Event]:
        yield from self.names()
        for rank in range(self.timeline.num_ranks):
            yield from self.actions(rank)
            yield from self.idle(rank)
            yield from self.held(rank)
            versions = self.timeline.versions_over_time(rank)
            yield from self.counter(rank, "versions", "of weights", versions)
        for rank in range(self.timeline.num_ranks):
            yield from self.transfers(rank)
        yield from self.messages()

    # -- the kinds of events -----------------------------------------------------------

    def names(self) -> Iterator[Event]:
        timeline = self.timeline
        process = self.process
        yield self.named("process_name", process, name=title_of(timeline))
        figures = [f"{name} {value}" for name, value in timeline.figures()]
        labels = ",".join(figures[:2])  # makespan and bubble
        yield self.named("process_labels", process, labels=labels)
        yield self.named("process_sort_index", process, sort_index=process)
        threads = []
        for rank, (thread, idle) in enumerate(self.threads):
            threads += [(rank, "", thread), (rank, ", idle", idle)]
        for (rank, kind, stage), thread in self.beside.items():
            transfers = _BESIDE.get(kind, kind)
            threads.append((rank, f", {transfers} of stage {stage}", thread))
        for rank, name, thread in sorted(threads):
            yield self.named("thread_name", thread, name=f"rank {rank}{name}")
            yield self.named("thread_sort_index", thread, sort_index=thread)

    def actions(self, rank: int) -> Iterator[Event]:
        thread = self.threads[rank][0]
        names_stage = self.panel.names_stage(rank)
        for index, (action, start, end) in enumerate(self.timeline.spans[rank]):
            kind = action.kind
            if kind.is_communication and end <= start:
                continue
            name = short_label(action, names_stage)
            about = self.about(rank, index)
            # One slice for both: two at one time would be drawn below each other.
            if other := self.panel.overlapped.get(action):
                if kind is not ActionKind.FORWARD:
                    continue
                name = f"{name} & {short_label(other.action, names_stage)}"
                about = {"forward": about, "backward": self.about(rank, index + 1)}
            yield self.slice_of(name, kind.value, thread, start, end, about)

    def about(self, rank: int, index: int) -> Event:
        """Return the details of an action, which viewers show on a click."""
        timeline = self.timeline
        action = self.timeline.spans[rank][index].action
        about: Event = {}
        if not action.kind.is_of_rank:
            about["stage"] = action.stage
            about["microbatch"] = number_of(action.microbatch, timeline.num_slices)
        about["kind"] = action.kind.declaration.words
        held = self.panel.held_activations[rank][index]
        about["held activations after it"] = held
        about["on the critical path"] = action in self.critical
        if timeline.memory:
            memory = timeline.memory[rank][index]
            about[f"held {timeline.memory_unit} after it"] = memory
        return about

    def idle(self, rank: int) -> Iterator[Event]:
        for idle in self.timeline.idle[rank]:
            if self.steps(idle.end) > self.steps(idle.start):
                name = idle.cause.value
                thread = self.threads[rank][1]
                about = {"why": describe_idle(idle)}
                yield self.slice_of(name, "idle", thread, idle.start, idle.end, about)

    def held(self, rank: int) -> Iterator[Event]:
        timeline = self.timeline
        names = ("held", "activations")
        curve = self.panel.activations_over_time(rank)
        if timeline.memory:
            names = ("memory", timeline.memory_unit)
            curve = timeline.memory_over_time(rank)
        yield from self.counter(rank, *names, [(timeline.start, 0), *curve])

    def counter(
        self, rank: int, name: str, series: str, curve: Iterable[tuple[float, float]]
    ) -> Iterator[Event]:
        thread = self.threads[rank][0]
        values = {self.time(time): value for time, value in curve}
        for time, value in values.items():
            args = {series: value}
            yield self.event("C", f"rank {rank} {name}", thread, ts=time, args=args)

    def transfers(self, rank: int) -> Iterator[Event]:
        """Draw the gradient all-reduces and the copies of a rank, which run
        concurrently with its actions.
        """
        for action, start, end, whole in self.panel.beside(rank):
            about: Event = {"kind": action.kind.declaration.words}
            if whole:
                about["ranks"] = list(whole.ranks)
                about["came last"] = f"rank {whole.last_rank}"
            if self.steps(end) > self.steps(start):
                thread = self.beside[rank, action.kind, action.stage]
                kind = action.kind
                name = short_label(action, self.panel.names_stage(rank))
                yield self.slice_of(name, kind.value, thread, start, end, about)

    def messages(self) -> Iterator[Event]:
        spans = {span.action: span for row in self.timeline.spans for span in row}
        for message in self.timeline.messages:
            yield from self.message(message, spans)

    def message(self, message: Message, spans: dict[Action, Span]) -> Iterator[Event]:
        """Draw an arrow from the end of the producer's slice to the start of the
        consumer's slice.

        Both ends lie half a step inside. At the very edge, a viewer might choose the
        adjacent slice.
        """
        produced = spans[message.value]
        consumed = spans[message.used_by]
        ends = self.steps(consumed.start)
        # The clocks of ranks may differ, and no arrow may point back in time.
        starts = min(self.steps(produced.end), ends)
        if starts <= self.steps(produced.start) or ends == self.steps(consumed.end):
            return  # one of the two slices is too short for an arrow
        arrow = {"cat": "message", "id": next(self.numbers)}
        name = describe_message(message)
        about: Event = {}
        if message.size is not None:
            about["size"] = message.size
        source = self.threads[message.source][0]
        destination = self.threads[message.destination][0]
        time = (starts - 0.5) / _STEPS
        yield self.event("s", name, source, ts=time, **arrow, args=about)
        # The binding point "e" selects the slice that encloses the end of the arrow;
        # by default, viewers select the next slice.
        time = (ends + 0.5) / _STEPS
        yield self.event("f", name, destination, ts=time, **arrow, bp="e")

    # -- the form of an event ----------------------------------------------------------

    def slice_of(
        self, name: str, kind: str, thread: int, start: float, end: float, about: Event
    ) -> Event:
        length = (self.steps(end) - self.steps(start)) / _STEPS
        look = {"cat": kind, "cname": _COLOURS.get(kind, _OTHER_COLOUR)}
        ts = self.time(start)
        return self.event("X", name, thread, ts=ts, dur=length, **look, args=about)

    def named(self, metadata: str, thread: int, **names: str | int) -> Event:
        return self.event("M", metadata, thread, args=names)

    def event(self, phase: str, name: str, thread: int, **rest: Any) -> Event:
        return {"ph": phase, "name": name, "pid": self.process, "tid": thread, **rest}

    def time(self, time: float) -> float:
        """Return microseconds since the timeline's start."""
        return self.steps(time) / _STEPS

    def steps(self, time: float) -> int:
        return round((time - self.timeline.start) * self.scale)
