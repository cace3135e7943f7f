"""The reduction over ranks: its bits, its bytes, and what it says of a missing rank."""

from collections import defaultdict, deque
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from minipipe import spawn
from minipipe.comm.objects import pack, unpack
from minipipe.errors import MessageError
from minipipe.parallel import pairwise, reduction
from minipipe.parallel.reduction import (
    AllReduce,
    Channel,
    ReduceScatter,
    bytes_sent_in_sum,
    equal_parts,
    finish_all,
)
from tests.launch import mpirun, needs_mpi, slowly

DTYPES = ("float32", "float64", "float16")


class Post:
    """Mailboxes of some ranks. A test decides when a message arrives."""

    def __init__(self):
        self.sent, self.arrived = deque(), defaultdict(deque)
        self.bytes = defaultdict(int)

    def deliver(self, number):
        """Let one message arrive: the first of its sender and receiver."""
        boxes = list(dict.fromkeys(box for box, _ in self.sent))
        box = boxes[number % len(boxes)]
        place = next(i for i, (other, _) in enumerate(self.sent) if other == box)
        self.arrived[box].append(self.sent[place][1])
        del self.sent[place]


class PostedGroup:
    """A rank that sends by a :class:`Post`, and may never wait."""

    def __init__(self, post, rank, size):
        self.post, self.rank, self.world_ranks = post, rank, range(size)
        self.activity = SimpleNamespace(round=0)

    def isend(self, array, destination, tag, *, step):
        self.post.sent.append(((self.rank, destination, tag), array.copy()))
        arrays = unpack(array)["arrays"] if array.dtype == np.uint8 else [array]
        self.post.bytes[self.rank] += sum(a.nbytes for a in arrays if a is not None)
        return SimpleNamespace(wait=lambda timeout=None: None)

    def irecv(self, source, tag, *, step, what):
        box = self.post.arrived[source, self.rank, tag]
        return SimpleNamespace(wait=box.popleft)

    def has_arrived(self, source, tag):
        return bool(self.post.arrived[source, self.rank, tag])


def added(terms):
    """Return the sum of the terms that are not None: of neighbours, level by level."""
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [pair[0] if len(pair) == 1 else plus(*pair) for pair in pairs]
    return terms[0]


def plus(left, right):
    if left is None or right is None:
        return right if left is None else left
    with np.errstate(over="ignore", invalid="ignore"):
        return left + right


@st.composite
def contributions(draw):
    """Arrays of each of some members: a row for each member, None where it has none."""
    num_members = draw(st.integers(1, 6))
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=2), max_size=4))
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in shapes]
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(num_members):
        row = [
            spread(random, shape).astype(dtype) for shape, dtype in zip(shapes, dtypes)
        ]
        has = [draw(st.booleans()) or draw(st.booleans()) for _ in shapes]
        rows.append([one if there else None for one, there in zip(row, has)])
    return [tuple(shape) for shape in shapes], rows


def spread(random, shape):
    """Return numbers of many magnitudes, of which every order has another sum."""
    return random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)


def flat(row):
    return [None if array is None else array.copy().reshape(-1) for array in row]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert (one is None) == (other is None)
        assert one is None or (one.dtype, one.tobytes()) == (
            other.dtype,
            other.tobytes(),
        )


def num_bytes(arrays):
    return sum(array.nbytes for array in arrays if array is not None)


# -- bits and bytes -------------------------------------------------------------------


@given(contributions(), st.data())
def test_an_all_reduce_is_the_sum_in_pairs_in_whatever_order_messages_arrive(
    case, data
):
    shapes, rows = case
    n, post = len(rows), Post()
    sizes = [int(np.prod(shape)) for shape in shapes]
    order = data.draw(st.permutations(range(n)))
    members = {
        rank: AllReduce(
            Channel(PostedGroup(post, rank, n), 0),
            range(n),
            flat(rows[rank]),
            sizes,
            "",
        )
        for rank in order
    }
    for member in members.values():
        member.advance()
    while post.sent:
        post.deliver(data.draw(st.integers(0, 100)))
        members[data.draw(st.integers(0, n - 1))].advance()
        for member in [] if post.sent else members.values():
            member.advance()
    expected = [added(terms) for terms in zip(*map(flat, rows))]
    for rank, member in members.items():
        assert member.round == 3
        assert_same(member.arrays, expected)
        own, parts = flat(rows[rank]), equal_parts(tuple(sizes), n)
        mine = [(i, elements) for i, elements in parts[rank]]
        first = num_bytes(own) - num_bytes(
            own[i][e] for i, e in mine if own[i] is not None
        )
        second = num_bytes(expected[i][e] for i, e in mine if expected[i] is not None)
        assert post.bytes[rank] == first + (n - 1) * second
    if all(array is not None for row in rows for array in row):
        assert sum(post.bytes.values()) == 2 * (n - 1) * num_bytes(expected)
        each = [(array.size, array.itemsize) for array in expected]
        for rank in range(n):
            assert post.bytes[rank] == bytes_sent_in_sum(each, n, rank)


@given(contributions(), st.booleans(), st.data())
def test_a_reduce_scatter_adds_any_parts_in_pairs(case, is_whole, data):
    shapes, rows = case
    n, post = len(rows), Post()
    parts = None if is_whole else [[] for _ in rows]
    for i, shape in enumerate([] if is_whole else shapes):
        size = int(np.prod(shape))
        numbers = st.lists(st.integers(0, size), min_size=n - 1, max_size=n - 1)
        ends = [0, *sorted(data.draw(numbers)), size]
        for part, start, stop in zip(parts, ends, ends[1:]):
            part.append((i, slice(start, stop)))
    members = [
        ReduceScatter(
            Channel(PostedGroup(post, rank, n), 7),
            range(n),
            flat(rows[rank]),
            parts,
            "",
        )
        for rank in range(n)
    ]
    while post.sent:
        post.deliver(data.draw(st.integers(0, 100)))
    totals = [added(terms) for terms in zip(*map(flat, rows))]
    for rank, member in enumerate(members):
        assert member.exchange.has_arrived()
        own = parts[rank] if parts else [(i, slice(None)) for i in range(len(shapes))]
        pieces = [None if totals[i] is None else totals[i][e] for i, e in own]
        assert_same(member.wait(), pieces)


def one_after_the_other(add, terms):
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def backwards(add, terms):
    return pairwise.in_pairs(add, terms[::-1])


@pytest.mark.parametrize("order", [one_after_the_other, backwards])
def test_another_order_of_addition_is_noticed(order):
    rows = [[spread(np.random.default_rng(rank), 50)] for rank in range(5)]
    expected = [added(terms) for terms in zip(*rows)]
    assert_same([pairwise.sum_in_pairs(terms) for terms in zip(*rows)], expected)
    with pytest.raises(AssertionError):
        assert_same([order(plus, terms) for terms in zip(*rows)], expected)


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 7))
@example([], 3)
def test_parts_divide_all_elements_equally(sizes, n):
    parts = equal_parts(tuple(sizes), n)
    found = [(i, k) for part in parts for i, e in part for k in range(e.start, e.stop)]
    assert found == [(i, k) for i, size in enumerate(sizes) for k in range(size)]
    lengths = [sum(e.stop - e.start for _, e in part) for part in parts]
    assert len(parts) == n and max(lengths) - min(lengths) <= 1


# -- ranks ----------------------------------------------------------------------------


def reduce_on(group):
    """Compare two all-reduces at once, and group.all_reduce, with the sums in pairs."""
    rows = [case_of(rank) for rank in range(group.size)]
    expected = [added(terms) for terms in zip(*map(flat, rows))]
    sizes = [7, 0, 1, 30_000]
    reductions = [
        AllReduce(
            Channel(group, tag, step=5),
            range(group.size),
            flat(rows[group.rank]),
            sizes,
            "x",
        )
        for tag in ((3, 5) if group.rank % 2 else (5, 3))
    ]
    for each in reductions:
        each.advance()
    finish_all(group, reductions)
    for each in reductions:
        assert_same(each.arrays, expected)
    for i in (0, 1, 2):
        own = rows[group.rank][i]
        before = own.copy()
        terms = [row[i] for row in rows]
        assert_same([group.all_reduce(own)], [np.asarray(added(terms))])
        assert group.all_reduce(own, "max").tobytes() == np.max(terms, axis=0).tobytes()
        assert own.tobytes() == before.tobytes()
    return group.activity.round


def case_of(rank):
    random = np.random.default_rng(rank)
    last = spread(random, 30_000) if rank != 1 else None
    empty = np.zeros((0, 3), np.float32)
    return [spread(random, 7).astype(np.float32), empty, spread(random, ()), last]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, slowly(5), slowly(7)])
def test_thread_ranks_have_the_bits_of_the_sum_in_pairs(num_ranks):
    assert spawn(reduce_on, num_ranks) == [0] * num_ranks


@needs_mpi
@pytest.mark.parametrize("num_ranks", [slowly(2), 3, slowly(4)])
def test_mpi_ranks_have_the_bits_of_the_sum_in_pairs(num_ranks):
    program = (
        "import minipipe\n"
        "from tests.parallel.test_reduction import reduce_on\n"
        "with minipipe.init_process_group() as group:\n"
        "    print(reduce_on(group))\n"
    )
    done = mpirun(num_ranks, "-c", program)
    assert (done.code, done.out.split(), done.err) == (0, ["0"] * num_ranks, "")


# -- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_an_array_that_differs_between_ranks_is_refused_by_all_of_them(num_ranks):
    def refused(group, array):
        with pytest.raises(MessageError) as caught:
            group.all_reduce(array)
        assert group.all_reduce(np.ones(2)).tolist() == [group.size] * 2
        return caught.value.code, str(caught.value)

    def differ(group):
        return refused(group, np.zeros((2, 3) if group.rank else (3, 2)))

    for code, words in spawn(differ, num_ranks):
        assert code == "shape" and "(2, 3)" in words and "(3, 2)" in words
    with pytest.raises(MessageError, match="float32") as caught:
        spawn(
            lambda group: group.all_reduce(np.zeros(2, DTYPES[group.rank % 2])),
            num_ranks,
        )
    assert caught.value.code == "dtype"


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize(
    "sent", [np.ones(3), np.zeros(16, np.uint8), pack({"call": "another", "value": 1})]
)
def test_a_message_of_another_call_is_refused(num_ranks, sent):
    own = np.ones(3) if sent.dtype == np.uint8 or num_ranks > 2 else np.ones(2)

    def differ(group):
        return group.all_reduce(own) if group.rank else group.all_gather(sent)

    with pytest.raises(MessageError) as caught:
        spawn(differ, num_ranks)
    assert caught.value.code in ("disagreement", "shape")


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("array", [np.array([None]), np.array(["a"])])
def test_an_array_that_cannot_be_sent_is_refused_on_any_number_of_ranks(
    num_ranks, array
):
    with pytest.raises(MessageError, match="Numbers and booleans can be sent"):
        spawn(lambda group: group.all_reduce(array), num_ranks)


PROGRAM = """
import sys, time, numpy as np, minipipe
from minipipe.parallel.reduction import AllReduce, Channel, finish_all
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
        finish_all(group, [AllReduce(channel, range(3), ones, [6], "{} of six ones")])
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


def test_the_messages_of_an_all_reduce_are_packed_only_if_they_must_be():
    packed = []

    def noted(content):
        packed.append(content["arrays"])
        return pack(content)

    pack = reduction.pack
    with mock.patch.object(reduction, "pack", noted):
        spawn(lambda group: group.all_reduce(np.ones(3)), 2)
        assert packed == []
        spawn(lambda group: group.all_reduce(np.ones(3, np.uint8)), 2)
    assert len(packed) == 2
