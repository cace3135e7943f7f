"""Operations on float16 and bfloat16: they stay in it, compute inside in float32 where
that matters, and round once.
"""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor
from minipipe import functional as F
from minipipe.errors import TensorError
from tests.half_precision import HALVES, epsilon, every_half
from tests.numerics.test_operations import ROWS, named

LOSSES = ("cross_entropy", "mean_squared_error")  # they return float32


def evaluated(row, dtype, rounded_to):
    """Return the result of a row and its gradients, for arrays and an upstream gradient
    that are rounded first.
    """
    tensors = [
        Tensor(np.array(a).astype(rounded_to).astype(dtype), requires_grad=True)
        for a in row.arrays
    ]
    result = row.call(np.asarray, *tensors)
    upstream = np.random.default_rng(9).standard_normal(result.shape).astype(rounded_to)
    result.backward(upstream.astype(result.dtype))
    return result, [tensor.grad for tensor in tensors]


@every_half
@named(ROWS)
def test_halves_stay_halves_in_values_and_gradients_and_a_few_roundings_from_exact(
    row, half
):
    result, gradients = evaluated(row, half, half)
    exact, exact_gradients = evaluated(row, np.float64, half)
    assert result.dtype == (np.float32 if row.covers in LOSSES else half)
    assert {gradient.dtype for gradient in gradients} == {np.dtype(half)}
    for found, expected in zip(
        [result.numpy(), *gradients], [exact.numpy(), *exact_gradients]
    ):
        largest = max(1.0, np.abs(expected).max(initial=0.0))
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=0, atol=5 * epsilon(half) * largest
        )


ROUNDED_ONCE = {
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "logsumexp": lambda a: F.logsumexp(a, 0),
    "mean": F.mean,
    "sum": F.total,
    "variance": F.variance,
    "gelu": F.gelu,
    "erf": F.erf,
    "sigmoid": F.sigmoid,
    "sqrt": lambda a: F.sqrt(a * a),
    "matmul": lambda a: F.matmul(a, F.transpose(a)),
    "linear": lambda a: F.linear(a, F.transpose(a)),
    "layer_norm": lambda a: F.layer_norm(a, a[0], a[1]),
    "rms_norm": lambda a: F.rms_norm(a, a[0]),
    "attention": lambda a: F.attention(a, a, a),
}


@every_half
@pytest.mark.parametrize("operation", ROUNDED_ONCE.values(), ids=ROUNDED_ONCE)
def test_a_result_is_that_of_float32_rounded_once(operation, half):
    array = np.random.default_rng(0).standard_normal((30, 70)).astype(half)
    if operation is ROUNDED_ONCE["sqrt"]:
        array = abs(array) * 0 + 2  # whose square is exact
    wide = operation(Tensor(array.astype(np.float32))).numpy()
    found = operation(Tensor(array)).numpy()
    assert found.dtype == half
    # The same sum may come in another order: then a value in the middle between two
    # halves goes to the other one.
    assert np.mean(found == wide.astype(half)) > 0.99
    np.testing.assert_allclose(
        found.astype(float), wide, rtol=1.01 * epsilon(half), atol=1e-6
    )


@every_half
def test_sums_and_gradients_of_many_halves_do_not_stall(half):
    """The story: a float16 of 2,048 plus 1 is 2,048, so a sum that is rounded at every
    step ends there.
    """
    many = Tensor(np.ones((5000, 3), half), requires_grad=True)
    assert many.sum(0).numpy().tolist() == [np.array(5000).astype(half)] * 3
    row = Tensor(np.ones(3, half), requires_grad=True)
    # a sum over the axis that was stretched
    (many.detach() + row).backward(np.ones((5000, 3), half))
    assert row.grad.tolist() == [np.array(5000).astype(half)] * 3
    upstream = np.random.default_rng(0).random((5000, 3)).astype(half)
    expected = upstream.astype(float).sum(0).astype(half)
    for lookup in (
        lambda w: F.embedding(w, np.zeros(5000, int)),
        lambda w: w[np.zeros(5000, int)],
    ):
        table = Tensor(np.ones((2, 3), half), requires_grad=True)
        lookup(table).backward(upstream)
        assert table.grad.tolist() == [expected.tolist(), [0] * 3]


def test_a_mean_or_a_loss_whose_sum_is_beyond_float16_is_right():
    large = Tensor(np.full(100, 60000, np.float16))
    assert large.mean().numpy() == np.float16(60000)
    assert (
        F.mean_squared_error(large, np.zeros(100)).item()
        == float(np.float16(60000)) ** 2
    )
    assert F.cross_entropy(
        Tensor(np.array([[60000, -60000]], np.float16)), [1]
    ).item() == 2 * float(np.float16(60000))


def test_whole_numbers_of_two_bytes_are_no_halves():
    many = Tensor(np.full((3, 3), 32767, np.int16))
    assert many.sum().item() == 9 * 32767
    assert (
        F.matmul(many, Tensor(np.eye(3, dtype=np.int16))).numpy().tolist()
        == many.numpy().tolist()
    )


# -- astype and in_float32 -------------------------------------------------------------


@every_half
def test_astype_rounds_there_and_its_gradient_rounds_back(half):
    x = Tensor(np.array([1.0, 1 / 3]), requires_grad=True)
    y = x.astype(half)
    assert y.numpy().tolist() == x.numpy().astype(half).tolist() and y.dtype == half
    y.backward(np.array([0.1, 2.0]).astype(half))
    assert x.grad.dtype == np.float64 and x.grad.tolist() == [
        float(np.array(0.1).astype(half)),
        2.0,
    ]
    assert x.astype(np.float64) is x


@pytest.mark.parametrize("dtype", [np.int64, bool, np.complex64])
def test_astype_of_no_real_numbers_is_refused(dtype):
    with pytest.raises(
        TensorError,
        match=f"^astype: the dtype is .*{np.dtype(dtype).name[:4]}.*; expected one",
    ) as caught:
        F.astype(Tensor([1.0]), dtype)
    assert caught.value.code == "dtype"


def test_a_half_that_meets_float32_raises_the_code_dtype():
    with pytest.raises(
        TensorError, match="A tensor of float16 meets one of float32"
    ) as caught:
        Tensor(np.ones(2, np.float16)) + Tensor(np.ones(2, np.float32))
    assert caught.value.code == "dtype"


def test_numpy_alone_would_round_at_every_step():
    """The mutant: without float32 inside, the tests above fail."""
    many = np.ones((5000, 3), np.float16)
    assert np.add.reduce(many, axis=0).tolist() == [2048.0] * 3
    with np.errstate(over="ignore"):
        assert np.isinf(np.full(100, 60000, np.float16).sum() / np.float16(100))


def test_what_is_not_half_is_computed_as_it_was():
    called = []
    F.in_float32(lambda x: called.append(x.dtype) or x, Tensor(np.ones(2)))
    F.in_float32(lambda x: called.append(x.dtype) or x, Tensor(np.ones(2, np.float16)))
    assert called == [np.float64, np.float32]
    assert HALVES[0] is np.float16


def test_the_gradient_of_a_divisor_does_not_depend_on_its_square():
    """The square of 300 is no float16, nor is that of 1e-4."""
    x = Tensor(np.array([1.0, 1e-4], np.float16), requires_grad=True)
    y = Tensor(np.array([300.0, 1e-4], np.float16), requires_grad=True)
    (x / y).backward(np.array([64.0, 1.0]))
    np.testing.assert_allclose(y.grad.astype(float), [-64 / 300**2, -1e4], rtol=5e-3)
