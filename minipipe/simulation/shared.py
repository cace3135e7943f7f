"""When the instructions of a table start and end, if ranks share cores or links.

All ranks run concurrently, from one moment at which something ends to the next. The
rules are those of `core/times.py`, and the tags [1] to [4] are explained there; only
work and messages take longer while they share (`hosts.py`).

A **process** is whatever can wait: a rank in its row, a message, a sum. It is a
generator that yields when it waits, with a function that gets the way to continue.

A sum over replicas begins when its last member comes, and takes two rounds. In each,
all replicas send their parts: to other hosts all at once, over links that they share
with messages; within a host one after another. A message between two hosts arrives the
latency after it has left.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count, permutations
from math import inf
from typing import Any

from minipipe.core.flow import Flow
from minipipe.core.times import Make, Place, Plan, Rates, Times
from minipipe.core.values import KINDS
from minipipe.simulation.hosts import Cores, Hosts, Links, Route, Then

Process = Iterator[Callable[[Then], object]]


class SharedClock(Plan):
    """Runs all ranks of a table concurrently.

    Parameters
    ----------
    flow, rates, make
        As for :func:`minipipe.core.times.times`.
    hosts : Hosts
    """

    def __init__(self, flow: Flow, rates: Rates, make: Make, hosts: Hosts) -> None:
        super().__init__(flow, rates, make)
        self.now = 0.0
        self.hosts = hosts
        self.links = Links()
        self.cores = list(map(Cores, hosts.cores))
        self.known: dict[Hashable, float] = {}  # when a value, a task, ... exists
        self.waiting: defaultdict[Hashable, list[Then]] = defaultdict(list)
        self.arrived: dict[Any, float] = {}
        # By rank and lane, the latest instruction that the rank has come to.
        self.behind: dict[tuple[int, str], list[Place]] = {}
        self.ready: deque[Process] = deque()  # ranks that can run
        self.timers: list[tuple[float, int, Then]] = []
        self.serial = count()  # so that simultaneous timers keep their order
        self.losses = flow.table.ranks_of(flow.table.num_stages - 1)
        self.last: dict[int, int] = {}  # by step, the last of these to end it

    def run(self, num_steps: int, wait: bool) -> Times:
        """Run all steps; the latest end is infinite if no number holds the times."""
        ranks = range(len(self.rows))
        self.ready.extend(self.run_row(rank, num_steps, wait) for rank in ranks)
        while self.ready or self.advance():
            while self.ready:
                row = self.ready.popleft()
                self.resume(row, partial(self.ready.append, row))
        is_over = not any(None in row for row in self.tasks)
        latest = self.now if is_over else inf
        return Times(self.tasks, self.sums, self.changes, latest, self.arrived)

    # -- a rank --------------------------------------------------------------------

    def run_row(self, rank: int, num_steps: int, wait: bool) -> Process:
        """Take a rank through its row."""
        length = len(self.rows[rank]) // num_steps
        for step in range(num_steps):
            positions = range(step * length, (step + 1) * length)
            yield from self.run_step(rank, positions)
            if step < num_steps - 1:
                yield from self.until((rank, position) for position in positions)
                yield from self.change_step(rank, step, wait)

    def run_step(self, rank: int, positions: range) -> Process:
        """Take a rank through the instructions of one step."""
        has_begun = False
        for position in positions:
            if KINDS[self.rows[rank][position][1]].lane != "compute":
                yield from self.run_beside(rank, position)
            elif not self.is_second(rank, position):
                if has_begun and self.rates.overhead:
                    yield from self.work(rank, self.rates.overhead)  # [1]
                has_begun = True
                yield from self.compute(rank, position)

    def compute(self, rank: int, position: int) -> Process:
        """Run an instruction, or both halves of a pair on one core."""
        halves = [(position, *self.step_at(rank, position))]
        time = halves[0][1].duration
        if self.rows[rank][position] in self.pairs:
            halves.append((position + 1, *self.step_at(rank, position + 1)))
            time = self.rates.pair_times[self.written[rank][position]]
        needs = [n + k for _, step, k in halves for n, _ in step.needs]
        if needs:
            yield from self.until(needs)  # [2]
        if KINDS[self.rows[rank][position][1]].meets is not None:
            yield from self.together(rank, position, "start")
        start = self.now
        yield from self.work(rank, time)  # [3]
        if KINDS[self.rows[rank][position][1]].meets is not None:
            yield from self.together(rank, position, "end")
        for at, _, _ in halves:
            self.end(rank, at, start)  # [4]

    def together(self, rank: int, position: int, point: str) -> Process:
        """Wait until all that meet an instruction have come to its start or its end."""
        met = point, self.flow.meeting(rank, position)
        if self.come(rank, position, self.now):
            self.happen(met)
        else:
            yield from self.until([met])

    def run_beside(self, rank: int, position: int) -> Process:
        """Reach an instruction that is on another lane, or on none."""
        kind = KINDS[self.rows[rank][position][1]]
        if kind.lane:
            self.start(self.copy(rank, position, kind.lane))
        elif kind.message == "send":
            yield from self.send(rank, position)
        elif kind.message:
            self.start(self.receive(rank, position))
        elif came := self.come(rank, position, self.now):
            self.start(self.sum_up(came))

    def change_step(self, rank: int, step: int, wait: bool) -> Process:
        """Update the weights, perhaps only when the last stage has ended the step."""
        ended = self.now
        self.happen(("step", step, rank))
        if rank in self.losses:
            self.last[step] = rank
        if wait:
            yield from self.until(("step", step, other) for other in self.losses)
        left = self.now
        after = self.last[step] if left > ended else rank
        yield from self.work(rank, self.rates.updates[rank])
        self.changes[rank].append((left, self.now, after))

    def work(self, rank: int, time: float) -> Process:
        """Occupy a core for a time."""
        if time:
            yield partial(self.cores[self.hosts.of_rank[rank]].begin, rank, time)

    def until(self, keys: Iterable[Hashable]) -> Process:
        """Wait until all of something exist."""
        latest = 0.0
        for key in keys:
            if key not in self.known:
                yield self.waiting[key].append
            latest = max(latest, self.known[key])
        if latest > self.now:
            yield partial(self.at, latest)

    # -- beside the ranks ----------------------------------------------------------

    def copy(self, rank: int, position: int, lane: str) -> Process:
        """Reach a copy; its values exist at its end, which is known as it starts."""
        step, k = self.step_at(rank, position)
        keys: list[Hashable] = [n + k for n, _ in step.needs]
        keys += self.behind.get((rank, lane), [])
        self.behind[rank, lane] = [(rank, position)]
        if any(key not in self.known for key in keys):
            yield from self.until(keys)
        times = [self.known[n + k] for n, _ in step.needs]
        start = max(self.now, self.lanes.get((rank, lane), 0.0), *times)
        end = self.lanes[rank, lane] = start + step.duration
        self.note(rank, position, start, end)
        for number in step.gives:
            self.exist(number + k, end)

    def exist(self, key: Hashable, time: float) -> None:
        """Note when something exists, and continue what waits for it."""
        self.known[key] = time
        for then in self.waiting.pop(key, ()):
            then()

    def send(self, rank: int, position: int) -> Process:
        """Begin a message; if sends block, when its RECV is reached, and wait."""
        start = self.now
        if self.rates.sends_block:
            yield from self.until([self.flow.meeting(rank, position)])
        self.give(rank, position)
        if self.rates.sends_block:
            step, k = self.step_at(rank, position)
            yield from self.until(n + k for n in step.gives)
        self.note(rank, position, start, self.now)

    def receive(self, rank: int, position: int) -> Process:
        """Take a message when it has arrived; the rank continues meanwhile."""
        start = self.now
        if self.rates.sends_block:
            self.happen(self.flow.meeting(rank, position))
        step, k = self.step_at(rank, position)
        yield from self.until(n + k for n, _ in step.needs)
        self.end(rank, position, start)

    def end(self, rank: int, position: int, start: float) -> None:
        """End an instruction now."""
        self.note(rank, position, start, self.now)
        self.give(rank, position)

    def note(self, rank: int, position: int, start: float, end: float) -> None:
        """Note the start and the end of an instruction, and that it has run."""
        action = self.written[rank][position]
        self.tasks[rank][position] = self.make((action, start, end))
        self.happen((rank, position))

    def give(self, rank: int, position: int) -> None:
        """Let the values of an instruction exist, or begin to travel."""
        action = self.written[rank][position]
        is_send = KINDS[action[1]].message == "send"
        step, k = self.step_at(rank, position)
        for number in step.gives:
            delay = self.delay(number + k)
            if delay or is_send:
                self.start(self.carry(rank, action, number + k, delay))
            else:
                self.happen(number + k)

    def carry(self, rank: int, action: Any, number: int, time: float) -> Process:
        """Carry the value of an action to the rank that needs it."""
        value = self.flow.value_of(number)
        stages = self.flow.stages_of[number // self.size]
        far = max(stages, key=lambda stage: abs(stage - action.stage))
        to = self.flow.table.rank_of(far, value.microbatch)
        links = self.hosts.links_between(rank, to)
        latency = self.rates.latency
        if links and time > latency:
            yield from self.travel(number, links, time - latency, latency)
        else:
            yield from self.travel(number, None, 0.0, time)
        self.arrived[action] = self.known[number]

    def travel(
        self, key: Hashable, links: Route | None, time: float, latency: float
    ) -> Process:
        """Take a time alone on links, if any, and then the latency."""
        if links:
            yield partial(self.links.begin, self.now, time, links)
        yield partial(self.at, self.now + latency)
        self.happen(key)

    # -- sums: two rounds, a reduce-scatter and an all-gather --------------------------

    def sum_up(self, came: dict[Place, float]) -> Process:
        """Let every replica send its parts to all others, twice."""
        rank, position = next(iter(came))
        stage = self.rows[rank][position][0]
        ranks = self.flow.table.ranks_of(stage)
        part = self.rates.sum_parts[stage]
        latency = self.rates.latency
        between = self.hosts.links_between
        routes = [between(*pair) for pair in permutations(ranks, 2)]
        on_links = [links for links in routes if links and part]
        local = max(sum(between(a, b) is None for b in ranks) - 1 for a in ranks)
        num_rounds = 2 if len(ranks) > 1 else 0
        for _ in range(num_rounds):
            parts = [object() for _ in (None, *on_links)]
            self.start(self.travel(parts[0], None, 0.0, local * part + latency))
            for key, links in zip(parts[1:], on_links):
                self.start(self.travel(key, links, part, latency))
            yield from self.until(parts)
        places = sorted(came, key=lambda place: ranks.index(place[0]))
        self.sums.append(places)
        for place in places:
            self.end(*place, came[place])

    # -- time ----------------------------------------------------------------------

    def happen(self, key: Hashable) -> None:
        """Note that something exists, and continue what waits for it."""
        self.exist(key, self.now)

    def at(self, time: float, then: Then) -> None:
        """Do something at a time."""
        heappush(self.timers, (time, next(self.serial), then))

    def resume(self, process: Process, then: Then) -> None:
        """Let a process run until it waits again; tell how it continues then."""
        wait = next(process, None)
        if wait is not None:
            wait(then)

    def start(self, process: Process) -> None:
        """Run a process that continues as soon as it can, before any rank."""
        self.resume(process, partial(self.start, process))

    def advance(self) -> bool:
        """Go to the next moment at which something ends; return False if none does."""
        ends = [cores.next_end(self.now) for cores in self.cores]
        timer = self.timers[0][0] if self.timers else inf
        until = min(*ends, timer, self.links.next_end())
        if not until < inf:
            return False
        time = until - self.now
        self.now = until
        for cores, end in zip(self.cores, ends):
            for then in cores.advance(time, is_end=end == until):
                then()
        for then in self.links.ended(self.now):
            then()
        while self.timers and self.timers[0][0] <= self.now:
            heappop(self.timers)[2]()
        return True
