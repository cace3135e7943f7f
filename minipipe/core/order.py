"""The order in which the instructions of a table can run, in linear time.

An instruction runs in one **round** more than the latest round on which it depends:
that of the instruction before it in its row, and those in which the values that it
takes or reads are given. Instructions that meet run in one round, once all of them are
next in their rows; so do the two instructions of an overlapped pair. What remains when
nothing can run any more is blocked, and waits for ever.

Each rank runs as far as it can. A blocked rank is looked at again when the value that
it waits for is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from minipipe.core.flow import Flow
from minipipe.core.values import KINDS, NOUNS, Meeting, Value


class Order(NamedTuple):
    """The rounds of a table, and the ranks that cannot end their rows.

    Attributes
    ----------
    rounds : list of list of int
        The ranks that run their next instruction in each round, ascending; a rank that
        runs an overlapped pair occurs twice.
    blocked : dict of int to Wait
        By rank that cannot continue.
    """

    rounds: list[list[int]]
    blocked: dict[int, Wait]


class Wait(NamedTuple):
    """A rank that cannot continue.

    Attributes
    ----------
    position : int
        Its next instruction; of an overlapped pair, the half that waits.
    value : Value or None
        The value that nobody has given.
    meeting : Meeting or None
        If it lacks no value: the meeting to which not all ranks have come.
    came : sequence of int
        The ranks that have come to it.
    """

    position: int
    value: Value | None = None
    meeting: Meeting | None = None
    came: Sequence[int] = ()


def order(flow: Flow, sends_block: bool = True) -> Order:
    """Return the order of a table.

    Parameters
    ----------
    flow : Flow
    sends_block : bool
        Whether a SEND meets its RECV, or is over at once.
    """
    return _Runner(flow, sends_block).run_all()


class _Runner:
    def __init__(self, flow: Flow, sends_block: bool) -> None:
        self.flow, self.rows = flow, flow.rows
        self.pairs = flow.pairs
        self.meeting_kinds = {
            name
            for name in flow.kinds
            if KINDS[name].meets and (sends_block or not KINDS[name].message)
        }
        self.given = [0] * flow.num_events  # by event, its round; 0 before that
        self.position = [0] * len(self.rows)
        self.now = [0] * len(self.rows)
        self.waiting: defaultdict[int, list[int]] = defaultdict(list)
        self.came: defaultdict[Meeting, list[int]] = defaultdict(list)
        self.rounds: list[list[int]] = []
        has_any = self.meeting_kinds or self.pairs
        self.is_special = self.is_together if has_any else None

    def run_all(self) -> Order:
        ready = list(range(len(self.rows)))[::-1]
        while ready:
            ready += self.run(ready.pop())
        for ranks in self.rounds:
            ranks.sort()
        blocked = {
            rank: self.wait_of(rank)
            for rank, position in enumerate(self.position)
            if position < len(self.rows[rank])
        }
        return Order(self.rounds, blocked)

    def wait_of(self, rank: int) -> Wait:
        """Return why a rank cannot continue."""
        row, position = self.rows[rank], self.position[rank]
        is_pair = row[position] in self.pairs
        for at in (position, position + 1) if is_pair else (position,):
            rule = self.flow.rule_at(rank, at)
            if rule is None:
                return Wait(at)
            for event, value in rule.delayed:
                is_inner = (
                    row[at][1] in self.meeting_kinds and NOUNS[value.name].travels
                )
                if not self.given[event] and not is_inner:
                    return Wait(at, value)
        if row[position][1] in self.meeting_kinds:
            meeting = self.flow.meeting(rank, position)
            return Wait(position, None, meeting, self.came[meeting])
        return Wait(position)

    def run(self, rank: int) -> list[int]:
        """Run a rank as far as it can; return the ranks that this wakes."""
        given, rules, row = self.given, self.flow.event_rules, self.rows[rank]
        waiting, rounds, is_special = self.waiting, self.rounds, self.is_special
        position, now = self.position[rank], self.now[rank]
        woken: list[int] = []
        while position < len(row):
            stage, kind, k = row[position]
            rule = rules[kind][stage]
            if rule is None:
                rule, k = self.flow.single_events.get((rank, position)), 0
                if rule is None:
                    break
            if is_special and is_special(row[position]):
                self.position[rank], self.now[rank] = position, now
                if self.run_together(rank, woken):
                    woken.append(rank)  # which continues behind it
                return woken
            start = now
            for event in rule[0]:
                before = given[event + k]
                if before > start:
                    start = before
                elif not before:
                    waiting[event + k].append(rank)
                    break
            else:
                now = start + 1
                position += 1
                while now > len(rounds):
                    rounds.append([])
                rounds[now - 1].append(rank)
                for event in rule[1]:
                    if given[event + k]:  # given twice: the first time counts
                        continue
                    given[event + k] = now
                    woken += waiting.pop(event + k, ())
                continue
            break
        self.position[rank], self.now[rank] = position, now
        return woken

    def is_together(self, action: Any) -> bool:
        """Whether an instruction meets others, or is overlapped with the next one."""
        return action[1] in self.meeting_kinds or action in self.pairs

    def note(self, now: int, rank: int) -> None:
        while now > len(self.rounds):
            self.rounds.append([])
        self.rounds[now - 1].append(rank)

    def run_together(self, rank: int, woken: list[int]) -> bool:
        """Run a meeting or an overlapped pair if all of it is ready."""
        position = self.position[rank]
        first = self.rows[rank][position]
        if first[1] in self.meeting_kinds:
            return self.meet(rank, woken)
        parts = [(rank, position), (rank, position + 1)]
        return self.run_parts(parts, woken)

    def meet(self, rank: int, woken: list[int]) -> bool:
        meeting = self.flow.meeting(rank, self.position[rank])
        came = self.came[meeting]
        if rank not in came:
            came.append(rank)
        if len(came) < meeting.size:
            return False
        others = [other for other in came if other != rank]
        if not self.run_parts([(r, self.position[r]) for r in came], woken):
            return False
        woken += others
        return True

    def run_parts(self, parts: list[tuple[int, int]], woken: list[int]) -> bool:
        """Run instructions in one round, if the values are given that each needs.

        Values that one of them gives another do not count.
        """
        rules = [rule for part in parts if (rule := self.flow.rule_at(*part))]
        if len(rules) < len(parts):
            return False
        inner = {event for rule in rules for event in rule.gives}
        now = max(self.now[rank] for rank, _ in parts)
        for (rank, _), rule in zip(parts, rules):
            for event in rule.needs:
                if event in inner:
                    continue
                if not self.given[event]:
                    self.waiting[event].append(rank)
                    return False
                now = max(now, self.given[event])
        now += 1
        for (rank, position), rule in zip(parts, rules):
            self.note(now, rank)
            self.now[rank], self.position[rank] = now, position + 1
            for event in rule.gives:
                self.given[event] = self.given[event] or now
                woken += self.waiting.pop(event, ())
        return True
