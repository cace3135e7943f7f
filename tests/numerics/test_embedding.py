"""An embedding takes ids of its rows only, and adds up the gradients of one row in
pairs.
"""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, functional
from minipipe.autograd import StageInput
from minipipe.errors import TensorError
from minipipe.functional.embedding import add_rows

# an overflow on the way is a failure, too
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


WRONG_IDS = {
    "too large": ([0, 3], "out-of-range"),
    "negative": ([[-1], [0]], "out-of-range"),
    "too large, unsigned": (np.array([255], np.uint8), "out-of-range"),
    "real numbers": ([0.0], "dtype"),
    "truth values": (np.array([True]), "dtype"),
    "real numbers in a tensor": (Tensor([0.0]), "dtype"),
}


@pytest.mark.parametrize("ids, code", WRONG_IDS.values(), ids=WRONG_IDS)
def test_ids_that_name_no_row_are_refused(ids, code):
    with pytest.raises(TensorError, match=r"^embedding: ") as caught:
        functional.embedding(Tensor(np.ones((3, 2))), ids)
    assert caught.value.code == code


def test_the_message_about_ids_gives_their_range_and_that_of_the_table():
    with pytest.raises(TensorError, match=r"ids run from -2 to 7; expected 0 to 2"):
        functional.embedding(Tensor(np.ones((3, 2))), [[-2, 7], [0, 1]])


def test_no_ids_give_no_vectors_and_a_gradient_of_zeros():
    weight = Tensor(np.ones((3, 2)), requires_grad=True)
    result = functional.embedding(weight, np.zeros((2, 0), np.int64))
    result.backward(np.ones((2, 0, 2)))
    assert result.shape == (2, 0, 2)
    assert weight.grad.tolist() == [[0.0, 0.0]] * 3


def test_ids_mark_the_result_as_an_activation_and_are_refused_only_if_they_need_a_gradient():
    weight, ids = Tensor(np.ones((3, 2)), requires_grad=True), Tensor(np.array([0, 2]))
    ids.node = StageInput(needs_gradient=False)
    result = functional.embedding(weight, ids)
    assert result.node.is_activation
    result.backward(np.ones((2, 2)))
    assert weight.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    ids.node = StageInput(needs_gradient=True)
    with pytest.raises(
        TensorError, match=r"^embedding: ids are whole numbers and have no gradient\.$"
    ):
        functional.embedding(weight, ids).backward(np.ones((2, 2)))


@given(st.lists(st.integers(0, 4), max_size=40))
def test_rows_are_added_to_the_rows_that_their_ids_name(ids):
    ids = np.array(ids, np.int64)
    # sums are exact
    values = (
        np.random.default_rng(len(ids))
        .integers(-99, 99, (len(ids), 3))
        .astype(np.float64)
    )
    expected = np.zeros((5, 3))
    np.add.at(expected, ids, values)
    np.testing.assert_array_equal(add_rows(values, ids, (5, 3)), expected)
    given = map(array_api_strict.asarray, (values, ids))
    strict = add_rows(*given, (5, 3))
    np.testing.assert_array_equal(np.asarray(strict), expected)


def test_rows_of_one_id_are_added_in_pairs_so_that_many_small_ones_are_not_lost():
    # One after another, 2^24 + 1 + 1 + … stays at 2^24 in float32.
    values = np.ones((2**12, 1), np.float32)
    values[0] = 2.0**24
    added = add_rows(values, np.ones(2**12, np.int64), (2, 1))
    in_turn = np.zeros((2, 1), np.float32)
    np.add.at(in_turn, np.ones(2**12, np.int64), values)
    assert in_turn[1, 0] == 2.0**24
    assert added[1, 0] == 2.0**24 + 2**12 - 2 and added[0, 0] == 0.0


def in_pairs(rows: list[np.ndarray]) -> np.ndarray:
    """Add neighbours, then neighbours of the sums, until one row is left."""
    while len(rows) > 1:
        rows = [sum(rows[i + 1 : i + 2], rows[i]) for i in range(0, len(rows), 2)]
    return rows[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 64, 1001])
def test_rows_of_one_id_are_paired_in_the_order_in_which_they_come(count):
    generator = np.random.default_rng(count)
    ids, values = (
        generator.integers(0, 3, count),
        generator.standard_normal((count, 2)).astype(np.float32),
    )
    added = add_rows(values, ids, (3, 2))
    for row in set(ids.tolist()):
        np.testing.assert_array_equal(added[row], in_pairs(list(values[ids == row])))


def test_adding_rows_leaves_its_arguments_alone():
    ids, values = np.array([1, 1, 0]), np.arange(6.0).reshape(3, 2)
    add_rows(values, ids, (2, 2))
    assert ids.tolist() == [1, 1, 0] and values.tolist() == [[0, 1], [2, 3], [4, 5]]
