"""Numbers that are converted once give the bits of Python's numbers, and so do the
operations that use them.
"""

import math

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minipipe import Tensor
from minipipe import functional as F
from minipipe.core.autograd import backend
from tests.strategies import examples

# Not -0.0, which Python takes for 0.0.
NUMBERS = st.one_of(
    st.integers(-(2**60), 2**60),
    st.floats(width=64).filter(lambda x: x or math.copysign(1, x) > 0),
)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def values_of(dtype):
    return arrays(dtype, (3,), elements=st.floats(width=32))


@DTYPES
@given(data=st.data(), number=NUMBERS)
@examples(60)
def test_a_converted_number_gives_the_bits_of_the_number(dtype, data, number):
    x = data.draw(values_of(dtype))
    (converted,) = backend.scalars(x, number)
    with np.errstate(all="ignore"):
        for one, other in (
            (x * converted, x * number),
            (converted - x, number - x),
            (x / converted, x / number),
        ):
            assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


def test_numbers_of_numpy_and_for_other_modules_stay_as_they_are():
    x, wide = np.ones(2, np.float32), np.float64(0.1)
    plain, converted, number = *backend.scalars(x, 0.1), *backend.scalars(x, wide, 3)
    assert plain.dtype == np.float32
    assert converted is wide
    assert number.dtype == np.float32
    assert backend.scalars(array_api_strict.asarray([1.0]), 0.1, 3) == (0.1, 3)


def gelu_with_numbers(x):
    """Return GELU with tanh and its slope, in the order of operations of its formula,
    with Python's numbers.
    """
    scale = math.sqrt(2 / math.pi)
    square = x * x
    probability = (np.tanh((square * (0.044715 * scale) + scale) * x) + 1) * 0.5
    slope = (square * (3 * 0.044715 * scale) + scale) * x * (2 * (1 - probability))
    return x * probability, (slope + 1) * probability


@DTYPES
@given(data=st.data())
@examples(60)
def test_gelu_has_the_bits_of_its_formula(dtype, data):
    x = data.draw(values_of(dtype))
    leaf = Tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        expected = gelu_with_numbers(x)
        result = F.gelu(leaf, approximate=True)
        result.backward(np.ones_like(x))
    assert [result.data.tobytes(), leaf.grad.tobytes()] == [
        each.tobytes() for each in expected
    ]
