"""The simulation of ranks that share cores, and of messages that share links: work flows, like a fluid.

Each rank runs its row; the tags are explained in ``simulator.py``. An action, an overhead and an update each need a
core. While more of them run on a host than it has cores, all of them get the same fraction of a core::

    two ranks, one core     rank 0   |0F0|---- 0F1 ----|        0F1 and 1F0 take 1 each, and run at rate 1/2
                            rank 1       |---- 1F0 ----|1F1|    until both end; then 1F1 has the core to itself

Each host has a clock of its own, which goes at the rate of its actions: work of 1 that begins at 3 on that clock ends
at 4, however often the rate changes meanwhile. So only the earliest end of each host has to be known.

A gradient all-reduce begins when its last replica arrives, and takes two rounds. In each, all replicas send their
parts: to other hosts all at once, over links that they share with messages; within a host one after another.

A message between two hosts leaves at its fair rate, and arrives after the latency; ``fair_rates`` has the rates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, permutations
from math import inf
from typing import TypeVar

from minipipe.schedules.action import REDUCE_GRAD, Action, L, O
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.simulation.costs import Costs, Hosts, Link
from minipipe.schedules.simulation.span import GradientSum, Span, StepChange
from minipipe.schedules.simulation.timing import Timing, new_span

M = TypeVar("M", bound=Hashable)
Waits = Iterator[None]  # stops wherever a rank has to wait; the next item resumes it
Then = Callable[[], object]


class Fluid(Timing):
    """Runs all ranks concurrently, from event to event; parameters are as in :class:`Timing`, plus the hosts."""

    def __init__(self, step: ActionTable, costs: Costs, num_steps: int, hosts: Hosts) -> None:
        super().__init__(step, costs, num_steps)
        self.now, self.latency = 0.0, float(costs.latency)
        self.hosts, self.cores, self.links = hosts, [_Cores(number) for number in hosts.cores], _Links()
        self.step_ended = self.num_events  # and the numbers after it: the last stage's rank ended a step
        self.losses = self.table.ranks_of(self.table.num_stages - 1)  # ranks with a loss; the last one ends a step
        self.to_end, self.last = [len(self.losses)] * num_steps, self.losses[0]
        self.happened = bytearray(self.step_ended + num_steps)  # by event
        self.waiting: defaultdict[int, list[int]] = defaultdict(list)  # by event, the ranks that wait for it
        self.ready = deque(range(self.table.num_ranks))  # ranks that can run
        self.num_over = 0  # ranks that have finished
        self.timers: list[tuple[float, int, Then]] = []
        self.serial = count()  # numbers the timers, so that simultaneous timers keep their order

    def run(self, wait: bool) -> float:
        """Run all steps, and return the latest end: infinite, if no number can hold the time of an event."""
        going = [self.steps(rank, wait) for rank in range(self.table.num_ranks)]
        while self.ready or self.advance():
            while self.ready:
                next(going[self.ready.popleft()], None)
        return self.now if self.num_over == len(going) else inf

    # -- a rank: each of these may wait ------------------------------------------------------------------------------

    def steps(self, rank: int, wait: bool) -> Waits:
        """Take a rank through its row."""
        row, append, plan = self.table.actions[rank], self.spans[rank].append, self.plan
        length = len(row) // self.num_steps
        for step in range(self.num_steps):
            if step:
                for action in row[(step - 1) * length : step * length]:
                    if action.kind is REDUCE_GRAD:
                        yield from self.until(rank, self.event_of(action))
                yield from self.change_step(rank, step, wait)
            has_begun = False
            for action in row[step * length : (step + 1) * length]:
                if self.in_pairs and action in self.in_pairs:
                    if action in self.joined:
                        yield from self.run_pair(rank, action, has_begun)
                        has_begun = True
                    continue
                stage, kind, k = action.stage, action.kind, self.number_of(action.microbatch)
                if kind is REDUCE_GRAD:
                    self.contribute(action)
                    continue
                if kind is O or kind is L:
                    self.copy(rank, action, self.now)
                    continue
                if kind not in plan:
                    yield from self.pass_message(rank, action)
                    continue
                awaits, duration, completes, in_flight = plan[kind][stage]
                if has_begun:
                    yield from self.work(rank, self.overhead)  # [1]
                if awaits >= 0:
                    yield from self.until(rank, awaits + k)  # [2]
                if self.copied:
                    yield from self.until_copied(rank, action)
                start, has_begun = self.now, True
                yield from self.work(rank, duration * self.part_of(kind, k))  # [3]
                append(new_span((action, start, self.now)))
                if completes >= 0:
                    self.hand_over(action, completes + k, in_flight)  # [4]
        self.num_over += 1

    def run_pair(self, rank: int, forward: Action, has_begun: bool) -> Waits:
        """Run a forward overlapped with a backward: [1] to [4] of both, at once, on one core."""
        if has_begun:
            yield from self.work(rank, self.overhead)
        pair = self.pair(forward)
        for awaits in (awaits for _, awaits, _, _ in pair if awaits >= 0):
            yield from self.until(rank, awaits)
        yield from self.until_copied(rank, self.joined[forward])
        start = self.now
        yield from self.work(rank, self.pair_times[forward])
        for action, _, completes, in_flight in pair:
            self.spans[rank].append(Span(action, start, self.now))
            self.hand_over(action, completes, in_flight)

    def change_step(self, rank: int, step: int, wait: bool) -> Waits:
        """Update the parameters; if the rank waits, once the rank of the last stage has ended the step."""
        end, step_ended = self.now, self.step_ended + step
        if rank in self.losses:
            self.to_end[step] -= 1
            if not self.to_end[step]:
                self.happen(step_ended)
                self.last = rank
        if wait:
            yield from self.until(rank, step_ended)
        left, last = self.now, self.last
        yield from self.work(rank, self.updates[rank])
        self.changes[rank].append(StepChange(left, self.now, last if left > end else rank))

    def pass_message(self, rank: int, action: Action) -> Waits:
        """Reach a SEND or RECV. If sends block, the later one of the two starts the message."""
        value, start, spans = Value.carried_by(action), self.now, self.spans[rank]
        _, announces, awaits, _ = self.rules[action.kind][action.stage]
        k = self.number_of(action.microbatch)
        if action != value.send:
            if self.sends_block:
                spans.append(Span(action, start, start))
                self.happen(announces + k)
            return
        received = self.rules[value.receive.kind][value.consumer_stage][-1] + k
        if self.sends_block:
            yield from self.until(rank, awaits + k)
            self.transfer(value, received)
            yield from self.until(rank, received)
            spans.append(Span(action, start, self.now))
        else:
            self.sent[value] = inf, rank, len(spans) - 1  # it arrives later
            self.transfer(value, received)

    def work(self, rank: int, time: float) -> Waits:
        """Occupy a core for a time."""
        if time:
            self.cores[self.hosts.of_rank[rank]].begin(rank, time)
            yield

    def until(self, rank: int, event: int) -> Waits:
        """Wait for an event."""
        if not self.happened[event]:
            self.waiting[event].append(rank)
            yield

    def until_copied(self, rank: int, action: Action) -> Waits:
        """Wait until the copies of the activations that an action needs have ended."""
        end = self.copied.get(action[::2], 0.0)
        if end > self.now:
            self.at(end, partial(self.ready.append, rank))
            yield

    # -- values --------------------------------------------------------------------------------------------------------

    def hand_over(self, action: Action, event: int, in_flight: float) -> None:
        """Send the value of an action to its consumer, unless that is on the same rank or the value has a SEND."""
        value = Value.produced_by(action)
        if value is not None and in_flight and not self.table.message_cuts[value.cut]:
            self.transfer(value, event)
        else:
            self.happen(event)

    def transfer(self, value: Value, event: int) -> None:
        """Send a message; its arrival is an event."""
        ranks = (self.table.rank_of(stage, value.microbatch) for stage in (value.stage, value.consumer_stage))
        links, time = self.hosts.links_between(*ranks), self.message_times[value.cut]
        arrive = partial(self.arrive, value, event)
        if links and time > self.latency:
            late = partial(self.after, self.latency, arrive)
            self.links.begin(self.now, [_Message(time - self.latency, links, late)])
        else:
            self.after(time, arrive)

    def arrive(self, value: Value, event: int) -> None:
        """Note when a message has arrived."""
        self.arrived[value] = self.now
        if value in self.sent:
            self.sent[value] = self.now, *self.sent[value][1:]
        self.happen(event)

    # -- gradient all-reduces: two rounds, a reduce-scatter and an all-gather ------------------------------------------

    def contribute(self, action: Action) -> None:
        """Reach an all-reduce; the last replica starts its first round."""
        found = self.come(action, self.now)
        if found:
            self.exchange(found, rounds=2 if len(found.ranks) > 1 else 0)

    def exchange(self, found: GradientSum, rounds: int) -> None:
        """Let every replica send its parts to all others, for each remaining round; then the sum is complete."""
        if not rounds:
            self.sums.append(found._replace(end=self.now))
            for action in found.actions:
                self.happen(self.event_of(action))
            return
        part, pairs = self.sum_times[found.actions[0].stage][0], list(permutations(found.ranks, 2))
        on_links = [links for pair in pairs if part and (links := self.hosts.links_between(*pair))]
        local = max(sum(self.hosts.links_between(rank, to) is None for to in found.ranks) - 1 for rank in found.ranks)
        left = count(len(on_links) + 1, -1)

        def arrive() -> None:
            if next(left) == 1:
                self.exchange(found, rounds - 1)

        late = partial(self.after, self.latency, arrive)
        self.after(local * part + self.latency, arrive)
        self.links.begin(self.now, [_Message(part, links, late) for links in on_links])

    # -- time ----------------------------------------------------------------------------------------------------------

    def happen(self, event: int) -> None:
        """Note an event, and resume the ranks that wait for it."""
        self.happened[event] = True
        if event in self.waiting:
            self.ready += self.waiting.pop(event)

    def after(self, time: float, then: Then) -> None:
        """Do something after some time."""
        self.at(self.now + time, then)

    def at(self, time: float, then: Then) -> None:
        """Do something at a time."""
        heappush(self.timers, (time, next(self.serial), then))

    def advance(self) -> bool:
        """Go to the next moment at which something ends; return False if nothing does."""
        ends, timer = [cores.next_end(self.now) for cores in self.cores], self.timers[0][0] if self.timers else inf
        until = min(*ends, timer, self.links.next_end())
        if not until < inf:
            return False
        for cores, end in zip(self.cores, ends):
            self.ready += cores.advance(until - self.now, is_end=end == until)
        self.now = until
        for then in self.links.ended(self.now):
            then()
        while self.timers and self.timers[0][0] <= self.now:
            heappop(self.timers)[2]()
        return True


class _Cores:
    """The cores of a host, and the ranks at work there; ``clock`` shows how much work each of them has done."""

    def __init__(self, number: float) -> None:
        self.number, self.clock = number, 0.0
        self.ends: list[tuple[float, int]] = []  # on the clock, and the ranks

    def begin(self, rank: int, time: float) -> None:
        heappush(self.ends, (self.clock + time, rank))

    @property
    def rate(self) -> float:
        return min(1.0, self.number / len(self.ends))

    def next_end(self, now: float) -> float:
        return now + (self.ends[0][0] - self.clock) / self.rate if self.ends else inf

    def advance(self, time: float, is_end: bool) -> Iterator[int]:
        """Let some time pass; yield the ranks whose work has ended."""
        if self.ends:
            self.clock = self.ends[0][0] if is_end else self.clock + time * self.rate
        while self.ends and self.ends[0][0] <= self.clock:
            yield heappop(self.ends)[1]


class _Message:
    """A message on shared links: the time that it would still take alone, and its part of the bandwidth."""

    def __init__(self, time: float, links: tuple[Link, Link], then: Then) -> None:
        self.time, self.links, self.then, self.rate = time, links, then, 1.0


class _Links:
    """The messages that are passing links between hosts."""

    def __init__(self) -> None:
        self.passing: list[_Message] = []
        self.since = 0.0  # the time of the last change

    def begin(self, now: float, messages: list[_Message]) -> None:
        self._change(now, [*self.passing, *messages])

    def next_end(self) -> float:
        return min((self.since + message.time / message.rate for message in self.passing), default=inf)

    def ended(self, now: float) -> list[Then]:
        """Remove the messages that have passed by now; return the continuation of each."""
        over = [message for message in self.passing if self.since + message.time / message.rate <= now]
        if over:
            self._change(now, [message for message in self.passing if message not in over])
        return [message.then for message in over]

    def _change(self, now: float, passing: list[_Message]) -> None:
        for message in self.passing:
            message.time = max(0.0, message.time - (now - self.since) * message.rate)
        rates = fair_rates({message: message.links for message in passing})
        for message in passing:
            message.rate = rates[message]
        self.passing, self.since = passing, now


def fair_rates(links_of: Mapping[M, Sequence[Link]]) -> dict[M, float]:
    """Return the max-min fair rate of each message: none can get more without slowing a message that is no faster.

    Repeatedly, the link with the lowest rate per message is filled: its messages share its remaining bandwidth evenly.

    A rate is a part of the bandwidth of a link.

    References
    ----------
    Bertsekas and Gallager 1992, "Data networks", section 6.5.2, max-min flow control.

    Examples
    --------
    Two messages leave host 0, and one of them meets three more at host 1.

    >>> a, b = ("out", 0), ("into", 1)
    >>> fair_rates({"x": [a], "y": [a, b], "z": [b], "w": [b], "v": [b]})
    {'y': 0.25, 'z': 0.25, 'w': 0.25, 'v': 0.25, 'x': 0.75}
    """
    room = {link: 1.0 for links in links_of.values() for link in links}
    users = {link: [message for message, links in links_of.items() if link in links] for link in room}
    rates: dict[M, float] = {}
    while users:
        tightest = min(users, key=lambda link: room[link] / len(users[link]))
        share = room[tightest] / len(users[tightest])
        for message in users[tightest]:
            rates[message] = share
            for link in links_of[message]:
                room[link] -= share
        users = {link: left for link in users if (left := [m for m in users[link] if m not in rates])}
    return rates
