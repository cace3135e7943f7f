"""Tests of 01_multiply."""

import numpy as np

from minipipe import Tensor
from minipipe.coursework import expect_close, expect_type
from minipipe.testing import check_gradients


def check(task, seed, shape, other):
    """Compare values with NumPy and gradients with finite differences."""
    generator = np.random.default_rng(seed)
    a, b = generator.standard_normal(shape), generator.standard_normal(other)
    result = task.multiply(Tensor(a), Tensor(b))
    expect_type(result, Tensor, f"multiply of shapes {shape} and {other}")
    expect_close(result.numpy(), a * b, f"multiply of shapes {shape} and {other}")
    check_gradients(task.multiply, a, b)


def test_two_factors_of_one_shape(task):
    """The gradient of each factor is the gradient of the result times the other factor.

    Hint: the derivative of a b with respect to a is b.
    """
    check(task, 0, (2, 3), (2, 3))


def test_a_row_times_a_matrix(task):
    """A row that is broadcast over the rows of a matrix gets the sum of their gradients.

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
    x = Tensor(np.array([3.0, -2.0]), requires_grad=True)
    task.multiply(x, x).sum().backward()
    expect_close(x.grad, np.array([6.0, -4.0]), "gradient of multiply(x, x) at [3, -2]")


# HIDDEN
def test_both_factors_are_broadcast(task):
    """A column times a row is a matrix; each of them gets the sum over the other's axis."""
    check(task, 3, (4, 1), (1, 5))
    check(task, 4, (2, 1, 3), (4, 1))


def test_a_tensor_without_axes(task):
    """The gradient of a scalar factor is a sum over the whole array."""
    check(task, 5, (), (2, 2))
    check(task, 6, (3, 1, 2), ())


def test_a_gradient_that_somebody_else_needs_stays_as_it_is(task):
    """A vjp returns a new array and does not modify its argument.

    Hint: `gradient *= …` modifies the caller's array. A sum passes the same gradient array to both of its inputs.
    """
    generator = np.random.default_rng(7)
    x, y = (Tensor(generator.standard_normal((2, 2)), requires_grad=True) for _ in range(2))
    (task.multiply(x, y) + task.multiply(x, x)).sum().backward()
    expect_close(x.grad, y.numpy() + 2 * x.numpy(), "gradient of x by x y + x x")
    expect_close(y.grad, x.numpy(), "gradient of y by x y + x x")


WRONG_ANSWERS = [
    (
        "each factor gets the gradient times itself: an easy mix-up, unnoticed if both are the same tensor",
        "(a, lambda gradient: summed_to(a.shape, gradient * b.data)),\n"
        "        (b, lambda gradient: summed_to(b.shape, gradient * a.data)),",
        "(a, lambda gradient: summed_to(a.shape, gradient * a.data)),\n"
        "        (b, lambda gradient: summed_to(b.shape, gradient * b.data)),",
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
        "def summed_to(shape, gradient):",
        "def multiply(a, b):\n"
        "    def vjp(gradient):\n"
        "        gradient *= b.data if a.shape == b.shape else 1\n"
        "        return gradient\n"
        "    return record(a.data * b.data, (a, vjp), (b, lambda gradient: summed_to(b.shape, gradient * a.data)))\n"
        "\n\n"
        "def summed_to(shape, gradient):",
    ),
]
