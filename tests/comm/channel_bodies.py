"""What channels must do in every group. One body each, run on one rank, on thread ranks
and on MPI ranks.

Run as a script under mpirun it runs all of them, and names each one that passed on rank
0.
"""

import gc
import itertools

import numpy as np

from minipipe.comm.channel import BroadcastChannel
from minipipe.core.comm.process_group import OwnTag
from minipipe.errors import ArgumentError, LaunchError, MessageError, RankError
from tests.comm.bodies import Meanwhile, expect, in_thread, left, right

# bytes of an array that MPI groups send in one message with its header
INLINE = 1 << 15

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16


# -- an end as a function of the step: by a channel, or by isend and irecv -------------


class Ends:
    """Both ends of a message to the right neighbour, each in two ways."""

    def __init__(self, group, shape=(3,), dtype=np.float32, tag=5):
        self.group, self.tag, self.like = group, tag, np.zeros(shape, dtype)
        self.sending = group.send_channel(shape, dtype, right(group), tag)
        self.receiving = group.receive_channel(shape, dtype, left(group), tag)
        self.unfinished = []

    def send(self, by_channel, step, value):
        if by_channel:
            self.sending.wait()
            self.sending.array[...] = value
            self.sending.start(step)
            self.unfinished.append(self.sending)
        else:
            array = np.full_like(self.like, value)
            self.unfinished.append(
                self.group.isend(array, right(self.group), self.tag, step=step)
            )

    def start(self, by_channel, step):
        """Return a function that waits for the message, and returns its array."""
        if not by_channel:
            return self.group.irecv(left(self.group), self.tag, step=step).wait
        self.receiving.start(step)

        def wait():
            assert self.receiving.wait() is None
            return self.receiving.array.copy()

        return wait

    def finish(self):
        for one in self.unfinished:
            one.wait()


def passes(group, array, steps=(1, 2, 7)):
    """Send an array to the right over channels, in each step another one; compare what
    comes from the left.
    """
    sending = group.send_channel(array.shape, array.dtype, right(group), tag=3)
    receiving = group.receive_channel(array.shape, array.dtype, left(group), tag=3)
    for step in steps:
        sent = (
            array
            if step % 2
            else array[::-1]
            if array.ndim
            else ~array
            if array.dtype == bool
            else -array
        )
        receiving.start(step)
        sending.wait()
        sending.array[...] = sent
        sending.start(step)
        receiving.wait()
        assert (receiving.array.dtype, receiving.array.shape) == (
            array.dtype,
            array.shape,
        )
        assert receiving.array.tobytes() == sent.tobytes()
        sending.wait()


def a_channel_brings_the_bits_of_every_size(group):
    for count in (0, 1, 500, INLINE // 4 - 1, INLINE // 4, INLINE // 4 + 1, 50_000):
        passes(group, np.arange(count, dtype=np.float32))


def a_channel_brings_the_bits_of_every_dtype_and_shape(group):
    for dtype in (
        np.float16,
        bfloat16,
        np.float64,
        bool,
        np.int8,
        np.uint16,
        np.int64,
        np.complex64,
        ">f4",
    ):
        passes(group, np.arange(-6, 6).astype(dtype).reshape(3, 4))
    for shape in ((), (1,), (0, 4), (2, 1, 2), (1,) * 8):
        passes(
            group,
            np.random.default_rng(0).standard_normal(shape).astype(np.float32)[...],
        )
    passes(group, np.float32([np.nan, -0.0, np.inf]))


def both_ends_may_change_between_a_channel_and_isend_or_irecv_from_step_to_step(group):
    ends = Ends(group)
    for step, ways in enumerate(itertools.product([False, True], repeat=6), 1):
        for number in range(3):
            wait = ends.start(ways[number], 10 * step + number)
            ends.send(ways[3 + number], 10 * step + number, 10 * step + number)
            assert (wait() == 10 * step + number).all()
    ends.finish()


def messages_that_come_early_are_taken_in_their_order_by_either(group):
    ends = Ends(group)
    for ways in itertools.product([False, True], repeat=4):
        for number in range(4):
            ends.send(number % 2, number, number)
        for number in range(4):
            assert (ends.start(ways[number], number)() == number).all()
    ends.finish()


def of_receives_that_are_started_together_the_first_one_waited_for_gets_the_first_message(
    group,
):
    """As with irecv alone, whichever of them has told MPI that it receives."""
    ends = Ends(group)
    for ways in itertools.permutations([False, False, True]):
        waits = [ends.start(way, 1) for way in ways]
        for number in range(3):
            ends.send(True, 1, number)
        for order in ([2, 0, 1],):
            assert [float(waits[i]()[0]) for i in order] == [0, 1, 2]
    ends.finish()


def a_receive_that_nobody_waits_for_loses_no_message(group):
    """A step failed between start and wait."""
    ends = Ends(group)
    for way in (True, False):
        ends.start(True, 1)
        ends.start(True, 2)
        ends.send(True, 3, 5)
        assert (ends.start(way, 3)() == 5).all()
        ends.start(False, 4)
        ends.send(False, 6, 6)
        assert (ends.start(True, 6)() == 6).all()
    ends.finish()
    ends.start(True, 7)  # and nothing comes


def a_channel_takes_over_the_receive_of_one_that_was_dropped(group):
    """The program of a rank is made anew after a step that failed."""
    for step in range(5):
        ends = Ends(group)
        ends.start(True, step)
        del ends.receiving
        gc.collect(1)  # it is young, and old objects are those of all tests
        ends.receiving = group.receive_channel((3,), np.float32, left(group), 5)
        for number in range(2):
            wait = ends.start(True, step)
            ends.send(True, step, number)
            assert (wait() == number).all()
        ends.finish()


def a_message_of_another_shape_or_dtype_is_refused_and_the_next_is_whole(group):
    sizes = (3, 4, 2, INLINE // 4, INLINE // 4 + 1, INLINE)
    for mine, other in [(a, b) for a in sizes for b in sizes if a != b]:
        _is_refused(group, ((mine,), np.float32), ((other,), np.float32), "shape")
    _is_refused(group, ((2, 3), np.float32), ((3, 2), np.float32), "shape")
    for dtype in (np.float64, np.int32, bool, bfloat16):
        _is_refused(group, ((3,), np.float32), ((3,), dtype), "dtype")


def _is_refused(group, expected, sent, code):
    receiving = group.receive_channel(*expected, left(group), 2, "the weather")
    for by_channel in (True, False):
        receiving.start(1)
        sending = group.send_channel(*sent, right(group), 2)
        if by_channel:
            sending.array[...] = 1
            sending.start(1)
        else:
            sending = group.isend(np.ones(*sent), right(group), 2, step=1)
        sentence = expect(MessageError, code, receiving.wait)
        mine, other = (
            f"{np.dtype(dtype).name} {shape}" for shape, dtype in (expected, sent)
        )
        for words in (
            f"Rank {left(group)} sent {other} to rank {group.rank}",
            f"expects {mine}",
            "the weather",
        ):
            assert words in sentence, sentence
        sending.wait()
        receiving.start(2)
        after = group.isend(np.ones(*expected), right(group), 2, step=2)
        receiving.wait()
        assert (receiving.array == 1).all()
        after.wait()


def a_message_of_another_step_is_refused_and_the_next_is_whole(group):
    for length in (3, INLINE):
        ends = Ends(group, (length,))
        for way in (True, False):
            ends.start(True, 5)
            ends.send(way, 4, 1)
            sentence = expect(MessageError, "disagreement", ends.receiving.wait)
            assert (
                f"Rank {left(group)} sent a message with tag 5 in its step 4"
                in sentence
            )
            assert f"rank {group.rank} is in step 5" in sentence
            wait = ends.start(True, 6)
            ends.send(way, 6, 2)
            assert (wait() == 2).all()
        ends.finish()


def a_description_is_composed_for_an_error_only(group):
    asked = []

    def what():
        asked.append(1)
        return "the activations of microbatch 3"

    for length in (3, INLINE):
        ends = Ends(group, (length,))
        ends.receiving = group.receive_channel(
            (length,), np.float32, left(group), 5, what
        )
        for step in range(3):
            wait = ends.start(True, step)
            ends.send(True, step, step)
            wait()
        assert not asked
        ends.start(True, 5)
        ends.send(True, 4, 1)
        assert "the activations of microbatch 3" in expect(
            MessageError, "disagreement", ends.receiving.wait
        )
        assert asked
        asked.clear()
        ends.finish()


def channels_go_on_beside_collective_calls_and_other_tags(group):
    many = [
        Ends(group, (length,), tag=tag)
        for tag, length in enumerate((1, 600, INLINE, 3))
    ]
    for step in range(6):
        waits = [ends.start(True, step) for ends in many]
        group.barrier()
        for number, ends in enumerate(many):
            ends.send(True, step, 10 * step + number)
        assert int(group.all_reduce(np.array(1))) == group.size
        under_way = group.ibroadcast(
            np.array(step) if group.rank == 0 else None, step=step
        )
        for number, wait in reversed([*enumerate(waits)]):
            assert (wait() == 10 * step + number).all()
        assert int(under_way.wait()) == step
        for ends in many:
            ends.finish()


def the_array_may_be_filled_again_after_wait_and_the_message_is_as_it_was(group):
    """Many messages on the way, so that MPI has no place for the last ones when they
    are sent.
    """
    channels = [
        group.send_channel((INLINE // 4,), np.float32, right(group), tag)
        for tag in range(20)
    ]
    receives = [
        group.receive_channel((INLINE // 4,), np.float32, left(group), tag)
        for tag in range(20)
    ]
    for step in range(4):
        for receive in receives:
            receive.start(step)
        for number, channel in enumerate(channels):
            channel.wait()
            channel.array[:] = 100 * step + number
            channel.start(step)
        for number, receive in enumerate(receives):
            receive.wait()
            assert (receive.array == 100 * step + number).all()


def a_message_that_is_sent_before_the_one_before_was_taken_waits_for_that(group):
    sending = group.send_channel((INLINE // 4,), np.float32, right(group), 8)
    receiving = group.receive_channel((INLINE // 4,), np.float32, left(group), 8)
    for step in range(0, 6, 2):
        receiving.start(step)
        for number in (step, step + 1):
            sending.start(number)
        receiving.wait()
        receiving.start(step + 1)
        receiving.wait()
        sending.wait()


def a_message_that_has_come_is_known_before_it_is_waited_for(group):
    ends = Ends(group)
    ends.start(True, 1)
    ends.send(True, 1, 4)
    group.barrier()
    while not group.has_arrived(left(group), 5):
        pass
    ends.receiving.wait()
    assert (ends.receiving.array == 4).all() and not group.has_arrived(left(group), 5)
    ends.finish()


def a_broadcast_channel_sends_what_broadcast_does(group):
    """Each rank takes one or the other, by turns, and another array than the expected
    one is handed on as it is.
    """
    for root in range(group.size):
        channel = BroadcastChannel(group, (3,), np.float32, root, OwnTag.BROADCAST)
        for step in range(6):
            sent = np.full(3, 10 * root + step, np.float32)
            if group.rank == root:
                channel.array[...] = sent
            by_channel = (step + group.rank) % 2
            found = (
                channel.run()
                if by_channel
                else group.broadcast(sent if group.rank == root else None, root)
            )
            assert found.tolist() == sent.tolist()
        for other in (np.arange(2), np.zeros((2, 2), np.float32), np.zeros(INLINE)):
            if group.rank == root:
                assert group.broadcast(other, root).tolist() == other.tolist()
            else:
                found = channel.run()
                assert (found.dtype, found.tolist()) == (other.dtype, other.tolist())


def what_no_channel_can_carry_is_refused_when_it_is_made(group):
    for make in (group.send_channel, group.receive_channel):
        expect(
            RankError,
            "out-of-range",
            lambda make=make: make((2,), np.float32, group.size),
        )
        expect(ArgumentError, "value", lambda make=make: make((2,), np.float32, 0, -1))
        expect(MessageError, "dtype", lambda make=make: make((2,), object, 0))
        expect(MessageError, "shape", lambda make=make: make((1,) * 9, np.float32, 0))


def a_channel_of_a_closed_group_says_so(group):
    for length in (3, INLINE):
        part = group.split(0)
        ends = Ends(part, (length,))
        wait = ends.start(True, 1)
        part.close()
        for call in (wait, lambda: ends.start(True, 2), lambda: ends.send(True, 2, 2)):
            expect(LaunchError, "closed", call)


def a_second_thread_cannot_use_a_channel_meanwhile(group):
    ends, refused = Ends(group), []
    meanwhile = Meanwhile(
        lambda: refused.append(
            expect(LaunchError, "not-a-rank", lambda: ends.start(True, 1))
        )
    )
    request = group.isend(meanwhile, right(group), tag=7)
    group.recv(left(group), tag=7)
    request.wait()
    assert (
        "ProcessGroup.isend() at channel_bodies.py" in refused[0]
        or "bodies.py" in refused[0]
    )
    for step in range(2):
        in_thread(
            lambda step=step: (
                ends.receiving.start(step),
                ends.send(True, step, 1),
                ends.receiving.wait(),
            )
        )
        assert (ends.receiving.array == 1).all()
    group.barrier()


BODIES = [
    a_channel_brings_the_bits_of_every_size,
    a_channel_brings_the_bits_of_every_dtype_and_shape,
    both_ends_may_change_between_a_channel_and_isend_or_irecv_from_step_to_step,
    messages_that_come_early_are_taken_in_their_order_by_either,
    of_receives_that_are_started_together_the_first_one_waited_for_gets_the_first_message,
    a_receive_that_nobody_waits_for_loses_no_message,
    a_channel_takes_over_the_receive_of_one_that_was_dropped,
    a_message_of_another_shape_or_dtype_is_refused_and_the_next_is_whole,
    a_message_of_another_step_is_refused_and_the_next_is_whole,
    a_description_is_composed_for_an_error_only,
    channels_go_on_beside_collective_calls_and_other_tags,
    the_array_may_be_filled_again_after_wait_and_the_message_is_as_it_was,
    a_message_that_is_sent_before_the_one_before_was_taken_waits_for_that,
    a_message_that_has_come_is_known_before_it_is_waited_for,
    a_broadcast_channel_sends_what_broadcast_does,
    what_no_channel_can_carry_is_refused_when_it_is_made,
    a_channel_of_a_closed_group_says_so,
    a_second_thread_cannot_use_a_channel_meanwhile,
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
