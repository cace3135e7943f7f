"""The gradient checker is itself checked: it must pass what is right, and catch every
way of being wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from minipipe import Tensor, functional
from minipipe.core.tensor import record
from minipipe.testing import check_gradients

X, Y = np.array([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]]), np.array([1.5, -0.5, 2.5])


def product(
    vjp_of_a: Callable, vjp_of_b: Callable
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a * b with gradients of one's own; the right ones are ``g * b`` and ``(g *
    a).sum(0)``.
    """
    return lambda a, b: record(
        a.data * b.data,
        (a, lambda g: vjp_of_a(g, a.data, b.data)),
        (b, lambda g: vjp_of_b(g, a.data, b.data)),
    )


def right_of_a(g, a, b):
    return g * b


def right_of_b(g, a, b):
    return (g * a).sum(0)


def wrong_in_one_place(g, a, b):
    gradient = (g * a).sum(0)
    gradient[1] += 1e-6
    return gradient


def not_a_number(g, a, b):
    gradient = g * b
    gradient[1, 2] = np.nan
    return gradient


MUTANTS = {
    "scaled": (product(lambda g, a, b: 2 * g * b, right_of_b), "input 0, element "),
    "of the other sign": (
        product(right_of_a, lambda g, a, b: -(g * a).sum(0)),
        "input 1, element ",
    ),
    "of the other operand": (
        product(lambda g, a, b: g * a, right_of_b),
        "input 0, element ",
    ),
    "off by a millionth in one element": (
        product(right_of_a, wrong_in_one_place),
        "input 1, element (1,): ",
    ),
    "not a number in one element": (
        product(not_a_number, right_of_b),
        "input 0, element (1, 2): the gradient is ",
    ),
    "missing": (lambda a, b: a * b.detach(), "input 1, element "),
}


@pytest.mark.parametrize("function, place", MUTANTS.values(), ids=MUTANTS)
def test_a_right_gradient_passes_and_a_wrong_one_fails_with_input_and_element(
    function, place
):
    check_gradients(product(right_of_a, right_of_b), X, Y)
    with pytest.raises(AssertionError, match=re.escape(place)):
        check_gradients(function, X, Y)


def test_the_message_gives_both_values():
    with pytest.raises(AssertionError) as caught:
        check_gradients(
            lambda a: record(3 * a.data, (a, lambda g: g * np.array([3.0, 4.0]))),
            np.array([1.0, 2.0]),
        )
    place, values = str(caught.value).split(": ", 1)
    assert place == "input 0, element (1,)"
    given, expected = (
        float(number) for number in re.findall(r"-?\d+\.\d+", values)[:2]
    )
    assert given / expected == pytest.approx(4 / 3)


def test_the_worst_of_several_wrong_elements_is_named():
    with pytest.raises(AssertionError, match=r"element \(2,\)"):
        check_gradients(
            lambda a: record(a.data, (a, lambda g: g * np.array([1.0, 1.1, 3.0]))),
            np.ones(3),
        )


def test_wrong_gradients_that_cancel_in_the_sum_are_caught():
    # Why the result is weighted at random: in the plain sum, a gradient of another row
    # looks right.
    def rows_mixed_up(a: Tensor) -> Tensor:
        return record(a.data * 2, (a, lambda g: 2 * g[::-1]))

    with pytest.raises(AssertionError, match="input 0"):
        check_gradients(rows_mixed_up, X)


def test_a_kink_is_not_hidden():
    with pytest.raises(AssertionError, match=r"element \(1,\)"):
        check_gradients(functional.relu, np.array([1.0, 0.0]))


def test_the_tolerance_is_relative_to_the_largest_gradient_or_to_one():
    def slightly_wrong(error: float, scale: float) -> Callable[[Tensor], Tensor]:
        return lambda a: record(
            scale * a.data, (a, lambda g: scale * g + np.array([error, 0.0]))
        )

    point = np.zeros(2)
    check_gradients(slightly_wrong(1e-6, 1e4), point, tolerance=1e-9)
    with pytest.raises(AssertionError):
        check_gradients(slightly_wrong(1e-6, 1.0), point, tolerance=1e-9)
    check_gradients(slightly_wrong(1e-6, 1.0), point, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_arrays_of_any_dtype_are_checked_in_float64_and_left_as_they_were(dtype):
    array = np.array([1, 2, 3], dtype)
    seen = set()

    def function(x: Tensor) -> Tensor:
        seen.add(x.dtype)
        return x * x

    check_gradients(function, array)
    assert seen == {np.dtype(np.float64)}
    assert array.dtype == dtype and array.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "shaped",
    [
        lambda x, y: y.sum(),
        lambda x, y: y.reshape(3, 2),
        lambda x, y: functional.concatenate([x, y]),
    ],
)
def test_results_of_any_shape_are_checked_beside_inputs_without_elements(shaped):
    nothing = np.zeros((0, 3))
    check_gradients(lambda x, y: shaped(x, y * y), nothing, X)
    with pytest.raises(AssertionError, match="input 1, element "):
        check_gradients(lambda x, y: shaped(x, y * y.detach()), nothing, X)
