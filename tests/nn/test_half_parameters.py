"""Parameters in half precision: gradients add up in float32, and optimisers change
master values in float32.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn, optim
from minipipe.core.nn.parameter import HalfLeaf
from tests.half_precision import epsilon, every_half
from tests.numerics.test_every_optimiser import every_kind
from tests.strategies import examples

# -- gradients -------------------------------------------------------------------------


@every_half
def test_the_gradient_of_a_half_parameter_is_float32_and_adds_up_in_it(half):
    weight, x = (
        nn.Parameter(np.ones((2, 1)).astype(half)),
        Tensor(np.ones((1, 2), half)),
    )
    for _ in range(5000):  # in halves the sum would end at 2,048 or 256
        (x @ weight).backward(np.ones((1, 1), half))
    assert weight.grad.dtype == np.float32 and weight.grad.tolist() == [[5000], [5000]]


def test_what_halves_alone_would_add_up_to():
    """The mutant: with the leaf of other parameters, the test above fails."""
    weight, x = (
        nn.Parameter(np.ones((2, 1), np.float16)),
        Tensor(np.ones((1, 2), np.float16)),
    )
    weight.node.__class__ = HalfLeaf.__bases__[0]
    for _ in range(5000):
        (x @ weight).backward(np.ones((1, 1), np.float16))
    assert weight.grad.tolist() == [[2048], [2048]]


@every_half
def test_so_it_is_for_every_use_of_a_shared_parameter_and_for_a_copy(half):
    weight = nn.Parameter(np.ones((2, 2)).astype(half))
    alias, x = weight.alias(), Tensor(np.ones((1, 2), half))
    (x @ weight @ alias).sum().backward()
    assert (
        alias.node.grad.dtype
        == weight.node.grad.dtype
        == weight.grad.dtype
        == np.float32
    )
    twin = copy.deepcopy(weight)
    (x @ twin).sum().backward()
    assert twin.dtype == half and twin.grad.dtype == np.float32


def test_other_parameters_have_the_leaf_that_they_had():
    for dtype in (np.float32, np.float64):
        weight = nn.Parameter(np.zeros(2, dtype))
        assert (
            type(weight.node) is not HalfLeaf
            and type(weight.alias().node) is not HalfLeaf
        )


def test_a_gradient_that_comes_transposed_is_kept_in_c_order():
    weight = nn.Parameter(np.ones((2, 3), np.float16))
    weight.T.sum().backward()
    assert weight.grad.flags.c_contiguous and weight.grad.flags.writeable


# -- master values ---------------------------------------------------------------------


@every_half
@every_kind
def test_a_half_parameter_is_the_rounded_twin_of_one_in_float32(kind, half):
    @examples(20)
    @given(st.integers(0, 2**32 - 1), st.floats(-4, 0))
    def compare(seed, exponent):
        generator = np.random.default_rng(seed)
        start = generator.standard_normal((3, 4)).astype(half)
        mine, twin = nn.Parameter(start), nn.Parameter(start.astype(np.float32))
        array = mine.data
        optimisers = kind([mine]), kind([twin])
        for _ in range(6):
            gradient = (10**exponent * generator.standard_normal((3, 4))).astype(
                np.float32
            )
            for parameter, optimiser in zip((mine, twin), optimisers):
                parameter.grad = gradient.copy()
                optimiser.step()
            assert mine.data is array and mine.dtype == half
            assert mine.data.tolist() == twin.data.astype(half).tolist()
        assert not any("master" in state for state in optimisers[1]._states.values())

    compare()


@every_half
def test_steps_too_small_for_a_half_are_not_lost(half):
    weight = nn.Parameter(np.ones(2).astype(half))
    optimiser = optim.SGD([weight], 1.0)
    small = np.full(2, epsilon(half) / 8, np.float32)
    for _ in range(16):
        weight.grad = small
        optimiser.step()
    assert weight.data.tolist() == [1 - 2 * epsilon(half)] * 2
    # without a master every step is lost
    assert (np.ones(2).astype(half) - small.astype(half)).tolist() == [1, 1]


@pytest.mark.parametrize("way", ["load", "in place", "another array"])
def test_values_that_come_from_elsewhere_replace_the_master_values(way):
    weight = nn.Parameter(np.ones(2, np.float16))
    optimiser = optim.SGD([weight], 2.0**-12)
    for _ in range(3):
        weight.grad = np.ones(2, np.float32)
        # the master values are 1 - 3 / 4096, the parameter 1 - 1 / 2048
        optimiser.step()
    values = np.array([5.0, -3.0], np.float16)
    if way == "load":
        weight.load(values, "weight")
    elif way == "in place":
        weight.data[...] = values
    else:
        weight.data = values.copy()
    weight.grad = np.full(2, 4096, np.float32)
    optimiser.step()
    assert weight.data.tolist() == [4.0, -4.0]


def test_what_is_loaded_as_it_was_leaves_the_master_values():
    weight = nn.Parameter(np.ones(1, np.float16))
    optimiser = optim.SGD([weight], 2.0**-13)
    for _ in range(4):
        weight.load(weight.data, "weight")
        weight.grad = np.ones(1, np.float32)
        optimiser.step()
    assert weight.data.tolist() == [1 - 2.0**-11]


def test_groups_mix_halves_with_others_and_clipping_is_of_the_float32_gradients():
    half, single = (
        nn.Parameter(np.ones(1, np.float16)),
        nn.Parameter(np.ones(1, np.float32)),
    )
    groups = [{"parameters": [half], "learning_rate": 0.5}, {"parameters": [single]}]
    optimiser = optim.SGD(groups, 0.25)
    half.grad, single.grad = np.array([3e5], np.float32), np.array([4e5], np.float32)
    # more than a float16 can be
    assert optim.clip_grad_norm(optimiser.parameters, 5.0) == 5e5
    optimiser.step()
    assert half.data.tolist() == [-0.5] and single.data.tolist() == [0.0]


def test_a_gradient_that_was_set_in_half_precision_is_taken_in_float32():
    weight, gradient = nn.Parameter(np.ones(1, np.float16)), np.array([0.7], np.float16)
    weight.grad = gradient
    optimiser = optim.SGD([weight], 0.3)
    optimiser.step()
    master = optimiser._states[id(weight)]["master"]
    assert master.dtype == np.float32 and master == 1 - 0.3 * gradient.astype(
        np.float32
    )
