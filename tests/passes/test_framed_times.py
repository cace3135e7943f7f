"""When the instructions that frame a step start and end, and what they wait for."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minipipe import Costs, schedules, simulate
from minipipe.passes.framing import frame
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import IdleCause, data_parallel, lower
from minipipe.schedules.simulation.simulator import timeline_of
from minipipe.simulation.hosts import Hosts
from tests.passes.framed import framed_programs
from tests.strategies import examples


@given(framed_programs())
@examples(30)
def test_a_frame_takes_the_time_of_its_messages(drawn):
    schedule, program = drawn
    free = Costs(overhead=0.0)
    assert simulate(program, free).makespan == simulate(schedule, free).makespan


def test_a_handshake_and_a_loss_have_the_latency_of_a_message():
    schedule, costs = schedules.one_f_one_b(4, 8), Costs(latency=0.25)
    plain = simulate(schedule, costs).makespan
    framed = simulate(frame(lower(schedule)), costs)
    assert framed.makespan == plain + 2 * 0.25
    first, last = framed.spans[3][0], framed.spans[3][-2]
    assert (str(first.action), first.start, first.end) == ("HANDSHAKE", 0, 0.25)
    assert (str(last.action), last.end - last.start) == ("LOSS", 0.25)


@given(framed_programs(), st.floats(0, 2), st.booleans())
@examples(40)
def test_ranks_that_share_nothing_have_the_same_times_on_one_host(drawn, time, blocks):
    _, program = drawn
    costs = Costs(latency=time, update=0.5, sends_block=blocks, other={"FINITE": time})
    exact = simulate(program, costs)
    alone = Hosts((0,) * program.num_ranks, (inf,))
    step_costs = costs.sliced(program.num_slices)
    found = timeline_of(program, step_costs, 1, False, alone)
    for own, other in zip(exact.spans, found.spans):
        assert [span.action for span in own] == [span.action for span in other]
        ends = [span.end for span in own]
        assert [span.end for span in other] == pytest.approx(ends, abs=1e-9)


@given(framed_programs(), st.floats(0.1, 2))
@examples(30)
def test_no_rank_is_idle_without_a_reason(drawn, time):
    _, program = drawn
    timeline = simulate(program, Costs(latency=time))
    for rank, slots in enumerate(timeline.idle):
        busy = timeline.busy(rank)
        idle = sum(slot.end - slot.start for slot in slots)
        assert busy + idle == pytest.approx(timeline.makespan)
        for slot in slots:
            reasons = slot.awaited is not None, slot.cause is IdleCause.DRAIN
            assert any(reasons)
    last_sums = [
        found.last_rank for found in timeline.sums if found.end >= timeline.end - 1e-9
    ]
    rank, span = timeline.critical_path[-1]  # sums of replicas have no spans
    assert span.end == pytest.approx(timeline.end) or rank in last_sums


def test_a_norm_waits_for_the_sums_of_another_rank():
    replicas = lower(data_parallel(schedules.gpipe(2, 1), 2))
    timeline = simulate(
        frame(replicas, check_finite=False, clip=True), Costs(latency=1.0)
    )
    waits = [slots[-1] for slots in timeline.idle]
    assert [str(slot.awaited) for slot in waits] == ["0REDUCE_GRAD0", "NORM"] * 2


def test_an_exchange_of_tied_weights_waits_for_sums():
    tied = replace(lower(schedules.chimera(2, 2)), tied=((0, 1),))
    timeline = simulate(
        frame(tied, tied=[(0, 1)], check_finite=False), Costs(latency=1.0)
    )
    for slots in timeline.idle:
        [wait] = [slot for slot in slots if "REDUCE_GRAD" in str(slot.awaited)]
        assert wait.cause is IdleCause.WAITING


def test_overhead_is_no_wait_for_a_sum_that_ends_meanwhile():
    replicas = lower(data_parallel(schedules.gpipe(1, 2), 2))
    costs = Costs(gradient_size=1, bandwidth=4, overhead=0.5)
    timeline = simulate(frame(replicas, check_finite=False), costs)
    [(start, end)] = {(found.begin, found.end) for found in timeline.sums}
    [slot] = [
        slot for slot in timeline.idle[0] if slot.start <= start and end < slot.end
    ]
    assert slot.cause is IdleCause.OVERHEAD


def test_no_message_of_several_steps_is_for_an_instruction_of_a_rank():
    """Otherwise a value of one step would be taken for a value of another."""
    timeline = simulate(frame(lower(schedules.one_f_one_b(4, 8))), num_steps=2)
    assert len(timeline.messages) == 2 * 2 * 3 * 8
    assert not [
        each for each in timeline.messages if each.used_by.kind.declaration.of_rank
    ]


def test_the_loss_waits_for_the_rank_that_is_last():
    program = frame(lower(schedules.one_f_one_b(3, 3)), update=False)
    timeline = simulate(program, Costs(latency=0.5))
    waits = [slots[-1] for slots in timeline.idle]
    assert [(str(slot.awaited), slot.source) for slot in waits[1:]] == [("LOSS", 0)] * 2
    assert [str(span.action) for _, span in timeline.critical_path][-3:] == [
        "0B2",
        "FINITE",
        "LOSS",
    ]


def test_a_check_waits_for_the_sums_of_replicas():
    program = frame(lower(data_parallel(schedules.gpipe(1, 1), 2)))
    costs = Costs(gradient_size=4, bandwidth=1, other={"FINITE": 0.25})
    timeline = simulate(program, costs)
    (summed,) = timeline.sums
    checks = [span for span in timeline.spans[1] if str(span.action) == "FINITE"]
    assert summed.end == 7 and (checks[0].start, checks[0].end) == (7, 7.25)


def test_the_stepper_shows_every_instruction_of_a_frame():
    program = frame(lower(schedules.one_f_one_b(2, 2)), clip=True)
    walkthrough = Walkthrough(program, Costs(latency=0.5))
    begun = [str(event.action) for event in walkthrough.events if event.rank == 1]
    assert begun == list(map(str, program.actions[1]))
