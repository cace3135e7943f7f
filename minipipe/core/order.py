"""The order in which the instructions of a table can run, in linear time.

An instruction runs in one **round** more than the latest round on which it depends:
that of the instruction before it in its row, and those in which the values that it
takes or reads are given. Instructions that meet run in one round, once all of them are
next in their rows; so do the two instructions of an overlapped pair. What remains when
nothing can run any more is blocked, and waits for ever.

Each rank runs as far as it can. A blocked rank is looked at again when the value that
it waits for is given, or when the last rank has come to its meeting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from minipipe.core.flow import Flow, Rule
from minipipe.core.values import KINDS, Meeting, Site


class Order(NamedTuple):
    """The rounds of a table, and the ranks that cannot end their rows.

    Attributes
    ----------
    rounds : list of list of int
        The ranks that run their next instruction in each round, ascending; a rank that
        runs an overlapped pair occurs twice.
    blocked : dict of int to Wait
        By rank that cannot continue.
    given : list of int
        By event of the flow, the round in which it is given, from 1; 0 if never.
    """

    rounds: list[list[int]]
    blocked: dict[int, Wait]
    given: list[int]


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
    rows, positions, given = flow.rows, runner.position, runner.given
    blocked = {
        rank: Wait(position, awaited(flow, given, positions, rank))
        for rank, position in enumerate(positions)
        if position < len(rows[rank])
    }
    return Order(runner.rounds, blocked, given)


def awaited(
    flow: Flow,
    given: Sequence[int],
    positions: Sequence[int],
    rank: int,
    now: float = inf,
) -> tuple[int, str, int] | None:
    """Return the action that a rank waits for: :class:`Wait` says which one.

    Parameters
    ----------
    flow : Flow
    given : sequence of int
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
        rule = flow.rule_at(rank, at)
        if rule is None:
            return None
        for event, value in rule.delayed:
            if not 0 < given[event] <= now:
                return next(flow.givers(value), None)
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


def _has_values(
    flow: Flow, given: Sequence[int], rank: int, position: int, now: float
) -> bool:
    """Whether all values that an instruction needs are given."""
    rule = flow.rule_at(rank, position)
    return rule is not None and all(0 < given[event] <= now for event in rule.needs)


class _Step(NamedTuple):
    """An instruction or an overlapped pair as numbers; for microbatch k, add k.

    Attributes
    ----------
    needs : tuple of int
        The events that must be over before it runs, or before its rank comes to its
        meeting.
    gives : tuple of int
    meeting : int
        The number of its meeting; -1 if it meets nobody.
    size : int
        How many ranks meet; without a meeting, how many instructions these are.
    """

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    meeting: int = -1
    size: int = 1

    def of(self, k: int) -> _Step:
        """Return the step with the numbers of a microbatch."""
        needs = tuple(event + k for event in self.needs)
        gives = tuple(event + k for event in self.gives)
        return _Step(needs, gives, self.meeting, self.size)


# A rank that came to a meeting, the round before that, what it will give, microbatch.
_Came = tuple[int, int, tuple[int, ...], int]


class _Runner:
    def __init__(self, flow: Flow, sends_block: bool) -> None:
        self.flow, self.rows = flow, flow.rows
        self.meeting_kinds = {
            name
            for name in flow.kinds
            if KINDS[name].meets and (sends_block or not KINDS[name].message)
        }
        self.meetings: dict[Meeting, int] = {}
        self.inner = self.inner_events()
        self.steps = {name: self.steps_of(name) for name in flow.kinds}
        self.given = [0] * flow.num_events  # by event, its round; 0 before that
        self.waiting: defaultdict[int, list[int]] = defaultdict(list)  # by event
        self.came: defaultdict[int, list[_Came]] = defaultdict(list)  # by meeting
        self.ready = list(range(len(self.rows)))[::-1]
        self.position = [0] * len(self.rows)
        self.now = [0] * len(self.rows)
        self.rounds: list[list[int]] = []

    # -- numbers -------------------------------------------------------------------

    def inner_events(self) -> set[int]:
        """Return the events that the instructions of a meeting give each other."""
        return {
            event
            for name in self.meeting_kinds
            for rule in self.flow.event_rules[name]
            if rule is not None
            for event in rule.gives
        }

    def steps_of(self, name: str) -> list[_Step | None]:
        """Return the step of a kind by stage; None if each instruction has its own."""
        return [
            None if rule is None else self.step(rule, (stage, name, 0), -1, -1)
            for stage, rule in enumerate(self.flow.event_rules[name])
        ]

    def step(
        self, rule: Rule, action: tuple[int, str, int], rank: int, position: int
    ) -> _Step:
        stage, name, k = action
        if name not in self.meeting_kinds:
            return _Step(rule.needs, rule.gives)
        meets = KINDS[name].meets
        assert meets is not None
        meeting = meets(Site(self.flow, rank, position, stage, k))
        number = self.meetings.setdefault(meeting, len(self.meetings))
        needs = tuple(event for event in rule.needs if event not in self.inner)
        begin = number * self.flow.table.num_microbatches
        return _Step(needs, rule.gives, begin, meeting.size)

    def step_at(self, rank: int, position: int) -> tuple[_Step | None, int]:
        """Return the step of an instruction or of a pair, and what to add to it."""
        if not self.flow.is_pair(rank, position):
            return self.step_alone(rank, position)
        first, k = self.step_alone(rank, position)
        second, other = self.step_alone(rank, position + 1)
        if first is None or second is None:
            return None, 0
        first, second = first.of(k), second.of(other)
        step = _Step(first.needs + second.needs, first.gives + second.gives, size=2)
        return step, 0

    def step_alone(self, rank: int, position: int) -> tuple[_Step | None, int]:
        action = self.rows[rank][position]
        stage, name, k = action
        step = self.steps[name][stage]
        if step is not None:
            return step, k
        rule = self.flow.varied_events.get((rank, position))
        if rule is None:
            return None, 0
        step = self.step(rule, action, rank, position)
        if step.meeting < 0:
            return step, k
        return step.of(k), 0  # its members have microbatches of their own

    # -- the hot loop --------------------------------------------------------------

    def run_all(self) -> None:
        while self.ready:
            self.run(self.ready.pop())
        for ranks in self.rounds:
            ranks.sort()

    def run(self, rank: int) -> None:
        """Run a rank as far as it can; the ranks that this wakes become ready."""
        given, waiting, ready = self.given, self.waiting, self.ready
        steps, pairs = self.steps, self.flow.pairs
        row, rounds = self.rows[rank], self.rounds
        position, now = self.position[rank], self.now[rank]
        while position < len(row):
            stage, kind, k = row[position]
            step = steps[kind][stage]
            if step is None or (pairs and row[position] in pairs):
                step, k = self.step_at(rank, position)
                if step is None:
                    break
            needs, gives, meeting, size = step
            for event in needs:
                before = given[event + k]
                if before > now:
                    now = before
                elif not before:
                    waiting[event + k].append(rank)
                    break
            else:
                if meeting >= 0:
                    start = self.come(meeting + k, size, (rank, now, gives, k))
                    if start < 0:
                        break
                    now, size = start, 1
                if now == len(rounds):
                    rounds.append([])
                rounds[now].append(rank)
                if size == 2:
                    rounds[now].append(rank)
                now += 1
                position += size
                for event in gives:
                    if not given[event + k]:  # given twice: the first time counts
                        given[event + k] = now
                        ready += waiting.pop(event + k, ())
                continue
            break
        self.position[rank], self.now[rank] = position, now

    def come(self, meeting: int, size: int, member: _Came) -> int:
        """Come to a meeting; return the round before it, or -1 if not all came.

        The last one lets the others run.
        """
        given, rounds = self.given, self.rounds
        earlier = self.came[meeting]
        _, now, gives, k = member
        # A message that stands twice meets nobody the second time.
        is_over = gives and given[gives[0] + k]
        if len(earlier) + 1 < size and not is_over:
            earlier.append(member)
            return -1
        del self.came[meeting]
        for _, before, _, _ in earlier:
            if before > now:
                now = before
        if now == len(rounds):
            rounds.append([])
        for rank, _, gives, k in earlier:
            rounds[now].append(rank)
            self.now[rank] = now + 1
            self.position[rank] += 1
            self.ready.append(rank)
            for event in gives:
                if not given[event + k]:
                    given[event + k] = now + 1
                    self.ready += self.waiting.pop(event + k, ())
        return now
