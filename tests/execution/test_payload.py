"""What passes between stages arrives as it was sent: forms, names, dtypes, shapes,
bits, and what is wanted back.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minipipe import Tensor, nn
from minipipe.autograd import StageInput
from minipipe.core.comm import message as messages
from minipipe.core.execution.payload import Payload
from minipipe.core.nn import sequential
from minipipe.errors import TensorError
from minipipe.testing import check_same_as_one_process, same_bits
from tests.launch import mpirun, needs_mpi
from tests.pipeline.skip_connections import model
from tests.strategies import batch, build, examples

DTYPES = [
    np.dtype(name)
    for name in ("float16", "float32", "float64", "int64", "uint8", "bool")
]


def arrays(dtypes=tuple(DTYPES)):
    """Draw arrays of any bits, NaN among them; empty, without axes, and views in
    another order.
    """
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    drawn = st.sampled_from(dtypes).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
    return st.tuples(
        drawn, st.sampled_from(["as it is", "transposed", "every second", "read-only"])
    ).map(_seen)


def _seen(drawn):
    array, how = drawn
    if how == "transposed":
        return array.T
    if how == "every second" and array.ndim:
        return array[::-2]
    if how == "read-only":
        array.flags.writeable = False
    return array


def tensor_of(array, needs_gradient):
    tensor = Tensor(array)
    if needs_gradient and array.dtype.kind == "f":
        tensor.node = StageInput(needs_gradient=True)
    return tensor


tensors = st.builds(tensor_of, arrays(), st.booleans())
names = st.text(max_size=5)
bundles = st.one_of(
    tensors,
    st.lists(tensors, min_size=1, max_size=4),
    st.lists(tensors, min_size=1, max_size=4).map(tuple),
    st.dictionaries(names, tensors, min_size=1, max_size=4),
)


def tensors_of(bundle):
    return (
        [bundle]
        if isinstance(bundle, Tensor)
        else list(bundle.values() if isinstance(bundle, dict) else bundle)
    )


def sent(payload):
    """Return what arrives of a payload: a message is copied on the way, and may lie
    anywhere in memory.
    """
    message = payload.to_message()
    assert isinstance(message, np.ndarray) and message.ndim <= 8
    if message.dtype == np.uint8:
        assert message.ndim == 1
        buffer = np.empty(message.size + 1, np.uint8)
        buffer[1:] = message
        return Payload.from_message(buffer[1:])
    return Payload.from_message(message.copy())


# -- there -----------------------------------------------------------------------------


@examples(300)
@given(bundles)
def test_a_bundle_arrives_in_its_form_with_its_names_and_bits_and_what_is_wanted(
    bundle,
):
    there = Payload.of(bundle)
    received = sent(there)
    assert (
        received.requires_grad
        == there.requires_grad
        == [tensor.requires_grad for tensor in tensors_of(bundle)]
    )
    assert all(
        same_bits(a, b.data)
        for a, b in zip(received.arrays, tensors_of(bundle), strict=True)
    )
    again = received.rebuilt([Tensor(array) for array in received.arrays])
    assert type(again) is type(bundle)
    if isinstance(bundle, dict):
        assert list(again) == list(bundle)  # in their order
    assert len(tensors_of(again)) == len(tensors_of(bundle))


@examples(100)
@given(bundles)
def test_a_parcel_that_stays_on_its_rank_holds_the_arrays_themselves(bundle):
    there = Payload.of(bundle)
    assert all(
        array is tensor.data for array, tensor in zip(there.arrays, tensors_of(bundle))
    )
    assert type(there.rebuilt(tensors_of(bundle))) is type(bundle)


# -- and back: gradients, some of which are None ---------------------------------------


@examples(200)
@given(
    st.lists(
        st.none() | arrays((np.dtype(np.float32), np.dtype(np.float64))),
        min_size=1,
        max_size=4,
    )
)
def test_gradients_come_back_in_their_order_and_none_as_none(gradients):
    back = Payload(
        gradients, [True] * len(gradients), None if len(gradients) == 1 else ()
    )
    received = sent(back)
    assert all(same_bits(a, b) for a, b in zip(received.arrays, gradients, strict=True))
    assert len(received.requires_grad) == len(gradients)


# -- what a message looks like ---------------------------------------------------------


@examples(100)
@given(arrays((np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))))
def test_a_single_real_array_whose_gradient_is_wanted_travels_as_it_is(array):
    assert Payload.of(tensor_of(array, needs_gradient=True)).to_message() is array


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_so_does_a_single_array_of_whole_numbers_which_has_no_gradient(dtype):
    array = np.ones((2, 3), dtype)
    assert Payload.of(Tensor(array)).to_message() is array


@pytest.mark.parametrize(
    "bundle",
    [
        Tensor(np.ones(3, np.uint8)),  # would be taken for packed ones
        Tensor(np.ones(3, np.float32)),  # that require no gradient
        (Tensor(np.ones(3)),),
        {"x": Tensor(np.ones(3))},
    ],
    ids=["bytes", "no gradient", "tuple of one", "dict of one"],
)
def test_anything_else_is_packed_with_a_description(bundle):
    message = Payload.of(bundle).to_message()
    length = int(message[:8].view("<u8")[0])
    description = json.loads(message[8 : 8 + length].tobytes())
    treedef, requires_grad, parts = description
    assert len(requires_grad) == len(parts) == 1 and (treedef is None) == isinstance(
        bundle, Tensor
    )


def test_nothing_is_packed_on_the_way_through_a_plain_model_there_or_back(monkeypatch):
    sent_arrays, to_message = [], Payload.to_message

    def noted(self, *options):
        sent_arrays.append(to_message(self, *options))
        return sent_arrays[-1]

    monkeypatch.setattr(Payload, "to_message", noted)
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2)]
    check_same_as_one_process(
        nn.Sequential(*layers), nn.MSELoss(), *batch(6, 4), build("1f1b", 3, 3)
    )
    # 3 microbatches, 2 cuts, there and back
    assert [array.dtype for array in sent_arrays] == [np.float32] * 12


def test_packed_arrays_begin_at_multiples_of_64_bytes_and_are_views_of_the_message():
    message = Payload.of(
        [Tensor(np.ones(3)), Tensor(np.ones(0)), Tensor(np.ones((5, 5)))]
    ).to_message()
    received = Payload.from_message(message)
    for array in received.arrays:
        assert (array.ctypes.data - message.ctypes.data) % 64 == 0 or not array.size
        assert np.shares_memory(array, message) or not array.size
        assert array.flags.c_contiguous


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        np.ones(2),
        [],
        (),
        {},
        [1.0],
        {1: Tensor([1.0])},
        [[1.0]],
        [[]],
        (Tensor([1.0]), {}),
        None,
    ],
)
def test_what_is_no_bundle_is_refused(value):
    with pytest.raises(TensorError) as caught:
        Payload.of(value)
    assert caught.value.code == "type"


def test_a_subclass_of_tuple_is_no_bundle_because_it_could_not_be_rebuilt():
    from collections import namedtuple

    with pytest.raises(TensorError, match="this is Pair"):
        Payload.of(namedtuple("Pair", "x y")(Tensor([1.0]), Tensor([2.0])))


# -- mutants ---------------------------------------------------------------------------


def test_bytes_that_travelled_as_they_are_would_be_noticed(monkeypatch):
    there = Payload.of(Tensor(np.full(64, 9, np.uint8)))
    assert same_bits(sent(there).arrays[0], there.arrays[0])
    monkeypatch.setattr(Payload, "_is_plain", lambda self, array: True)
    with pytest.raises((AssertionError, ValueError)):
        assert same_bits(sent(there).arrays[0], there.arrays[0])


def test_a_wish_for_gradients_that_was_forgotten_would_be_noticed(monkeypatch):
    there = Payload.of(Tensor(np.ones(3, np.float32)))
    monkeypatch.setattr(
        Payload, "_is_plain", lambda self, array: array.dtype != np.uint8
    )
    assert sent(there).requires_grad != there.requires_grad


def test_arrays_that_begin_elsewhere_would_be_noticed(monkeypatch):
    message = Payload.of(
        (Tensor(np.ones(3, np.float32)), Tensor(np.ones(3)))
    ).to_message()
    monkeypatch.setattr(messages, "_ALIGNMENT", 8)
    assert not all(
        same_bits(array, np.ones(3, array.dtype))
        for array in Payload.from_message(message).arrays
    )


@pytest.mark.parametrize("form", [tuple, list])
def test_tensors_of_a_bundle_that_shared_a_node_would_be_noticed(form, monkeypatch):
    """Fork hands on the same tensor twice; each must have its own gradient where it is
    cut, and where it is not.
    """
    inputs, targets = batch(7, 4)
    arguments = (
        model(form),
        nn.MSELoss(),
        inputs,
        targets,
        build("1f1b", 3, 3),
        0,
        [range(2), range(2, 4), range(4, 6)],
    )
    check_same_as_one_process(*arguments)
    monkeypatch.setattr(sequential, "identity", lambda tensor: tensor)
    with pytest.raises(AssertionError, match="differs from one process"):
        check_same_as_one_process(*arguments)


# -- across processes ------------------------------------------------------------------


@pytest.mark.slow
@needs_mpi
def test_skip_connections_go_through_every_cut_of_a_model_over_mpirun():
    done = mpirun(3, "-m", "tests.pipeline.skip_connections", limit=120)
    assert done.code == 0, done.err
    assert done.out.startswith("the same bits in 60 steps")
