"""Tests of 04_stage_gradient."""

from types import SimpleNamespace

import numpy as np

from minipipe import functional, nn
from minipipe.coursework import expect_bits, expect_close, remote

LOSSES = {
    "mean squared error": functional.mean_squared_error,
    "a hundredth of it": lambda outputs, targets: (
        functional.mean_squared_error(outputs, targets) * 0.01
    ),
    "sum of products": lambda outputs, targets: (outputs * targets).sum(),
}


def uncut(stages, batch, targets, loss):
    """Train the model in one piece."""
    result = loss(nn.Sequential(*stages)(batch), targets)
    result.backward()
    return result.item()


UNCUT = SimpleNamespace(train_step=uncut)


@remote
def trained(task, widths, seed, loss, num_steps):
    """Return the loss of the last step, and the gradients of all parameters with their
    names.

    Each stage is a linear layer and a tanh.
    """
    stages = [
        nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(widths, widths[1:])
    ]
    for number, stage in enumerate(stages):
        stage.initialise(seed + number)
    generator = np.random.default_rng(seed)
    batch, targets = (
        generator.standard_normal((6, width), dtype=np.float32)
        for width in (widths[0], widths[-1])
    )
    named = [
        (f"stage {s}, {name}", p)
        for s, stage in enumerate(stages)
        for name, p in stage.named_parameters()
    ]
    for step in range(num_steps):
        for _, parameter in named if step else ():
            parameter.data = parameter.data - 0.3 * parameter.grad
            parameter.zero_grad()
        result = task.train_step(stages, batch, targets, LOSSES[loss])
    return result, [(name, parameter.grad) for name, parameter in named]


def check(task, widths, seed, loss="mean squared error"):
    """Compare all gradients, starting with the first stage, with the model in one
    piece, bit for bit.
    """
    found, expected = (trained(each, widths, seed, loss, 1) for each in (task, UNCUT))
    for (name, gradient), (_, wanted) in zip(found[1], expected[1], strict=True):
        expect_bits(gradient, wanted, f"{len(widths) - 1} stages: gradient of {name}")
    expect_close(found[0], expected[0], f"{len(widths) - 1} stages: the loss")


def test_two_stages(task):
    """The first of two stages learns from the gradient that the second one provides.

    Hint: call backward on the outputs of the first stage with the gradient of the
    second stage's inputs.
    """
    check(task, [3, 4, 2], seed=0)


def test_three_stages(task):
    """A gradient crosses every stage boundary, starting with the last.

    Hint: iterate over the stages in reverse order.
    """
    check(task, [3, 5, 4, 2], seed=10)


def test_a_loss_that_is_small_gives_small_gradients(task):
    """A loss a hundred times smaller gives gradients a hundred times smaller: they all
    come from the loss.
    """
    check(task, [3, 4, 2], 20, "a hundredth of it")


# HIDDEN
def test_four_stages_of_one_width(task):
    """If all widths are equal, a gradient for the wrong stage still has the right
    shape.
    """
    check(task, [4, 4, 4, 4, 4], seed=30)


def test_another_loss(task):
    """Nothing depends on the choice of the loss."""
    check(task, [3, 4, 2], 40, "sum of products")


def test_a_hundred_steps_learn_as_the_uncut_model_does(task):
    """With the right gradients the loss falls exactly as in the model in one piece."""
    losses = [
        trained(each, [3, 8, 2], 50, "mean squared error", 100)[0]
        for each in (task, UNCUT)
    ]
    expect_close(losses[0], losses[1], "the loss after 100 steps")


WRONG_ANSWERS = [
    (
        "the stages are visited in forward order: the shapes may even fit",
        "in reversed(passed):",
        "in passed:",
    ),
    (
        "ones instead of the gradient from the next stage: right for a sum",
        "outputs.backward(gradient)",
        "outputs.backward(np.ones_like(outputs.numpy()))",
    ),
    (
        (
            "every stage gets the gradient with respect to the last output: the "
            "widths may be equal"
        ),
        "        gradient = inputs.grad\n",
        "",
    ),
    (
        "the input of the next stage is sent back instead of its gradient",
        "gradient = inputs.grad",
        "gradient = inputs.numpy()",
    ),
    (
        "the sum of the loss over all samples is confused with the mean",
        "gradient = received.grad",
        "gradient = received.grad * len(batch)",
    ),
]
