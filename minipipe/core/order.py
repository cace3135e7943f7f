"""The order in which the instructions of a table can run, in linear time.

An instruction runs one **round** after the latest round on which it depends: the round
of the instruction before it in its row, and the rounds that give the values which it
takes or reads. Instructions that meet run in one round, once all of them are
next in their rows; so do the two instructions of an overlapped pair. What remains when
nothing can run any more is blocked, and waits for ever.

Each rank runs as far as it can. A blocked rank is looked at again when the value that
it waits for is given, or when the last rank has come to its meeting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from minipipe.core.flow import Flow, Rule
from minipipe.core.values import KINDS, NOUNS, Meeting, Site, Value


class Order(NamedTuple):
    """The rounds of a table, and the ranks that cannot end their rows.

    Attributes
    ----------
    rounds : list of list of int
        The ranks that run their next instruction in each round, ascending; a rank that
        runs an overlapped pair occurs twice.
    blocked : dict of int to Wait
        By rank that cannot continue.
    given : function
        From the number of a value to the round in which it is given, from 1; 0 if it
        never is.
    """

    rounds: list[list[int]]
    blocked: dict[int, Wait]
    given: Callable[[int], int]


class Wait(NamedTuple):
    """A rank that cannot continue.

    Attributes
    ----------
    position : int
        Its next instruction; of an overlapped pair, the first one.
    awaited : tuple of (int, str, int), or None
        The action that it waits for, whether that is in the table or not. None if no
        action could let it continue.
    """

    position: int
    awaited: tuple[int, str, int] | None


def order(flow: Flow, sends_block: bool = True) -> Order:
    """Return the order of a table: it is computed once and kept.

    Parameters
    ----------
    flow : Flow
    sends_block : bool
        Whether a SEND meets its RECV, or is over at once.
    """
    if sends_block not in flow.orders:
        flow.orders[sends_block] = _order(flow, sends_block)
    return flow.orders[sends_block]


def _order(flow: Flow, sends_block: bool) -> Order:
    runner = _Runner(flow, sends_block)
    runner.run_all()
    rows = flow.rows
    positions = runner.position
    given = runner.round_of
    blocked: dict[int, Wait] = {}
    for rank, position in enumerate(positions):
        if position < len(rows[rank]):
            blocked[rank] = Wait(position, awaited(flow, given, positions, rank))
    rounds = [sorted(runner.rounds[now]) for now in range(len(runner.rounds))]
    return Order(rounds, blocked, given)


def awaited(
    flow: Flow,
    given: Callable[[int], int],
    positions: Sequence[int],
    rank: int,
    now: float = inf,
) -> tuple[int, str, int] | None:
    """Return the action that a rank waits for: :class:`Wait` says which one.

    Parameters
    ----------
    flow : Flow
    given : function
        As in :class:`Order`.
    positions : sequence of int
        By rank, the index of its next instruction.
    rank : int
    now : float
        The last round that has run.
    """
    position = positions[rank]
    halves = (position, position + 1) if flow.is_pair(rank, position) else (position,)
    for at in halves:
        numbers = flow.numbers(rank, at)
        if numbers is None:
            return None
        for number in numbers.needs:
            if not 0 < given(number) <= now:
                return _giver(flow, flow.value_of(number))
    rows = flow.rows
    kind = KINDS[rows[rank][position][1]]
    if kind.message:
        return flow.other_half(rank, position)
    members = flow.members(rank, position) if kind.meets is not None else ()
    absent = []
    for other, at in members:
        if positions[other] < at or not _has_values(flow, given, other, at, now):
            absent.append(rows[other][at])
    return min(absent, default=None)


def _giver(flow: Flow, value: Value) -> tuple[int, str, int] | None:
    """Return the action that gives a value, or could give it; None if none could.

    What travels is named after the first kind that gives it, a whole backward, even if
    a half of it does: other stages do not know which it is.
    """
    givers = list(flow.givers(value))
    if not NOUNS[value.name].travels:
        for stage, kind, k in givers:
            if k in flow.positions.get((kind, stage), ()):
                return stage, kind, k
    return next(iter(givers), None)


def _has_values(
    flow: Flow, given: Callable[[int], int], rank: int, position: int, now: float
) -> bool:
    """Whether all values that an instruction needs are given."""
    numbers = flow.numbers(rank, position)
    if numbers is None:
        return False
    return all(0 < given(number) <= now for number in numbers.needs)


class _Step(NamedTuple):
    """An instruction as numbers; for microbatch k, add k to each but the size.

    Values that the same instructions give are one **event**: they are given at once.

    Attributes
    ----------
    needs, gives : tuple of int
        The events that it needs, before it runs or comes to its meeting; its events
        that anybody needs.
    meeting, size : int
        Its meeting, and how many meet; 0 if it meets nobody.
    """

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    meeting: int = 0
    size: int = 0


class _Runner:
    def __init__(self, flow: Flow, sends_block: bool) -> None:
        self.flow = flow
        self.rows = flow.rows
        self.size = flow.table.num_microbatches  # of the values of one name and stage
        kinds = (KINDS[name] for name in flow.kinds if KINDS[name].meets)
        self.meeting_kinds = {k.name for k in kinds if sends_block or not k.message}
        self.meetings: dict[Meeting, int] = {}
        self.halves = set(flow.pairs)
        for row in self.rows if flow.pairs else ():
            self.halves.update(b for a, b in pairwise(row) if a in flow.pairs)
        self.inner = self.inner_values()
        self.events = self.number_events()
        self.steps = list(map(self.step_of, flow.rules))  # by code
        num_events = len(set(self.events.values()))
        self.given = [0] * num_events * self.size  # by event, its round; 0 before that
        self.waiting: defaultdict[int, list[int]] = defaultdict(list)  # by event
        # The members that came, by meeting: rank, round before it, and events.
        self.came: defaultdict[int, list[tuple[int, int, list[int]]]]
        self.came = defaultdict(list)
        self.ready = list(range(len(self.rows)))[::-1]
        self.position = [0] * len(self.rows)
        self.now = [0] * len(self.rows)
        self.rounds: defaultdict[int, list[int]] = defaultdict(list)

    # -- numbers -------------------------------------------------------------------

    def inner_values(self) -> dict[str, set[int]]:
        """Return the names and stages of what members of a meeting give each other.

        There is a set for each kind: one that is no message meets only itself.
        """
        of_messages: set[int] = set()
        inner: dict[str, set[int]] = {}
        for kind in self.meeting_kinds:
            inner[kind] = of_messages if KINDS[kind].message else set()
        for kind, _, numbers in self.flow.rules:
            if kind in inner and numbers is not None:
                inner[kind].update(number // self.size for number in numbers.gives)
        return inner

    def number_events(self) -> dict[int, int]:
        """Return the number of the event by name and stage of a value.

        Values that nobody needs have none.
        """
        size = self.size
        givers: defaultdict[int, set[object]] = defaultdict(set)
        needed: set[int] = set()
        for code, (_, site, numbers) in enumerate(self.flow.rules):
            if numbers is not None:
                needed.update(number // size for number in numbers.needs)
                for number in numbers.gives:
                    place, k = divmod(number, size)
                    givers[place].add((code, k - site.microbatch))
        events: dict[frozenset[object], int] = {}
        numbered: dict[int, int] = {}
        for pair in sorted(needed):
            numbered[pair] = events.setdefault(frozenset(givers[pair]), len(events))
        return numbered

    def round_of(self, number: int) -> int:
        """Return the round in which a value is given."""
        event = self.events.get(number // self.size)
        if event is None:
            return 0
        return self.given[event * self.size + number % self.size]

    def step_of(self, rule: Rule) -> _Step | None:
        """Return the step of a rule; None if each instruction has its own."""
        kind, site, numbers = rule
        if numbers is None:
            return None
        if kind not in self.meeting_kinds:
            return self.packed(numbers.needs, numbers.gives, site.microbatch)
        return None if kind in self.flow.varied else self.step_to_meet(rule)

    def step_to_meet(self, rule: Rule) -> _Step:
        kind, site, numbers = rule
        meets = KINDS[kind].meets
        assert meets is not None and numbers is not None
        meeting = meets(site)
        number = self.meetings.setdefault(meeting, len(self.meetings)) * self.size
        outer = [n for n in numbers.needs if n // self.size not in self.inner[kind]]
        step = self.packed(outer, numbers.gives, site.microbatch)
        return step._replace(meeting=number - site.microbatch, size=meeting.size)

    def packed(self, needs: Sequence[int], gives: Sequence[int], k: int) -> _Step:
        """Return the step of an instruction of microbatch k."""
        return _Step(self.events_of(needs, k), self.events_of(gives, k))

    def events_of(self, numbers: Sequence[int], k: int) -> tuple[int, ...]:
        events = self.events
        size = self.size
        known = (n for n in numbers if n // size in events)
        found = (events[n // size] * size + n % size - k for n in known)
        return tuple(dict.fromkeys(found))

    def step_at(
        self, rank: int, position: int, now: int
    ) -> tuple[_Step | None, int, int]:
        """Return the step of an instruction, what to add to it, and the round before.

        The first half of an overlapped pair needs what both halves need, and the second
        half runs in the same round. A meeting may depend on the place in the row.
        """
        flow = self.flow
        stage, kind, k = self.rows[rank][position]
        now -= position > 0 and flow.is_pair(rank, position - 1)
        numbers = flow.numbers(rank, position)
        if numbers is None:
            return None, 0, now
        if flow.is_pair(rank, position):
            second = flow.numbers(rank, position + 1)
            if second is None:
                return None, 0, now
            return self.packed(numbers.needs + second.needs, numbers.gives, 0), 0, now
        step = self.steps[flow.codes[rank][position]]
        if step is None:
            site = Site(flow, rank, position, stage, k)
            step = self.step_to_meet(Rule(kind, site, numbers))
        return step, k, now

    # -- the hot loop --------------------------------------------------------------

    def run_all(self) -> None:
        while self.ready:
            self.run(self.ready.pop())

    def run(self, rank: int) -> None:
        """Run a rank as far as it can; the ranks that this wakes become ready."""
        given, waiting, rounds = self.given, self.waiting, self.rounds
        row, codes = self.rows[rank], self.flow.codes[rank]
        steps, halves = self.steps, self.halves
        position, now = self.position[rank], self.now[rank]
        while position < len(row):
            step = steps[codes[position]]
            k = row[position][2]
            if step is None or (halves and row[position] in halves):
                step, k, now = self.step_at(rank, position, now)
                if step is None:
                    break
            needs, gives, meeting, size = step
            for need in needs:
                before = given[need + k]
                if not before:
                    waiting[need + k].append(rank)
                    break
                if before > now:
                    now = before
            else:
                if size:
                    begin = self.meet(
                        rank, now, [event + k for event in gives], meeting + k, size
                    )
                    if begin < 0:
                        break
                    now = begin
                rounds[now].append(rank)
                now += 1
                position += 1
                for event in gives:
                    if not given[event + k]:  # the first time counts
                        given[event + k] = now
                        if event + k in waiting:
                            self.ready += waiting.pop(event + k)
                continue
            break
        self.position[rank], self.now[rank] = position, now

    def meet(
        self, rank: int, now: int, gives: list[int], meeting: int, size: int
    ) -> int:
        """Come to a meeting; the last one lets the others run.

        Return the round before it, or -1 if it cannot begin yet.
        """
        # A message that stands twice meets nobody the second time.
        if any(self.given[event] for event in gives[:1]):
            return now
        came = self.came[meeting]
        if len(came) + 1 < size:
            came.append((rank, now, gives))
            return -1
        del self.came[meeting]
        now = max([now, *(before for _, before, _ in came)])
        for other, _, its_gives in came:
            self.rounds[now].append(other)
            self.now[other] = now + 1
            self.position[other] += 1
            self.ready.append(other)
            for event in its_gives:
                if not self.given[event]:
                    self.given[event] = now + 1
                    self.ready += self.waiting.pop(event, ())
        return now
