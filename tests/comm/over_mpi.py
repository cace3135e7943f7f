"""What only MPI groups can get wrong. Run under mpirun with two ranks and names of
functions.
"""

import sys

import numpy as np

from minipipe import init_process_group
from minipipe.core.comm.message import Header
from minipipe.errors import LaunchError


class OnDevice:
    """Stands for an array of CuPy's: not NumPy's, with memory that MPI can read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.nbytes = (
            array,
            array.shape,
            array.dtype,
            array.nbytes,
        )
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}


def an_empty_array_on_a_device_leaves_its_channel_in_order(group):
    """The story: its body, of no bytes, was sent and never taken, and the next header
    was looked for in it.
    """
    arrays = [np.ones(3), np.zeros(0), np.full(4, 5.0)]
    for array in arrays:
        if group.rank == 0:
            group._post_send(Header.of(array), OnDevice(array), 1, 0).wait()
        else:
            assert group.recv(0).tolist() == array.tolist()


def a_group_that_is_closed_leaves_nothing_behind(group):
    """The story: the job kept every group that was ever split off, with its buffers."""
    before = len(group.job.groups)
    for _ in range(20):
        part = group.split(0)
        receives = [part.irecv(1 - part.rank, tag) for tag in range(30)]
        for tag in range(30):
            part.isend(np.zeros(3), 1 - part.rank, tag)
        for receive in receives:
            receive.wait()
        assert len(part._spare) <= 16
        part.barrier()
        part.close()
    assert len(group.job.groups) == before and not part._spare


def sends_that_are_over_are_let_go_behind_one_that_is_not(group):
    """The story: one send that nobody took kept the arrays of all that came after
    it.
    """
    if group.rank == 0:
        group.isend(np.zeros(1 << 17), 1, tag=9)
        for _ in range(100):
            group.isend(np.zeros(1 << 15), 1, tag=1)
            group.recv(1, tag=2)
        assert len(group.job._unfinished) < 40
        return
    for _ in range(100):
        group.recv(0, tag=1)
        group.send(np.zeros(1), 0, tag=2)
    group.recv(0, tag=9)


def a_receive_of_a_group_that_was_closed_says_so(group):
    """The story: MPI's own error about a communicator that is no more."""
    part = group.split(0)
    receive = part.irecv(1 - part.rank)
    part.close()
    try:
        receive.wait()
    except LaunchError as error:
        assert error.code == "closed"
    else:
        raise AssertionError("a closed group received something")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with init_process_group(timeout=20) as group:
            globals()[name](group)
        sys.stdout.write(f"{name}\n")
