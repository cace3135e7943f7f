"""Convolutions and pooling: against PyTorch, in two halves, what they keep in memory, and what they refuse.

The table of test_operations.py checks them against NumPy, central differences and the array API standard.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.autograd import StageInput, backward, backward_input
from minipipe.autograd.memory import held_bytes
from minipipe.errors import TensorError
from minipipe.testing import check_gradients
from tests.strategies import examples


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


class Call(NamedTuple):
    """The arguments of one convolution along ``axes`` axes."""

    arrays: tuple[np.ndarray, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]


@st.composite
def convolutions(draw: Any, axes: int) -> Call:
    """Draw shapes that fit: kernels up to the padded input, strides beyond the kernel, with and without bias."""
    n, c, o = draw(st.tuples(*[st.integers(1, 3)] * 3))
    kernel = draw(st.tuples(*[st.integers(1, 4)] * axes))
    stride = draw(st.tuples(*[st.integers(1, 5)] * axes))
    padding = draw(st.tuples(*[st.integers(0, 3)] * axes))
    image = tuple(draw(st.integers(max(1, size - 2 * add), 8)) for size, add in zip(kernel, padding))
    arrays = [numbers(n, c, *image), numbers(o, c, *kernel, seed=1), numbers(o, seed=2)]
    return Call(tuple(arrays[: draw(st.integers(2, 3))]), stride, padding)


def values_and_gradients(operation: Any, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    result = operation(*tensors)
    result.backward(numbers(*result.shape, seed=3))
    return [result.numpy(), *(tensor.grad for tensor in tensors)]


def values_and_gradients_of_torch(operation: Any, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    result = operation(torch.nn.functional, *tensors)
    result.backward(torch.tensor(numbers(*result.shape, seed=3)))
    return [result.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]


def check_against_torch(ours: Any, theirs: Any, arrays: tuple[np.ndarray, ...]) -> None:
    expected = values_and_gradients_of_torch(theirs, arrays)
    for given_, wanted in zip(values_and_gradients(ours, arrays), expected, strict=True):
        assert given_.shape == wanted.shape
        np.testing.assert_allclose(given_, wanted, rtol=1e-10, atol=1e-10)


@examples(100)
@given(convolutions(axes=2))
def test_conv2d_has_the_values_and_gradients_of_pytorch(call):
    arrays, stride, padding = call
    check_against_torch(
        lambda x, w, b=None: F.conv2d(x, w, b, stride, padding),
        lambda f, x, w, b=None: f.conv2d(x, w, b, stride, padding),
        arrays,
    )


@examples(60)
@given(convolutions(axes=1))
def test_conv1d_has_the_values_and_gradients_of_pytorch(call):
    arrays, (stride,), (padding,) = call
    check_against_torch(
        lambda x, w, b=None: F.conv1d(x, w, b, stride, padding),
        lambda f, x, w, b=None: f.conv1d(x, w, b, stride, padding),
        arrays,
    )


@st.composite
def pools(draw: Any) -> tuple[np.ndarray, tuple[int, int], tuple[int, int] | None]:
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    image = [draw(st.integers(size, 8)) for size in kernel]
    # Whole numbers from so few that most windows have ties.
    x = np.random.default_rng(draw(st.integers(0, 99))).integers(-2, 3, (2, 2, *image)).astype(np.float64)
    return x, kernel, draw(st.none() | st.tuples(st.integers(1, 5), st.integers(1, 5)))


@examples(100)
@given(pools())
def test_max_pool2d_has_the_values_and_gradients_of_pytorch_ties_included(call):
    x, kernel, stride = call
    check_against_torch(lambda x: F.max_pool2d(x, kernel, stride), lambda f, x: f.max_pool2d(x, kernel, stride), (x,))


# -- without PyTorch -----------------------------------------------------------------------------------------


@examples(25)
@given(convolutions(axes=2))
def test_gradients_of_conv2d_are_those_of_central_differences(call):
    check_gradients(lambda x, w, b=None: F.conv2d(x, w, b, call.stride, call.padding), *call.arrays)


def test_a_result_is_in_c_order_although_its_product_has_a_row_for_each_channel():
    assert F.conv2d(numbers(2, 3, 5, 5), numbers(4, 3, 2, 2)).data.flags.c_contiguous


def test_a_kernel_that_picks_one_neighbour_shifts_the_image():
    image, kernel = np.arange(12.0).reshape(1, 1, 3, 4), np.zeros((1, 1, 3, 3))
    kernel[0, 0, 1, 2] = 1  # the neighbour on the right; a convolution in the strict sense would pick the left one
    shifted = F.conv2d(Tensor(image), Tensor(kernel), padding=1).numpy()
    assert shifted[0, 0].tolist() == [[1, 2, 3, 0], [5, 6, 7, 0], [9, 10, 11, 0]]


def test_the_first_of_equal_elements_takes_the_gradient_of_max_pool2d():
    x = Tensor(np.array([[[[1.0, 7.0, 2.0, 2.0], [7.0, 7.0, 2.0, 2.0], [9.0, 9.0, 9.0, 9.0]]]]), requires_grad=True)
    F.max_pool2d(x, 2).backward(np.array([[[[3.0, 5.0]]]]))
    assert x.grad[0, 0].tolist() == [[0, 3, 5, 0], [0, 0, 0, 0], [0, 0, 0, 0]]  # the third row fills no window


def test_an_element_that_wins_several_windows_adds_their_gradients():
    x = Tensor(np.array([[[[0.0, 1.0, 0.0]]]]), requires_grad=True)
    F.max_pool2d(x, (1, 2), stride=1).backward(np.array([[[[3.0, 5.0]]]]))
    assert x.grad.tolist() == [[[[0, 8, 0]]]]


def test_max_pool2d_finds_its_winner_among_more_than_256_elements():
    x = Tensor(np.zeros((1, 1, 20, 20)), requires_grad=True)
    x.data[0, 0, 19, 18] = 1.0
    F.max_pool2d(x, 20).sum().backward()
    assert np.argwhere(x.grad).tolist() == [[0, 0, 19, 18]]


def test_max_pool2d_passes_nan_on():
    assert np.isnan(F.max_pool2d(Tensor([[[[1.0, np.nan], [2.0, 3.0]]]]), 2).item())


@pytest.mark.parametrize("operation", [F.conv2d, F.conv1d])
def test_an_empty_batch_has_an_empty_result_and_zero_gradients(operation):
    axes = (1,) * (operation is F.conv1d) + (2,) * (operation is F.conv2d)
    image, kernel = (5,) * axes[0], (3,) * axes[0]
    result, *gradients = values_and_gradients(operation, (numbers(0, 2, *image), numbers(4, 2, *kernel), numbers(4)))
    assert result.shape == (0, 4, *(3,) * axes[0])
    assert [gradient.any() for gradient in gradients] == [False, False, False]


# -- two halves, and memory ----------------------------------------------------------------------------------


def network() -> nn.Sequential:
    """Return every layer of this file, for images of shape (n, 2, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Residual(nn.Conv2d(4, 4, (3, 1), padding=(1, 0)), nn.Tanh(), nn.Conv2d(4, 4, 1, bias=False)),
        nn.MaxPool2d(3, stride=2),
        nn.Flatten(),
        nn.Linear(36, 3),
    ).initialise(5)


def bits_of_two_microbatches(split: bool) -> list[bytes]:
    model, inputs, postponed = network(), [], []
    for k in range(2):
        x = Tensor(numbers(3, 2, 8, 8, seed=k).astype(np.float32))
        x.node = StageInput(needs_gradient=True)
        y = model(x)
        upstream = numbers(*y.shape, seed=10 + k).astype(np.float32)
        if split:
            postponed.append(backward_input({y.node: upstream}))
        else:
            backward({y.node: upstream})
        inputs.append(x.grad.tobytes())
    assert not split or all(parameter.grad is None for parameter in model.parameters())  # I has touched no weight
    for work in postponed:
        work.run()
    return inputs + [parameter.grad.tobytes() for parameter in model.parameters()]


def test_a_backward_in_two_halves_leaves_the_bits_of_a_whole_one():
    bits = bits_of_two_microbatches(split=True)
    assert bits == bits_of_two_microbatches(split=False)
    assert all(np.frombuffer(each, np.float32).any() for each in bits)


def test_a_convolution_keeps_its_input_and_not_nine_times_as_much():
    x = Tensor(numbers(2, 3, 16, 16), requires_grad=True)
    weight, bias = Tensor(numbers(4, 3, 3, 3), requires_grad=True), Tensor(numbers(4), requires_grad=True)
    result = F.conv2d(x, weight, bias, padding=1)
    assert held_bytes([result.node], []) == x.data.nbytes + weight.data.nbytes
    assert held_bytes([result.node], [weight.data, x.data]) == 0


def test_of_a_convolution_without_gradient_of_its_weight_only_the_weight_is_kept():
    x, weight = Tensor(numbers(2, 3, 16, 16), requires_grad=True), Tensor(numbers(4, 3, 3, 3))
    assert held_bytes([F.conv2d(x, weight).node], []) == weight.data.nbytes


def test_max_pool2d_keeps_one_byte_for_each_result():
    x = Tensor(numbers(2, 3, 16, 16), requires_grad=True)
    result = F.max_pool2d(x, 2)
    assert held_bytes([result.node], []) == result.size


# -- layers --------------------------------------------------------------------------------------------------


def test_layers_say_what_they_are():
    assert repr(nn.Conv2d(1, 16, 3)) == "Conv2d(1, 16, 3)"
    assert repr(nn.Conv2d(1, 16, (3, 5), stride=2, padding=(1, 2), bias=False)) == (
        "Conv2d(1, 16, (3, 5), stride=2, padding=(1, 2), bias=False)"
    )
    assert repr(nn.Conv1d(4, 8, 3, stride=2, padding=1)) == "Conv1d(4, 8, 3, stride=2, padding=1)"
    assert repr(nn.MaxPool2d(2)) == "MaxPool2d(2)"
    assert repr(nn.MaxPool2d(3, stride=(2, 1))) == "MaxPool2d(3, stride=(2, 1))"


def test_parameters_of_convolutions_have_pytorchs_shapes_and_begin_he_uniform():
    layer = nn.Conv2d(32, 64, (3, 5))
    assert [(name, p.shape) for name, p in layer.named_parameters()] == [("weight", (64, 32, 3, 5)), ("bias", (64,))]
    layer.initialise(0)
    bound = np.sqrt(6 / (32 * 3 * 5))
    assert 0.99 * bound < abs(layer.weight.data).max() <= bound
    assert not layer.bias.data.any()
    plain = nn.Conv1d(2, 3, 4, bias=False, initialiser=nn.initialisers.constant(2.0), dtype=np.float64)
    assert [(name, p.shape) for name, p in plain.named_parameters()] == [("weight", (3, 2, 4))]
    assert plain(Tensor(np.ones((1, 2, 5)))).numpy().tolist() == [[[16.0, 16.0]] * 3]


def test_layers_pass_stride_padding_and_bias_on():
    x = Tensor(numbers(2, 3, 9, 8).astype(np.float32))
    image = nn.Conv2d(3, 4, (3, 2), stride=(2, 3), padding=(1, 0)).initialise(1)
    image.bias.data += 1
    expected = F.conv2d(x, image.weight, image.bias, (2, 3), (1, 0)).numpy()
    assert image(x).numpy().tobytes() == expected.tobytes()
    series, line = nn.Conv1d(3, 4, 3, stride=2, padding=1).initialise(1), x[:, :, 0]
    expected = F.conv1d(line, series.weight, series.bias, 2, 1).numpy()
    assert series(line).numpy().tobytes() == expected.tobytes()
    assert nn.MaxPool2d((2, 3), 1)(x).numpy().tobytes() == F.max_pool2d(x, (2, 3), 1).numpy().tobytes()


# -- what is refused -----------------------------------------------------------------------------------------

IMAGES, KERNELS = np.ones((2, 3, 5, 4)), np.ones((6, 3, 3, 2))
SERIES, FILTERS = np.ones((2, 3, 5)), np.ones((6, 3, 4))
REFUSED = {
    "conv2d, axes of the input": ("shape", r"conv2d: .*\(3, 5, 4\)", lambda: F.conv2d(IMAGES[0], KERNELS)),
    "conv2d, axes of the weight": ("shape", r"conv2d: .*\(3, 3, 2\)", lambda: F.conv2d(IMAGES, KERNELS[0])),
    "conv2d, channels": (
        "shape",
        r"conv2d: .*\(2, 3, 5, 4\) has 3 channels.*\(6, 2, 3, 2\) takes 2",
        lambda: F.conv2d(IMAGES, KERNELS[:, :2]),
    ),
    "conv2d, bias": (
        "shape",
        r"conv2d: the bias .*\(3,\); expected \(6,\)",
        lambda: F.conv2d(IMAGES, KERNELS, [1.0] * 3),
    ),
    "conv2d, height": ("shape", r"\(6, 2\) does not fit .*\(5, 4\)", lambda: F.conv2d(IMAGES, np.ones((1, 3, 6, 2)))),
    "conv2d, width": (
        "shape",
        r"\(2, 7\) does not fit .*\(7, 6\) long with padding",
        lambda: F.conv2d(IMAGES, np.ones((1, 3, 2, 7)), padding=1),
    ),
    "conv2d, empty kernel": ("shape", r"\(0, 2\) does not fit", lambda: F.conv2d(IMAGES, KERNELS[:, :, :0])),
    "conv2d, stride": ("range", "conv2d: stride is 0; .*at least 1", lambda: F.conv2d(IMAGES, KERNELS, stride=0)),
    "conv2d, strides": ("range", r"stride is \(1, 2, 3\)", lambda: F.conv2d(IMAGES, KERNELS, stride=(1, 2, 3))),
    "conv2d, padding": ("range", r"padding is \(0, -1\)", lambda: F.conv2d(IMAGES, KERNELS, padding=(0, -1))),
    "conv2d, no whole number": ("range", "padding is 0.5", lambda: F.conv2d(IMAGES, KERNELS, padding=0.5)),
    "conv2d, dtype": ("dtype", "float32", lambda: F.conv2d(Tensor(IMAGES), Tensor(np.float32(KERNELS)))),
    "conv2d, dtype of bias": (
        "dtype",
        "float32",
        lambda: F.conv2d(Tensor(IMAGES), Tensor(KERNELS), Tensor(np.ones(6, np.float32))),
    ),
    "conv1d, axes": ("shape", r"conv1d: .*\(2, 3, 5, 4\)", lambda: F.conv1d(IMAGES, FILTERS)),
    "conv1d, channels": ("shape", r"conv1d: .*\(6, 2, 4\) takes 2", lambda: F.conv1d(SERIES, FILTERS[:, :2])),
    "conv1d, kernel": ("shape", r"conv1d: .*\(4,\) .*\(2, 3, 3\)", lambda: F.conv1d(SERIES[:, :, :3], FILTERS)),
    "conv1d, bias": ("shape", "conv1d: the bias", lambda: F.conv1d(SERIES, FILTERS, np.ones((6, 1)))),
    "conv1d, stride": ("range", "conv1d: stride", lambda: F.conv1d(SERIES, FILTERS, stride=-1)),
    "conv1d, a pair": ("range", "conv1d: padding", lambda: F.conv1d(SERIES, FILTERS, padding=(1, 1))),
    "max_pool2d, axes": ("shape", r"max_pool2d: .*\(2, 3, 5\)", lambda: F.max_pool2d(SERIES, 2)),
    "max_pool2d, kernel": ("shape", r"max_pool2d: .*\(5, 5\) .*\(5, 4\)", lambda: F.max_pool2d(IMAGES, 5)),
    "max_pool2d, no kernel": ("range", "max_pool2d: kernel is 0", lambda: F.max_pool2d(IMAGES, 0)),
    "max_pool2d, stride": ("range", "max_pool2d: stride", lambda: F.max_pool2d(IMAGES, 2, (1, 0))),
    "Conv2d, channels": ("range", "Conv2d: in_channels is 1.5; expected a whole", lambda: nn.Conv2d(3 / 2, 4, 3)),
    "Conv2d, kernel": ("range", "Conv2d: kernel_size", lambda: nn.Conv2d(3, 4, (3, 3, 3))),
    "Conv1d, channels": ("range", "Conv1d: out_channels is 0", lambda: nn.Conv1d(3, 0, 3)),
    "Conv1d, padding": ("range", "Conv1d: padding", lambda: nn.Conv1d(3, 4, 3, padding=-1)),
    "MaxPool2d, kernel": ("range", "MaxPool2d: kernel_size", lambda: nn.MaxPool2d("2")),
    "MaxPool2d, stride": ("range", "MaxPool2d: stride", lambda: nn.MaxPool2d(2, stride=0)),
}


@pytest.mark.parametrize("code, message, call", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(code, message, call):
    with pytest.raises(TensorError, match=message) as caught:
        call()
    assert caught.value.code == code


def test_what_is_refused_is_so_for_the_reason_given():
    # Guards the list above: the same calls with arguments that fit are computed.
    assert F.conv2d(IMAGES, KERNELS, [1.0] * 6, stride=(1, 2), padding=(0, 1)).shape == (2, 6, 3, 3)
    assert F.conv1d(SERIES, FILTERS, np.ones(6), stride=(2,), padding=(1,)).shape == (2, 6, 2)
    assert F.max_pool2d(IMAGES, (5, 4), 1).shape == (2, 3, 1, 1)
