"""Starts and ends that follow from values are those of rules written by hand."""

from functools import cache

from hypothesis import assume, given
from hypothesis import strategies as st
from minipipe import Costs, Schedule, simulate
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.schedules.simulation.slice_work import relative_work
from tests.core.tables import legal_tables, problem
from tests.strategies import examples, legally_overlapped, runnable_schedules

TIMES = st.floats(0, 9, allow_subnormal=False)  # awkward: sums of them round


@st.composite
def costs_for(draw, table):
    """Draw costs with every feature but shared cores and links."""
    by_stage = st.lists(TIMES, min_size=table.num_stages, max_size=table.num_stages)
    slices = st.lists(
        st.floats(0.5, 2), min_size=table.num_slices, max_size=table.num_slices
    )
    return Costs(
        forward=draw(by_stage),
        backward_input=draw(by_stage),
        backward_weight=draw(by_stage),
        update=draw(TIMES),
        latency=draw(TIMES),
        overhead=draw(st.just(0) | TIMES),
        message_size=draw(TIMES),
        bandwidth=draw(st.floats(0.5, 9)),
        gradient_size=draw(TIMES),
        activation=draw(by_stage),
        copy_bandwidth=draw(st.floats(0.5, 9)),
        overlap=draw(st.floats(0, 1)),
        sends_block=draw(st.booleans()),
        slice_work=draw(slices) if table.num_slices > 1 else None,
    )


def made(stage, kind, k):
    return Action(stage, ActionKind(kind), k)


class ByHand:
    """Start and end of each action of a table, each from those before it."""

    def __init__(self, table, costs):
        self.table, self.costs = table, costs
        self.places = {
            action: (rank, at)
            for rank, row in enumerate(table.actions)
            for at, action in enumerate(row)
        }
        self.second = {b: a for a, b in table.joined.items()}
        self.span = cache(self.span)

    def at(self, *action):
        """Return the end of an action; None if there is none."""
        action = made(*action)
        return self.span(action)[1] if action in self.places else None

    def free(self, action):
        """Return when the rank is free, and when it also has its overhead behind it."""
        rank, at = self.places[action]
        before = self.table.actions[rank][:at]
        own = [a for a in before if a.kind in list("FBIWUR")]
        occupies = [
            a
            for a in before
            if a in own or (self.costs.sends_block and "SEND" in a.kind)
        ]
        free = self.span(occupies[-1])[1] if occupies else 0.0
        return free, free + (float(self.costs.overhead) if own else 0.0)

    def value(self, stage, kinds, k, receive, to):
        """Return when a value of another stage has come."""
        if not 0 <= stage < self.table.num_stages:
            return 0.0
        if self.table.message_cuts[min(stage, to)]:
            return self.at(to, receive, k)
        end = max(self.at(stage, kind, k) or 0.0 for kind in kinds)
        return end + self.costs.message_times(self.table)[min(stage, to)]

    def inputs(self, action):
        stage, kind, k = action
        if kind == "F":
            yield self.value(stage - 1, "F", k, "RECV_F", stage)
        elif kind in list("BI") and stage + 1 < self.table.num_stages:
            yield self.value(stage + 1, "BI", k, "RECV_B", stage)
        if kind in list("FBIR"):  # what was loaded: keys and values of earlier slices
            number = self.table.number_of(k)
            first = number - number % self.table.num_slices
            for other in self.table.microbatches[first : number + 1]:
                load = made(stage, "L", other)
                if load in self.places and self.is_before(load, action):
                    yield self.at(*load)
        if kind == "U" and len(self.table.ranks_of(stage)) > 1:
            row = self.table.actions[self.places[action][0]]
            sums = [a for a in row if a.kind == "REDUCE_GRAD" and a.stage == stage]
            sums = [a for a in sums if a.microbatch <= k and self.is_before(a, action)]
            yield from (self.at(*a) for a in sums)

    def is_before(self, action, other):
        (rank, at), (other_rank, other_at) = self.places[action], self.places[other]
        return rank == other_rank and at < other_at

    def span(self, action):
        stage, kind, k = action
        free, begin = self.free(action)
        if kind in ("O", "L"):
            row = self.table.actions[self.places[action][0]]
            earlier = [a for a in row if a.kind == kind and self.is_before(a, action)]
            ends = [self.at(*a) for a in earlier[-1:]]
            ends += [self.at(stage, "O", k)] if kind == "L" else []
            start = max(free, *ends, 0.0)
            return start, start + self.costs.copy_times(self.table.num_stages)[stage]
        if kind == "REDUCE_GRAD":
            return free, self.end_of_sum(action)
        if kind.is_communication:
            return free, self.end_of_message(action, free)
        pair = [a for a in (self.second.get(action), action) if a]
        pair += [self.table.joined[action]] if action in self.table.joined else []
        if len(pair) == 2:
            _, begin = self.free(pair[0])
            time = self.costs.pair_times(self.table)[pair[0]]
        else:
            time = self.costs.durations(self.table.num_stages)[kind][stage]
            if kind != "U" and self.costs.slice_work:
                parts = relative_work(self.costs.slice_work, self.table.num_slices)
                number = self.table.number_of(k)
                time *= parts[number % len(parts)] if len(set(parts)) > 1 else 1.0
        start = max(begin, *(value for a in pair for value in self.inputs(a)), 0.0)
        return start, start + time

    def end_of_sum(self, action):
        """The first sums of all replicas meet, the second ones, and so on."""
        rows = [
            [a for a in row if a.kind == action.kind and a.stage == action.stage]
            for row in self.table.actions
        ]
        index = next(row.index(action) for row in rows if action in row)
        last = max(self.free(row[index])[0] for row in rows if row)
        return last + self.costs.sum_times(self.table)[action.stage][1]

    def end_of_message(self, action, free):
        stage, kind, k = action
        to = {"SEND_F": stage + 1, "SEND_B": stage - 1}.get(kind)
        if to is None:
            source = stage - 1 if kind == "RECV_F" else stage + 1
            send = made(source, kind.replace("RECV", "SEND"), k)
            return self.end_of_message(send, self.free(send)[0])
        reached = [free]
        if self.costs.sends_block:
            receive = made(to, kind.replace("SEND", "RECV"), k)
            reached.append(self.free(receive)[0])
        return max(reached) + self.costs.message_times(self.table)[min(stage, to)]


@examples(300)
@given(st.data())
def test_starts_and_ends_are_those_of_rules_written_by_hand(data):
    drawn = data.draw(legal_tables() | legally_overlapped(runnable_schedules()))
    assume(problem(drawn) is None)
    if data.draw(st.booleans()):
        drawn = lower(drawn)
    costs = data.draw(costs_for(drawn))
    timeline = simulate(drawn, costs)
    table = lower(drawn) if costs.sends_block else drawn
    by_hand = ByHand(table, costs.sliced(drawn.num_slices))
    found = [span for row in (*timeline.spans, *timeline.copies) for span in row]
    for action, start, end in found:
        expected = by_hand.span(action)
        if "RECV" in action.kind:
            assert (start, end) == (expected[0], expected[0]), action
        else:
            assert (start, end) == expected, action
    for gradient_sum in timeline.sums:
        for action, came in zip(gradient_sum.actions, gradient_sum.reached):
            assert by_hand.span(action) == (came, gradient_sum.end)
    for value, (arrival, *_) in timeline.sent.items():
        assert by_hand.span(value.send)[1] == arrival
    num_beside = sum(len(found.actions) for found in timeline.sums)
    if not costs.sends_block:
        num_beside += sum(a.kind.is_communication for row in table.actions for a in row)
    assert len(found) + num_beside == sum(map(len, table.actions))


def test_a_slice_waits_for_the_loaded_keys_and_values_of_an_earlier_one():
    table = Schedule.from_text("0F0.0 0O0.0 0L0.0 0F0.1 0B0.1 0B0.0")
    timeline = simulate(table, Costs(forward=2, activation=8, copy_bandwidth=2))
    starts = {str(span.action): span.start for span in timeline.spans[0]}
    copies = {str(span.action): span.end for span in timeline.copies[0]}
    assert copies == {"0O0.0": 3, "0L0.0": 5} and starts["0F0.1"] == 5
