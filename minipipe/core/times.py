"""When the instructions of a table start and end, and what its ranks hold meanwhile.

Instructions are tasks on the lanes of their ranks, visited in the order of
`core/order.py`. A task starts when its lane is free and its values exist:

* on the lane "compute", behind the task before it and the overhead between two;
* on another lane, behind earlier tasks of that lane, and not before the rank has come
  to it; the rank continues at once;
* on no lane, as soon as the rank has come to it.

A value exists from the end of the task that gives it, on another rank the time of
a message later. Tasks that meet end together, once all ranks have come: a sum over
replicas, after which the ranks continue at once, or a message whose SEND blocks until
its RECV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from minipipe.core.flow import Flow, Rule, delay_of
from minipipe.core.order import Order, order
from minipipe.core.values import KINDS, Meeting, Value


class Rates(NamedTuple):
    """The times of instructions and messages, in one unit.

    Attributes
    ----------
    durations : mapping
        By cost (`Kind.time`), the time of an instruction on each stage.
    message_times : sequence of float
        By stage, the time of a message between it and the next stage.
    overhead : float
        The time of a rank between two instructions of its lane "compute".
    sends_block : bool
        Whether a SEND occupies its rank until its RECV has the message.
    pair_times : mapping
        By forward that is overlapped with the next action, the time of both.
    parts : sequence of float
        By slice of a sequence, the time of its instructions over that of a mean slice;
        empty if all take the same time.
    """

    durations: Mapping[str, Sequence[float]]
    message_times: Sequence[float]
    overhead: float = 0.0
    sends_block: bool = False
    pair_times: Mapping[Any, float] = {}
    parts: Sequence[float] = ()


class Task(NamedTuple):
    """An instruction with its start and end."""

    action: Any
    start: float
    end: float


# The constructor of a NamedTuple takes twice as long, for a million tasks.
_new_task: Callable[[tuple[Any, float, float]], Task] = partial(tuple.__new__, Task)


class Step(NamedTuple):
    """An instruction of the lane "compute" as numbers; for microbatch k, add k.

    Attributes
    ----------
    needs : tuple of (int, float)
        The events that it needs, each with the time that the value travels.
    duration : float
    gives : tuple of int
    """

    needs: tuple[tuple[int, float], ...]
    duration: float
    gives: tuple[int, ...]


def times(flow: Flow, rates: Rates, found: Order | None = None) -> list[list[Task]]:
    """Return the tasks of each rank, in the order of its row.

    Parameters
    ----------
    flow : Flow
        Of a legal table.
    rates : Rates
    found : Order, optional
        The order of the table, if it is known.
    """
    found = order(flow, rates.sends_block) if found is None else found
    tasks = _Clock(flow, rates).run(found)
    if flow.rows is flow.table.actions:
        return tasks
    return [
        [Task(action, *task[1:]) for action, task in zip(*both)]
        for both in zip(flow.table.actions, tasks)
    ]


class _Clock:
    def __init__(self, flow: Flow, rates: Rates) -> None:
        self.flow, self.rates, self.rows = flow, rates, flow.rows
        self.free = [0.0] * len(self.rows)
        self.between = [0.0] * len(self.rows)
        self.lanes: dict[tuple[int, str], float] = {}
        self.given = [0.0] * flow.num_events
        self.came: dict[Meeting, dict[int, tuple[int, float]]] = {}
        self.delays: dict[tuple[str, int], float] = {}
        self.tasks: list[list[Any]] = [[None] * len(row) for row in self.rows]
        self.plan = {name: self.steps_of(name) for name in flow.kinds}

    def steps_of(self, name: str) -> list[Step | None]:
        """Return the step of a kind by stage, if all microbatches are alike."""
        if KINDS[name].lane != "compute" or self.rates.parts or self.flow.pairs:
            return [None] * self.flow.num_stages
        return [
            None if rule is None else self.step(name, stage, rule)
            for stage, rule in enumerate(self.flow.event_rules[name])
        ]

    def step(self, name: str, stage: int, rule: Rule) -> Step:
        duration = self.rates.durations[KINDS[name].time][stage]
        needs = tuple((event, self.delay(value)) for event, value in rule.delayed)
        return Step(needs, duration, rule.gives)

    def run(self, found: Order) -> list[list[Task]]:
        """Visit all instructions in their order. The hot loop."""
        positions = [0] * len(self.rows)
        rows, plan, given, free = self.rows, self.plan, self.given, self.free
        between, overhead, tasks = self.between, self.rates.overhead, self.tasks
        for ranks in found.rounds:
            for rank in ranks:
                position = positions[rank]
                positions[rank] = position + 1
                action = rows[rank][position]
                stage, kind, k = action
                step = plan[kind][stage]
                if step is None:
                    self.run_at(rank, position)
                    continue
                needs, duration, gives = step
                start = free[rank] + between[rank]
                for event, delay in needs:
                    there = given[event + k] + delay
                    if there > start:
                        start = there
                free[rank] = end = start + duration
                between[rank] = overhead
                for event in gives:
                    given[event + k] = end
                tasks[rank][position] = _new_task((action, start, end))
        return self.tasks

    def run_at(self, rank: int, position: int) -> None:
        """Run an instruction that has no step in the plan."""
        row, pairs = self.rows[rank], self.flow.pairs
        if pairs and position and row[position - 1] in pairs:
            return  # it ran with the instruction before it
        if pairs and row[position] in pairs:
            self.run_pair(rank, position)
            return
        self.run_one(rank, position)

    def run_one(self, rank: int, position: int) -> None:
        kind = KINDS[self.rows[rank][position][1]]
        if kind.meets is not None and (self.rates.sends_block or not kind.message):
            self.meet(rank, position)
            return
        start = self.ready(rank, position)
        if kind.lane == "compute":
            start = max(start, self.free[rank] + self.between[rank])
            end = start + self.duration(rank, position)
            self.free[rank], self.between[rank] = end, self.rates.overhead
        elif kind.lane:
            lane = rank, kind.lane
            start = max(start, self.free[rank], self.lanes.get(lane, 0.0))
            end = self.lanes[lane] = start + self.duration(rank, position)
        else:
            start = end = max(start, self.free[rank])
        self.finish(rank, position, start, end)

    def run_pair(self, rank: int, position: int) -> None:
        both = position, position + 1
        ready = max(self.ready(rank, at) for at in both)
        start = max(ready, self.free[rank] + self.between[rank])
        end = start + self.rates.pair_times[self.flow.table.actions[rank][position]]
        self.free[rank], self.between[rank] = end, self.rates.overhead
        for at in both:
            self.finish(rank, at, start, end)

    def meet(self, rank: int, position: int) -> None:
        """Note that a rank has come; the last one lets the meeting begin and end."""
        meeting = self.flow.meeting(rank, position)
        assert meeting is not None
        came = self.came.setdefault(meeting, {})
        came[rank] = position, self.free[rank]
        if len(came) < meeting.size:
            return
        begin = max(time for _, time in came.values())
        end = begin + max(self.together(member, at) for member, (at, _) in came.items())
        for member, (at, reached) in came.items():
            if KINDS[self.rows[member][at][1]].message == "send":
                self.free[member] = end
            self.finish(member, at, reached, end)

    def together(self, rank: int, position: int) -> float:
        """Return the time of a meeting: that of a sum, or of a message."""
        uses = self.flow.uses(rank, position)
        assert uses is not None
        delay = max((self.delay(value) for value in uses.gives), default=0.0)
        return self.duration(rank, position) + delay

    def ready(self, rank: int, position: int) -> float:
        """Return when the values of an instruction exist."""
        rule = self.flow.rule_at(rank, position)
        assert rule is not None
        there = (self.given[event] + self.delay(value) for event, value in rule.delayed)
        return max(there, default=0.0)

    def finish(self, rank: int, position: int, start: float, end: float) -> None:
        rule = self.flow.rule_at(rank, position)
        assert rule is not None
        self.tasks[rank][position] = Task(self.rows[rank][position], start, end)
        for event in rule.gives:
            self.given[event] = end

    def delay(self, value: Value) -> float:
        """Return how long a value travels; all microbatches travel alike."""
        key = value.name, value.stage
        if key not in self.delays:
            times = self.rates.message_times
            self.delays[key] = delay_of(self.flow, value, times)
        return self.delays[key]

    def duration(self, rank: int, position: int) -> float:
        stage, name, k = self.rows[rank][position]
        kind = KINDS[name]
        if not kind.time:
            return 0.0
        duration = self.rates.durations[kind.time][stage]
        if self.rates.parts and kind.is_of_slice:
            duration *= self.rates.parts[k % len(self.rates.parts)]
        return duration


def memory_levels(
    flow: Flow, sizes: Mapping[str, Sequence[float]]
) -> list[list[tuple[float, float]]]:
    """Return, by rank, the memory that it holds while each instruction runs, and after.

    Parameters
    ----------
    flow : Flow
    sizes : mapping
        By name of a value, its size on each stage. Values without a size take nothing.
    """
    rows = enumerate(flow.rows)
    return [list(_levels_of_row(flow, rank, len(row), sizes)) for rank, row in rows]


def _levels_of_row(
    flow: Flow, rank: int, length: int, sizes: Mapping[str, Sequence[float]]
) -> Iterator[tuple[float, float]]:
    held = 0.0
    for position in range(length):
        stage = flow.rows[rank][position][0]
        uses = flow.uses(rank, position)
        assert uses is not None
        during = held
        if uses.temporary in sizes:
            during += sizes[uses.temporary][stage]
        for value in uses.takes:
            if value.name in sizes:
                held -= sizes[value.name][value.stage]
        for value in uses.gives:
            if value.name in sizes:
                held += sizes[value.name][value.stage]
        yield max(during, held), held
