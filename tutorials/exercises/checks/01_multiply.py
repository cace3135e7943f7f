"""Tests of 01_multiply."""

from types import SimpleNamespace

import numpy as np

from minipipe import Tensor, functional
from minipipe.coursework import expect_close, expect_type, remote

LIBRARY = SimpleNamespace(multiply=functional.multiply)


class Factor(Tensor):
    """A tensor without ``*``, which is what this task is about."""

    def __mul__(self, other):
        raise TypeError(
            "the * of tensors is not available in this task; multiply arrays, in "
            "a function with @op()"
        )

    __rmul__ = __mul__


@remote
def multiplied(task, a, b, gradient):
    """Return the value of multiply, and the gradients of both factors."""
    x, y = Factor(a, requires_grad=True), Factor(b, requires_grad=True)
    result = task.multiply(x, y)
    expect_type(result, Tensor, f"multiply of shapes {a.shape} and {b.shape}")
    result.backward(gradient)
    return result.numpy(), x.grad, y.grad


@remote
def twice_multiplied(task, a, b):
    """Return the gradients of x and y by the sum of x y + x x."""
    x, y = Factor(a, requires_grad=True), Factor(b, requires_grad=True)
    (task.multiply(x, y) + task.multiply(x, x)).sum().backward()
    return x.grad, y.grad


def check(task, seed, shape, other):
    """Compare the value and both gradients with the library's results."""
    generator = np.random.default_rng(seed)
    a, b = generator.standard_normal(shape), generator.standard_normal(other)
    gradient = generator.standard_normal(np.broadcast_shapes(shape, other))
    found, expected = (multiplied(each, a, b, gradient) for each in (task, LIBRARY))
    whats = (
        "multiply",
        "gradient of the first factor by multiply",
        "gradient of the second factor by multiply",
    )
    for what, value, wanted in zip(whats, found, expected, strict=True):
        expect_close(value, np.asarray(wanted), f"{what} of shapes {shape} and {other}")


def test_two_factors_of_one_shape(task):
    """The gradient of each factor is the gradient of the result times the other factor.

    Hint: the derivative of a b with respect to a is b.
    """
    check(task, 0, (2, 3), (2, 3))


def test_a_row_times_a_matrix(task):
    """A row that is broadcast over the rows of a matrix gets the sum of their
    gradients.

    Hint: NumPy adds missing axes at the front. Sum over those.
    """
    check(task, 1, (3,), (2, 3))


def test_a_column_times_a_matrix(task):
    """An axis of length 1 that was repeated is summed, and keeps length 1.

    Hint: sum(axis=…, keepdims=True).
    """
    check(task, 2, (2, 3), (2, 1))


def test_a_number_times_itself(task):
    """The derivative of x x is 2 x: the tape adds the gradients from both sides."""
    gradient, _ = twice_multiplied(task, np.array([3.0, -2.0]), np.zeros(2))
    expect_close(
        gradient, np.array([6.0, -4.0]), "gradient of multiply(x, x) at [3, -2]"
    )


# HIDDEN
def test_both_factors_are_broadcast(task):
    """A column times a row is a matrix; each of them gets the sum over the other's
    axis.
    """
    check(task, 3, (4, 1), (1, 5))
    check(task, 4, (2, 1, 3), (4, 1))


def test_a_tensor_without_axes(task):
    """The gradient of a scalar factor is a sum over the whole array."""
    check(task, 5, (), (2, 2))
    check(task, 6, (3, 1, 2), ())


def test_a_gradient_that_somebody_else_needs_stays_as_it_is(task):
    """A vjp returns a new array and does not modify its argument.

    Hint: `gradient *= …` modifies the caller's array. A sum passes the same gradient
    array to both of its inputs.
    """
    x, y = np.random.default_rng(7).standard_normal((2, 2, 2))
    of_x, of_y = twice_multiplied(task, x, y)
    expect_close(of_x, y + 2 * x, "gradient of x by x y + x x")
    expect_close(of_y, x, "gradient of y by x y + x x")


WRONG_ANSWERS = [
    (
        (
            "each factor gets the gradient times itself: an easy mix-up, unnoticed "
            "if both are the same tensor"
        ),
        (
            "a=lambda g, b, shape: summed_to(shape, g * b),\n    b=lambda g, a, "
            "shape: summed_to(shape, g * a),"
        ),
        (
            "a=lambda g, a, shape: summed_to(shape, g * a),\n    b=lambda g, b, "
            "shape: summed_to(shape, g * b),"
        ),
    ),
    (
        "only missing axes are summed: enough for the bias of a linear layer",
        "return gradient.sum(axis=repeated, keepdims=True)",
        "return gradient",
    ),
    (
        "the mean instead of the sum: gradients of large batches look too large",
        "gradient = gradient.sum(axis=tuple(range(new_axes)))",
        "gradient = gradient.mean(axis=tuple(range(new_axes)))",
    ),
    (
        "the gradient is overwritten with the product, to save an array",
        "    a=lambda g, b, shape: summed_to(shape, g * b),\n",
        (
            "    a=lambda g, b, shape: g.__imul__(b) if g.shape == shape else "
            "summed_to(shape, g * b),\n"
        ),
    ),
]
