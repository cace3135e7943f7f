"""Arrays to the content of a safetensors file, which safetensors itself reads, and
back: the same bits.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load

from minipipe.errors import CheckpointError
from minipipe.pipeline.checkpoint.storage import pieces, unpacked
from tests.half_precision import bfloat16

DTYPES = [
    "f8",
    "f4",
    "f2",
    "c8",
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    ">f4",
    ">i8",
]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays_of.arrays(
        dtype, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
LAYOUTS = st.sampled_from(
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1] if a.ndim else a,
        lambda a: a[..., ::2] if a.ndim else a,
    ]
)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        st.tuples(ARRAYS, LAYOUTS),
        max_size=5,
    )
)
def test_any_arrays_come_back_with_their_bits(given):
    """Also transposed, reversed, without elements or axes, and in the other order of
    bytes.
    """
    arrays = {
        name: laid(array)
        for name, (array, laid) in given.items()
        if name != "__metadata__"
    }
    content = b"".join(pieces(arrays))
    for read in (unpacked(content), load(content)):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (read[name].dtype.name, read[name].shape) == (
                array.dtype.name,
                array.shape,
            )
            native = array.astype(array.dtype.newbyteorder("="))
            assert read[name].tobytes() == native.tobytes()


@pytest.mark.skipif(
    bfloat16 is None, reason="needs ml_dtypes: pip install '.[bfloat16]'"
)
def test_bfloat16_comes_back_with_its_bits():
    array = np.arange(6).reshape(2, 3).astype(bfloat16).T
    (read,) = unpacked(b"".join(pieces({"a": array}))).values()
    assert read.dtype == bfloat16 and read.tobytes() == array.tobytes()


def test_no_copy_is_made_of_what_lies_in_order():
    array = np.zeros(10)
    _, memory = pieces({"a": array})
    array[0] = 1
    assert bytes(memory) == array.tobytes()


def test_what_safetensors_has_not_is_refused():
    with pytest.raises(
        CheckpointError,
        match="a has the dtype object, which safetensors does not support",
    ):
        pieces({"a": np.array([None])})


def test_arrays_come_in_one_order_on_all_ranks():
    """A past bug: ranks exchanged Adam's two means in the order in which safetensors
    returned them, a random one.
    """
    content = b"".join(
        bytes(piece) for piece in pieces({f"{i}": np.ones(1) for i in range(9)})
    )
    assert list(unpacked(content)) == [f"{i}" for i in range(9)]
