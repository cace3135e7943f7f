"""A reduction in which a rank is missing: the awaited part and the rank are named."""

import numpy as np
import pytest
from minipipe import spawn
from minipipe.errors import MessageError
from tests.launch import mpirun, needs_mpi, slowly

PROGRAM = """
import sys, time, numpy as np, minipipe
from minipipe.parallel.reduction import AllReduce, Channel, equal_parts, finish_all
with minipipe.init_process_group(timeout=1.0) as group:
    if group.rank == 1 and "absent" in sys.argv:
        time.sleep(60)
    if group.rank == 1 and "killed" in sys.argv:
        import os
        os.kill(os.getpid(), 9)
    ones, channel = [np.ones(6)], Channel(group, 0)
    if "all_reduce" in sys.argv:
        group.all_reduce(*ones)
    else:
        parts = equal_parts((6,), 3)
        finish_all(group, [AllReduce(channel, range(3), ones, parts, "{} of six ones")])
"""


@needs_mpi
@pytest.mark.parametrize(
    ("call", "awaited"),
    [
        ("AllReduce", "part 0 of six ones"),
        slowly("all_reduce", "its part of an all-reduce"),
    ],
)
def test_a_rank_that_stays_away_is_named_with_the_part_that_is_awaited(call, awaited):
    done = mpirun(3, "-c", PROGRAM, call, "absent", limit=30)
    assert done.code != 0
    assert f"for {awaited} from rank 1" in done.err and "Rank 1 is busy" in done.err


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_a_reduction():
    done = mpirun(3, "-c", PROGRAM, "AllReduce", "killed", limit=30)
    assert done.code != 0 and done.seconds < 15


def test_a_round_that_failed_is_over():
    """The story: a later wait was reported as one of the second round."""

    def fail(group):
        if group.rank == 0:
            with pytest.raises(MessageError):
                group.all_reduce(np.ones(2))
            return group.activity.round

    assert spawn(fail, 3)[0] == 0
