"""The order of a table is what its definition says, round by round."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from minipipe.core.errors import ScheduleError
from minipipe.core.flow import Flow
from minipipe.core.order import order
from minipipe.core.values import KINDS
from minipipe.schedules import schedule_of_text
from tests.core.tables import legal_tables, lowered, mutants
from tests.strategies import examples, overlapped, runnable_schedules


class Rounds:
    """The definition of rounds, which looks at each rank in each round."""

    def __init__(self, flow, sends_block):
        self.flow, self.rows = flow, flow.table.actions
        self.sends_block = sends_block
        self.given = set()
        self.position = [0] * len(self.rows)

    def run(self):
        """Return the ranks that run in each round, twice for a pair."""
        rounds = []
        while True:
            ready = self.ready()
            if not ready:
                return rounds
            rounds.append(sorted(rank for rank, count in ready for _ in range(count)))
            for rank, count in ready:
                for _ in range(count):
                    uses = self.flow.uses(rank, self.position[rank])
                    self.given.update(uses.gives)
                    self.position[rank] += 1

    def ready(self):
        """Return the ranks whose next instruction can run, and how many those are."""
        ready, came = [], defaultdict(list)
        for rank, position in enumerate(self.position):
            if position == len(self.rows[rank]):
                continue
            places = range(position, position + 1 + self.flow.is_pair(rank, position))
            all_uses = [self.flow.uses(rank, at) for at in places]
            if None in all_uses:
                continue
            needs = {v for uses in all_uses for v in (*uses.takes, *uses.reads)}
            gives = {v for uses in all_uses for v in uses.gives}
            if self.meets(rank, position) and not gives <= self.given:
                needs = {v for v in needs if not v.name.endswith("sent")}
                if needs <= self.given:
                    came[self.flow.meeting(rank, position)].append((rank, 1))
            elif needs <= self.given:
                ready.append((rank, len(places)))
        complete = (ms for meeting, ms in came.items() if len(ms) >= meeting.size)
        return [*ready, *(member for members in complete for member in members)]

    def meets(self, rank, position):
        kind = KINDS[self.rows[rank][position].kind]
        return kind.meets is not None and (self.sends_block or not kind.message)


def changed(draw, table):
    """Return a table with one instruction removed, duplicated or exchanged."""
    rows = [list(row) for row in table.actions]
    _, rank, rows_of_rank = draw(st.sampled_from(list(mutants(rows))))
    rows[rank] = rows_of_rank
    there = {action for row in rows for action in row}
    actions = tuple(map(tuple, rows))
    try:
        return replace(table, actions=actions, overlaps=table.overlaps & there)
    except ScheduleError:
        return table


@examples(300)
@given(st.data(), st.booleans())
def test_rounds_are_those_of_their_definition(data, sends_block):
    originals = legal_tables() | overlapped(runnable_schedules())
    drawn = lowered(data.draw, data.draw(originals))
    if data.draw(st.booleans()):
        drawn = changed(data.draw, drawn)
    flow = Flow(drawn)
    found, expected = order(flow, sends_block), Rounds(flow, sends_block)
    event("blocked" if found.blocked else "ends")
    assert found.rounds == expected.run()
    stuck = {
        rank: position
        for rank, position in enumerate(expected.position)
        if position < len(drawn.actions[rank])
    }
    assert {rank: wait.position for rank, wait in found.blocked.items()} == stuck


@examples(200)
@given(st.data())
def test_an_awaited_action_gives_or_meets_what_the_blocked_one_needs(data):
    originals = legal_tables() | overlapped(runnable_schedules())
    drawn = changed(data.draw, lowered(data.draw, data.draw(originals)))
    flow = Flow(drawn)
    for rank, wait in order(flow).blocked.items():
        halves = range(
            wait.position, wait.position + 1 + flow.is_pair(rank, wait.position)
        )
        all_uses = [flow.uses(rank, at) for at in halves]
        if wait.awaited is None:
            kind = KINDS[drawn.actions[rank][wait.position].kind]
            assert None in all_uses or kind.meets
            continue
        needs = {v for uses in all_uses for v in (*uses.takes, *uses.reads)}
        awaited = flow.uses_of(wait.awaited)
        is_met = KINDS[wait.awaited[1]].meets is not None
        assert is_met or needs.intersection(awaited.gives)


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("0B0 0F0", {0: "0F0"}),
        ("0F0 0B0\n1F0", {0: "1B0"}),
        ("0F0 0SEND_F0 0RECV_B0 0B0\n1F0 1B0 1SEND_B0", {0: "1RECV_F0", 1: "1RECV_F0"}),
        ("0F0 0SEND_F0 0B0", {0: None}),  # there is no stage 1
        ("0F0 0B0 0U0 0U0", {0: None}),  # nothing is left for the second update
        (
            "0F0 0B0 0REDUCE_GRAD0\n0F1 0REDUCE_GRAD1 0B1",
            {0: "0REDUCE_GRAD1", 1: "0B1"},
        ),
        ("0F0 0L0 0B0", {0: "0O0"}),
        ("0F0 0I0 0U0 0W0", {0: "0W0"}),  # the half that gives gradients of weights
        ("0F0.1 0F0.0 0B0.1 0B0.0", {0: "0F0"}),
    ],
)
def test_who_waits_for_what(text, waits):
    blocked = order(Flow(schedule_of_text(text))).blocked
    cells = {
        rank: wait.awaited and "{}{}{}".format(*wait.awaited)
        for rank, wait in blocked.items()
    }
    assert cells == waits
