"""Large numbers, ties and kinks; and what a loss refuses."""

from __future__ import annotations

import math

import array_api_strict
import numpy as np
import pytest

from minipipe import Tensor, functional
from minipipe.errors import TensorError

LARGE = np.array(
    [[1000.0, -1000.0, 0.0], [-1000.0, -1000.0, -1000.0], [1000.0, 1000.0, 999.0]]
)
LABELS = [1, 2, 0]


# an overflow on the way is a failure, too
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


FINITE = {
    "sigmoid": functional.sigmoid,
    "tanh": functional.tanh,
    "gelu": functional.gelu,
    "gelu, approximate": lambda x: functional.gelu(x, approximate=True),
    "silu": functional.silu,
    "erf": functional.erf,
    "logsumexp": functional.logsumexp,
    "logsumexp, axis": lambda x: functional.logsumexp(x, axis=1),
    "layer_norm": lambda x: functional.layer_norm(
        x, Tensor(np.ones(3, x.dtype)), Tensor(np.ones(3, x.dtype))
    ),
    "rms_norm": lambda x: functional.rms_norm(x, Tensor(np.ones(3, x.dtype))),
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
    assert functional.sigmoid(Tensor([-1000.0, 0.0, 1000.0])).numpy().tolist() == [
        0.0,
        0.5,
        1.0,
    ]


def test_softmax_of_large_scores_sums_to_one_and_shares_ties():
    probabilities = functional.softmax(Tensor(LARGE)).numpy()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0)
    np.testing.assert_allclose(probabilities[0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(probabilities[1], [1 / 3, 1 / 3, 1 / 3])


def test_softmax_does_not_change_when_a_number_is_added_to_all_scores():
    # whole numbers: adding 2^20 is exact
    x = np.random.default_rng(0).integers(-8, 8, (4, 5)).astype(np.float64)
    for function in (functional.softmax, functional.log_softmax):
        np.testing.assert_array_equal(
            function(Tensor(x + 2.0**20)).numpy(), function(Tensor(x)).numpy()
        )


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


# -- what cross_entropy refuses --------------------------------------------------------

SCORES = Tensor(np.zeros((2, 3), np.float32))


WRONG_LABELS = {
    "too large": ([0, 3], "out-of-range"),
    "negative": ([-1, 0], "out-of-range"),
    "too large, unsigned": (np.array([0, 255], np.uint8), "out-of-range"),
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
    with pytest.raises(TensorError, match=r"labels run from -1 to 7; expected 0 to 2"):
        functional.cross_entropy(SCORES, [-1, 7])


def test_the_first_and_the_last_class_are_allowed():
    assert functional.cross_entropy(SCORES, [0, 2]).item() == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    "scores, labels", [(np.zeros((0, 3)), np.zeros(0, np.int64)), (np.float64(1.0), 0)]
)
def test_scores_without_rows_or_without_classes_are_refused(scores, labels):
    with pytest.raises(TensorError) as caught:
        functional.cross_entropy(Tensor(scores), labels)
    assert caught.value.code == "shape"


# -- kinks -----------------------------------------------------------------------------


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
    """The story: `Tensor(pixels) / 255` was float64 and could not meet a float32
    layer.
    """
    for dtype in (np.uint8, np.int64):
        assert compute(Tensor(np.array([1, 2, 3], dtype=dtype))).dtype == np.float32


def test_small_sigmoids_are_exact():
    """The story: computed from tanh, sigmoid(-20) was 0 in float32, and its logarithm
    minus infinity.
    """
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


# -- the error function and what is made of it -----------------------------------------

TEN = np.linspace(-10, 10, 100_001)
ERF = np.array([math.erf(x) for x in TEN])


@pytest.mark.parametrize("module", [np, array_api_strict], ids=["numpy", "strict"])
def test_erf_is_that_of_the_c_library_to_a_unit_in_the_last_place(module):
    result = functional.erf(Tensor(module.asarray(TEN))).data
    assert np.abs(np.asarray(result) - ERF).max() <= 3e-16
    relative = np.abs(np.asarray(result) / np.where(TEN == 0, 1, ERF) - (TEN != 0))
    assert relative.max() <= 5e-16  # small numbers, too


def test_erf_is_exact_to_float32_in_float32():
    x = TEN.astype(np.float32)
    result = functional.erf(Tensor(x)).numpy()
    assert result.dtype == np.float32
    assert np.abs(result - np.array([math.erf(float(v)) for v in x])).max() <= 5e-7


def test_erf_of_infinity_is_one_and_of_no_number_none():
    for dtype in (np.float32, np.float64):
        result = functional.erf(
            Tensor(np.array([-np.inf, np.inf, np.nan, 0.0], dtype))
        ).numpy()
        np.testing.assert_allclose(result, [-1, 1, np.nan, 0], atol=1e-7)


def test_activations_of_large_numbers_are_the_numbers_themselves_or_nothing():
    x = np.array([-1000.0, -50.0, 0.0, 50.0, 1000.0], np.float32)
    for function in (
        functional.gelu,
        functional.silu,
        lambda a: functional.gelu(a, approximate=True),
    ):
        np.testing.assert_allclose(
            function(Tensor(x)).numpy(), [0, 0, 0, 50, 1000], atol=1e-12
        )


def test_gelu_with_tanh_is_near_the_exact_one_and_yet_another_function():
    x = Tensor(np.linspace(-6, 6, 1001))
    difference = np.abs(
        functional.gelu(x).numpy() - functional.gelu(x, approximate=True).numpy()
    ).max()
    assert 1e-4 < difference < 5e-4


# -- choosing, clipping, masks ---------------------------------------------------------


def test_clip_passes_the_gradient_at_its_bounds_and_not_beyond():
    x = Tensor([-2.0, -1.0, 0.0, 1.0, 2.0], requires_grad=True)
    functional.clip(x, -1, 1).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "bounds, message",
    [((None, None), "neither"), ((1, 0), "low is 1, which lies above high, 0")],
)
def test_bounds_that_make_no_interval_are_refused(bounds, message):
    with pytest.raises(TensorError, match=f"^clip: {message}") as caught:
        functional.clip(Tensor([1.0]), *bounds)
    assert caught.value.code == "out-of-range"


def test_masked_scores_of_minus_infinity_get_no_probability_and_no_gradient():
    x = Tensor(np.array([[1.0, 2.0, 3.0]], np.float32), requires_grad=True)
    hidden = functional.masked_fill(x, np.array([False, True, False]), -math.inf)
    probabilities = functional.softmax(hidden)
    probabilities.backward(np.array([[1.0, 5.0, 2.0]]))
    assert (
        probabilities.numpy()[0, 1] == 0.0
        and x.grad[0, 1] == 0.0
        and x.grad[0, 0] != 0.0
    )
    assert probabilities.dtype == np.float32


MASKS = {
    "whole numbers": [1, 0, 1],
    "real numbers": [1.0, 0.0, 1.0],
    "a tensor of them": Tensor([1.0, 0.0, 1.0]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_holds_truth_values(mask):
    x = Tensor([1.0, 2.0, 3.0])
    for call in (
        lambda: functional.where(mask, x, 0.0),
        lambda: functional.masked_fill(x, mask, 0.0),
    ):
        with pytest.raises(TensorError, match="truth values") as caught:
            call()
        assert caught.value.code == "dtype"


def test_a_mask_may_be_a_tensor_or_a_list():
    x = Tensor([1.0, 2.0])
    for mask in (Tensor(np.array([True, False])), [True, False]):
        assert functional.where(mask, x, 0.0).numpy().tolist() == [1.0, 0.0]
        assert functional.masked_fill(x, mask, 0.0).numpy().tolist() == [0.0, 2.0]


def test_masked_fill_refuses_a_tensor_whose_gradient_it_would_lose():
    with pytest.raises(TensorError, match=r"where\(mask, value, a\)") as caught:
        functional.masked_fill(Tensor([1.0]), [True], Tensor([2.0], requires_grad=True))
    assert caught.value.code == "dtype"


# -- reductions ------------------------------------------------------------------------


def test_logsumexp_does_not_overflow_and_takes_minus_infinity():
    inf = np.inf
    x = Tensor(
        np.array([[1000.0, 1000.0], [-inf, 3.0], [-inf, -inf]]), requires_grad=True
    )
    result = functional.logsumexp(x, axis=1)
    result.backward(np.ones(3))
    np.testing.assert_array_equal(result.numpy(), [1000 + math.log(2), 3.0, -inf])
    np.testing.assert_array_equal(x.grad, [[0.5, 0.5], [0.0, 1.0], [0.0, 0.0]])
    assert functional.logsumexp(Tensor([inf, -inf, 0.0])).item() == inf


def test_logsumexp_of_everything_can_be_minus_infinity():
    x = Tensor(np.full((2, 3), -np.inf, np.float32), requires_grad=True)
    result = functional.logsumexp(x)
    result.backward()
    assert result.item() == -np.inf and result.dtype == np.float32
    assert (x.grad == 0).all()


def test_elements_that_are_smallest_together_share_the_gradient_of_min_equally():
    x = Tensor([[3.0, 1.0, 1.0], [2.0, 2.0, 2.0]], requires_grad=True)
    x.min(axis=1).backward([1.0, 6.0])
    assert x.grad.tolist() == [[0.0, 0.5, 0.5], [2.0, 2.0, 2.0]]


def test_variance_does_not_lose_its_digits_to_a_large_mean():
    x = np.array([0.0, 1.0, 2.0, 3.0]) + 2.0**40
    assert Tensor(x).var().item() == 1.25


@pytest.mark.parametrize("shape, correction", [((1, 3), 1), ((0, 3), 0), ((2, 3), 3)])
def test_a_variance_of_too_few_elements_is_refused(shape, correction):
    with pytest.raises(
        TensorError, match=rf"correction is {correction}; .* elements, {shape[0]}\."
    ) as caught:
        Tensor(np.ones(shape)).var(axis=0, correction=correction)
    assert caught.value.code == "out-of-range"


# -- normalisation ---------------------------------------------------------------------


def test_a_constant_row_is_normalised_to_the_bias_and_not_to_noise():
    x = Tensor(np.full((2, 8), 1000.0, np.float32))
    weight, bias = (
        Tensor(np.ones(8, np.float32)),
        Tensor(np.arange(8, dtype=np.float32)),
    )
    np.testing.assert_array_equal(
        functional.layer_norm(x, weight, bias).numpy(), [range(8)] * 2
    )


def test_normalised_rows_have_the_moments_that_they_should():
    x = Tensor(np.random.default_rng(0).normal(100.0, 5.0, (6, 512)).astype(np.float32))
    ones, zeros = Tensor(np.ones(512, np.float32)), Tensor(np.zeros(512, np.float32))
    by_layer, by_square = (
        functional.layer_norm(x, ones, zeros).numpy(),
        functional.rms_norm(x, ones).numpy(),
    )
    np.testing.assert_allclose(by_layer.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(by_layer.var(1), 1, rtol=1e-4)
    np.testing.assert_allclose((by_square**2).mean(1), 1, rtol=1e-4)


@pytest.mark.parametrize("value", [1.0, 10.3, 1000.3, -3e6])
def test_rows_of_one_value_are_normalised_to_nothing(value):
    """The mean was off by its last bit, and what was left was a thousandth of epsilon
    and more.
    """
    rows = np.full((4, 7), value, np.float32)
    result = functional.layer_norm(
        Tensor(rows), np.ones(7, np.float32), np.zeros(7, np.float32)
    )
    assert np.abs(result.numpy()).max() < 1e-6 * max(1, abs(value))
