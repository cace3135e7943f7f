"""What only channels of MPI groups can get wrong. Run under mpirun with two ranks and
names of functions.
"""

import gc
import os
import sys
import time
import warnings

import numpy as np
from mpi4py import MPI

from minipipe import init_process_group
from minipipe.comm.persistent import PersistentReceive, PersistentSend
from minipipe.core.comm.message import Header
from minipipe.errors import LaunchError, MessageError
from tests.comm.bodies import expect
from tests.comm.over_mpi import OnDevice

SHAPE, DTYPE = (4,), np.float32


def messages_take_persistent_requests(group):
    for length, is_small in ((0, True), (8192, True), (8193, False)):
        made = (
            group.send_channel((length,), DTYPE, 0, 3),
            group.receive_channel((length,), DTYPE, 0, 3),
        )
        assert all(isinstance(one, (PersistentSend, PersistentReceive)) for one in made)
        assert all(bool(one.parts()) is is_small for one in made)
        if is_small and length:
            assert all(one.array.ctypes.data % 64 == 0 for one in made)
            assert all(
                one.array.flags.c_contiguous and one.array.flags.writeable
                for one in made
            )


def an_array_of_a_device_arrives_over_a_channel(group):
    """Its header and its bytes are two messages, however small it is."""
    arrays = [np.full(SHAPE, i, DTYPE) for i in range(4)]
    channel = group.receive_channel(SHAPE, DTYPE, 0)
    for step, array in enumerate(arrays):
        if group.rank == 0:
            group._post_send(Header.of(array, step), OnDevice(array), 1, 0).wait()
        else:
            channel.start(step)
            channel.wait()
            assert channel.array.tolist() == array.tolist()


def requests_of_dropped_channels_are_freed(group):
    for step in range(50):
        sending = group.send_channel(SHAPE, DTYPE, 1 - group.rank)
        receiving = group.receive_channel(SHAPE, DTYPE, 1 - group.rank)
        receiving.start(step)
        sending.start(step)
        receiving.wait()
        sending.wait()
        del sending, receiving
        gc.collect()
    assert len(group.persistent._requests) <= 2
    channels = [
        group.send_channel(SHAPE, DTYPE, 1),
        group.receive_channel(SHAPE, DTYPE, 0),
    ]
    requests = [request for _, request, _ in group.persistent._requests]
    group.close()
    assert len(requests) >= len(channels) and all(
        request == MPI.REQUEST_NULL for request in requests
    )


def a_send_that_is_under_way_outlives_its_channel_and_its_group(group):
    """The story of isend: MPI sends from memory that nobody holds any more."""
    part = group.split(0)
    if group.rank == 0:
        for tag in range(200):  # more than MPI takes before they are received
            channel = part.send_channel((8192,), DTYPE, 1, tag)
            channel.array[:] = tag
            channel.start(tag)
        del channel
        gc.collect()
        np.full(1 << 20, -1.0)
        group.send(np.zeros(1), 1)
        group.recv(1)
        part.close()
        return
    group.recv(0)
    for tag in range(200):
        assert (part.recv(0, tag) == tag).all()
    group.send(np.zeros(1), 0)


def a_send_that_is_left_behind_at_the_end_arrives(group):
    """The sender has ended when the receiver begins: the sleep is its work."""
    if group.rank == 0:
        for tag in range(30):
            channel = group.send_channel((8192,), DTYPE, 1, tag)
            channel.array[:] = tag
            channel.start(tag)
        return
    time.sleep(0.3)
    for tag in range(30):
        assert (group.recv(0, tag) == tag).all()


def a_wait_that_was_too_short_loses_no_message(group):
    sending, receiving = (
        group.send_channel(SHAPE, DTYPE, 1),
        group.receive_channel(SHAPE, DTYPE, 0),
    )
    if group.rank == 0:
        group.recv(1)
        sending.array[:] = 7
        sending.start(3)
        sending.wait()
        return
    receiving.start(3)
    for _ in range(2):
        sentence = expect(MessageError, "timeout", lambda: receiving.wait(0.05))
        assert (
            "Rank 1 has waited" in sentence
            and "for a message with tag 0 from rank 0" in sentence
        )
    group.send(np.zeros(1), 0)
    receiving.wait()
    assert (receiving.array == 7).all()


def bytes_that_are_no_message_are_told_apart(group):
    """Something else sends under the tag: too short, too long, and without a header.
    The receives go on.
    """
    channel = group.receive_channel(SHAPE, DTYPE, 0, 4)
    foreign = [b"", b"x" * 50, b"x" * 112]
    # Open MPI 5.0 writes behind a buffer that is too short
    if "MPICH" in MPI.Get_library_version():
        foreign.append(b"x" * (1 << 16))
    for step, data in enumerate(foreign, 1):
        if group.rank == 0:
            group.isend(np.full(SHAPE, step, DTYPE), 1, 4, step=step).wait()
            group.comm.Send(data, 1, group.mpi_tag(4))
        else:
            channel.start(step)
            channel.wait()
            assert (channel.array == step).all()
            channel.start(step)  # where the header of the last message still lies
            expect(MessageError, "damaged", channel.wait)


def a_forked_child_cannot_use_a_channel(group):
    """Not even for a message that had arrived before: it is the parent's."""
    # from Python 3.12 on: forking with threads
    warnings.simplefilter("ignore", DeprecationWarning)
    sending, receiving = (
        group.send_channel(SHAPE, DTYPE, 1),
        group.receive_channel(SHAPE, DTYPE, 0),
    )
    receiving.start(1)
    if group.rank == 0:
        sending.array[:] = 2
        sending.start(1)
    while group.rank == 1 and not group.has_arrived(0, 0):
        pass
    child = os.fork()
    if child == 0:
        calls = (lambda: sending.start(2), receiving.wait, lambda: receiving.start(2))
        codes = [
            LaunchError("closed", expect(LaunchError, "closed", call)).code
            for call in calls
        ]
        os._exit(0 if codes == ["closed"] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    if group.rank == 1:
        receiving.wait()
        assert (receiving.array == 2).all()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with init_process_group(timeout=20) as group:
            globals()[name](group)
        sys.stdout.write(f"{name}\n")
