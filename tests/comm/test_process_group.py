"""One body for every group: one rank, thread ranks, MPI ranks."""

import numpy as np
import pytest

from minipipe import spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import LaunchError, MessageError
from tests.comm.bodies import BODIES
from tests.launch import mpirun, needs_mpi, slowly


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_one_rank(body):
    assert body(OneRankGroup()) is None


@pytest.mark.parametrize("take_turns", [False, True], ids=["free", "in turns"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, slowly(5)])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_thread_ranks(body, num_ranks, take_turns):
    assert (
        spawn(body, num_ranks, timeout=20, take_turns=take_turns) == [None] * num_ranks
    )


@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, slowly(3), slowly(5)])
@pytest.mark.parametrize(
    "can_read_other_memory", [pytest.param("1", id="CMA"), slowly("0", id="no CMA")]
)
def test_on_mpi_ranks(num_ranks, can_read_other_memory):
    done = mpirun(
        num_ranks,
        "-m",
        "tests.comm.bodies",
        MPIR_CVAR_CH4_CMA_ENABLE=can_read_other_memory,
    )
    assert done.code == 0, done.err
    assert done.out.split() == [
        word for body in BODIES for word in ("passed", body.__name__)
    ]


CALLS = {
    "barrier": lambda group: group.barrier(),
    "recv": lambda group: group.recv(0),
    "irecv": lambda group: group.irecv(0).wait(timeout=1.0),
    "send": lambda group: group.send(np.ones(1), 0),
    "isend": lambda group: group.isend(np.ones(1), 0),
    "broadcast": lambda group: group.broadcast(None),
    "ibroadcast": lambda group: group.ibroadcast(None).wait(timeout=1.0),
    "all_gather": lambda group: group.all_gather(np.ones(1)),
    "all_reduce": lambda group: group.all_reduce(np.ones(1)),
    "split": lambda group: group.split(0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_group_says_so(call):
    """The story: the test asked for a barrier "or" a message, so it never asked for the
    message.
    """
    with spawn(lambda group: group, 2)[1] as group:
        pass
    with pytest.raises(LaunchError, match="closed") as caught:
        call(group)
    assert caught.value.code == "closed"


def test_a_group_that_was_closed_by_hand_is_left_in_silence():
    """Leaving its block waited for a broadcast under way, in a group that no longer
    can.
    """

    def run(group):
        with group:
            group.ibroadcast(np.ones(1) if group.rank == 0 else None)
            group.close()
        return group.is_closed

    assert spawn(run, 2) == [True, True]


def test_one_rank_that_waits_for_itself_is_told_at_once():
    with pytest.raises(MessageError) as caught:
        OneRankGroup().recv(0, tag=3)
    assert caught.value.code == "deadlock" and "tag 3" in str(caught.value)


OVER_MPI = [
    "an_empty_array_on_a_device_leaves_its_channel_in_order",
    "a_group_that_is_closed_leaves_nothing_behind",
    "sends_that_are_over_are_let_go_behind_one_that_is_not",
    "a_receive_of_a_group_that_was_closed_says_so",
]


@needs_mpi
@pytest.mark.parametrize(
    "names", [OVER_MPI, *map(slowly, [[name] for name in OVER_MPI])], ids=len
)
def test_over_mpi(names):
    done = mpirun(2, "-m", "tests.comm.over_mpi", *names)
    assert done.code == 0, done.out + done.err
    assert sorted(done.out.split()) == sorted([*names, *names])
