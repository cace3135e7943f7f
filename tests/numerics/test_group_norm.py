"""Groups of channels, normalised: what a group is, what it does not see, and why there
is no BatchNorm.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.autograd.memory import held_bytes
from minipipe.errors import ArgumentError, TensorError
from minipipe.testing import check_gradients, one_process_step
from tests.numerics.checks import check_two_halves, numbers
from tests.strategies import examples


def ones_and_zeros(channels: int) -> tuple[Tensor, Tensor]:
    return Tensor(np.ones(channels)), Tensor(np.zeros(channels))


@examples(40)
@given(
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    n=st.integers(0, 3),
    spatial=st.lists(st.integers(1, 3), max_size=3),
)
def test_each_group_of_a_sample_has_mean_0_and_variance_1(
    groups, per_group, n, spatial
):
    x = numbers(n, groups * per_group, *spatial)
    weight, bias = ones_and_zeros(groups * per_group)
    result = F.group_norm(Tensor(x), groups, weight, bias, epsilon=1e-12)
    assert result.shape == x.shape
    rows = result.numpy().reshape(n * groups, per_group * int(np.prod(spatial)))
    np.testing.assert_allclose(rows.mean(1), 0, atol=1e-6)
    if rows.shape[1] > 1:
        np.testing.assert_allclose(rows.var(1), 1, rtol=1e-4)
    if n:
        ours = [
            x,
            numbers(groups * per_group, seed=1),
            numbers(groups * per_group, seed=2),
        ]
        check_gradients(
            lambda x, w, b: F.group_norm(x, groups, w, b, epsilon=0.1), *ours
        )


def test_one_group_of_positions_and_channels_is_a_layer_norm_of_all_of_them():
    x = numbers(3, 4, 5)
    flat = Tensor(x.reshape(3, 20))
    expected = F.layer_norm(flat, Tensor(np.ones(20)), Tensor(np.zeros(20))).numpy()
    np.testing.assert_array_equal(
        F.group_norm(x, 1, *ones_and_zeros(4)).numpy().reshape(3, 20), expected
    )


def test_a_sample_has_the_same_values_whatever_stands_beside_it():
    layer, x = nn.GroupNorm(2, 6, dtype=np.float64).initialise(0), numbers(5, 6, 4, 4)
    whole = layer(Tensor(x)).numpy()
    alone = np.concatenate([layer(Tensor(x[i : i + 1])).numpy() for i in range(5)])
    np.testing.assert_allclose(whole, alone, rtol=1e-12)


def test_the_loss_with_group_norm_does_not_depend_on_the_number_of_microbatches():
    """The promise that BatchNorm would break: see
    tests/pipeline/test_residual_network.py.
    """
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.GlobalAvgPool(), nn.Linear(4, 2)
    ).initialise(0)
    inputs, targets = (
        numbers(8, 2, 6).astype(np.float32),
        numbers(8, 2, seed=1).astype(np.float32),
    )
    losses = [
        one_process_step(model, nn.MSELoss(), inputs, targets, m).loss
        for m in (1, 2, 8)
    ]
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-6)


def test_a_backward_in_two_halves_leaves_the_bits_of_a_whole_one():
    check_two_halves(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()
        ).initialise(1),
        *(3, 2, 7),
    )


def test_of_its_input_only_the_normalised_values_are_kept():
    x = Tensor(numbers(2, 6, 8, 8), requires_grad=True)
    weight, bias = (Tensor(numbers(6, seed=i), requires_grad=True) for i in (1, 2))
    result = F.group_norm(x, 3, weight, bias)
    scales = 2 * 3 * 8
    assert held_bytes([result.node], [weight.data]) == x.data.nbytes + scales


def test_the_layer_is_its_function_and_says_what_it_is():
    layer, x = (
        nn.GroupNorm(3, 6, epsilon=0.5, dtype=np.float64).initialise(0),
        Tensor(numbers(2, 6, 4)),
    )
    layer.bias.data += 1
    expected = F.group_norm(x, 3, layer.weight, layer.bias, 0.5)
    assert layer(x).numpy().tobytes() == expected.numpy().tobytes()
    assert repr(layer) == "GroupNorm(3, 6)"
    assert [(name, p.shape) for name, p in layer.named_parameters()] == [
        ("weight", (6,)),
        ("bias", (6,)),
    ]


@pytest.mark.parametrize("groups", [0, 4, 2.0, "3"])
def test_groups_that_do_not_divide_the_channels_are_refused(groups):
    with pytest.raises(
        TensorError,
        match=r"group_norm: num_groups is .*; expected a divisor of the 6 chan",
    ) as caught:
        F.group_norm(numbers(2, 6, 3), groups, *ones_and_zeros(6))
    assert caught.value.code == "out-of-range"
    with pytest.raises(
        ArgumentError,
        match=r"GroupNorm: (num_groups is|6 channels cannot be divided into)",
    ) as caught:
        nn.GroupNorm(groups, 6)
    assert caught.value.code == "value"


@pytest.mark.parametrize(
    "name",
    ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm2d"],
)
def test_who_asks_for_batch_norm_is_told_why_there_is_none_and_what_to_take(name):
    with pytest.raises(AttributeError) as caught:
        getattr(nn, name)
    message = str(caught.value)
    assert f"has no attribute '{name}'" in message
    for part in (
        "nn.GroupNorm(num_groups, num_channels)",
        "nn.LayerNorm",
        "nn.RMSNorm",
        "microbatches",
        "whole batch",
    ):
        assert part in message


def test_epsilon_may_be_an_array_of_one_number():
    x, one, zero = Tensor([[1.0, 3.0]]), Tensor([1.0, 1.0]), Tensor([0.0, 0.0])
    found = [
        F.layer_norm(x, one, zero, epsilon).numpy()
        for epsilon in (0.5, np.array(0.5, np.float32))
    ]
    assert np.array_equal(*found)
