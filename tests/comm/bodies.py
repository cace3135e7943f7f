"""What every group must do. One body each, run on one rank, on thread ranks and on MPI
ranks.

Run as a script under mpirun it runs all of them, and names each one that passed on rank
0.
"""

import gc
import threading

import numpy as np

from minipipe.errors import ArgumentError, LaunchError, MessageError, RankError


def expect(kind, code, call):
    """Return the sentence of the error that ``call`` must raise."""
    try:
        call()
    except kind as error:
        assert error.code == code, (error.code, str(error))
        return str(error)
    raise AssertionError(f"no {kind.__name__} ({code}) was raised")


def right(group):
    return (group.rank + 1) % group.size


def left(group):
    return (group.rank - 1) % group.size


def a_message_brings_its_shape_dtype_and_bits(group):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3.5),
        np.zeros((0, 4), dtype=np.int64),
        np.array([True, False]),
        # not contiguous
        np.arange(24, dtype=np.int8).reshape(2, 3, 4).transpose(2, 0, 1),
        np.float32([np.nan, -0.0, np.inf]),
        np.arange(300_000, dtype=np.float64),  # too large to be sent eagerly
    ]
    for array in arrays:
        request = group.isend(array, right(group), tag=7)
        received = group.recv(left(group), tag=7)
        request.wait()
        assert received.dtype == array.dtype and received.shape == array.shape
        assert received.tobytes() == array.tobytes()


def a_number_or_a_list_is_sent_as_the_array_that_numpy_makes_of_it(group):
    for value in (3.0, 7, True, [1.5, 2.5], [[1, 2], [3, 4]]):
        request = group.isend(value, right(group), tag=7)
        received = group.recv(left(group), tag=7)
        request.wait()
        assert (
            received.dtype == np.asarray(value).dtype
            and received.tolist() == np.asarray(value).tolist()
        )


def messages_of_one_tag_keep_their_order_and_tags_are_apart(group):
    for number in range(5):
        group.isend(np.array(number), right(group), tag=1)
    group.isend(np.array(99), right(group), tag=0)
    assert int(group.recv(left(group), tag=0)) == 99
    assert [int(group.recv(left(group), tag=1)) for _ in range(5)] == [0, 1, 2, 3, 4]


def a_receiver_takes_what_was_sent_even_if_the_sender_changes_its_array_later(group):
    array = np.arange(4.0)
    group.isend(array, right(group)).wait()
    received = group.recv(left(group))
    group.barrier()
    array[:] = -1
    group.barrier()
    assert received.tolist() == [0, 1, 2, 3]


def a_send_whose_request_nobody_keeps_arrives_whole(group):
    for number in range(5):
        group.isend(np.full(300_000, number, dtype=np.float64), right(group), tag=6)
        gc.collect(1)  # it is young, and old objects are those of all tests
        np.full(300_000, -1.0)  # would land where a freed buffer was
    for number in range(5):
        received = group.recv(left(group), tag=6)
        assert (received == number).all()


def receiving_into_an_array_fills_it(group):
    out = np.zeros((2, 2), dtype=np.float32)
    request = group.isend(np.ones((2, 2), dtype=np.float32), right(group))
    assert group.recv(left(group), out=out) is out
    request.wait()
    assert out.tolist() == [[1, 1], [1, 1]]


def a_wrong_shape_or_dtype_names_both_sides(group):
    for out, code in (
        (np.zeros((3, 2), np.float32), "shape"),
        (np.zeros((2, 3), np.float64), "dtype"),
    ):
        request = group.isend(np.ones((2, 3), dtype=np.float32), right(group), tag=2)
        receive = lambda out=out: group.recv(left(group), tag=2, out=out)
        sentence = expect(MessageError, code, receive)
        for part in (
            f"Rank {left(group)} sent float32 (2, 3)",
            f"to rank {group.rank}",
            f"expects {out.dtype.name} {out.shape}",
        ):
            assert part in sentence, sentence
        assert not out.any(), "a wrong message must not touch the array"
        request.wait()
    group.isend(np.ones(2), right(group), tag=2)
    assert group.recv(left(group), tag=2).tolist() == [1, 1], (
        "the next message is whole"
    )


def a_message_of_another_step_is_refused(group):
    request = group.isend(np.ones(2), right(group), tag=3, step=4)
    sentence = expect(
        MessageError, "disagreement", lambda: group.irecv(left(group), 3, step=5).wait()
    )
    assert "step 4" in sentence and "step 5" in sentence
    request.wait()


def ranks_and_tags_out_of_range_are_refused(group):
    for rank in (-1, group.size):
        expect(
            RankError, "out-of-range", lambda rank=rank: group.isend(np.zeros(1), rank)
        )
        expect(RankError, "out-of-range", lambda rank=rank: group.recv(rank))
        expect(
            RankError,
            "out-of-range",
            lambda rank=rank: group.broadcast(np.zeros(1), root=rank),
        )
    for call in (
        lambda: group.isend(np.zeros(1), 0, tag=-1),
        lambda: group.recv(0, tag=-1),
    ):
        try:
            call()
        except ValueError as error:
            assert "-1" in str(error)
        else:
            raise AssertionError("a negative tag was accepted")
    expect(MessageError, "dtype", lambda: group.isend(np.array([object()]), 0))
    expect(MessageError, "shape", lambda: group.isend(np.zeros((1,) * 9), 0))


def broadcast_brings_every_root_to_every_rank(group):
    for root in range(group.size):
        mine = np.arange(3) + root if group.rank == root else None
        assert group.broadcast(mine, root).tolist() == [root, root + 1, root + 2]
    own = np.zeros(2)
    assert group.broadcast(np.ones(2) if group.rank == 0 else own).tolist() == [1, 1]


def broadcasts_under_way_come_in_their_order_whichever_is_waited_for(group):
    roots = [0, group.size - 1, 0, group.size - 1]
    started = [
        group.ibroadcast(
            np.array(10 * i + root) if group.rank == root else None, root, step=i
        )
        for i, root in enumerate(roots)
    ]
    # nobody ever asks for it
    group.ibroadcast(np.array(-1) if group.rank == 0 else None)
    for i in (2, 3, 0, 1, 2):
        assert int(started[i].wait()) == 10 * i + roots[i]
    last = group.ibroadcast(np.arange(20_000) if group.rank == 0 else None)
    assert last.wait().tolist() == list(range(20_000))


def the_root_may_change_its_array_once_its_wait_is_over(group):
    """The story: the root's wait returned at once, and another rank received what had
    been written since.
    """
    array = np.full(100_000, 7.0)
    request = group.ibroadcast(array if group.rank == 0 else None)
    if group.rank == 0:
        request.wait()
        array[:] = -1.0
    else:
        assert (request.wait() == 7.0).all()


def what_is_wrong_with_a_message_is_said_each_time_and_spoils_no_other(group):
    """The story: a broadcast of another step stayed at the head of the queue and ate
    the ones behind it.
    """
    if group.rank == 0:
        for step in (1, 2, 3):
            group.ibroadcast(np.array(step), step=step)
        for number in (1, 2) if group.size > 1 else ():
            group.isend(np.full(number, float(number)), 1, tag=6)
        return
    first, second, third = (group.ibroadcast(step=step) for step in (9, 2, 3))
    assert int(third.wait()) == 3
    for _ in range(2):
        expect(MessageError, "disagreement", first.wait)
    assert int(second.wait()) == 2
    if group.rank == 1:
        wrong = group.irecv(0, tag=6, out=np.zeros(5))
        for _ in range(2):
            expect(MessageError, "shape", wrong.wait)
        assert group.recv(0, tag=6).tolist() == [2.0, 2.0]


def arrays_with_their_header_and_apart_from_it_keep_their_order(group):
    # of float32, so that 8192 is the most that travels with a header
    lengths = [8191, 8192, 8193, 0, 50_000, 1, 8193]
    sends = [
        group.isend(np.full(n, i, np.float32), right(group), tag=3)
        for i, n in enumerate(lengths)
    ]
    receives = [group.irecv(left(group), tag=3) for _ in lengths]
    # the receive that is waited for first gets the first message
    order = [3, 0, 6, 1, 2, 5, 4]
    for i, which in enumerate(order):
        received = receives[which].wait()
        assert received.shape == (lengths[i],) and (received == i).all()
    for send in sends:
        send.wait()


def a_receive_that_is_never_waited_for_loses_no_message(group):
    group.irecv(left(group), tag=4)
    group.isend(np.array(group.rank), right(group), tag=4).wait()
    assert int(group.recv(left(group), tag=4)) == left(group)
    group.irecv(left(group), tag=4)  # and nothing comes


def all_gather_is_by_rank_and_may_be_ragged(group):
    gathered = group.all_gather(np.full(group.rank, group.rank))
    assert [a.tolist() for a in gathered] == [[r] * r for r in range(group.size)]


def all_reduce_adds_in_pairs_with_the_same_bits_everywhere(group):
    values = [
        np.random.default_rng(rank).standard_normal(50).astype(np.float32)
        for rank in range(group.size)
    ]
    expected = values
    while len(expected) > 1:
        expected = [
            sum(expected[i + 1 : i + 2], expected[i])
            for i in range(0, len(expected), 2)
        ]
    (expected,) = expected
    given = values[group.rank]
    assert group.all_reduce(given).tobytes() == expected.tobytes()
    assert given.tobytes() == values[group.rank].tobytes()
    assert float(group.all_reduce(np.array(group.rank), "max")) == group.size - 1


def all_reduce_refuses_unequal_shapes(group):
    if group.size == 1:
        return
    # With two ranks both see the other's; with more, each differs from somebody.
    expect(MessageError, "shape", lambda: group.all_reduce(np.zeros(group.rank + 1)))


def a_barrier_waits_for_all(group):
    for _ in range(3):
        group.barrier()


def split_makes_groups_that_do_not_hear_each_other(group):
    half = group.split(group.rank % 2, key=-group.rank)
    members = [rank for rank in range(group.size) if rank % 2 == group.rank % 2][::-1]
    assert (half.rank, half.size) == (members.index(group.rank), len(members))
    assert [int(a) for a in half.all_gather(np.array(group.rank))] == members
    alone = group.split(0 if group.rank == 0 else None)
    assert (alone is None) == (group.rank != 0)
    if half.size > 1:  # the same tag between the same ranks, in both groups
        partner = (half.rank + 1) % half.size
        group.isend(np.array(1), members[partner], tag=5)
        half.isend(np.array(2), partner, tag=5)
        before = (half.rank - 1) % half.size
        assert int(half.recv(before, tag=5)) == 2
        assert int(group.recv(members[before], tag=5)) == 1
    group.barrier()


def a_color_is_one_whole_number(group):
    for wrong in ([0, 0], 0.5, "red", -1):
        assert "group.split(group.rank % 2)" in expect(
            ArgumentError, "value", lambda: group.split(wrong)
        )


class Meanwhile:
    """Another thread calls a function while the thread that sends this is inside of
    ``isend``.
    """

    def __init__(self, call):
        self.call = call

    def __array__(self, *_, **__):
        in_thread(self.call)
        return np.ones(2)


def in_thread(call):
    thread = threading.Thread(target=call, name="the other")
    thread.start()
    thread.join()


def two_threads_of_one_rank_cannot_communicate_at_once(group):
    """The story: each took messages of the other; errors of both filled screens, or a
    group of one went on wrongly.
    """
    refused = []
    meanwhile = Meanwhile(
        lambda: refused.append(expect(LaunchError, "not-a-rank", group.barrier))
    )
    request = group.isend(meanwhile, right(group), tag=7)
    assert group.recv(left(group), tag=7).tolist() == [1, 1]
    request.wait()
    for words in (
        "ProcessGroup.isend() at bodies.py",
        "the other is in ProcessGroup.barrier() at bodies.py",
    ):
        assert words in refused[0]


def threads_of_one_rank_may_communicate_one_after_the_other(group):
    for _ in range(2):
        received = []
        group.isend(np.array(group.rank), right(group), tag=7)
        in_thread(
            lambda received=received: received.append(
                int(group.recv(left(group), tag=7))
            )
        )
        in_thread(group.barrier)
        assert received == [left(group)]
        group.barrier()


def clocks_agree(group):
    group.align_clocks()
    group.barrier()
    times = [float(t) for t in group.all_gather(np.array(group.time()))]
    assert max(times) - min(times) < 1.0


# A body that leaves unread bytes behind comes last.
BODIES = [
    a_message_brings_its_shape_dtype_and_bits,
    a_number_or_a_list_is_sent_as_the_array_that_numpy_makes_of_it,
    messages_of_one_tag_keep_their_order_and_tags_are_apart,
    a_receiver_takes_what_was_sent_even_if_the_sender_changes_its_array_later,
    a_send_whose_request_nobody_keeps_arrives_whole,
    receiving_into_an_array_fills_it,
    ranks_and_tags_out_of_range_are_refused,
    broadcast_brings_every_root_to_every_rank,
    broadcasts_under_way_come_in_their_order_whichever_is_waited_for,
    the_root_may_change_its_array_once_its_wait_is_over,
    what_is_wrong_with_a_message_is_said_each_time_and_spoils_no_other,
    arrays_with_their_header_and_apart_from_it_keep_their_order,
    a_receive_that_is_never_waited_for_loses_no_message,
    all_gather_is_by_rank_and_may_be_ragged,
    all_reduce_adds_in_pairs_with_the_same_bits_everywhere,
    a_barrier_waits_for_all,
    split_makes_groups_that_do_not_hear_each_other,
    a_color_is_one_whole_number,
    two_threads_of_one_rank_cannot_communicate_at_once,
    threads_of_one_rank_may_communicate_one_after_the_other,
    clocks_agree,
    a_wrong_shape_or_dtype_names_both_sides,
    a_message_of_another_step_is_refused,
    all_reduce_refuses_unequal_shapes,
]


if __name__ == "__main__":
    from minipipe import init_process_group

    with init_process_group(timeout=20) as group:
        for body in BODIES:
            # messages that a body leaves behind stay in its own group
            part = group.split(0)
            body(part)
            if group.rank == 0:
                print("passed", body.__name__, flush=True)
