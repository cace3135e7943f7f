"""Pooling: against PyTorch, which elements get the gradient, what it keeps in memory,
and what it refuses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.autograd.memory import held_bytes
from minipipe.errors import TensorError
from tests.numerics.checks import check_against_torch, numbers
from tests.strategies import examples

POOLS = {
    ("max", 1): F.max_pool1d,
    ("max", 2): F.max_pool2d,
    ("avg", 1): F.avg_pool1d,
    ("avg", 2): F.avg_pool2d,
}


@st.composite
def pools(
    draw: Any, axes: int
) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...] | None]:
    kernel = draw(st.tuples(*[st.integers(1, 4)] * axes))
    image = [draw(st.integers(size, 8)) for size in kernel]
    # Whole numbers from so few that most windows have ties.
    x = (
        np.random.default_rng(draw(st.integers(0, 99)))
        .integers(-2, 3, (2, 2, *image))
        .astype(np.float64)
    )
    return x, kernel, draw(st.none() | st.tuples(*[st.integers(1, 5)] * axes))


@pytest.mark.parametrize(("kind", "axes"), POOLS)
@examples(60)
@given(st.data())
def test_pools_have_the_values_and_gradients_of_pytorch_ties_included(kind, axes, data):
    x, kernel, stride = data.draw(pools(axes))
    ours, name = POOLS[kind, axes], f"{kind}_pool{axes}d"
    check_against_torch(
        lambda x: ours(x, kernel, stride),
        lambda f, x: getattr(f, name)(x, kernel, stride),
        (x,),
    )


@examples(20)
@given(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_global_avg_pool_is_the_average_over_a_window_of_everything(channels, spatial):
    x = numbers(2, channels, *spatial)
    given_ = F.global_avg_pool(x).numpy()
    assert given_.shape == (2, channels)
    np.testing.assert_allclose(
        given_, x.mean(tuple(range(2, x.ndim))), rtol=1e-12, atol=1e-14
    )
    if len(spatial) <= 2:
        windowed = POOLS["avg", len(spatial)](x, tuple(spatial)).numpy()
        np.testing.assert_allclose(
            given_, windowed.reshape(2, channels), rtol=1e-12, atol=1e-14
        )


# -- gradients by hand -----------------------------------------------------------------


def test_the_first_of_equal_elements_takes_the_gradient_of_max_pool2d():
    x = Tensor(
        np.array(
            [[[[1.0, 7.0, 2.0, 2.0], [7.0, 7.0, 2.0, 2.0], [9.0, 9.0, 9.0, 9.0]]]]
        ),
        requires_grad=True,
    )
    F.max_pool2d(x, 2).backward(np.array([[[[3.0, 5.0]]]]))
    # the third row fills no window
    assert x.grad[0, 0].tolist() == [[0, 3, 5, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_an_element_that_wins_several_windows_adds_their_gradients():
    x = Tensor(np.array([[[[0.0, 1.0, 0.0]]]]), requires_grad=True)
    F.max_pool2d(x, (1, 2), stride=1).backward(np.array([[[[3.0, 5.0]]]]))
    assert x.grad.tolist() == [[[[0, 8, 0]]]]


def test_every_element_of_a_window_gets_its_share_of_the_gradient_of_avg_pool():
    x = Tensor(np.array([[[1.0, 2.0, 3.0, 4.0]]]), requires_grad=True)
    result = F.avg_pool1d(x, 2, stride=1)
    assert result.numpy().tolist() == [[[1.5, 2.5, 3.5]]]
    result.backward(np.array([[[2.0, 4.0, 8.0]]]))
    assert x.grad.tolist() == [[[1, 3, 6, 4]]]


def test_max_pool2d_finds_its_winner_among_more_than_256_elements():
    x = Tensor(np.zeros((1, 1, 20, 20)), requires_grad=True)
    x.data[0, 0, 19, 18] = 1.0
    F.max_pool2d(x, 20).sum().backward()
    assert np.argwhere(x.grad).tolist() == [[0, 0, 19, 18]]


def test_max_pool2d_passes_nan_on():
    assert np.isnan(F.max_pool2d(Tensor([[[[1.0, np.nan], [2.0, 3.0]]]]), 2).item())


def test_whole_numbers_have_a_mean_in_float32():
    for result in (
        F.avg_pool1d(Tensor([[[1, 2]]]), 2),
        F.global_avg_pool(Tensor([[[1, 2]]])),
    ):
        assert result.dtype == np.float32 and result.item() == 1.5


def test_max_pool2d_keeps_one_byte_for_each_result_and_the_means_keep_nothing():
    x = Tensor(numbers(2, 3, 16, 16), requires_grad=True)
    result = F.max_pool2d(x, 2)
    assert held_bytes([result.node], []) == result.size
    assert held_bytes([F.avg_pool2d(x, 2).node, F.global_avg_pool(x).node], []) == 0


# -- layers ----------------------------------------------------------------------------


def test_layers_say_what_they_are():
    assert repr(nn.MaxPool2d(2)) == "MaxPool2d(2)"
    assert repr(nn.MaxPool2d(3, stride=(2, 1))) == "MaxPool2d(3, stride=(2, 1))"
    assert repr(nn.MaxPool1d(2, 2)) == "MaxPool1d(2)"
    assert repr(nn.AvgPool1d(4, stride=2)) == "AvgPool1d(4, stride=2)"
    assert repr(nn.AvgPool2d((2, 3))) == "AvgPool2d((2, 3))"
    assert repr(nn.GlobalAvgPool()) == "GlobalAvgPool()"


def test_layers_are_their_functions():
    images, series = Tensor(numbers(2, 3, 9, 8)), Tensor(numbers(2, 3, 9))
    for layer, x, expected in (
        (nn.MaxPool1d(2, 3), series, F.max_pool1d(series, 2, 3)),
        (nn.MaxPool2d((2, 3), 1), images, F.max_pool2d(images, (2, 3), 1)),
        (nn.AvgPool1d(2, 3), series, F.avg_pool1d(series, 2, 3)),
        (nn.AvgPool2d((2, 3), 1), images, F.avg_pool2d(images, (2, 3), 1)),
        (nn.GlobalAvgPool(), images, F.global_avg_pool(images)),
    ):
        assert layer(x).numpy().tobytes() == expected.numpy().tobytes()


# -- what is refused -------------------------------------------------------------------

IMAGES, SERIES = np.ones((2, 3, 5, 4)), np.ones((2, 3, 5))
REFUSED = {
    "max_pool2d, axes": (
        "shape",
        r"max_pool2d: .*\(2, 3, 5\); .*height, width",
        lambda: F.max_pool2d(SERIES, 2),
    ),
    "max_pool2d, kernel": (
        "shape",
        r"max_pool2d: .*\(5, 5\); .*\(5, 4\)",
        lambda: F.max_pool2d(IMAGES, 5),
    ),
    "max_pool2d, no kernel": (
        "out-of-range",
        "max_pool2d: kernel is 0",
        lambda: F.max_pool2d(IMAGES, 0),
    ),
    "max_pool2d, stride": (
        "out-of-range",
        "max_pool2d: stride",
        lambda: F.max_pool2d(IMAGES, 2, (1, 0)),
    ),
    "max_pool1d, axes": (
        "shape",
        "max_pool1d: .* channels, length",
        lambda: F.max_pool1d(IMAGES, 2),
    ),
    "avg_pool1d, a pair": (
        "out-of-range",
        "avg_pool1d: kernel is .*a whole number,",
        lambda: F.avg_pool1d(SERIES, (2, 2)),
    ),
    "avg_pool2d, axes": (
        "shape",
        r"avg_pool2d: .*\(2, 3, 5\)",
        lambda: F.avg_pool2d(SERIES, 2),
    ),
    "avg_pool2d, kernel": (
        "shape",
        r"avg_pool2d: .*\(6, 1\)",
        lambda: F.avg_pool2d(IMAGES, (6, 1)),
    ),
    "global_avg_pool, features": (
        "shape",
        r"global_avg_pool: .*\(2, 3\)",
        lambda: F.global_avg_pool(SERIES[..., 0]),
    ),
    "global_avg_pool, empty": (
        "shape",
        r"global_avg_pool: .*\(2, 3, 0\)",
        lambda: F.global_avg_pool(SERIES[..., :0]),
    ),
    "MaxPool2d, kernel": (
        "out-of-range",
        "MaxPool2d: kernel_size",
        lambda: nn.MaxPool2d("2"),
    ),
    "MaxPool2d, stride": (
        "out-of-range",
        "MaxPool2d: stride",
        lambda: nn.MaxPool2d(2, stride=0),
    ),
    "AvgPool1d, kernel": (
        "out-of-range",
        "AvgPool1d: kernel_size is 1.5",
        lambda: nn.AvgPool1d(3 / 2),
    ),
}


@pytest.mark.parametrize("code, message, call", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(code, message, call):
    with pytest.raises(TensorError, match=message) as caught:
        call()
    assert caught.value.code == code


def test_what_is_refused_is_so_for_the_reason_given():
    assert (
        F.max_pool2d(IMAGES, (5, 4), 1).shape
        == F.avg_pool2d(IMAGES, (5, 4)).shape
        == (2, 3, 1, 1)
    )
    assert F.avg_pool1d(SERIES, (5,)).shape == (2, 3, 1)
