"""The norm of the gradients: exact, of the same bits in any order, and limited in
place.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import add

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn, optim
from minipipe.errors import ParameterError


def with_gradients(*gradients, xp=np):
    """Return a parameter for each gradient; None stands for none."""
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(xp.zeros((1,) if gradient is None else gradient.shape))
        parameter.grad = None if gradient is None else xp.asarray(gradient, copy=True)
        parameters.append(parameter)
    return parameters


def random_gradients(seed, dtype=np.float64, count=9):
    generator = np.random.default_rng(seed)
    shapes = [(3, 4), (5,), (), (0, 3), (2, 1, 6)]
    scales = 10.0 ** generator.integers(-8, 8, count)
    return [
        np.asarray(scales[i] * generator.standard_normal(shapes[i % 5]), dtype)
        for i in range(count)
    ]


# -- the norm --------------------------------------------------------------------------


def test_the_norm_is_that_of_one_long_vector():
    assert (
        optim.gradient_norm(
            with_gradients(np.array([1.0, 2.0]), None, np.array([[4.0], [10.0]]))
        )
        == 11.0
    )


@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_the_norm_has_the_same_bits_in_any_order_and_any_grouping(seed, random):
    parameters = with_gradients(*random_gradients(seed))
    norm = optim.gradient_norm(parameters)
    random.shuffle(parameters)
    cut = random.randrange(len(parameters) + 1)
    squares = optim.squared_norms(parameters[cut:]) + optim.squared_norms(
        parameters[:cut]
    )
    assert optim.gradient_norm(parameters) == norm == optim.total_norm(squares)


def test_adding_one_after_another_would_depend_on_the_order():
    # The mutant: with additions instead of fsum, the test above must fail. (From Python
    # 3.12 on, sum compensates.)
    squares = optim.squared_norms(
        with_gradients(*(np.array([x]) for x in (1e8, 1.0, 1.0)))
    )
    assert reduce(add, squares) != reduce(add, reversed(squares))
    assert optim.total_norm(squares) == optim.total_norm(reversed(squares))


def test_the_norm_is_rounded_from_the_exact_sum():
    gradients = random_gradients(3, np.float32, 50)
    exact = sum(
        Fraction(float(x)) ** 2 for gradient in gradients for x in gradient.flat
    )
    assert optim.gradient_norm(with_gradients(*gradients)) == pytest.approx(
        math.sqrt(exact), rel=1e-15
    )


def test_squares_of_float32_are_added_in_float64():
    gradient = np.full(1 << 12, 1e30, np.float32)  # the squares are beyond float32
    assert optim.gradient_norm(with_gradients(gradient)) == pytest.approx(
        64 * float(np.float32(1e30)), rel=1e-15
    )
    assert gradient.dtype == np.float32


def test_the_order_of_the_memory_changes_no_bit():
    gradients = [
        np.random.default_rng(seed).standard_normal((300, 200)) for seed in range(9)
    ]
    turned = [np.asfortranarray(gradient) for gradient in gradients]
    assert optim.squared_norms(with_gradients(*gradients)) == optim.squared_norms(
        with_gradients(*turned)
    )


def test_no_gradients_have_the_norm_0_and_stay_as_they_are():
    assert optim.clip_grad_norm(iter([]), 1.0) == 0.0
    assert optim.clip_grad_norm(with_gradients(None, np.zeros(3)), 1.0) == 0.0


# -- clipping --------------------------------------------------------------------------


def test_gradients_that_are_too_long_are_scaled_in_place_and_keep_their_dtype():
    parameters = with_gradients(
        np.array([6.0], np.float32), None, np.array([[8.0]], np.float32)
    )
    arrays = [parameter.grad for parameter in parameters]
    assert optim.clip_grad_norm(iter(parameters), np.float64(5.0)) == 10.0
    assert all(parameter.grad is array for parameter, array in zip(parameters, arrays))
    assert arrays[0].tolist() == [3.0] and arrays[2].tolist() == [[4.0]]
    assert arrays[0].dtype == arrays[2].dtype == np.float32


@pytest.mark.parametrize("max_norm", [10.0, 10.5, math.inf])
def test_gradients_that_are_short_enough_are_not_touched(max_norm):
    (parameter,) = with_gradients(np.array([6.0, 8.0]))
    parameter.grad.setflags(write=False)
    assert optim.clip_grad_norm([parameter], max_norm) == 10.0
    assert parameter.grad.tolist() == [6.0, 8.0]


def test_a_part_is_clipped_by_the_norm_of_the_whole():
    # As two ranks do it: each knows the squares of both, and scales its own part.
    first, second = with_gradients(np.array([6.0])), with_gradients(np.array([8.0]))
    norm = optim.total_norm(optim.squared_norms(first) + optim.squared_norms(second))
    for part in (first, second):
        optim.clip_gradients(part, norm, 5.0)
    assert [first[0].grad.tolist(), second[0].grad.tolist()] == [[3.0], [4.0]]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_norm_that_is_not_finite_is_refused_and_the_gradients_stay(wrong):
    gradient = np.array([1.0, wrong])
    parameters = with_gradients(np.array([3.0]), gradient)
    with pytest.raises(
        ParameterError, match="The norm of the gradients is (nan|inf)"
    ) as caught:
        optim.clip_grad_norm(parameters, 1.0)
    assert caught.value.code == "not-finite"
    assert parameters[0].grad.tolist() == [3.0]
    assert not math.isfinite(optim.gradient_norm(parameters))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_limit_that_is_not_above_0_is_refused(wrong):
    with pytest.raises(
        ValueError, match=f"^max_norm is {wrong}; expected a number in \\(0, inf\\]"
    ):
        optim.clip_grad_norm([], wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_the_array_api_standard_get_the_norm_and_the_bits_of_numpy(dtype):
    gradients = random_gradients(1, dtype)
    on_numpy, on_strict = (
        with_gradients(*gradients),
        with_gradients(*gradients, xp=array_api_strict),
    )
    # NumPy adds the squares in pairs, and array-api-strict leaves the sum to NumPy.
    assert (
        optim.clip_grad_norm(on_strict, 0.5)
        == optim.clip_grad_norm(on_numpy, 0.5)
        > 0.5
    )
    for strict, expected in zip(on_strict, on_numpy):
        assert strict.grad.__array_namespace__() is array_api_strict
        assert np.asarray(strict.grad).tobytes() == expected.grad.tobytes()


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_clipping_is_that_of_pytorch_but_for_its_epsilon(seed, max_norm):
    torch = pytest.importorskip(
        "torch", reason="needs PyTorch: pip install '.[oracle]'"
    )
    gradients = random_gradients(seed)
    parameters = with_gradients(*(gradient.copy() for gradient in gradients))
    twins = [
        torch.zeros(gradient.shape, dtype=torch.float64, requires_grad=True)
        for gradient in gradients
    ]
    for twin, gradient in zip(twins, gradients):
        twin.grad = torch.from_numpy(gradient.copy())
    norm = optim.clip_grad_norm(parameters, max_norm)
    assert float(torch.nn.utils.clip_grad_norm_(twins, max_norm)) == pytest.approx(
        norm, rel=1e-13
    )
    epsilon = norm / (norm + 1e-6) if norm > max_norm else 1.0
    for parameter, twin in zip(parameters, twins):
        np.testing.assert_allclose(
            parameter.grad * epsilon, twin.grad.numpy(), rtol=1e-12
        )
