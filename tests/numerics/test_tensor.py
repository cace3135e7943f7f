"""A tensor holds real numbers, keeps the dtype of its array, and prints its values."""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor
from minipipe.errors import TensorError


@pytest.mark.parametrize("data", [[1, 2], 3, np.array([1, 2]), np.array([1], np.uint8), [True, False]])
def test_whole_numbers_and_truth_values_refuse_to_require_a_gradient(data):
    assert not Tensor(data).requires_grad
    with pytest.raises(TensorError, match=r"numpy\.float32") as caught:
        Tensor(data, requires_grad=True)
    assert caught.value.code == "dtype"
    assert Tensor(data, requires_grad=True, dtype=np.float32).requires_grad  # what the message advises


@pytest.mark.parametrize("data", ["text", 1j, np.array([1j]), None, [None, 1.0]])
def test_what_is_not_made_of_numbers_is_no_tensor(data):
    with pytest.raises(TensorError) as caught:
        Tensor(data)
    assert caught.value.code == "dtype"


# -- dtypes of tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [1.0, [1.0], [[1, 2.5]], np.float64(1.0), (0.5,)])
def test_numbers_and_lists_of_real_numbers_become_float32(data):
    assert Tensor(data).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8, bool])
def test_arrays_keep_their_dtype_and_are_not_copied(dtype):
    array = np.ones((2, 2), dtype=dtype)
    assert Tensor(array).data is array
    assert Tensor(Tensor(array)).data is array
    assert Tensor(array, dtype=np.float64).dtype == np.float64


# -- looks ---------------------------------------------------------------------------------------------------


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
