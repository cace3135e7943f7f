"""Tests of 16_token_mean."""

import numpy as np

from minipipe import functional, nn
from minipipe.coursework import expect_close, expect_equal, expect_sequence, remote

CLASSES = 5


def cut_batch(lengths, ignored, seed):
    """Return the inputs and labels of microbatches: a text for each of their lengths,
    padded within the microbatch.
    """
    generator = np.random.default_rng(seed)
    labels = [np.full((len(texts), max(texts)), ignored) for texts in lengths]
    inputs = [generator.standard_normal((*own.shape, 3)) for own in labels]
    tokens = [token for token in range(CLASSES) if token != ignored]
    for own, texts in zip(labels, lengths):
        for row, length in zip(own, texts):
            row[:length] = generator.choice(tokens, length)
    return inputs, labels


def check_shares(task, lengths, ignored=-100, seed=0):
    """Expect the tokens of each microbatch, divided by the tokens of all."""
    _, labels = cut_batch(lengths, ignored, seed)
    counts = [sum(texts) for texts in lengths]
    call = f"shares of microbatches with {counts} tokens, padding marked by {ignored}"
    found = expect_sequence(task.shares(labels, ignored), call)
    expect_equal(len(found), len(counts), f"number of {call}")
    for k, (share, count) in enumerate(zip(found, counts)):
        expect_close(share, count / sum(counts), f"{call}: microbatch {k}")


def network(seed):
    first, last = (
        nn.Linear(3, 4, dtype=np.float64),
        nn.Linear(4, CLASSES, dtype=np.float64),
    )
    return nn.Sequential(first, nn.Tanh(), last).initialise(seed)


@remote
def stepped(task, inputs, labels, ignored, seed, num_steps):
    """Return the loss of the last step, and the gradients of all parameters with their
    names.
    """
    model = network(seed)
    for _ in range(num_steps):
        loss = task.train_step(model, inputs, labels, ignored)
    return loss, [
        (name, parameter.grad) for name, parameter in model.named_parameters()
    ]


def check_step(task, lengths, ignored=-100, seed=0, num_steps=1):
    """Expect the loss and the gradients of all tokens in one piece, after the last
    step.
    """
    inputs, labels = cut_batch(lengths, ignored, seed)
    counts = [sum(texts) for texts in lengths]
    call = (
        f"train_step of microbatches with {counts} tokens, padding marked by {ignored}"
    )
    check_losses(task, inputs, labels, ignored, call, seed, num_steps)


def check_losses(task, inputs, labels, ignored, call, seed, num_steps=1):
    is_token = [own != ignored for own in labels]
    x = np.concatenate([own[where] for own, where in zip(inputs, is_token)])
    y = np.concatenate([own[where] for own, where in zip(labels, is_token)])
    model = network(seed)
    whole = functional.cross_entropy(model(x), y)
    whole.backward()
    found, gradients = stepped(task, inputs, labels, ignored, seed, num_steps)
    for (name, gradient), parameter in zip(gradients, model.parameters(), strict=True):
        expect_close(gradient, parameter.grad, f"{call}: gradient of {name}")
    expect_close(found, whole.item(), f"{call}: the loss")


def test_the_example(task):
    """Three tokens and one have the shares 3/4 and 1/4.

    Hint: a token is a label that differs from the ignored one.
    """
    check_shares(task, [[3], [1]])


def test_microbatches_of_several_texts(task):
    """Tokens count, not texts, and not places: 25, 5, 5 and 5 tokens in two texts each,
    as in the lesson.
    """
    check_shares(task, [[13, 12], [3, 2], [2, 3], [3, 2]])


def test_the_loss_and_the_gradients_are_those_of_the_whole_batch(task):
    """Both have the mean over all tokens.

    Hint: the backward of a microbatch starts from its share.
    """
    check_step(task, [[13, 12], [3, 2], [2, 3], [3, 2]])


def test_two_steps_in_a_row(task):
    """The gradients come from the last step alone.

    Hint: the first line of train_step in the file clears the gradients. From there on
    backward adds to them, so clear nothing between microbatches.
    """
    check_step(task, [[4, 1], [2, 2]], seed=1, num_steps=2)


# HIDDEN
def test_any_number_can_mark_padding(task):
    """Padding may be marked by 0 or by another number that could be a token."""
    for ignored in (0, 3, -1):
        check_shares(task, [[4, 2], [1, 1]], ignored)
        check_step(task, [[4, 2], [1, 1]], ignored, seed=3)


def test_microbatches_of_unequal_shapes(task):
    """Microbatches may have different numbers of texts and of places, and none has to
    have padding.
    """
    check_shares(task, [[2, 2, 2], [7], [5, 5]])
    check_step(task, [[2, 2, 2], [7], [5, 5]], seed=4)


def test_a_microbatch_of_padding_alone(task):
    """It has the share 0, and adds nothing.

    Hint: divide by the tokens of the whole batch alone. For a microbatch without tokens
    cross_entropy returns 0.
    """
    inputs, labels = cut_batch([[3, 2], [1, 1]], -100, seed=5)
    empty = np.full((2, 3), -100)
    found = expect_sequence(
        task.shares([labels[0], empty, labels[1]], -100),
        "shares with one of padding alone",
    )
    for k, (share, expected) in enumerate(zip(found, (5 / 7, 0.0, 2 / 7), strict=True)):
        expect_close(share, expected, f"shares of 5, 0 and 2 tokens: microbatch {k}")
    inputs = [inputs[0], np.ones((2, 3, 3)), inputs[1]]
    call = "train_step with a microbatch of padding alone"
    check_losses(task, inputs, [labels[0], empty, labels[1]], -100, call, seed=0)
    check_step(task, [[3, 2], [1, 1]], seed=5)


def test_one_microbatch_and_many(task):
    """A batch in one piece has the share 1; twenty microbatches of random sizes have
    the same mean.
    """
    check_shares(task, [[6, 2, 1]])
    generator = np.random.default_rng(16)
    lengths = [generator.integers(1, 9, 3).tolist() for _ in range(20)]
    check_shares(task, lengths)
    check_step(task, lengths, seed=6)


COUNTS = "    counts = [int((own != ignored).sum()) for own in labels]\n"

WRONG_ANSWERS = [
    (
        "the mean of the means: right if all microbatches have equally many tokens",
        "    return [count / sum(counts) for count in counts]\n",
        "    return [1 / len(counts) for count in counts]\n",
    ),
    (
        (
            "texts are counted instead of tokens, as a pipeline does that is not "
            "told what a loss counts"
        ),
        COUNTS,
        "    counts = [len(own) for own in labels]\n",
    ),
    (
        (
            "places are counted, padding included: all microbatches of a padded "
            "batch are equal again"
        ),
        COUNTS,
        "    counts = [own.size for own in labels]\n",
    ),
    (
        (
            "everything from 0 on is a token: right for padding marked by -100, but "
            "any number can mark it"
        ),
        COUNTS,
        "    counts = [int((own >= 0).sum()) for own in labels]\n",
    ),
    (
        "the shares of the tokens so far: known early, but they do not add up to 1",
        "    return [count / sum(counts) for count in counts]\n",
        "    return [count / sum(counts[: k + 1]) for k, count in enumerate(counts)]\n",
    ),
    (
        (
            "only the loss that is reported is weighted; the gradients are added as "
            "they are"
        ),
        "loss.backward(share)",
        "loss.backward()",
    ),
    (
        "only the gradients are weighted, and the losses are averaged",
        "        total += share * loss.item()\n",
        "        total += loss.item() / len(labels)\n",
    ),
    (
        (
            "the share is counted twice: in the loss, and again at the start of its "
            "backward"
        ),
        "        loss = functional.cross_entropy(model(x), y, ignore_index=ignored)\n",
        (
            "        loss = functional.cross_entropy(model(x), y, "
            "ignore_index=ignored) * share\n"
        ),
    ),
    (
        (
            "a microbatch of padding alone is left out, so that the shares after it "
            "go to the wrong microbatches"
        ),
        "for count in counts]\n",
        "for count in counts if count]\n",
    ),
    (
        "gradients of the step before stay, and the new ones are added to them",
        "    model.zero_grad()\n",
        "",
    ),
    (
        (
            "gradients are cleared before every microbatch, so that only the last "
            "one counts"
        ),
        "        loss.backward(share)\n",
        "        model.zero_grad()\n        loss.backward(share)\n",
    ),
]
