"""When the instructions of a table start and end.

Instructions are tasks on the lanes of their ranks, visited in the order of
`core/order.py`. A task starts when its lane is free and its values exist::

    rank 0   | 0F0 |------------------------| 0F1 | ...
                 [4] given at its end; a message takes some time
                    \\
    rank 1           [2]| 1F0 | ...
                     [1] the rank is free, and the overhead between two tasks is over
                     [2] the values that it needs exist
                     [3] it ends after its duration

* On the lane "compute" it starts behind the task before it and the overhead between
  two [1]. The two halves of an overlapped pair start and end together.
* On another lane it starts behind earlier tasks of that lane, and not before the rank
  has come to it; the rank continues at once.
* On no lane it starts as soon as the rank has come to it.

Tasks that meet end together, once all ranks have come: a sum over replicas, after
which the ranks continue at once, or a message whose SEND blocks until its RECV.

A rank ends a step with the last of its tasks. Between two steps it updates its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from minipipe.core.flow import Flow, Rule, delay_of
from minipipe.core.order import order
from minipipe.core.values import KINDS, NOUNS, Kind, Meeting

Place = tuple[int, int]  # rank and position of an instruction


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
    updates : sequence of float
        By rank, the time between two steps; needed for several steps only.
    latency : float
        The part of the time of a message that it spends behind its links.
    sum_parts : sequence of float
        By stage, the time of a part of a sum on its links. These two are needed only
        if messages share links.
    """

    durations: Mapping[str, Sequence[float]]
    message_times: Sequence[float]
    overhead: float = 0.0
    sends_block: bool = False
    pair_times: Mapping[Any, float] = {}
    parts: Sequence[float] = ()
    updates: Sequence[float] = ()
    latency: float = 0.0
    sum_parts: Sequence[float] = ()


class Task(NamedTuple):
    """An instruction with its start and end."""

    action: Any
    start: float
    end: float


class Times(NamedTuple):
    """The times of a table.

    Attributes
    ----------
    tasks : list of list of Task
        By rank, in the order of its row.
    sums : list of list of (int, int)
        By meeting that is no message, in the order in which they end: the rank and the
        position of each member, which starts when its rank has come.
    changes : list of list of (float, float, int)
        By rank and step but the last: when it left the step, when it began the next
        one, and the rank whose end it waited for.
    latest : float
        The latest end.
    arrived : mapping
        When the messages of instructions arrived, if that depends on other messages.
    """

    tasks: list[list[Any]]
    sums: list[list[Place]]
    changes: list[list[tuple[float, float, int]]]
    latest: float
    arrived: Mapping[Any, float] = {}


class Step(NamedTuple):
    """An instruction as numbers; for microbatch k, add k to each value.

    Attributes
    ----------
    needs : tuple of (int, float)
        Values, each with the time that it travels.
    duration : float
    gives : tuple of int
        Values.
    """

    needs: tuple[tuple[int, float], ...]
    duration: float
    gives: tuple[int, ...]


Make = Callable[[tuple[Any, float, float]], Any]
# The constructor of a NamedTuple takes twice as long, for a million tasks.
_new_task: Make = partial(tuple.__new__, Task)


def times(
    flow: Flow,
    rates: Rates,
    rounds: Sequence[Sequence[int]] | None = None,
    num_steps: int = 1,
    wait: bool = False,
    make: Make = _new_task,
) -> Times:
    """Return the times of a table in which ranks share nothing.

    Parameters
    ----------
    flow : Flow
        Of a legal table.
    rates : Rates
    rounds : sequence of sequence of int, optional
        The rounds of one step (`core/order.py`), if they are known.
    num_steps : int
        How many steps the table has, one after another.
    wait : bool
        Whether a rank leaves a step only when the last stage has also ended it.
    make : function
        Makes a task of action, start and end.
    """
    if rounds is None:
        rounds = order(flow, rates.sends_block).rounds
    return _Clock(flow, rates, make).run(rounds, num_steps, wait)


class Plan:
    """The needs, the durations and the values of the instructions of a table.

    A value that neither travels nor comes from another lane of its rank exists as soon
    as its rank comes to the instruction that needs it. Steps leave it out.

    Attributes
    ----------
    tasks, sums, changes : list
        The attributes of :class:`Times`, so far.
    late : set of int
        The names and stages of values from other lanes than "compute".
    """

    def __init__(self, flow: Flow, rates: Rates, make: Make = _new_task) -> None:
        self.flow = flow
        self.rates = rates
        self.make = make
        self.rows = flow.rows
        self.written = flow.table.actions  # as tasks name them
        self.pairs = flow.pairs
        self.size = flow.table.num_microbatches  # of the values of one name and stage
        self.late = set(self._given_beside())
        self.delays = dict(self._delays())
        self.plan = [self._step(rule) for rule in flow.rules]  # by code
        self.lanes: dict[tuple[int, str], float] = {}
        self.came: dict[Meeting, dict[Place, float]] = {}
        self.tasks: list[list[Any]] = [[None] * len(row) for row in self.rows]
        self.sums: list[list[Place]] = []
        self.changes: list[list[tuple[float, float, int]]] = [[] for _ in self.rows]

    def _delays(self) -> Iterator[tuple[int, float]]:
        """Yield the names and stages of the values that instructions have to wait for.

        Each has the time that it travels.
        """
        flow = self.flow
        message_times = self.rates.message_times
        for place in range(len(flow.names) * flow.num_owners):
            number = place * self.size
            if NOUNS[flow.name_of(number)].travels or place in self.late:
                yield place, delay_of(flow, number, message_times)

    def _given_beside(self) -> Iterator[int]:
        """Yield the names and stages of what instructions beside "compute" give.

        A rank comes to an instruction that needs it perhaps before it exists.
        """
        for kind, _, numbers in self.flow.rules:
            if KINDS[kind].lane != "compute" and numbers is not None:
                yield from (number // self.size for number in numbers.gives)

    def _step(self, rule: Rule) -> Step:
        name, site, numbers = rule
        if numbers is None:
            return Step((), 0.0, ())  # no legal table has such an instruction
        kind = KINDS[name]
        parts = self.rates.parts
        k = site.microbatch
        size = self.size
        delays = self.delays
        places = [(n - k, n // size) for n in numbers.needs]
        needs = [(n, delays[place]) for n, place in places if place in delays]
        late = [n - k for n in numbers.gives if n // size in delays]
        duration = self.rates.durations[kind.time][site.stage] if kind.time else 0.0
        if parts and kind.is_of_slice:
            duration *= parts[k % len(parts)]
        return Step(tuple(needs), duration, tuple(late))

    def step_at(self, rank: int, position: int) -> tuple[Step, int]:
        """Return the step of an instruction, and what to add to its values."""
        step = self.plan[self.flow.codes[rank][position]]
        return step, self.rows[rank][position][2]

    def delay(self, number: int) -> float:
        """Return how long a value travels; all microbatches travel alike."""
        return self.delays[number // self.size]

    def is_second(self, rank: int, position: int) -> bool:
        """Whether an instruction runs with the one before it."""
        return position > 0 and self.rows[rank][position - 1] in self.pairs

    def meets(self, kind: Kind) -> bool:
        """Whether instructions of a kind meet; halves of a message, if sends block."""
        return kind.meets is not None and (self.rates.sends_block or not kind.message)

    def come(self, rank: int, position: int, time: float) -> dict[Place, float]:
        """Note that a rank has come to a meeting.

        Return when each member has, if all have; otherwise nothing.
        """
        meeting = self.flow.meeting(rank, position)
        came = self.came.setdefault(meeting, {})
        came[rank, position] = time
        return self.came.pop(meeting) if len(came) == meeting.size else {}


class _Clock(Plan):
    """Visits the instructions in their order."""

    def __init__(self, flow: Flow, rates: Rates, make: Make) -> None:
        super().__init__(flow, rates, make)
        self.positions = [0] * len(self.rows)
        self.free = [0.0] * len(self.rows)
        self.between = [0.0] * len(self.rows)
        self.ended = [0.0] * len(self.rows)  # by rank, on lanes beside "compute"
        self.given = [0.0] * flow.num_values

    def run(self, rounds: Sequence[Sequence[int]], num_steps: int, wait: bool) -> Times:
        for step in range(num_steps):
            if step:
                self.change_step(wait)
            self.run_step(rounds)
        latest = max(map(max, self.free, self.ended))
        return Times(self.tasks, self.sums, self.changes, latest)

    def run_step(self, rounds: Sequence[Sequence[int]]) -> None:
        """Visit all instructions of a step in their order. The hot loop."""
        positions = self.positions
        rows = self.rows
        plan = self.plan
        given = self.given
        free = self.free
        between = self.between
        codes = self.flow.codes
        overhead = self.rates.overhead
        make = self.make
        tasks = self.tasks
        written = self.written
        kinds = [KINDS[name] for name in self.flow.kinds]
        beside = {k.name for k in kinds if k.lane != "compute" or k.meets is not None}
        pairs = self.pairs
        for ranks in rounds:
            for rank in ranks:
                position = positions[rank]
                positions[rank] = position + 1
                _, kind, k = rows[rank][position]
                if kind in beside:
                    self.run_beside(rank, position, KINDS[kind])
                    continue
                if pairs and self.run_half(rank, position):
                    continue
                needs, duration, gives = plan[codes[rank][position]]
                start = free[rank] + between[rank]  # [1]
                for value, delay in needs:  # [2]
                    there = given[value + k] + delay
                    if there > start:
                        start = there
                free[rank] = end = start + duration  # [3]
                between[rank] = overhead
                for value in gives:  # [4]
                    given[value + k] = end
                tasks[rank][position] = make((written[rank][position], start, end))

    def run_half(self, rank: int, position: int) -> bool:
        """Run both halves of a pair with the first; return whether it is a half."""
        if self.rows[rank][position] not in self.pairs:
            return self.is_second(rank, position)
        halves = [self.step_at(rank, position), self.step_at(rank, position + 1)]
        ready = max(self.ready(*half) for half in halves)
        start = max(ready, self.free[rank] + self.between[rank])
        end = start + self.rates.pair_times[self.written[rank][position]]
        self.free[rank] = end
        self.between[rank] = self.rates.overhead
        for at, half in enumerate(halves, position):
            self.finish(rank, at, start, end, *half)
        return True

    def run_beside(self, rank: int, position: int, kind: Kind) -> None:
        """Run an instruction that takes its rank no time."""
        if self.meets(kind):
            self.meet(rank, position, kind)
            return
        step, k = self.step_at(rank, position)
        lane = rank, kind.lane
        start = max(self.ready(step, k), self.free[rank], self.lanes.get(lane, 0.0))
        if kind.lane:
            self.lanes[lane] = start + step.duration
        self.finish(rank, position, start, start + step.duration, step, k)

    def meet(self, rank: int, position: int, kind: Kind) -> None:
        """Come to a meeting; with its last member it begins, and ends for all."""
        step, k = self.step_at(rank, position)
        reached = self.free[rank]
        if kind.lane:
            reached = max(reached + self.between[rank], self.ready(step, k))
        came = self.come(rank, position, reached)
        if not came:
            return
        steps = [self.step_at(*place) for place in came]
        times = [one.duration for one, _ in steps]
        times += [self.delay(n + begin) for one, begin in steps for n in one.gives]
        last = max(came.values())
        end = last + max(times)
        for ((member, at), reached), its_step in zip(came.items(), steps):
            own = KINDS[self.rows[member][at][1]]
            if own.message == "send" or own.lane:
                self.free[member] = end
            if own.lane:
                self.between[member] = self.rates.overhead
            start = last if own.lane else reached
            self.finish(member, at, start, end, *its_step)
        if not (kind.message or kind.lane):
            self.sums.append(list(came))

    def ready(self, step: Step, k: int) -> float:
        """Return when the values of an instruction exist."""
        latest = 0.0
        for value, delay in step.needs:
            latest = max(latest, self.given[value + k] + delay)
        return latest

    def finish(
        self, rank: int, position: int, start: float, end: float, step: Step, k: int
    ) -> None:
        action = self.written[rank][position]
        self.tasks[rank][position] = self.make((action, start, end))
        self.ended[rank] = max(self.ended[rank], end)
        for value in step.gives:
            self.given[value + k] = end

    def change_step(self, wait: bool) -> None:
        """Let every rank update its weights, and begin the next step."""
        ends = list(map(max, self.free, self.ended))
        table = self.flow.table
        last = max(table.ranks_of(table.num_stages - 1), key=ends.__getitem__)
        for rank, end in enumerate(ends):
            after = last if wait and ends[last] > end else rank
            self.free[rank] = ends[after] + self.rates.updates[rank]
            self.between[rank] = 0.0
            self.changes[rank].append((ends[after], self.free[rank], after))
