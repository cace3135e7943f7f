"""The reduction over ranks: its bits, its bytes, and what it says of a missing rank."""

from collections import defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from minipipe import spawn
from minipipe.comm.objects import unpack
from minipipe.errors import MessageError
from minipipe.parallel import pairwise
from minipipe.parallel.reduction import (
    AllGather,
    AllReduce,
    Channel,
    ReduceScatter,
    bytes_sent_in_sum,
    equal_parts,
    finish_all,
    opened,
    packed,
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
        arrays = unpack(array) if array.dtype == np.uint8 else [array]
        self.post.bytes[self.rank] += num_bytes(arrays)
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
    sizes = tuple(int(np.prod(shape)) for shape in shapes)
    parts = equal_parts(sizes, n)
    order = data.draw(st.permutations(range(n)))
    members = {
        rank: AllReduce(
            Channel(PostedGroup(post, rank, n), 0),
            range(n),
            flat(rows[rank]),
            parts,
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
        own, mine = flat(rows[rank]), parts[rank]
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


def any_parts(data, shapes, n):
    """Divide arrays among members, in any proportion."""
    parts = [[] for _ in range(n)]
    for i, shape in enumerate(shapes):
        size = int(np.prod(shape))
        numbers = st.lists(st.integers(0, size), min_size=n - 1, max_size=n - 1)
        ends = [0, *sorted(data.draw(numbers)), size]
        for part, start, stop in zip(parts, ends, ends[1:]):
            part.append((i, slice(start, stop)))
    return parts


@given(contributions(), st.data())
def test_a_reduce_scatter_adds_any_parts_and_an_all_gather_completes_them(case, data):
    shapes, rows = case
    n, post = len(rows), Post()
    parts = any_parts(data, shapes, n)
    channels = [Channel(PostedGroup(post, rank, n), 7) for rank in range(n)]
    members = [
        ReduceScatter(channel, range(n), flat(row), parts, "")
        for channel, row in zip(channels, rows)
    ]
    while post.sent:
        post.deliver(data.draw(st.integers(0, 100)))
    totals = [added(terms) for terms in zip(*map(flat, rows))]
    wholes, gathers = [], []
    for rank, (member, channel) in enumerate(zip(members, channels)):
        pieces = [None if totals[i] is None else totals[i][e] for i, e in parts[rank]]
        found = member.wait()
        assert_same(found, pieces)
        wholes.append([None if t is None else np.zeros_like(t) for t in totals])
        for (i, elements), piece in zip(parts[rank], found):
            if piece is not None:
                wholes[-1][i][elements] = piece
        gathers.append(AllGather(channel.of_sums, range(n), wholes[-1], parts, ""))
    while post.sent:
        post.deliver(data.draw(st.integers(0, 100)))
    for gather, whole in zip(gathers, wholes):
        assert gather.exchange.has_arrived()
        gather.wait()
        assert_same(whole, totals)


def one_after_the_other(add, terms):
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def backwards(add, terms):
    return pairwise.in_pairs(add, terms[::-1])


def reduced(rows, add):
    """Return the sums of an all-reduce on ranks whose messages arrive at once."""
    n, post = len(rows), Post()
    parts = equal_parts(tuple(array.size for array in rows[0]), n)
    members = []
    for rank, row in enumerate(rows):
        channel = Channel(PostedGroup(post, rank, n), 0)
        members.append(AllReduce(channel, range(n), flat(row), parts, "", add))
    for _ in range(2):
        while post.sent:
            post.deliver(0)
        for member in members:
            member.advance()
    return members[0].arrays


@pytest.mark.parametrize("order", [one_after_the_other, backwards])
def test_another_order_of_addition_is_noticed(order):
    rows = [[spread(np.random.default_rng(rank), 50)] for rank in range(5)]
    expected = [added(terms) for terms in zip(*rows)]
    assert_same(reduced(rows, pairwise.sum_in_pairs), expected)
    with pytest.raises(AssertionError):
        assert_same(reduced(rows, lambda terms: order(plus, terms)), expected)


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
    parts = equal_parts((7, 0, 1, 30_000), group.size)
    reductions = [
        AllReduce(
            Channel(group, tag, step=5),
            range(group.size),
            flat(rows[group.rank]),
            parts,
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
@pytest.mark.parametrize("num_ranks", [2, slowly(3), slowly(4)])
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


@pytest.mark.parametrize(
    ("arrays", "is_row"),
    [
        ([np.ones(2), np.zeros(0)], True),
        ([np.ones(2), None], False),
        ([np.ones(2), np.ones(2, np.float32)], False),
        ([np.ones((2, 1))], False),
        ([np.ones(2, np.uint8)], False),
        ([np.ones(2, bool)], True),
        ([], False),
    ],
)
def test_arrays_are_described_only_if_they_are_no_row(arrays, is_row):
    message = packed(arrays)
    assert (message.dtype != np.uint8) == is_row
    part = [(i, slice(0, len(array))) for i, array in enumerate(arrays) if is_row]
    assert_same(opened(message, part), arrays)
