"""The output layer of a large vocabulary, divided over all ranks: its schedule, as it is
verified, lowered and timed.
"""

import pytest
from minipipe import Costs, schedules, simulate, verify
from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.errors import ScheduleError
from minipipe.passes.framing import frame
from minipipe.passes.vocabulary import OF_VOCABULARY, vocabulary

SIZES = [(1, 4), (2, 8), (3, 5), (4, 16), (8, 32)]


def costs(num_barriers, words):
    """Return costs in which a rank takes `words` for each product with its words."""
    times = {"S": words, "T": 2 * words}
    if num_barriers == 1:
        times = {"S": 2 * words, "T": words}
    return Costs(1, 1, 1, other=times)


@pytest.mark.parametrize("num_barriers", [1, 2])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_each_barrier_makes_a_rank_hold_one_microbatch_more(num_barriers, p, m):
    table = vocabulary(schedules.one_f_one_b(p, m), num_barriers)
    expected = [min(m, p - rank + num_barriers) for rank in range(p)]
    assert list(simulate(table).peak_activations) == expected


@pytest.mark.parametrize("words", [0.5, 1, 4])
@pytest.mark.parametrize("num_barriers", [1, 2])
@pytest.mark.parametrize(("p", "m"), SIZES[1:])
def test_ranks_are_idle_as_in_1f1b_without_an_output_layer(p, m, num_barriers, words):
    table = vocabulary(schedules.one_f_one_b(p, m), num_barriers)
    timeline = simulate(table, costs(num_barriers, words))
    assert timeline.makespan == 3 * (m + p - 1) + 3 * m * words


def test_a_dominating_vocabulary_gains_what_the_last_stage_no_longer_waits_for():
    p, m, words = 8, 32, 2
    last = [1] * (p - 1) + [1 + p * words]
    plain = schedules.one_f_one_b(p, m)
    before = simulate(plain, Costs(last, last, last)).makespan
    after = simulate(vocabulary(plain, 1), costs(1, words)).makespan
    assert (before, after) == (1653, 309)  # 5.3 times as fast


def test_the_times_of_s_and_t_are_fitted_to_a_timeline():
    table = vocabulary(schedules.one_f_one_b(3, 6))
    fitted = Costs.measured(simulate(table, costs(2, 1.5)))
    assert fitted.other == {"S": [1.5] * 3, "T": [3.0] * 3}


def test_barriers_take_the_latency_of_a_message():
    table = vocabulary(schedules.one_f_one_b(2, 1), 2)
    late = Costs(1, 1, 1, latency=0.25, other={"S": 1, "T": 2})
    # 0F0, 1F0, S, T, 1B0 and 0B0; five messages, of which two are barriers
    assert simulate(table, late).makespan == 1 + 1 + 1 + 2 + 2 + 2 + 5 * 0.25


def test_shared_cores_are_refused():
    table = vocabulary(schedules.one_f_one_b(2, 2))
    with pytest.raises(ScheduleError, match="leave out cores, hosts"):
        simulate(table, Costs(cores=1))


def test_its_program_is_legal_in_its_frame_and_with_sends_that_block():
    table = vocabulary(schedules.build("zb-h1", 4, 8))
    program = schedules.lower(table)
    verify(program)
    verify(frame(program))
    assert Program.from_text(str(program)).actions == program.actions
    assert simulate(program, Costs(sends_block=True)).makespan == 27  # as zb-h1


@pytest.mark.parametrize("name", sorted(OF_VOCABULARY))
def test_without_any_one_of_its_instructions_it_is_illegal(name):
    program = frame(schedules.lower(vocabulary(schedules.one_f_one_b(2, 3))))
    rows = [list(row) for row in program.actions]
    rank, at = next(
        (rank, at)
        for rank, row in enumerate(rows)
        for at, action in enumerate(row)
        if action.kind == name
    )
    del rows[rank][at]
    with pytest.raises(ScheduleError):
        verify(program.with_rows(Program, rows))


def test_a_backward_before_the_last_barrier_is_illegal():
    table = vocabulary(schedules.one_f_one_b(2, 3))
    last = list(table.actions[1])
    backward = next(a for a in last if a.kind is ActionKind.BACKWARD)
    barrier = next(a for a in last if a.kind == "SUM_T")
    last.remove(backward)
    last.insert(last.index(barrier), backward)
    with pytest.raises(ScheduleError, match="needs the gradient|1B0"):
        verify(table.with_rows(Schedule, [table.actions[0], last]))


@pytest.mark.parametrize("name", ["interleaved-1f1b", "seq1f1b", "pipedream", "zb-v"])
def test_schedules_without_one_plain_stage_on_each_rank_are_refused(name):
    with pytest.raises(ScheduleError, match="expected stage i on rank i alone"):
        vocabulary(schedules.build(name, 2, 4))


def test_another_number_of_barriers_is_refused():
    with pytest.raises(ScheduleError, match="num_barriers is 3"):
        vocabulary(schedules.one_f_one_b(2, 4), num_barriers=3)
