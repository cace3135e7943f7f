"""Tests of 07_recompute."""

import weakref

import numpy as np

from minipipe import Tensor, nn, random_key
from minipipe.coursework import expect_bits, expect_equal, expect_type


def layers(seed, width):
    """Return a part of a network and an input for it."""
    part = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)).initialise(seed)
    return part, np.random.default_rng(seed).standard_normal((3, width), dtype=np.float32)


def bits_of(compute, part, array, seed=0):
    """Return the result and the gradients of a loss of ``compute(x)``, by name; backward runs at another place."""
    x = Tensor(array, requires_grad=True)
    if part is not None:
        part.zero_grad()
    with random_key(seed, step=3):
        result = compute(x)
    expect_type(result, Tensor, "recompute(function, x)")
    with random_key(seed + 1, step=9):
        (result * result).sum().backward()
    named = [] if part is None else part.named_parameters()
    return {"result": result.numpy(), "x": x.grad, **{name: p.grad.copy() for name, p in named}}


def check_bits(task, function, array, part=None, what="recompute(function, x)"):
    expected = bits_of(function, part, array)
    found = bits_of(lambda x: task.recompute(function, x), part, array)
    for name, bits in expected.items():
        expect_bits(found[name], bits, f"{what}: {name if name == 'result' else f'gradient of {name}'}")


def test_result_and_gradients_have_the_same_bits(task):
    """The gradients of the input and of every parameter are the same as without recomputation."""
    part, array = layers(seed=0, width=4)
    check_bits(task, part, array, part)


def test_it_lets_go_of_what_is_in_between(task):
    """After the forward, the function's intermediate arrays have been freed.

    Hint: inside no_grad() no graph is recorded that could hold them.
    """
    kept = []

    def function(x):
        between = x * x
        kept.append(weakref.ref(between.data))
        return between.tanh()

    result = task.recompute(function, Tensor(np.ones(5), requires_grad=True))
    expect_type(result, Tensor, "recompute(function, x)")
    expect_equal([array() is None for array in kept], [True], "whether the array in between is gone after forward")


def test_it_computes_once_in_each_pass(task):
    """The function is called once in the forward pass and once more in the backward pass."""
    calls = []
    result = task.recompute(lambda x: calls.append(1) or (x * x).sum(), Tensor(np.ones(3), requires_grad=True))
    expect_equal(len(calls), 1, "calls after the forward pass")
    result.backward()
    expect_equal(len(calls), 2, "calls after the backward pass")


# HIDDEN
def test_dropout_draws_the_same_mask_again(task):
    """Random numbers are drawn at the same place in both passes.

    Hint: copy the place before the function draws, and compute again inside `with at(place.copy())`.
    """
    array = np.random.default_rng(2).standard_normal((4, 16), dtype=np.float32)
    check_bits(task, nn.Dropout(0.5), array, what="a dropout")
    part, array = layers(seed=3, width=8)
    check_bits(task, lambda x: nn.Dropout(0.5)(part(nn.Dropout(0.5)(x))), array, part, "two dropouts")


def test_two_parts_in_a_row(task):
    """Each part continues to draw where the one before it stopped, and gets its own gradients."""
    part, array = layers(seed=4, width=6)
    dropout = nn.Dropout(0.5)
    expected = bits_of(lambda x: dropout(part(dropout(part(x)))), part, array)
    # Only one part is recomputed: its draws must be neither lost nor repeated for the other part.
    second = bits_of(lambda x: task.recompute(lambda y: dropout(part(y)), dropout(part(x))), part, array)
    first = bits_of(lambda x: dropout(part(task.recompute(lambda y: dropout(part(y)), x))), part, array)
    for name, bits in expected.items():
        expect_bits(second[name], bits, f"a part, then one that is recomputed: {name}")
        expect_bits(first[name], bits, f"a part that is recomputed, then one that is not: {name}")


def test_another_shape(task):
    """Three axes work as well, and so does an input that is itself a result."""
    array = np.random.default_rng(5).standard_normal((2, 3, 4))
    check_bits(task, lambda x: (x * 2).tanh().sum(axis=1), array)
    x = Tensor(array, requires_grad=True)
    task.recompute(lambda y: y * y, x * 3.0).sum().backward()
    expect_bits(x.grad, 2 * (array * 3.0) * 3.0, "gradient of x by recompute(lambda y: y * y, x * 3)")


WRONG_ANSWERS = [
    (
        "the function itself: the right bits, and all of the memory",
        "    with no_grad():\n        result = function(x)\n",
        "    return function(x)\n    result = x\n",
    ),
    (
        "computed again at the place of the backward pass, with a different mask",
        "        with at(place.copy()):\n            function(again).backward(gradient)",
        "        function(again).backward(gradient)",
    ),
    (
        "the place is stored but not copied: by then every draw has advanced it",
        "place = current_place().copy()",
        "place = current_place()",
    ),
    (
        "the forward pass draws at a copy, too: the code after it draws the same numbers again",
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
        "    place = current_place().copy()\n    with no_grad():\n        result = function(x)\n",
        "    with no_grad():\n        result = function(x)\n    place = current_place().copy()\n",
    ),
]
