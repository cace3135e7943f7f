"""The schedule of a plan, from what was given for it: a name, a table, modules,
replicas, blocks of gradients.
"""

import pytest

from minipipe import schedules
from minipipe.errors import ArgumentError, RankError, ScheduleError
from minipipe.execution.choosing import (
    checked_blocks,
    ranks_of_each,
    replicated,
    schedule_of_modules,
)
from minipipe.schedules import ActionKind


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("num_modules", [1, 2, 3, 4, 6, 7])
def test_there_is_a_stage_for_each_module(num_modules, num_ranks):
    found = schedule_of_modules(num_modules, num_ranks, None, 6)
    assert (found.num_stages, found.num_ranks, found.num_microbatches) == (
        num_modules,
        num_ranks,
        6,
    )
    assert found.name.startswith(
        "1f1b" if num_modules <= num_ranks else "interleaved-1f1b"
    )
    schedules.verify(found)


def test_without_a_number_of_microbatches_there_are_eight():
    assert schedule_of_modules(2, 2, None, None).num_microbatches == 8
    assert schedule_of_modules(2, 2, "gpipe", None).num_microbatches == 8


@pytest.mark.parametrize(
    ("num_modules", "schedule", "words"),
    [
        (0, None, "There is no module; expected at least one"),
        (
            3,
            schedules.gpipe(2, 4),
            "gpipe on 2 ranks has 2 stages; expected as many modules, not 3",
        ),
        (
            3,
            "dualpipe",
            r"3 modules on 2 ranks are up to 2 on a rank\..*Expected at most 2 modules",
        ),
        (
            5,
            "zb-v",
            r"5 modules on 2 ranks are up to 3 on a rank\..*Expected 3 to 4 modules",
        ),
    ],
)
def test_modules_that_a_schedule_has_no_stages_for_are_refused(
    num_modules, schedule, words
):
    with pytest.raises(RankError, match=words) as caught:
        schedule_of_modules(num_modules, 2, schedule, 4)
    assert caught.value.code == "wrong-number"


def test_a_table_fits_the_ranks_microbatches_and_chunks_that_are_given_with_it_or_is_refused():
    table = schedules.gpipe(2, 4)
    assert (
        replicated(table, 2, 4, 1, 1) is replicated(table, None, None, None, 1) is table
    )
    with pytest.raises(
        RankError, match="gpipe is made for 2 ranks, but there are 3. Start 2"
    ):
        replicated(table, 3, None, None, 1)
    with pytest.raises(
        ScheduleError,
        match="num_microbatches is 5, but the schedule gpipe has 4; leave",
    ):
        replicated(table, 2, 5, None, 1)
    with pytest.raises(
        ScheduleError, match="chunks_per_rank is 2, but the schedule gpipe has 1; leave"
    ):
        replicated(table, 2, None, 2, 1)
    with pytest.raises(
        RankError,
        match=r"'gpipe' needs a number of ranks: Plan\(model, 'gpipe', num_ranks=4\)",
    ):
        replicated("gpipe", None, 4, None, 1)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_are_as_many_pipelines_whose_gradients_are_summed(replicas):
    found = replicated("1f1b", 2 * replicas, 4, None, replicas)
    assert (found.num_ranks, found.num_stages) == (2 * replicas, 2)
    assert len(found.ranks_of(0)) == replicas
    assert (
        found.has_replicas == (ActionKind.REDUCE_GRAD in found.kinds) == (replicas > 1)
    )
    schedules.verify(found)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_of_a_forward_alone_have_no_sums(replicas):
    found = replicated(schedules.forward_only(2, 4), 2 * replicas, None, None, replicas)
    assert found.is_forward_only and found.num_microbatches == 4 * replicas
    assert sorted(found.ranks_of(0)) == [2 * replica for replica in range(replicas)]


def test_a_program_with_sends_has_no_replicas():
    with pytest.raises(
        ScheduleError,
        match="has sends and receives; replicas need only its computations",
    ):
        replicated(schedules.lower(schedules.gpipe(2, 4)), 4, None, None, 2)


def test_ranks_are_divided_equally_among_replicas():
    assert [ranks_of_each(6, replicas) for replicas in (1, 2, 3, 6)] == [6, 3, 2, 1]
    for replicas in (4, 5, 7):
        with pytest.raises(
            RankError, match=f"6 ranks cannot be divided among {replicas} replicas"
        ):
            ranks_of_each(6, replicas)


@pytest.mark.parametrize(
    ("replicas", "blocks", "is_allowed"),
    [
        *(
            (1, 1, True),
            (1, 3, True),
            (2, 2, True),
            (2, 4, True),
            (2, 8, True),
            (2, 1, False),
            (2, 3, False),
        ),
        *(
            (2, 6, False),
            (3, 3, True),
            (3, 6, True),
            (3, 9, False),
            (3, 4, False),
            (4, 12, False),
            (4, 16, True),
        ),
    ],
)
def test_blocks_of_gradients_are_a_power_of_two_for_each_replica(
    replicas, blocks, is_allowed
):
    schedule = replicated("gpipe", replicas, 4, None, replicas)
    assert checked_blocks(None, schedule) == replicas
    if is_allowed:
        assert checked_blocks(blocks, schedule) == blocks
        return
    with pytest.raises(
        ArgumentError, match=rf"gradient_blocks is {blocks}, for {replicas} replicas"
    ):
        checked_blocks(blocks, schedule)
