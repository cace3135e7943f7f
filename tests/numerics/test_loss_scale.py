"""The loss scale: it adapts to overflows, and what is divided by it is what would have
been without.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn, optim
from minipipe.errors import ArgumentError, ParameterError
from tests.numerics.test_clipping import random_gradients, with_gradients
from tests.strategies import examples


@examples(100)
@given(
    st.lists(st.booleans(), max_size=40),
    st.integers(1, 5),
    st.sampled_from([1.5, 2.0, 4.0]),
)
def test_it_falls_with_each_overflow_and_grows_after_so_many_good_steps_in_a_row(
    history, growth_interval, factor
):
    scale = optim.LossScale(2.0**60, factor, growth_interval, minimum=1e-30)
    exponent, in_a_row = 0, 0
    for is_good in history:
        (parameter,) = with_gradients(np.array([1.0 if is_good else np.inf]))
        assert scale.unscale([parameter]) == is_good
        in_a_row = in_a_row + 1 if is_good else 0
        exponent += not is_good and -1
        if in_a_row == growth_interval:
            exponent, in_a_row = exponent + 1, 0
        assert scale.value == pytest.approx(2.0**60 * factor**exponent, rel=1e-12)
        assert scale.num_good_steps == in_a_row


@examples(50)
@given(st.integers(0, 2**32 - 1), st.integers(-20, 20))
def test_unscaling_divides_in_place_without_rounding_by_a_power_of_two(seed, exponent):
    gradients = random_gradients(seed, np.float32)
    parameters = with_gradients(*gradients, None)
    arrays = [parameter.grad for parameter in parameters]
    assert optim.LossScale(2.0**exponent, minimum=1e-9).unscale(iter(parameters))
    for parameter, array, gradient in zip(parameters, arrays, gradients):
        assert parameter.grad is array and array.dtype == np.float32
        assert (array == gradient / np.float32(2.0**exponent)).all()
    assert parameters[-1].grad is None


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_one_element_that_is_not_finite_leaves_every_gradient_as_it_was(wrong):
    parameters = with_gradients(
        np.array([4.0]), np.array([[1.0, wrong]], np.float32), None
    )
    scale = optim.LossScale(2.0)
    assert not optim.gradients_are_finite(parameters) and not scale.unscale(parameters)
    assert parameters[0].grad.tolist() == [4.0] and scale.value == 1.0
    assert optim.gradients_are_finite(parameters[:1]) and optim.gradients_are_finite([])


def test_what_other_ranks_have_found_counts_instead():
    (parameter,) = with_gradients(np.array([4.0]))
    scale = optim.LossScale(2.0)
    assert not scale.unscale([parameter], are_finite=False)
    assert scale.value == 1.0 and parameter.grad.tolist() == [4.0]


def test_a_plain_loop_leaves_out_updates_until_the_scale_fits_without_a_warning():
    model, scale = (
        nn.Linear(2, 1, dtype=np.float16).initialise(0),
        optim.LossScale(2.0**20),
    )
    optimiser, taken = optim.SGD(model.parameters(), 0.01), []
    x, y = Tensor(np.ones((4, 2), np.float16)), np.full((4, 1), 4, np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while taken.count(True) < 50:
            optimiser.zero_grad()
            before = model.weight.data.copy()
            loss = nn.MSELoss()(model(x), y)
            scale.backward(loss)
            taken.append(scale.unscale(model.parameters()))
            if taken[-1]:
                optimiser.step()
            assert (
                (model.weight.data != before).any()
                or not taken[-1]
                or loss.item() < 0.5
            )
    assert (
        taken == sorted(taken) and taken.count(False) == 20 - math.log2(scale.value) > 3
    )
    assert loss.item() < 0.5 and loss.dtype == np.float32


def test_infinities_that_meet_in_a_shared_parameter_are_an_overflow_without_a_warning():
    weight = nn.Parameter(np.ones(1, np.float16))
    alias = weight.alias()
    weight.node.grad, alias.node.grad = (
        np.array([np.inf], np.float32),
        np.array([-np.inf], np.float32),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not optim.LossScale(2.0).unscale([weight])


def test_the_gradient_of_a_shared_parameter_is_divided_once():
    weight = nn.Parameter(np.ones(1, np.float32))
    alias = weight.alias()
    weight.node.grad, alias.node.grad = (
        np.array([2.0], np.float32),
        np.array([4.0], np.float32),
    )
    assert optim.LossScale(4.0).unscale([weight])
    assert weight.grad.tolist() == [1.5]


def test_a_scale_below_the_minimum_is_an_error_that_says_where_to_look():
    scale = optim.LossScale(4.0, minimum=2.0)
    assert not scale.unscale([], are_finite=False)
    with pytest.raises(
        ParameterError, match="^The gradients are not finite, even at a loss scale of 2"
    ) as caught:
        scale.unscale([], are_finite=False)
    assert caught.value.code == "not-finite"


@pytest.mark.parametrize(
    "numbers",
    [
        {"initial": 0.0},
        {"initial": math.inf},
        {"initial": math.nan},
        {"initial": 0.5},
        {"minimum": 0.0},
        {"factor": 1.0},
        {"factor": math.nan},
        {"factor": math.inf},
        {"growth_interval": 0},
        {"growth_interval": 2.5},
    ],
    ids=str,
)
def test_a_number_out_of_its_range_is_refused(numbers):
    with pytest.raises(ArgumentError, match=r"^LossScale: .*; expected ") as caught:
        optim.LossScale(**numbers)
    assert caught.value.code == "value"
    assert str(next(iter(numbers.values()))) in str(caught.value)


def test_a_loss_scale_says_its_value_and_goes_on_after_a_break():
    scale = optim.LossScale(growth_interval=3)
    scale.unscale([])
    assert repr(scale) == "LossScale(32768.0)"
    later = optim.LossScale(growth_interval=3)
    later.value, later.num_good_steps = scale.value, scale.num_good_steps
    for _ in range(2):
        later.unscale([])
    assert (later.value, later.num_good_steps) == (2.0**16, 0)
