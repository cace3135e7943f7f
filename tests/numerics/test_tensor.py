"""A tensor holds real numbers, keeps the dtype of its array, and prints its values."""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, spawn
from minipipe.errors import TensorError


@pytest.mark.parametrize(
    "data", [[1, 2], 3, np.array([1, 2]), np.array([1], np.uint8), [True, False]]
)
def test_whole_numbers_and_truth_values_refuse_to_require_a_gradient(data):
    assert not Tensor(data).requires_grad
    with pytest.raises(TensorError, match=r"numpy\.float32") as caught:
        Tensor(data, requires_grad=True)
    assert caught.value.code == "dtype"
    # what the message advises
    assert Tensor(data, requires_grad=True, dtype=np.float32).requires_grad


@pytest.mark.parametrize("data", ["text", 1j, np.array([1j]), None, [None, 1.0]])
def test_what_is_not_made_of_numbers_is_no_tensor(data):
    with pytest.raises(TensorError) as caught:
        Tensor(data)
    assert caught.value.code == "dtype"


# -- dtypes of tensors -----------------------------------------------------------------


@pytest.mark.parametrize("data", [1.0, [1.0], [[1, 2.5]], np.float64(1.0), (0.5,)])
def test_numbers_and_lists_of_real_numbers_become_float32(data):
    assert Tensor(data).dtype == np.float32


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8, bool]
)
def test_arrays_keep_their_dtype_and_are_not_copied(dtype):
    array = np.ones((2, 2), dtype=dtype)
    assert Tensor(array).data is array
    assert Tensor(Tensor(array)).data is array
    assert Tensor(array, dtype=np.float64).dtype == np.float64


# -- looks -----------------------------------------------------------------------------


class Unit(np.ndarray):
    """An array with a rule of its own, as packages for physical units have."""


OTHER_RULES = {
    "matrix": np.matrix,
    "MaskedArray": np.ma.masked_array,
    "Unit": lambda array: array.view(Unit),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", OTHER_RULES)
def test_an_array_that_computes_by_other_rules_is_refused_wherever_arrays_enter(name):
    """The story: a matrix and a masked array gave one result or error on one rank and
    another on two, since a message carries the bare values; and a mask was dropped
    without a word where values were loaded."""
    plain = np.ones((4, 4), np.float32)
    odd, model = (
        OTHER_RULES[name](plain),
        nn.Sequential(nn.Linear(4, 4, bias=False)).initialise(),
    )
    entrances = {
        "a tensor": lambda: Tensor(odd),
        "an operand": lambda: Tensor(plain) + odd,
        "a parameter": lambda: nn.Parameter(odd),
        "first values": lambda: nn.Parameter((4, 4), lambda generator, shape: odd).fill(
            0, "weight"
        ),
        "a state": lambda: model.load_state_dict({"0.weight": odd}),
        "a mask": lambda: functional.where(odd, Tensor(plain), Tensor(plain)),
        "a gradient": lambda: Tensor(plain, requires_grad=True).backward(odd),
    }
    for entrance in entrances.values():
        with pytest.raises(
            TensorError,
            match=rf"A {name} is not a plain array; pass numpy\.asarray\(x\)",
        ) as caught:
            entrance()
        assert caught.value.code == "dtype"


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", OTHER_RULES)
@pytest.mark.parametrize("place", [0, 1])
def test_a_batch_that_computes_by_other_rules_is_refused_on_any_number_of_ranks(
    name, num_ranks, place
):
    batch = [np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)]
    batch[place] = OTHER_RULES[name](batch[place])

    def step(group):
        Pipeline(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
            group,
            loss=nn.MSELoss(),
            num_microbatches=2,
        ).step(*batch)

    with pytest.raises(TensorError, match=f"A {name} is not a plain array"):
        spawn(step, num_ranks)


def test_a_file_in_memory_is_an_array_as_any(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert Tensor(mapped).dtype == np.float64 and (
        Tensor(mapped) + mapped
    ).numpy().tolist() == [2, 2, 2]


def test_a_tensor_prints_its_values_and_whether_it_requires_a_gradient():
    x = Tensor([[1.0, 2.0], [3.0, 4.5]], requires_grad=True)
    assert repr(x) == "Tensor([[1. , 2. ],\n        [3. , 4.5]], requires_grad=True)"
    assert repr(x.detach()[0]) == "Tensor([1., 2.])"
    assert repr(Tensor(3)) == "Tensor(3)"


def test_shape_size_len_and_item():
    x = Tensor(np.zeros((2, 3, 4)))
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3, 4), 3, 24, 2)
    assert type(x.size) is int
    assert Tensor([[2.5]]).item() == 2.5 and type(Tensor([[2.5]]).item()) is float
    with pytest.raises(TensorError) as caught:
        x.item()
    assert caught.value.code == "shape"
    with pytest.raises(TypeError):
        len(Tensor(1.0))
