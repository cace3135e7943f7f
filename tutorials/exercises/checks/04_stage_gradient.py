"""Tests of 04_stage_gradient."""

import numpy as np

from minipipe import functional, nn
from minipipe.coursework import expect_bits, expect_close


def made(widths, seed):
    """Return stages, each a linear layer and a tanh, with a matching batch and targets."""
    stages = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(widths, widths[1:])]
    for number, stage in enumerate(stages):
        stage.initialise(seed + number)
    generator = np.random.default_rng(seed)
    batch = generator.standard_normal((6, widths[0]), dtype=np.float32)
    return stages, batch, generator.standard_normal((6, widths[-1]), dtype=np.float32)


def gradients_of(stages):
    return [(f"stage {s}, {name}", p.grad) for s, stage in enumerate(stages) for name, p in stage.named_parameters()]


def uncut(stages, batch, targets, loss):
    """Return the loss and all gradients of the model in one piece."""
    result = loss(nn.Sequential(*stages)(batch), targets)
    result.backward()
    found = [(name, gradient.copy()) for name, gradient in gradients_of(stages)]
    for stage in stages:
        stage.zero_grad()
    return result.item(), found


def check(task, widths, seed, loss=functional.mean_squared_error):
    """Compare all gradients, starting with the first stage, with those of the uncut model, bit for bit."""
    stages, batch, targets = made(widths, seed)
    expected_loss, expected = uncut(stages, batch, targets, loss)
    found_loss = task.train_step(stages, batch, targets, loss)
    for (name, gradient), (_, wanted) in zip(gradients_of(stages), expected):
        expect_bits(gradient, wanted, f"{len(stages)} stages: gradient of {name}")
    expect_close(found_loss, expected_loss, f"{len(stages)} stages: the loss")


def test_two_stages(task):
    """The first of two stages learns from the gradient that the second one provides.

    Hint: call backward on the outputs of the first stage with the gradient of the second stage's inputs.
    """
    check(task, [3, 4, 2], seed=0)


def test_three_stages(task):
    """A gradient crosses every cut, starting with the last.

    Hint: iterate over the stages in reverse order.
    """
    check(task, [3, 5, 4, 2], seed=10)


def test_a_loss_that_is_small_gives_small_gradients(task):
    """A loss a hundred times smaller gives gradients a hundred times smaller: they all come from the loss."""
    check(task, [3, 4, 2], 20, lambda outputs, targets: functional.mean_squared_error(outputs, targets) * 0.01)


# HIDDEN
def test_four_stages_of_one_width(task):
    """If all widths are equal, a gradient for the wrong stage still has the right shape."""
    check(task, [4, 4, 4, 4, 4], seed=30)


def test_another_loss(task):
    """Nothing depends on the choice of the loss."""
    check(task, [3, 4, 2], 40, lambda outputs, targets: (outputs * targets).sum())


def test_a_hundred_steps_learn_as_the_uncut_model_does(task):
    """With the right gradients the loss falls exactly as in the uncut model."""
    losses = []
    for step in (task.train_step, lambda *given: _uncut_step(*given)):
        stages, batch, targets = made([3, 8, 2], seed=50)
        for _ in range(100):
            for stage in stages:
                stage.zero_grad()
            last = step(stages, batch, targets, functional.mean_squared_error)
            for stage in stages:
                for parameter in stage.parameters():
                    parameter.data = parameter.data - 0.3 * parameter.grad
        losses.append(last)
    expect_close(losses[0], losses[1], "the loss after 100 steps")


def _uncut_step(stages, batch, targets, loss):
    result = loss(nn.Sequential(*stages)(batch), targets)
    result.backward()
    return result.item()


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
        "every stage gets the gradient with respect to the last output: the widths may be equal",
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
