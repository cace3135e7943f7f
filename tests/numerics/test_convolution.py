"""Convolutions: against PyTorch, in two halves, what they keep in memory, and what they
refuse.

The table of test_operations.py checks them against NumPy, central differences and the
array API standard.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.autograd.memory import held_bytes
from minipipe.errors import TensorError
from minipipe.testing import check_gradients
from tests.numerics.checks import (
    check_against_torch,
    check_two_halves,
    numbers,
    values_and_gradients,
)
from tests.strategies import examples


class Call(NamedTuple):
    """The arguments of one convolution along ``axes`` axes."""

    arrays: tuple[np.ndarray, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int

    @property
    def settings(self) -> tuple[Any, ...]:
        return self[1:]


@st.composite
def convolutions(draw: Any, axes: int) -> Call:
    """Draw shapes that fit: kernels up to the padded input, strides beyond the kernel,
    with and without bias.
    """
    n, c, o, groups = draw(st.tuples(*[st.integers(1, 3)] * 4))
    kernel = draw(st.tuples(*[st.integers(1, 4)] * axes))
    dilation = draw(st.tuples(*[st.integers(1, 3)] * axes))
    stride, padding = (
        (1,) * axes,
        draw(st.just("same") | st.tuples(*[st.integers(0, 3)] * axes)),
    )
    if padding != "same":
        stride = draw(st.tuples(*[st.integers(1, 5)] * axes))
    zeros = (0,) * axes if padding == "same" else padding
    extent = [step * (size - 1) + 1 for size, step in zip(kernel, dilation)]
    smallest = [
        1 if padding == "same" else max(1, size - 2 * add)
        for size, add in zip(extent, zeros)
    ]
    image = [draw(st.integers(size, size + 4)) for size in smallest]
    arrays = [
        numbers(n, c * groups, *image),
        numbers(o * groups, c, *kernel, seed=1),
        numbers(o * groups, seed=2),
    ]
    return Call(
        tuple(arrays[: draw(st.integers(2, 3))]), stride, padding, dilation, groups
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch, of its own speed
@examples(150)
@given(convolutions(axes=2))
def test_conv2d_has_the_values_and_gradients_of_pytorch(call):
    check_against_torch(
        lambda x, w, b=None: F.conv2d(x, w, b, *call.settings),
        lambda f, x, w, b=None: f.conv2d(x, w, b, *call.settings),
        call.arrays,
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@examples(100)
@given(convolutions(axes=1))
def test_conv1d_has_the_values_and_gradients_of_pytorch(call):
    check_against_torch(
        lambda x, w, b=None: F.conv1d(x, w, b, *call.settings),
        lambda f, x, w, b=None: f.conv1d(x, w, b, *call.settings),
        call.arrays,
    )


# -- without PyTorch -------------------------------------------------------------------


@examples(25)
@given(convolutions(axes=2))
def test_gradients_of_conv2d_are_those_of_central_differences(call):
    check_gradients(
        lambda x, w, b=None: F.conv2d(x, w, b, *call.settings), *call.arrays
    )


def test_a_result_is_in_c_order_although_its_product_has_a_row_for_each_channel():
    assert F.conv2d(numbers(2, 3, 5, 5), numbers(4, 3, 2, 2)).data.flags.c_contiguous


def test_same_padding_keeps_the_shape_and_puts_the_odd_zero_at_the_end():
    image, kernel = np.arange(12.0).reshape(1, 1, 3, 4), np.ones((1, 1, 1, 2))
    assert F.conv2d(image, kernel, padding="same").numpy()[0, 0].tolist() == [
        [1, 3, 5, 3],
        [9, 11, 13, 7],
        [17, 19, 21, 11],
    ]


@examples(25)
@given(convolutions(axes=2))
def test_groups_are_convolutions_side_by_side(call):
    x, w, *_ = call.arrays
    parts = zip(np.split(x, call.groups, axis=1), np.split(w, call.groups))
    expected = [
        F.conv2d(each, kernels, None, *call.settings[:3]).numpy()
        for each, kernels in parts
    ]
    given_ = F.conv2d(x, w, None, *call.settings).numpy()
    np.testing.assert_allclose(
        given_, np.concatenate(expected, axis=1), rtol=1e-12, atol=1e-12
    )


@examples(25)
@given(convolutions(axes=2))
def test_a_dilated_kernel_is_one_with_zeros_between_its_elements(call):
    x, w, *_ = call.arrays
    spread = np.zeros(
        (
            *w.shape[:2],
            *(step * (size - 1) + 1 for size, step in zip(w.shape[2:], call.dilation)),
        )
    )
    spread[:, :, :: call.dilation[0], :: call.dilation[1]] = w
    expected = F.conv2d(
        x, spread, None, call.stride, call.padding, 1, call.groups
    ).numpy()
    np.testing.assert_allclose(
        F.conv2d(x, w, None, *call.settings).numpy(), expected, rtol=1e-12, atol=1e-12
    )


def test_a_kernel_that_picks_one_neighbour_shifts_the_image():
    image, kernel = np.arange(12.0).reshape(1, 1, 3, 4), np.zeros((1, 1, 3, 3))
    # the neighbour on the right; a convolution in the strict sense would pick the left
    # one
    kernel[0, 0, 1, 2] = 1
    shifted = F.conv2d(Tensor(image), Tensor(kernel), padding=1).numpy()
    assert shifted[0, 0].tolist() == [[1, 2, 3, 0], [5, 6, 7, 0], [9, 10, 11, 0]]


@pytest.mark.parametrize("operation", [F.conv2d, F.conv1d])
def test_an_empty_batch_has_an_empty_result_and_zero_gradients(operation):
    axes = (1,) * (operation is F.conv1d) + (2,) * (operation is F.conv2d)
    image, kernel = (5,) * axes[0], (3,) * axes[0]
    result, *gradients = values_and_gradients(
        operation, (numbers(0, 2, *image), numbers(4, 2, *kernel), numbers(4))
    )
    assert result.shape == (0, 4, *(3,) * axes[0])
    assert [gradient.any() for gradient in gradients] == [False, False, False]


@pytest.mark.parametrize(("ins", "outs"), [(0, 4), (2, 0)])
def test_no_channels_give_zeros_or_nothing(ins, outs):
    result, *gradients = values_and_gradients(
        F.conv1d, (numbers(2, ins, 5), numbers(outs, ins, 3))
    )
    assert (
        result.shape == (2, outs, 3)
        and not result.any()
        and not any(gradient.any() for gradient in gradients)
    )


# -- two halves, and memory ------------------------------------------------------------


def network() -> nn.Sequential:
    """Return layers with every option, for images of shape (n, 2, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Residual(
            nn.Conv2d(4, 4, (3, 1), padding=(1, 0)),
            nn.Tanh(),
            nn.Conv2d(4, 4, 1, bias=False),
        ),
        nn.Residual(nn.Conv2d(4, 4, (4, 3), padding="same", dilation=(1, 2), groups=2)),
        nn.MaxPool2d(3, stride=2),
        nn.Flatten(),
        nn.Linear(36, 3),
    ).initialise(5)


def test_a_backward_in_two_halves_leaves_the_bits_of_a_whole_one():
    check_two_halves(network, 3, 2, 8, 8)


def test_a_convolution_keeps_its_input_and_not_nine_times_as_much():
    x = Tensor(numbers(2, 3, 16, 16), requires_grad=True)
    weight, bias = (
        Tensor(numbers(4, 3, 3, 3), requires_grad=True),
        Tensor(numbers(4), requires_grad=True),
    )
    result = F.conv2d(x, weight, bias, padding=1)
    assert held_bytes([result.node], []) == x.data.nbytes + weight.data.nbytes
    assert held_bytes([result.node], [weight.data, x.data]) == 0


def test_of_a_convolution_without_gradient_of_its_weight_only_the_weight_is_kept():
    x, weight = (
        Tensor(numbers(2, 3, 16, 16), requires_grad=True),
        Tensor(numbers(4, 3, 3, 3)),
    )
    assert held_bytes([F.conv2d(x, weight).node], []) == weight.data.nbytes


# -- layers ----------------------------------------------------------------------------


def test_layers_say_what_they_are():
    assert repr(nn.Conv2d(1, 16, 3)) == "Conv2d(1, 16, 3)"
    assert repr(nn.Conv2d(1, 16, (3, 5), stride=2, padding=(1, 2), bias=False)) == (
        "Conv2d(1, 16, (3, 5), stride=2, padding=(1, 2), bias=False)"
    )
    assert (
        repr(nn.Conv1d(4, 8, 3, stride=2, padding=1))
        == "Conv1d(4, 8, 3, stride=2, padding=1)"
    )
    assert repr(nn.Conv2d(4, 8, 3, padding="same", dilation=2, groups=4)) == (
        "Conv2d(4, 8, 3, padding='same', dilation=2, groups=4)"
    )
    assert (
        repr(nn.Conv2d(1, 2, 3, dilation=(1, 2))) == "Conv2d(1, 2, 3, dilation=(1, 2))"
    )


def test_parameters_of_convolutions_have_pytorchs_shapes_and_begin_he_uniform():
    layer = nn.Conv2d(32, 64, (3, 5))
    assert [(name, p.shape) for name, p in layer.named_parameters()] == [
        ("weight", (64, 32, 3, 5)),
        ("bias", (64,)),
    ]
    layer.initialise(0)
    bound = np.sqrt(6 / (32 * 3 * 5))
    assert 0.99 * bound < abs(layer.weight.data).max() <= bound
    assert not layer.bias.data.any()
    grouped = nn.Conv2d(32, 64, (3, 5), groups=8)
    assert [p.shape for p in grouped.parameters()] == [(64, 4, 3, 5), (64,)]
    # a kernel meets an eighth of the channels
    assert abs(grouped.initialise(0).weight.data).max() > 2 * bound
    plain = nn.Conv1d(
        2, 3, 4, bias=False, initialiser=nn.initialisers.constant(2.0), dtype=np.float64
    )
    assert [(name, p.shape) for name, p in plain.named_parameters()] == [
        ("weight", (3, 2, 4))
    ]
    assert plain(Tensor(np.ones((1, 2, 5)))).numpy().tolist() == [[[16.0, 16.0]] * 3]


def test_layers_pass_all_options_on():
    x = Tensor(numbers(2, 3, 9, 8).astype(np.float32))
    image = nn.Conv2d(3, 4, (3, 2), stride=(2, 3), padding=(1, 0)).initialise(1)
    image.bias.data += 1
    expected = F.conv2d(x, image.weight, image.bias, (2, 3), (1, 0)).numpy()
    assert image(x).numpy().tobytes() == expected.tobytes()
    series, line = nn.Conv1d(3, 4, 3, stride=2, padding=1).initialise(1), x[:, :, 0]
    expected = F.conv1d(line, series.weight, series.bias, 2, 1).numpy()
    assert series(line).numpy().tobytes() == expected.tobytes()
    image = nn.Conv2d(3, 6, 2, padding="same", dilation=(2, 1), groups=3).initialise(1)
    expected = F.conv2d(x, image.weight, image.bias, 1, "same", (2, 1), 3).numpy()
    assert image(x).numpy().tobytes() == expected.tobytes() and expected.shape == (
        2,
        6,
        9,
        8,
    )
    series = nn.Conv1d(3, 3, 2, dilation=2, groups=3).initialise(1)
    expected = F.conv1d(line, series.weight, series.bias, 1, 0, 2, 3).numpy()
    assert series(line).numpy().tobytes() == expected.tobytes() and expected.shape == (
        2,
        3,
        6,
    )


# -- what is refused -------------------------------------------------------------------

IMAGES, KERNELS = np.ones((2, 3, 5, 4)), np.ones((6, 3, 3, 2))
SERIES, FILTERS = np.ones((2, 3, 5)), np.ones((6, 3, 4))
REFUSED = {
    "conv2d, axes of the input": (
        "shape",
        r"conv2d: .*\(3, 5, 4\)",
        lambda: F.conv2d(IMAGES[0], KERNELS),
    ),
    "conv2d, axes of the weight": (
        "shape",
        r"conv2d: .*\(3, 3, 2\)",
        lambda: F.conv2d(IMAGES, KERNELS[0]),
    ),
    "conv2d, channels": (
        "shape",
        r"conv2d: .*\(2, 3, 5, 4\).*\(6, 2, 3, 2\); expected 2 channels",
        lambda: F.conv2d(IMAGES, KERNELS[:, :2]),
    ),
    "conv2d, bias": (
        "shape",
        r"conv2d: bias .*\(3,\); expected \(6,\)",
        lambda: F.conv2d(IMAGES, KERNELS, [1.0] * 3),
    ),
    "conv2d, height": (
        "shape",
        r"kernel \(6, 2\); expected .* fits into \(5, 4\)",
        lambda: F.conv2d(IMAGES, np.ones((1, 3, 6, 2))),
    ),
    "conv2d, width": (
        "shape",
        r"kernel \(2, 7\); expected .* fits into \(7, 6\), .* with padding",
        lambda: F.conv2d(IMAGES, np.ones((1, 3, 2, 7)), padding=1),
    ),
    "conv2d, empty kernel": (
        "shape",
        r"kernel \(0, 2\); expected",
        lambda: F.conv2d(IMAGES, KERNELS[:, :, :0]),
    ),
    "conv2d, stride": (
        "out-of-range",
        "conv2d: stride is 0; .*at least 1",
        lambda: F.conv2d(IMAGES, KERNELS, stride=0),
    ),
    "conv2d, strides": (
        "out-of-range",
        r"stride is \(1, 2, 3\)",
        lambda: F.conv2d(IMAGES, KERNELS, stride=(1, 2, 3)),
    ),
    "conv2d, padding": (
        "out-of-range",
        r"padding is \(0, -1\)",
        lambda: F.conv2d(IMAGES, KERNELS, padding=(0, -1)),
    ),
    "conv2d, no whole number": (
        "out-of-range",
        "padding is 0.5",
        lambda: F.conv2d(IMAGES, KERNELS, padding=0.5),
    ),
    "conv2d, dtype": (
        "dtype",
        "float32",
        lambda: F.conv2d(Tensor(IMAGES), Tensor(np.float32(KERNELS))),
    ),
    "conv2d, dtype of bias": (
        "dtype",
        "float32",
        lambda: F.conv2d(
            Tensor(IMAGES), Tensor(KERNELS), Tensor(np.ones(6, np.float32))
        ),
    ),
    "conv1d, axes": (
        "shape",
        r"conv1d: .*\(2, 3, 5, 4\)",
        lambda: F.conv1d(IMAGES, FILTERS),
    ),
    "conv1d, channels": (
        "shape",
        r"conv1d: .*\(6, 2, 4\); expected 2 channels",
        lambda: F.conv1d(SERIES, FILTERS[:, :2]),
    ),
    "conv1d, kernel": (
        "shape",
        r"conv1d: .*\(2, 3, 3\), kernel \(4,\)",
        lambda: F.conv1d(SERIES[:, :, :3], FILTERS),
    ),
    "conv1d, bias": (
        "shape",
        "conv1d: bias",
        lambda: F.conv1d(SERIES, FILTERS, np.ones((6, 1))),
    ),
    "conv1d, stride": (
        "out-of-range",
        "conv1d: stride",
        lambda: F.conv1d(SERIES, FILTERS, stride=-1),
    ),
    "conv1d, a pair": (
        "out-of-range",
        "conv1d: padding",
        lambda: F.conv1d(SERIES, FILTERS, padding=(1, 1)),
    ),
    "conv2d, dilation": (
        "out-of-range",
        "conv2d: dilation is 0",
        lambda: F.conv2d(IMAGES, KERNELS, dilation=0),
    ),
    "conv2d, dilated kernel": (
        "shape",
        r"kernel \(3, 2\), dilated kernel \(7, 2\); expected .*\(5, 4\)",
        lambda: F.conv2d(IMAGES, KERNELS, dilation=(3, 1)),
    ),
    "conv2d, same with a stride": (
        "out-of-range",
        r'padding is "same" and stride \(2, 2\); expected stride 1',
        lambda: F.conv2d(IMAGES, KERNELS, padding="same", stride=2),
    ),
    "conv2d, another word": (
        "out-of-range",
        "padding is 'valid'; expected .* at least 0, or \"same\"",
        lambda: F.conv2d(IMAGES, KERNELS, padding="valid"),
    ),
    "conv2d, groups": (
        "out-of-range",
        "groups is 2; expected a divisor of the 3 input channels and of the 6 output",
        lambda: F.conv2d(IMAGES, KERNELS, groups=2),
    ),
    "conv2d, no group": (
        "out-of-range",
        "groups is 0; expected a whole number",
        lambda: F.conv2d(IMAGES, KERNELS, groups=0),
    ),
    "conv2d, channels of a group": (
        "shape",
        r"\(2, 3, 5, 4\), weight \(6, 3, 3, 2\); expected 3 \* 3 channels",
        lambda: F.conv2d(IMAGES, KERNELS, groups=3),
    ),
    "Conv2d, channels": (
        "out-of-range",
        "Conv2d: in_channels is 1.5; expected a whole",
        lambda: nn.Conv2d(3 / 2, 4, 3),
    ),
    "Conv2d, kernel": (
        "out-of-range",
        "Conv2d: kernel_size",
        lambda: nn.Conv2d(3, 4, (3, 3, 3)),
    ),
    "Conv1d, channels": (
        "out-of-range",
        "Conv1d: out_channels is 0",
        lambda: nn.Conv1d(3, 0, 3),
    ),
    "Conv1d, padding": (
        "out-of-range",
        "Conv1d: padding",
        lambda: nn.Conv1d(3, 4, 3, padding=-1),
    ),
    "Conv2d, groups": (
        "out-of-range",
        "Conv2d: groups is 2; .* 3 input",
        lambda: nn.Conv2d(3, 4, 3, groups=2),
    ),
    "Conv2d, output groups": (
        "out-of-range",
        "Conv2d: groups is 3; .* 4 output",
        lambda: nn.Conv2d(3, 4, 3, groups=3),
    ),
    "Conv1d, same with a stride": (
        "out-of-range",
        "Conv1d: .*same",
        lambda: nn.Conv1d(3, 4, 3, 2, padding="same"),
    ),
    "Conv1d, dilation": (
        "out-of-range",
        "Conv1d: dilation",
        lambda: nn.Conv1d(3, 4, 3, dilation=(1, 1)),
    ),
}


@pytest.mark.parametrize("code, message, call", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(code, message, call):
    with pytest.raises(TensorError, match=message) as caught:
        call()
    assert caught.value.code == code


def test_what_is_refused_is_so_for_the_reason_given():
    # Guards the list above: the same calls with arguments that fit are computed.
    assert F.conv2d(
        IMAGES, KERNELS, [1.0] * 6, stride=(1, 2), padding=(0, 1)
    ).shape == (2, 6, 3, 3)
    assert F.conv1d(SERIES, FILTERS, np.ones(6), stride=(2,), padding=(1,)).shape == (
        2,
        6,
        2,
    )
    assert F.conv2d(
        IMAGES, KERNELS[:, :1], padding="same", dilation=(3, 1), groups=3
    ).shape == (2, 6, 5, 4)
