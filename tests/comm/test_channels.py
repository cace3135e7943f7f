"""Channels: one body for every group; what only MPI can get wrong; and faults of ranks
that wait in one.
"""

import pytest

from minipipe import spawn
from minipipe.comm import OneRankGroup
from tests.comm.channel_bodies import BODIES
from tests.faults.test_faults import check
from tests.launch import mpirun, needs_mpi, slowly


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_one_rank(body):
    assert body(OneRankGroup(timeout=20)) is None


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_thread_ranks(body, num_ranks):
    assert spawn(body, num_ranks, timeout=20) == [None] * num_ranks


@needs_mpi
@pytest.mark.parametrize("num_ranks", [slowly(1), 2, slowly(3)])
@pytest.mark.parametrize(
    "can_read_other_memory", [pytest.param("1", id="CMA"), slowly("0", id="no CMA")]
)
def test_on_mpi_ranks(num_ranks, can_read_other_memory):
    """MPICH complains about persistent requests that are not freed, so the error stream
    must be empty.
    """
    done = mpirun(
        num_ranks,
        "-m",
        "tests.comm.channel_bodies",
        MPIR_CVAR_CH4_CMA_ENABLE=can_read_other_memory,
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == [
        word for body in BODIES for word in ("passed", body.__name__)
    ]


OVER_MPI = [
    "messages_take_persistent_requests",
    "an_array_of_a_device_arrives_over_a_channel",
    "requests_of_dropped_channels_are_freed",
    "a_send_that_is_under_way_outlives_its_channel_and_its_group",
    "a_send_that_is_left_behind_at_the_end_arrives",
    "a_wait_that_was_too_short_loses_no_message",
    "bytes_that_are_no_message_are_told_apart",
    "a_forked_child_cannot_use_a_channel",
]


@needs_mpi
@pytest.mark.parametrize(
    "names", [OVER_MPI, *map(slowly, [[name] for name in OVER_MPI])], ids=len
)
def test_over_mpi(names):
    done = mpirun(2, "-m", "tests.comm.channels_over_mpi", *names)
    assert (done.code, done.err) == (0, ""), done.out
    assert sorted(done.out.split()) == sorted([*names, *names])


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "is_killed",
        *map(
            slowly,
            (
                "stops",
                "raises",
                "exits",
                "returns_early",
                "sleeps",
                "makes_another_call",
            ),
        ),
    ],
)
@needs_mpi
def test_a_rank_that_fails_while_others_wait_in_a_channel_is_named(what):
    check(f"{what}_beside_channels", rank=2)
