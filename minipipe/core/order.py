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

from minipipe.core.flow import Flow, Numbered
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
    """Return the order of a table.

    Parameters
    ----------
    flow : Flow
    sends_block : bool
        Whether a SEND meets its RECV, or is over at once.
    """
    runner = _Runner(flow, sends_block)
    runner.run_all()
    rows, positions, given = flow.rows, runner.position, runner.round_of
    blocked = {
        rank: Wait(position, awaited(flow, given, positions, rank))
        for rank, position in enumerate(positions)
        if position < len(rows[rank])
    }
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
    absent = [
        rows[other][at]
        for other, at in members
        if positions[other] < at or not _has_values(flow, given, other, at, now)
    ]
    return min(absent, default=None)


def _giver(flow: Flow, value: Value) -> tuple[int, str, int] | None:
    """Return the action that gives a value, or could give it; None if none could.

    What travels is named after the first kind that gives it, a whole backward, even if
    a half of it does: other stages do not know which it is.
    """
    givers = list(flow.givers(value))
    if not NOUNS[value.name].travels:
        for stage, kind, k in givers:
            if (kind, stage, k) in flow.positions:
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


class _Rest(NamedTuple):
    """Parts that few instructions have; for microbatch k, add k to each number.

    Attributes
    ----------
    needs, gives : tuple of int
        Further events.
    meeting, size : int
        Its meeting, and how many meet; 0 if it meets nobody.
    """

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    meeting: int
    size: int


class _Step(NamedTuple):
    """An instruction as numbers; for microbatch k, add k to each.

    Values that the same instructions give are one **event**: they are given at once.

    Attributes
    ----------
    first, second : int
        The events that it needs, before it runs or comes to its meeting; -1 if none.
    gives : int
        Its event; -1 if nobody needs it.
    rest : _Rest or None
    """

    first: int
    second: int
    gives: int
    rest: _Rest | None


class _Runner:
    def __init__(self, flow: Flow, sends_block: bool) -> None:
        self.flow, self.rows = flow, flow.rows
        self.size = flow.table.num_microbatches  # of the values of one name and stage
        self.meeting_kinds = {
            name
            for name in flow.kinds
            if KINDS[name].meets and (sends_block or not KINDS[name].message)
        }
        self.meetings: dict[Meeting, int] = {}
        self.halves = set(flow.pairs)
        for row in self.rows if flow.pairs else ():
            self.halves.update(b for a, b in pairwise(row) if a in flow.pairs)
        self.inner = self.inner_values()
        self.events = self.number_events()
        self.steps = {name: self.steps_of(name) for name in flow.kinds}
        # Of numbers that vary, the step of a microbatch and that microbatch.
        self.cases: dict[Numbered, tuple[_Step, int]] = {}
        num_events = len(set(self.events.values()))
        self.given = [0] * num_events * self.size  # by event, its round; 0 before that
        self.waiting: defaultdict[int, list[int]] = defaultdict(list)  # by event
        # The members that came, by meeting: rank, round before it, and event.
        self.came: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.ready = list(range(len(self.rows)))[::-1]
        self.position = [0] * len(self.rows)
        self.now = [0] * len(self.rows)
        self.rounds: defaultdict[int, list[int]] = defaultdict(list)

    # -- numbers -------------------------------------------------------------------

    def inner_values(self) -> set[int]:
        """Return the names and stages that the members of a meeting give each other."""
        all_rules = (self.flow.rules[name] for name in self.meeting_kinds)
        rules = (rule for of_kind in all_rules for rule in of_kind if rule is not None)
        return {number // self.size for rule in rules for number in rule.gives}

    def number_events(self) -> dict[int, int]:
        """Return the number of the event by name and stage of a value.

        Values that nobody needs have none.
        """
        flow, size = self.flow, self.size
        rules = [(rule, 0) for of_kind in flow.rules.values() for rule in of_kind]
        givers: defaultdict[int, set[object]] = defaultdict(set)
        needed: set[int] = set()
        for numbers, k in (*rules, *flow.cases.values()):
            if numbers is not None:
                needed.update((number + k) // size for number in numbers.needs)
                for number in numbers.gives:
                    pair = (number + k) // size
                    givers[pair].add((numbers, number - pair * size))
        events: dict[frozenset[object], int] = {}
        return {
            pair: events.setdefault(frozenset(givers[pair]), len(events))
            for pair in sorted(needed)
        }

    def round_of(self, number: int) -> int:
        """Return the round in which a value is given."""
        event = self.events.get(number // self.size)
        if event is None:
            return 0
        return self.given[event * self.size + number % self.size]

    def steps_of(self, name: str) -> list[_Step | None]:
        """Return the step of a kind by stage; None if each case has its own."""
        return [
            None if rule is None else self.step(rule, (stage, name, 0), -1, -1)
            for stage, rule in enumerate(self.flow.rules[name])
        ]

    def step(
        self, numbers: Numbered, action: tuple[int, str, int], rank: int, position: int
    ) -> _Step:
        needs = numbers.needs
        stage, name, k = action
        meets = KINDS[name].meets
        if meets is None or name not in self.meeting_kinds:
            return self.packed(needs, numbers.gives)
        meeting = meets(Site(self.flow, rank, position, stage, k))
        number = self.meetings.setdefault(meeting, len(self.meetings)) * self.size
        outer = [n for n in needs if n // self.size not in self.inner]
        return self.packed(outer, numbers.gives, number, meeting.size)

    def packed(
        self,
        needs: Sequence[int],
        gives: Sequence[int],
        meeting: int = 0,
        size: int = 0,
    ) -> _Step:
        first, second, *further = [*self.events_of(needs), -1, -1]
        event, *others = [*self.events_of(gives), -1]
        rest = _Rest(tuple(further[:-2]), tuple(others[:-1]), meeting, size)
        is_plain = rest == _Rest((), (), 0, 0)
        return _Step(first, second, event, None if is_plain else rest)

    def events_of(self, numbers: Sequence[int]) -> list[int]:
        events, size = self.events, self.size
        known = (n for n in numbers if n // size in events)
        return list(dict.fromkeys(events[n // size] * size + n % size for n in known))

    def step_at(
        self, rank: int, position: int, now: int
    ) -> tuple[_Step | None, int, int]:
        """Return the step of an instruction, what to add to it, and the round before.

        The first half of an overlapped pair needs what both halves need, and the second
        half runs in the same round.
        """
        flow, action = self.flow, self.rows[rank][position]
        stage, name, k = action
        now -= position > 0 and flow.is_pair(rank, position - 1)
        numbers = flow.rules[name][stage] or flow.varied.get((rank, position))
        if numbers is None:
            return None, 0, now
        if flow.is_pair(rank, position):
            first, second = numbers.of(k), flow.numbers(rank, position + 1)
            if second is None:
                return None, 0, now
            return self.packed(first.needs + second.needs, first.gives), 0, now
        if name in self.meeting_kinds:  # whose members differ in their microbatches
            return self.step(numbers.of(k), action, rank, position), 0, now
        if numbers not in self.cases:
            self.cases[numbers] = (
                self.packed(numbers.of(k).needs, numbers.of(k).gives),
                k,
            )
        step, begin = self.cases[numbers]
        return step, k - begin, now

    # -- the hot loop --------------------------------------------------------------

    def run_all(self) -> None:
        while self.ready:
            self.run(self.ready.pop())

    def run(self, rank: int) -> None:
        """Run a rank as far as it can; the ranks that this wakes become ready."""
        given, waiting, rounds = self.given, self.waiting, self.rounds
        row, steps, halves = self.rows[rank], self.steps, self.halves
        position, now = self.position[rank], self.now[rank]
        while position < len(row):
            stage, kind, k = row[position]
            step = steps[kind][stage]
            if step is None or (halves and row[position] in halves):
                step, k, now = self.step_at(rank, position, now)
                if step is None:
                    break
            first, second, gives, rest = step
            if first >= 0:
                before = given[first + k]
                if not before:
                    waiting[first + k].append(rank)
                    break
                if before > now:
                    now = before
            if second >= 0:
                before = given[second + k]
                if not before:
                    waiting[second + k].append(rank)
                    break
                if before > now:
                    now = before
            if rest is not None:
                start = self.run_rest(rank, now, rest, k, gives)
                if start < 0:
                    break
                now = start
            rounds[now].append(rank)
            now += 1
            position += 1
            if gives >= 0 and not given[gives + k]:  # the first time counts
                given[gives + k] = now
                if gives + k in waiting:
                    self.ready += waiting.pop(gives + k)
        self.position[rank], self.now[rank] = position, now

    def run_rest(self, rank: int, now: int, rest: _Rest, k: int, event: int) -> int:
        """Wait for further values, and come to a meeting.

        The last one lets the others run. Return the round before the instruction, or -1
        if it cannot run yet.
        """
        given, rounds, waiting = self.given, self.rounds, self.waiting
        needs, gives, meeting, size = rest
        for need in needs:
            before = given[need + k]
            if not before:
                waiting[need + k].append(rank)
                return -1
            if before > now:
                now = before
        # A message that stands twice meets nobody the second time.
        if size and not (event >= 0 and given[event + k]):
            came = self.came[meeting + k]
            if len(came) + 1 < size:
                came.append((rank, now, event + k if event >= 0 else -1))
                return -1
            del self.came[meeting + k]
            for _, before, _ in came:
                if before > now:
                    now = before
            for other, _, its_event in came:
                rounds[now].append(other)
                self.now[other] = now + 1
                self.position[other] += 1
                self.ready.append(other)
                if its_event >= 0:
                    self.give(its_event, now + 1)
        for event in gives:
            self.give(event + k, now + 1)
        return now

    def give(self, event: int, now: int) -> None:
        if not self.given[event]:
            self.given[event] = now
            self.ready += self.waiting.pop(event, ())
