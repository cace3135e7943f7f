"""Tests of 07_recompute."""

import weakref
from types import SimpleNamespace

import numpy as np

from minipipe import Tensor, nn, random_key
from minipipe.coursework import expect_bits, expect_equal, expect_type, remote

DIRECTLY = SimpleNamespace(recompute=lambda function, x: function(x))


def layers(seed, width):
    """Return a part of a network."""
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
    ).initialise(seed)


# What is computed, with a function that recomputes, or not.
MODELS = {
    "a part": lambda part, dropout, recompute: lambda x: recompute(part, x),
    "a dropout": lambda part, dropout, recompute: lambda x: recompute(dropout, x),
    "two dropouts": lambda part, dropout, recompute: (
        lambda x: recompute(lambda y: dropout(part(dropout(y))), x)
    ),
    "a part, then one that is recomputed": lambda part, dropout, recompute: (
        lambda x: recompute(lambda y: dropout(part(y)), dropout(part(x)))
    ),
    "a part that is recomputed, then one that is not": lambda part, dropout, recompute: (
        lambda x: dropout(part(recompute(lambda y: dropout(part(y)), x)))
    ),
    "tanh and sum": lambda part, dropout, recompute: (
        lambda x: recompute(lambda y: (y * 2).tanh().sum(axis=1), x)
    ),
    "a square of three times x": lambda part, dropout, recompute: (
        lambda x: recompute(lambda y: y * y, x * 3.0)
    ),
}


@remote
def bits_of(task, model, seed, array):
    """Return the result and the gradients of a loss of a model, with names; backward
    runs at another place.
    """
    x, part = Tensor(array, requires_grad=True), layers(seed, array.shape[-1])
    with random_key(seed, step=3):
        result = MODELS[model](part, nn.Dropout(0.5), task.recompute)(x)
    expect_type(result, Tensor, "recompute(function, x)")
    with random_key(seed + 1, step=9):
        (result * result).sum().backward()
    gradients = [(f"gradient of {name}", p.grad) for name, p in part.named_parameters()]
    return [("result", result.numpy()), ("gradient of x", x.grad), *gradients]


@remote
def are_freed(task):
    """Return whether the array between two operations is gone after the forward
    pass.
    """
    kept = []

    def function(x):
        between = x * x
        kept.append(weakref.ref(between.data))
        return between.tanh()

    result = task.recompute(function, Tensor(np.ones(5), requires_grad=True))
    expect_type(result, Tensor, "recompute(function, x)")
    return [array() is None for array in kept]


@remote
def numbers_of_calls(task):
    """Return how often the function has been called after the forward pass, and after
    the backward pass.
    """
    calls = []
    result = task.recompute(
        lambda x: calls.append(1) or (x * x).sum(),
        Tensor(np.ones(3), requires_grad=True),
    )
    forward = len(calls)
    result.backward()
    return forward, len(calls)


def check_bits(task, model, seed, array):
    found, expected = (bits_of(each, model, seed, array) for each in (task, DIRECTLY))
    for (name, bits), (_, wanted) in zip(found, expected, strict=True):
        if wanted is None:
            expect_equal(bits, None, f"{model}: {name}")
        else:
            expect_bits(bits, wanted, f"{model}: {name}")


def single(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_result_and_gradients_have_the_same_bits(task):
    """The gradients of the input and of every parameter are the same as without
    recomputation.
    """
    check_bits(task, "a part", 0, single(0, (3, 4)))


def test_it_lets_go_of_what_is_in_between(task):
    """After the forward, the function's intermediate arrays have been freed.

    Hint: inside no_grad() no graph is recorded that could hold them.
    """
    expect_equal(
        are_freed(task), [True], "whether the array in between is gone after forward"
    )


def test_it_computes_once_in_each_pass(task):
    """The function is called once in the forward pass and once more in the backward
    pass.
    """
    forward, both = numbers_of_calls(task)
    expect_equal(forward, 1, "calls after the forward pass")
    expect_equal(both, 2, "calls after the backward pass")


# HIDDEN
def test_dropout_draws_the_same_mask_again(task):
    """Random numbers are drawn at the same place in both passes.

    Hint: copy the place before the function draws, and compute again inside `with
    at(place.copy())`.
    """
    check_bits(task, "a dropout", 2, single(2, (4, 16)))
    check_bits(task, "two dropouts", 3, single(3, (3, 8)))


def test_two_parts_in_a_row(task):
    """Each part continues the draws of the part before it, and gets its own
    gradients.
    """
    # Only one part is recomputed: its draws must be neither lost nor repeated for the
    # other part.
    for model in (
        "a part, then one that is recomputed",
        "a part that is recomputed, then one that is not",
    ):
        check_bits(task, model, 4, single(4, (3, 6)))


def test_another_shape(task):
    """Three axes work as well, and so does an input that is itself a result."""
    for model in ("tanh and sum", "a square of three times x"):
        check_bits(task, model, 5, np.random.default_rng(5).standard_normal((2, 3, 4)))


WRONG_ANSWERS = [
    (
        "the function itself: the right bits, and all of the memory",
        "    with no_grad():\n        result = function(x)\n",
        "    return function(x)\n    result = x\n",
    ),
    (
        "computed again at the place of the backward pass, with a different mask",
        (
            "        with at(place.copy()):\n            "
            "function(again).backward(gradient)"
        ),
        "        function(again).backward(gradient)",
    ),
    (
        "the place is stored but not copied: by then every draw has advanced it",
        "place = current_place().copy()",
        "place = current_place()",
    ),
    (
        (
            "the forward pass draws at a copy, too: the code after it draws the same "
            "numbers again"
        ),
        "    with no_grad():\n",
        "    with no_grad(), at(place.copy()):\n",
    ),
    (
        "the gradient is passed through unchanged, as for a copy",
        "return again.grad",
        "return gradient",
    ),
    (
        "the place is copied after the function has drawn",
        (
            "    place = current_place().copy()\n    with no_grad():\n        result "
            "= function(x)\n"
        ),
        (
            "    with no_grad():\n        result = function(x)\n    place = "
            "current_place().copy()\n"
        ),
    ),
]
