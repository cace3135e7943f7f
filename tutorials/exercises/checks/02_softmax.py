"""Tests of 02_softmax."""

import numpy as np

from minipipe import Tensor
from minipipe.coursework import expect_close, expect_equal, expect_type, remote


@remote
def softened(task, scores, gradient):
    """Return the probabilities, and the gradient of the scores."""
    x = Tensor(scores, requires_grad=True)
    result = task.softmax(x)
    expect_type(result, Tensor, f"softmax of an array of shape {scores.shape}")
    result.backward(gradient)
    return result.numpy(), x.grad


@remote
def beside_others(task, scores, weights):
    """Return the scores afterwards, and the gradient of y by 2 y + softmax(x) + 3 y."""
    x, y = (Tensor(scores.copy(), requires_grad=True) for _ in range(2))
    (y * 2.0 + task.softmax(x) + y * 3.0).backward(weights)
    return x.numpy(), y.grad


def probabilities(task, scores):
    return softened(task, scores, np.zeros_like(scores))[0]


def expected_of(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def check_gradient(task, scores):
    """Compare the gradient with central differences."""
    weights = np.random.default_rng(0).standard_normal(scores.shape)
    slope, epsilon = np.zeros_like(scores), 1e-5
    for place in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[place] = epsilon
        difference = expected_of(scores + step) - expected_of(scores - step)
        slope[place] = (weights * difference).sum() / (2 * epsilon)
    _, found = softened(task, scores, weights)
    expect_close(
        found,
        slope,
        f"gradient of softmax of an array of shape {scores.shape}",
        tolerance=1e-8,
    )


def test_a_quarter_and_three_quarters(task):
    """Softmax of [0, ln 3] is [1/4, 3/4]."""
    expect_close(
        probabilities(task, np.array([0.0, np.log(3)])),
        np.array([0.25, 0.75]),
        "softmax([0, ln 3])",
    )


def test_each_row_adds_up_to_one(task):
    """The sum runs along the last axis, row by row."""
    scores = np.random.default_rng(0).standard_normal((4, 5))
    expect_close(
        probabilities(task, scores).sum(axis=-1),
        np.ones(4),
        "sums of the rows of softmax",
    )


def test_large_scores_do_not_overflow(task):
    """Scores of 1000 work as well as scores of 0.

    Hint: subtract the largest score of a row before np.exp.
    """
    with np.errstate(all="ignore"):
        expect_close(
            probabilities(task, np.array([1000.0, 1000.0])),
            np.array([0.5, 0.5]),
            "softmax([1000, 1000])",
        )


def test_the_gradient_of_a_matrix(task):
    """Gradients agree with finite differences: each score affects every probability in
    its row.

    Hint: s (1 - s) is only the derivative of a probability with respect to its own
    score. What about the others?
    """
    check_gradient(task, np.random.default_rng(1).standard_normal((3, 4)))


# HIDDEN
def test_rows_that_differ_much(task):
    """Each row subtracts its own largest score: the largest of another row may be
    thousands away.
    """
    scores = np.array([[0.0], [2000.0], [-2000.0]]) + np.array([0.0, np.log(3)])
    with np.errstate(all="ignore"):
        found = probabilities(task, scores)
        expect_close(
            found, np.full((3, 2), 1) * [0.25, 0.75], "softmax of rows thousands apart"
        )


def test_three_axes(task):
    """Any number of axes works; the last one is the axis of the scores."""
    scores = np.random.default_rng(2).standard_normal((2, 3, 4))
    expect_close(
        probabilities(task, scores),
        expected_of(scores),
        "softmax of an array of shape (2, 3, 4)",
    )
    check_gradient(task, scores)


def test_float32_stays_float32(task):
    """The result has the dtype of the scores."""
    given = probabilities(task, np.ones((2, 2), dtype=np.float32))
    expect_equal(str(given.dtype), "float32", "dtype of softmax of float32")
    check_gradient(task, np.random.default_rng(3).standard_normal(6))


def test_what_is_given_stays_as_it_was(task):
    """Neither the scores nor the incoming gradient are modified: another consumer may
    still need them.

    Hint: `scores -= …` and `gradient -= …` modify the caller's array.
    """
    scores = np.array([[0.0, 1.0], [3.0, -2.0]])
    weights = np.array([[1.0, 2.0], [3.0, 5.0]])
    scores_after, gradient = beside_others(task, scores, weights)
    expect_close(scores_after, scores, "the scores, after softmax")
    expect_close(gradient, 5 * weights, "gradient of y by 2 y + softmax(x) + 3 y")


WRONG_ANSWERS = [
    (
        (
            "scores are clipped where np.exp overflows: no more nan, but all large "
            "scores look alike"
        ),
        "x - x.max(axis=-1, keepdims=True)",
        "np.clip(x, -700, 700)",
    ),
    (
        "the gradient is modified in place, to save an array",
        "    return result * (g - (g * result).sum(axis=-1, keepdims=True))",
        "    g -= (g * result).sum(axis=-1, keepdims=True)\n    return result * g",
    ),
    ("the textbook formula, which overflows", "x - x.max(axis=-1, keepdims=True)", "x"),
    (
        "one maximum for the whole array: fine until the rows differ a lot",
        "x.max(axis=-1, keepdims=True)",
        "x.max()",
    ),
    (
        (
            "the derivative s (1 - s), right for a sigmoid: but the probabilities in "
            "a row depend on each other"
        ),
        "result * (g - (g * result).sum(axis=-1, keepdims=True))",
        "g * result * (1 - result)",
    ),
    (
        "the sum over the whole array: right for a single row",
        "(g * result).sum(axis=-1, keepdims=True)",
        "(g * result).sum()",
    ),
    (
        "the first axis instead of the last: many textbooks put the classes in columns",
        "powers.sum(axis=-1, keepdims=True)",
        "powers.sum(axis=0, keepdims=True)",
    ),
]
