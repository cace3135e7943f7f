"""The named schedules: their orders, written out as on paper, and the numbers that they
refuse.
"""

import inspect
import itertools
import re
from collections import Counter
from functools import partial

import pytest

from minipipe import schedules
from minipipe.core.schedules.action import ActionKind
from minipipe.errors import ScheduleError
from tests.launch import for_each
from tests.refusals import refusal
from tests.strategies import takes


def rows(schedule):
    return [" ".join(map(str, row)) for row in schedule.actions]


def test_every_stage_does_each_microbatch_forward_once_and_backward_once(
    every_schedule,
):
    for schedule in every_schedule:
        done = Counter(
            (rank, action)
            for rank, row in enumerate(schedule.actions)
            for action in row
        )
        assert set(done.values()) == {1}, str(schedule)
        per_stage = Counter(
            (rank, action.stage, action.kind.value) for rank, action in done
        )
        for stage in range(schedule.num_stages):
            ranks = schedule.ranks_of(stage)
            counts = {
                kind: sum(per_stage[rank, stage, kind] for rank in ranks)
                for kind in "FBIW"
            }
            assert counts["F"] == schedule.num_microbatches, str(schedule)
            backwards = 0 if schedule.is_forward_only else schedule.num_microbatches
            assert counts["B"] + counts["I"] == backwards, str(schedule)
            assert counts["I"] == counts["W"], str(schedule)
        assert all(rank in schedule.ranks_of(stage) for rank, stage, _ in per_stage)


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_every_named_schedule_accepts_as_many_microbatches_as_ranks(name):
    for num_ranks in filter(partial(takes, name), range(1, 7)):
        schedule = schedules.REGISTRY[name](num_ranks, num_ranks)
        sizes = schedule.num_ranks, schedule.num_microbatches // schedule.num_slices
        assert (schedule.name, *sizes) == (name, num_ranks, num_ranks)


EVEN_RANKS = {"chimera", "bitpipe", "dualpipe"}


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_a_builder_takes_all_sizes_but_those_listed_here(name):
    for p, m in itertools.product(range(1, 9), range(1, 18)):
        assert takes(name, p, m) == (p % 2 == 0 or name not in EVEN_RANKS), (p, m)


def test_the_registry_cannot_be_changed_from_outside():
    with pytest.raises(TypeError):
        schedules.REGISTRY["mine"] = schedules.gpipe


# -- orders, as on paper ---------------------------------------------------------------


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
def test_1f1b_fills_the_pipeline_and_then_goes_forward_and_backward_in_turn(
    num_ranks, num_microbatches, rank, order
):
    row = schedules.one_f_one_b(num_ranks, num_microbatches).actions[rank]
    assert {action.stage for action in row} == {rank}
    assert (
        " ".join(f"{action.kind.value}{action.microbatch}" for action in row) == order
    )


def test_interleaved_1f1b_takes_its_chunks_in_turn():
    # Two rounds of two microbatches. Rank 0 holds stages 0 and 2, rank 1 holds stages 1
    # and 3.
    schedule = schedules.interleaved_1f1b(2, 4)
    assert schedule == schedules.interleaved_1f1b(2, 4, chunks_per_rank=2)
    assert schedule.placement == (0, 1, 0, 1)
    assert rows(schedule) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_interleaved_1f1b_on_one_rank_still_warms_up_over_all_chunks_but_the_last():
    assert rows(schedules.interleaved_1f1b(1, 2, chunks_per_rank=2)) == [
        "0F0 1F0 1B0 0F1 0B0 1F1 1B1 0B1"
    ]


def test_forward_only_takes_any_placement_and_goes_chunk_after_chunk():
    # The V of zero-bubble schedules: rank 0 holds both ends.
    assert rows(schedules.forward_only_over((0, 1, 1, 0), 2)) == [
        "0F0 0F1 3F0 3F1",
        "1F0 1F1 2F0 2F1",
    ]


def letters(row):
    return " ".join(f"{action.kind.value}{action.microbatch}" for action in row)


def test_eager_1f1b_runs_ahead_by_two_forwards_for_each_rank_that_is_left():
    assert [letters(row) for row in schedules.eager_1f1b(3, 6).actions] == [
        "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


def test_looped_bfs_takes_all_microbatches_through_one_chunk_before_the_next():
    assert rows(schedules.looped_bfs(2, 3)) == [
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2",
        "1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2",
    ]


def test_zb_h1_delays_as_many_weights_as_the_rank_is_far_from_the_first():
    assert [letters(row) for row in schedules.zb_h1(3, 5).actions] == [
        "F0 F1 F2 I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4",
    ]


def test_zb_h2_fills_the_warm_up_with_forwards_and_the_end_with_weights():
    assert [letters(row) for row in schedules.zb_h2(3, 6).actions] == [
        "F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5",
        "F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5",
        "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5",
    ]


def test_with_one_chunk_interleaved_zb_is_zb_h1():
    for p in range(1, 6):
        for m in (p, 2 * p, 4 * p):
            assert (
                schedules.interleaved_zb(p, m, chunks_per_rank=1).actions
                == schedules.zb_h1(p, m).actions
            )


def test_zb_v_goes_over_the_ranks_there_and_back():
    schedule = schedules.zb_v(2, 4)
    assert schedule.placement == (0, 1, 1, 0)
    assert rows(schedule) == [
        (
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 "
            "3I3 3W3 0I2 0W2 0I3 0W3"
        ),
        (
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 "
            "1I2 2I3 1I3 1W2 2W3 1W3"
        ),
    ]


def test_dualpipe_v_has_a_forward_beside_every_backward():
    assert rows(schedules.dualpipe_v(2, 4)) == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3",
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
    ]


@pytest.mark.parametrize(
    ("name", "least"), [("zb-h1", 4), ("zb-h2", 7), ("zb-v", 7), ("dualpipe-v", 8)]
)
def test_with_fewer_microbatches_than_it_needs_it_is_the_beginning_of_one_with_enough(
    name, least
):
    whole = schedules.build(name, 4, least)
    for m in range(1, least):
        kept = tuple(
            tuple(action for action in row if action.microbatch < m)
            for row in whole.actions
        )
        assert schedules.build(name, 4, m).actions == kept


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_the_drawing_in_its_documentation_is_its_tick_grid(name):
    builder = schedules.REGISTRY[name]
    drawn = re.findall(
        r"^ *rank \d: (.*)$",
        inspect.getdoc(builder).split("\nExamples\n")[0],
        re.MULTILINE,
    )
    assert drawn, (
        f"the docstring of {name} has no drawing, of lines such as `rank 0: F0 B0`"
    )
    m = 1 + max(int(k) for k in re.findall(r"[FBIW](\d+)", drawn[0]))
    schedule = schedules.build(name, len(drawn), m)
    several = schedule.num_stages > schedule.num_ranks or schedule.has_replicas
    for line, row in zip(drawn, schedules.tick_grid(schedule), strict=True):
        cells = [
            ("" if cell is None else str(cell)[0 if several else 1 :]) for cell in row
        ]
        width = 3 if several else 2 if schedule.num_slices == 1 else 4
        assert line == " ".join(cell.ljust(width) for cell in cells).rstrip()


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_its_documentation_says_where_it_is_from_and_the_registry_what_it_trades(name):
    text = inspect.getdoc(schedules.REGISTRY[name])
    assert name in ("sequential", "forward-only") or "References" in text
    assert 10 < len(schedules.TRADES[name]) <= 41
    assert list(schedules.TRADES) == list(schedules.REGISTRY)


# -- warm-up ---------------------------------------------------------------------------


def forwards_before_the_first_backward(row):
    return next(
        step for step, action in enumerate(row) if action.kind is not ActionKind.FORWARD
    )


def test_1f1b_does_as_many_forwards_before_its_first_backward_as_stages_are_left():
    # The warm-up of p - 1 - r and the F of the first pair.
    for p in range(1, 7):
        for m in range(1, 9):
            schedule = schedules.one_f_one_b(p, m)
            assert [
                forwards_before_the_first_backward(row) for row in schedule.actions
            ] == [min(p - r, m) for r in range(p)]


def test_interleaved_1f1b_warms_up_over_all_chunks_but_the_last_and_twice_the_ranks_left():
    # p = 4, m = 8, v = 2: two rounds of four; 2 (p - 1 - r) + (v - 1) 4 forwards, and
    # the F of the first pair.
    schedule = schedules.interleaved_1f1b(4, 8, chunks_per_rank=2)
    assert [forwards_before_the_first_backward(row) for row in schedule.actions] == [
        11,
        9,
        7,
        5,
    ]


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("name", schedules.REGISTRY)
@for_each(wrong=[0, -1, 2.0, "2", None, True])
def test_every_builder_refuses_what_is_not_a_whole_number_of_at_least_one(name, wrong):
    builder = schedules.REGISTRY[name]
    for argument in inspect.signature(builder).parameters:
        default = inspect.signature(builder).parameters[argument].default
        if (wrong is None and default is None) or default is False:  # a flag
            continue
        given = {"num_ranks": 2, "num_microbatches": 4, argument: wrong}
        with pytest.raises(ScheduleError) as caught:
            builder(**given)
        assert caught.value.code == "value"
        assert f"{argument} is {wrong!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min", "dualpipe-v"])
@pytest.mark.parametrize("chunks", [1, 3, 4])
def test_a_v_has_two_chunks_on_each_rank_and_no_other_number(name, chunks):
    with pytest.raises(ScheduleError) as caught:
        schedules.build(name, 4, 8, chunks)
    assert caught.value.code == "value"
    assert (
        f"chunks_per_rank is {chunks}; {name} is V-shaped and has exactly 2 "
        "chunks on each rank"
    ) in str(caught.value)


def test_an_unknown_name_is_refused_with_the_known_ones():
    for wrong in ("1f2b", None, 3):
        with pytest.raises(ScheduleError) as caught:
            schedules.build(wrong, 4)
        assert (
            caught.value.code == "name"
            and f"expected one of {', '.join(schedules.REGISTRY)}."
            in str(caught.value).lower()
        )
    for wrong, near in (
        ("1F1B!", "1f1b"),
        ("zb_v", "zb-v"),
        ("zbv", "zb-v"),
        ("interleaved", "interleaved-1f1b"),
    ):
        with pytest.raises(ScheduleError, match=f"did you mean {near}\\?"):
            schedules.build(wrong, 4)


def test_groups_smaller_than_the_number_of_ranks_are_refused_as_ranks_may_wait_in_a_cycle():
    for build in (schedules.interleaved_1f1b, schedules.interleaved_zb):
        for size in (0, 3, -1, 2.5):
            with pytest.raises(
                ScheduleError,
                match=f"microbatch_group_size is {size}; expected .* at least 4",
            ) as caught:
                build(4, 9, 2, size)
            assert caught.value.code == "value"


def test_a_group_size_for_a_schedule_without_groups_is_refused_with_those_that_take_it():
    with pytest.raises(
        ScheduleError,
        match=(
            "gpipe takes no microbatch_group_size; .* take it: interleaved-1f1b, "
            "interleaved-zb"
        ),
    ):
        schedules.build("gpipe", 4, 8, microbatch_group_size=4)


@pytest.mark.parametrize("placement", [((0, 1), (1, 0)), (0, "a"), ("a",), (0, 5)])
def test_a_placement_with_replicas_or_without_ranks_is_refused(placement):
    """The story: over the placement of Chimera, one_microbatch() failed, and
    forward_only_over() ran all twice.
    """
    for build in (
        schedules.one_microbatch,
        lambda given, ranks: schedules.forward_only_over(given, 4, ranks),
    ):
        with pytest.raises(ScheduleError, match="Stage . is placed on") as caught:
            build(placement, 2)
        assert caught.value.code == "placement"


def test_without_a_number_of_ranks_replicas_are_refused_as_well():
    with pytest.raises(
        ScheduleError,
        match=r"Stage 0 is placed on ranks \(0, 1\); expected one rank for each stage",
    ):
        schedules.forward_only_over(schedules.chimera(2, 4).placement, 4)


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
def test_few_microbatches_run_as_the_first_ones_of_many(name):
    for p, m in itertools.product(range(1, 6), range(1, 8)):
        few, many = schedules.build(name, p, m), schedules.build(name, p, 2 * p + m)
        assert few.actions == tuple(
            tuple(a for a in row if a.microbatch < m) for row in many.actions
        )


def test_a_prediction_goes_in_rounds_as_equal_as_can_be_the_smaller_first():
    assert rows(schedules.forward_only(2, 5, 2)) == [
        "0F0 0F1 2F0 2F1 0F2 0F3 0F4 2F2 2F3 2F4",
        "1F0 1F1 3F0 3F1 1F2 1F3 1F4 3F2 3F3 3F4",
    ]
    assert "num_microbatches is 0" in str(
        refusal(schedules.forward_only_over, (0, 1), 0)
    )


def test_zb_v_ends_with_the_weights_of_chunk_1_and_then_those_of_chunk_0():
    assert [str(action) for action in schedules.zb_v(3, 6).actions[2]][-4:] == [
        "3W4",
        "3W5",
        "2W4",
        "2W5",
    ]


def test_one_chunk_may_be_asked_for_where_there_is_one():
    for name in ("gpipe", "1f1b", "zb-h1"):
        assert schedules.build(name, 2, 4, 1) == schedules.build(name, 2, 4)
    assert refusal(schedules.build, ["gpipe"], 2).code == "name"
