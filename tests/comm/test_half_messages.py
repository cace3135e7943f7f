"""float16 and bfloat16 travel by their names; NumPy's code of bfloat16 would arrive as
two bytes without a meaning.
"""

import array_api_strict
import numpy as np
import pytest

from minipipe import spawn
from minipipe.core.comm.message import (
    HEADER_SIZE,
    Header,
    as_buffer,
    described,
    unpacked,
)
from minipipe.core.execution.payload import Payload
from minipipe.errors import MessageError
from minipipe.testing import same_bits
from tests.half_precision import every_half


def halves(half, *shape):
    return np.random.default_rng(0).standard_normal(shape).astype(half)


@every_half
def test_a_header_says_which_half_it_is(half):
    header = Header.of(halves(half, 2, 3), step=7)
    assert len(header.packed) == HEADER_SIZE and unpacked(header.packed) == header
    assert (
        header.dtype == half
        and header.nbytes == 12
        and str(header).startswith(np.dtype(half).name)
    )


@every_half
@pytest.mark.parametrize("shape", [(), (3,), (400, 70)])
def test_a_message_arrives_with_its_bits_and_dtype(half, shape):
    def exchange(group):
        array = halves(half, *shape)
        if group.rank == 0:
            group.send(array, 1)
        received = array if group.rank == 0 else group.recv(0)
        return same_bits(received, array) and same_bits(
            group.broadcast(array if group.rank == 0 else None, 0), array
        )

    assert spawn(exchange, 2) == [True, True]


@every_half
def test_a_half_that_meets_another_dtype_of_two_bytes_is_refused(half):
    def receive(group):
        if group.rank == 0:
            group.send(halves(half, 3), 1)
            return None
        with pytest.raises(
            MessageError, match=f"sent {np.dtype(half).name} .*, which expects int16"
        ) as caught:
            group.recv(0, out=np.zeros(3, np.int16))
        return caught.value.code

    assert spawn(receive, 2) == [None, "dtype"]


@every_half
def test_packed_among_others_it_arrives_too(half):
    arrays = [halves(half, 3, 5), np.arange(4), halves(half)]
    found = Payload.from_message(
        Payload(arrays, [True, False, True], [None] * 3).to_message()
    )
    assert all(map(same_bits, found.arrays, arrays)) and found.requires_grad == [
        True,
        False,
        True,
    ]


@every_half
def test_mpi_gets_what_buffers_know(half):
    array = halves(half, 4)
    buffer = as_buffer(array)
    assert memoryview(buffer).nbytes == 8 and np.shares_memory(buffer, array)
    assert (buffer is array) == (half is np.float16)


def test_bytes_without_a_meaning_are_refused_as_before():
    with pytest.raises(MessageError, match="this array is ") as caught:
        Header.of(np.zeros(2, "V2"))
    assert caught.value.code == "dtype"


def test_a_header_of_one_library_is_not_looked_for_among_those_of_another(recwarn):
    """The story: array-api-strict warns of such a comparison, and whether there was one
    depended on a hash.
    """
    for module in (array_api_strict, np, array_api_strict):
        assert (
            str(
                described(
                    np.dtype("float32") if module is np else module.float32, (3,), 7
                )
            )
            == "float32 (3,)"
        )
    assert not recwarn.list
