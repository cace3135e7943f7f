"""The named schedules: their orders, written out as on paper, and the numbers that they refuse."""

import inspect
from collections import Counter

import pytest

from minipipe import schedules
from minipipe.errors import ScheduleError
from minipipe.schedules import ActionKind


def rows(schedule):
    return [" ".join(map(str, row)) for row in schedule.actions]


def test_every_stage_does_each_microbatch_forward_once_and_backward_once(every_schedule):
    for schedule in every_schedule:
        done = Counter((rank, action) for rank, row in enumerate(schedule.actions) for action in row)
        assert set(done.values()) == {1}, str(schedule)
        per_stage = Counter((rank, action.stage, action.kind.value) for rank, action in done)
        for stage, rank in enumerate(schedule.placement):
            counts = {kind: per_stage[rank, stage, kind] for kind in "FBIW"}
            assert counts["F"] == schedule.num_microbatches, str(schedule)
            assert counts["B"] + counts["I"] == schedule.num_microbatches, str(schedule)
            assert counts["I"] == counts["W"], str(schedule)
        assert sum(done.values()) == sum(per_stage[key] for key in per_stage if key[0] == schedule.placement[key[1]])


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_every_named_schedule_accepts_as_many_microbatches_as_ranks(name):
    for num_ranks in range(1, 7):
        schedule = schedules.REGISTRY[name](num_ranks, num_ranks)
        assert (schedule.name, schedule.num_ranks, schedule.num_microbatches) == (name, num_ranks, num_ranks)


def test_the_registry_cannot_be_changed_from_outside():
    with pytest.raises(TypeError):
        schedules.REGISTRY["mine"] = schedules.gpipe


# -- orders, as on paper ---------------------------------------------------------------------------------------


def test_sequential_takes_one_microbatch_through_everything_at_a_time():
    assert rows(schedules.sequential(3, 2)) == [
        "0F0 0B0 0F1 0B1",
        "1F0 1B0 1F1 1B1",
        "2F0 2B0 2F1 2B1",
    ]
    assert rows(schedules.sequential(2, 2, chunks_per_rank=2)) == [
        "0F0 2F0 2B0 0B0 0F1 2F1 2B1 0B1",
        "1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1",
    ]


def test_gpipe_does_all_forwards_then_all_backwards_first_in_first_out():
    assert rows(schedules.gpipe(2, 4)) == [
        "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3",
        "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3",
    ]


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "rank", "order"),
    [
        (1, 4, 0, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (4, 4, 0, "F0 F1 F2 F3 B0 B1 B2 B3"),
        (4, 4, 3, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (4, 6, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"),
        (4, 2, 0, "F0 F1 B0 B1"),  # fewer microbatches than the warm-up would take
    ],
)
def test_1f1b_fills_the_pipeline_and_then_goes_forward_and_backward_in_turn(num_ranks, num_microbatches, rank, order):
    row = schedules.one_f_one_b(num_ranks, num_microbatches).actions[rank]
    assert {action.stage for action in row} == {rank}
    assert " ".join(f"{action.kind.value}{action.microbatch}" for action in row) == order


def test_interleaved_1f1b_takes_its_chunks_in_turn():
    # Two rounds of two microbatches. Rank 0 holds stages 0 and 2, rank 1 holds stages 1 and 3.
    schedule = schedules.interleaved_1f1b(2, 4)
    assert schedule == schedules.interleaved_1f1b(2, 4, chunks_per_rank=2)
    assert schedule.placement == (0, 1, 0, 1)
    assert rows(schedule) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_interleaved_1f1b_on_one_rank_still_warms_up_over_all_chunks_but_the_last():
    assert rows(schedules.interleaved_1f1b(1, 2, chunks_per_rank=2)) == ["0F0 1F0 1B0 0F1 0B0 1F1 1B1 0B1"]


def test_forward_only_takes_any_placement_and_goes_chunk_after_chunk():
    # The V of zero-bubble schedules: rank 0 holds both ends.
    assert rows(schedules.forward_only((0, 1, 1, 0), 2)) == ["0F0 0F1 3F0 3F1", "1F0 1F1 2F0 2F1"]


# -- warm-up ---------------------------------------------------------------------------------------------------


def forwards_before_the_first_backward(row):
    return next(step for step, action in enumerate(row) if action.kind is not ActionKind.FORWARD)


def test_1f1b_does_as_many_forwards_before_its_first_backward_as_stages_are_left():
    # The warm-up of p - 1 - r and the F of the first pair.
    for p in range(1, 7):
        for m in range(1, 9):
            schedule = schedules.one_f_one_b(p, m)
            assert [forwards_before_the_first_backward(row) for row in schedule.actions] == [
                min(p - r, m) for r in range(p)
            ]


def test_interleaved_1f1b_warms_up_over_all_chunks_but_the_last_and_twice_the_ranks_left():
    # p = 4, m = 8, v = 2: two rounds of four; 2 (p - 1 - r) + (v - 1) 4 forwards, and the F of the first pair.
    schedule = schedules.interleaved_1f1b(4, 8, chunks_per_rank=2)
    assert [forwards_before_the_first_backward(row) for row in schedule.actions] == [11, 9, 7, 5]


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", schedules.REGISTRY)
@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", None, True])
def test_every_builder_refuses_what_is_not_a_whole_number_of_at_least_one(name, wrong):
    builder = schedules.REGISTRY[name]
    for argument in inspect.signature(builder).parameters:
        given = {"num_ranks": 2, "num_microbatches": 4, argument: wrong}
        with pytest.raises(ScheduleError) as caught:
            builder(**given)
        assert caught.value.code == "parameters"
        assert f"{argument} is {wrong!r}" in str(caught.value)


def test_interleaved_1f1b_refuses_rounds_of_unequal_size_and_names_the_nearest_number_that_fits():
    with pytest.raises(ScheduleError) as caught:
        schedules.interleaved_1f1b(4, 9)
    assert caught.value.code == "parameters"
    assert "9 microbatches over 4 ranks make 2 rounds of unequal size" in str(caught.value)
    assert "the nearest number that fits is 8." in str(caught.value)


def test_the_nearest_number_is_accepted_and_every_nearer_one_is_refused():
    def is_accepted(p, m):
        try:
            schedules.interleaved_1f1b(p, m)
        except ScheduleError:
            return False
        return True

    refused = 0
    for p in range(1, 7):
        for m in range(1, 40):
            if is_accepted(p, m):
                continue
            refused += 1
            with pytest.raises(ScheduleError) as caught:
                schedules.interleaved_1f1b(p, m)
            nearest = int(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
            assert is_accepted(p, nearest)
            assert not any(is_accepted(p, near) for near in range(1, 60) if abs(near - m) < abs(nearest - m))
    assert refused > 50
