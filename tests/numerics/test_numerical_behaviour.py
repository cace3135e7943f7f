"""Large numbers, ties and kinks; and what a loss refuses."""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor, functional
from minipipe.errors import TensorError

LARGE = np.array([[1000.0, -1000.0, 0.0], [-1000.0, -1000.0, -1000.0], [1000.0, 1000.0, 999.0]])
LABELS = [1, 2, 0]

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # an overflow on the way is a failure, too

FINITE = {
    "sigmoid": functional.sigmoid,
    "tanh": functional.tanh,
    "softmax": functional.softmax,
    "log_softmax": functional.log_softmax,
    "cross_entropy": lambda x: functional.cross_entropy(x, LABELS),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", FINITE.values(), ids=FINITE)
def test_values_and_gradients_of_scores_of_a_thousand_are_finite(function, dtype):
    x = Tensor(LARGE.astype(dtype), requires_grad=True)
    y = function(x)
    y.backward(np.ones(y.shape))
    assert np.isfinite(y.numpy()).all() and np.isfinite(x.grad).all()


def test_sigmoid_of_large_numbers_is_0_and_1():
    assert functional.sigmoid(Tensor([-1000.0, 0.0, 1000.0])).numpy().tolist() == [0.0, 0.5, 1.0]


def test_softmax_of_large_scores_sums_to_one_and_shares_ties():
    probabilities = functional.softmax(Tensor(LARGE)).numpy()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0)
    np.testing.assert_allclose(probabilities[0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(probabilities[1], [1 / 3, 1 / 3, 1 / 3])


def test_softmax_does_not_change_when_a_number_is_added_to_all_scores():
    x = np.random.default_rng(0).integers(-8, 8, (4, 5)).astype(np.float64)  # whole numbers: adding 2^20 is exact
    for function in (functional.softmax, functional.log_softmax):
        np.testing.assert_array_equal(function(Tensor(x + 2.0**20)).numpy(), function(Tensor(x)).numpy())


def test_log_softmax_is_exact_where_the_logarithm_of_softmax_has_lost_everything():
    x = Tensor([[0.0, -200.0]])
    assert functional.log_softmax(x).numpy().tolist() == [[0.0, -200.0]]
    assert functional.softmax(x).numpy()[0, 1] == 0.0


def test_cross_entropy_of_a_sure_mistake_is_the_distance_of_the_scores():
    assert functional.cross_entropy(Tensor(LARGE[:1]), [1]).item() == 2000.0


def test_cross_entropy_pulls_the_right_score_up_and_pushes_the_others_down_by_their_probabilities():
    x = Tensor(np.log([[1.0, 3.0], [1.0, 1.0]]), requires_grad=True)
    functional.cross_entropy(x, [0, 1]).backward()
    np.testing.assert_allclose(x.grad, np.array([[0.25 - 1, 0.75], [0.5, 0.5 - 1]]) / 2)


# -- what cross_entropy refuses ------------------------------------------------------------------------------

SCORES = Tensor(np.zeros((2, 3), np.float32))
WRONG_LABELS = {
    "too large": ([0, 3], "range"),
    "negative": ([-1, 0], "range"),
    "too large, unsigned": (np.array([0, 255], np.uint8), "range"),
    "real numbers": ([0.0, 1.0], "dtype"),
    "real numbers in a tensor": (Tensor([0.0, 1.0]), "dtype"),
    "truth values": ([True, False], "dtype"),
    "one-hot": (np.eye(3, dtype=np.int64)[:2], "shape"),
    "too few": ([0], "shape"),
    "a column": ([[0], [1]], "shape"),
    "one number": (1, "shape"),
}


@pytest.mark.parametrize("labels, code", WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_labels_that_name_no_class_for_each_row_are_refused(labels, code):
    with pytest.raises(TensorError, match=r"^cross_entropy: ") as caught:
        functional.cross_entropy(SCORES, labels)
    assert caught.value.code == code


def test_the_message_about_labels_gives_their_range_and_the_number_of_classes():
    with pytest.raises(TensorError, match=r"labels run from -1 to 7, but there are 3 classes"):
        functional.cross_entropy(SCORES, [-1, 7])


def test_the_first_and_the_last_class_are_allowed():
    assert functional.cross_entropy(SCORES, [0, 2]).item() == pytest.approx(np.log(3))


@pytest.mark.parametrize("scores, labels", [(np.zeros((0, 3)), np.zeros(0, np.int64)), (np.float64(1.0), 0)])
def test_scores_without_rows_or_without_classes_are_refused(scores, labels):
    with pytest.raises(TensorError) as caught:
        functional.cross_entropy(Tensor(scores), labels)
    assert caught.value.code == "shape"


# -- kinks ---------------------------------------------------------------------------------------------------


def test_relu_has_the_gradient_0_at_0():
    x = Tensor([-1.0, 0.0, 2.0], requires_grad=True)
    functional.relu(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    assert functional.relu(x).numpy().tolist() == [0.0, 0.0, 2.0]


def test_elements_that_are_largest_together_share_the_gradient_of_max_equally():
    x = Tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 5.0, 1.0]], requires_grad=True)
    x.max(axis=1).backward([1.0, 6.0, 2.0])
    assert x.grad.tolist() == [[0.0, 0.5, 0.5], [2.0, 2.0, 2.0], [0.0, 2.0, 0.0]]
    x.zero_grad()
    x.max().backward()
    assert x.grad.tolist() == [[0.0] * 3, [0.0] * 3, [0.0, 1.0, 0.0]]


def test_the_gradients_of_an_index_that_repeats_add():
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    x[[2, 0, 2, 2]].backward(np.array([1.0, 2.0, 4.0, 8.0]))
    assert x.grad.tolist() == [2.0, 0.0, 13.0]


def test_negative_bases_have_gradients_under_whole_exponents():
    x = Tensor([-2.0, -3.0], requires_grad=True)
    (x**2).sum().backward()
    (x**3).sum().backward()
    assert x.grad.tolist() == [-4.0 + 12.0, -6.0 + 27.0]


@pytest.mark.parametrize(
    "compute",
    [
        lambda t: t / 255,
        lambda t: t * 0.5,
        lambda t: 1.5 - t,
        lambda t: t / t,
        lambda t: t.mean(),
        lambda t: t.exp(),
        lambda t: t.sqrt(),
        lambda t: t.sigmoid(),
        lambda t: t**0.5,
    ],
)
def test_whole_numbers_become_float32_and_not_float64(compute):
    """The story: `Tensor(pixels) / 255` was float64 and could not meet a float32 layer."""
    for dtype in (np.uint8, np.int64):
        assert compute(Tensor(np.array([1, 2, 3], dtype=dtype))).dtype == np.float32


def test_small_sigmoids_are_exact():
    """The story: computed from tanh, sigmoid(-20) was 0 in float32, and its logarithm minus infinity."""
    x = np.array([-80.0, -20.0, -10.0, 0.0, 10.0], dtype=np.float32)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(Tensor(x).sigmoid().numpy(), expected, rtol=3e-7)


def test_a_tensor_with_one_element_is_a_number_where_python_wants_one():
    loss = Tensor(0.25)
    assert float(loss) == 0.25 and f"{loss:.3f}" == "0.250" and bool(loss)
    assert [float(row) for row in Tensor([1.0, 2.0])] == [1, 2]
    with pytest.raises(TypeError):
        list(loss)
    with pytest.raises(ValueError, match="one element"):
        bool(Tensor([1.0, 2.0]))
