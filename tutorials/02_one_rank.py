# %% [markdown]
# # 02 · Train on one rank
#
# In this lesson you train a small network on handwritten digits in a single process.
# You learn the terms *batch*, *loss*, *step* and *epoch*, and see that the same seed
# gives the same network to the last bit. Later lessons use this to check that four
# processes have computed what one process computes.

# %%
import copy
import math

import numpy as np

from minipipe import data, init_process_group, nn, no_grad, optim, watch_everything
from minipipe.testing import same_bits

# raise an error if an array is modified while its old values are still needed
watch_everything()

# %% [markdown]
# ## The data
#
# minipipe comes with 1,797 handwritten digits. Each is an image of 8 by 8 grey values
# from 0 (white) to 1 (black), with a label that says which digit it shows. A fifth of
# them is set aside for testing. Only images that the network has never seen can show
# whether it has learnt to read or has merely memorised.


# %%
def picture(image):
    """Return an image as text, two characters per pixel."""
    shades = " .:-=+*#%@"
    return "\n".join(
        "".join(2 * shades[int(9 * grey)] for grey in row) for row in image
    )


images, labels = data.load_digits()
training, test = data.split_examples(images, labels, test_fraction=0.2)
print(picture(images[1796]))
print(f"This is an {labels[1796]}.")
print(f"{len(training[0]):,} images to train with, {len(test[0])} to test with")
assert images.shape == (1797, 8, 8)
assert labels[1796] == 8
assert (len(training[0]), len(test[0])) == (1438, 359)

# %% [markdown]
# ## The network
#
# A network is a sequence of layers. Each layer computes new numbers from the output of
# the layer before it. This network has four:
#
# - `Flatten`: turns the 8 by 8 image into a row of 64 numbers.
# - `Linear(64, 32)`: computes 32 weighted sums of all 64 numbers. Each sum has its own
#   weights and its own constant, the bias.
# - `ReLU`: replaces negative numbers by 0. Without such a non-linear step, two linear
#   layers could do no more than one.
# - `Linear(32, 10)`: computes ten more sums, a *score* for each digit. The highest
#   score is the network's answer.
#
# The weights and biases are the parameters. `initialise` fills them with random numbers
# that depend on a seed.

# %%
untrained = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
).initialise(seed=0)
print(untrained)
print(f"{untrained.num_parameters:,} parameters")
assert untrained.num_parameters == (64 * 32 + 32) + (32 * 10 + 10) == 2410

# %% [markdown]
# ## The loss
#
# To improve the network by following slopes, we need a single number that says how
# wrong it is: the **loss**. For classification the usual loss is *cross-entropy*. It
# turns the ten scores into ten probabilities and takes minus the natural logarithm of
# the probability of the right digit. The loss is 0 if the network is certain and right,
# and it grows as that probability falls. A network that gives every digit a probability
# of one tenth has a loss of log 10, about 2.3.
#
# A **batch** is a set of samples that are processed together. Its loss is the mean of
# their losses. Here are the first 64 samples:

# %%
loss_of = nn.CrossEntropyLoss()
inputs, targets = training[0][:64], training[1][:64]
first_loss = loss_of(untrained(inputs), targets).item()
print(f"untrained: loss {first_loss:.2f}; by guessing: {math.log(10):.2f}")
assert 2.0 < first_loss < 3.0
assert round(math.log(10), 2) == 2.30

# %% [markdown]
# ## One step, by hand
#
# The forward computes the loss, and the backward computes the gradient of each
# parameter, as in lesson 01. A positive slope means that a larger parameter gives a
# larger loss. So move each parameter a little *against* its gradient:
# subtract the gradient times a small factor. This factor is the **learning rate**, and
# you choose it; here it is 0.5. Forward, backward and update together
# are one **step**.

# %%
by_hand = copy.deepcopy(untrained)
loss_of(by_hand(inputs), targets).backward()
for parameter in by_hand.parameters():
    parameter.data -= 0.5 * parameter.grad
second_loss = loss_of(by_hand(inputs), targets).item()
print(f"after one step: loss {second_loss:.2f}")
assert second_loss < first_loss - 0.1

# %% [markdown]
# ## A batch can be processed in parts
#
# The loss of a batch is the mean of the losses of its samples, so its gradient is the
# mean of their gradients (they add, as in lesson 01). A single sample pulls the network
# towards itself. In the mean over many samples, their peculiarities cancel out.
#
# It also follows that a batch can be processed in parts. Here we take one sample at a
# time. Each loss has a weight of 1/64 in the mean, so its backward starts from 1/64
# instead of 1: `backward(1 / 64)`. The gradients add up.

# %%
at_once, one_by_one = copy.deepcopy(untrained), copy.deepcopy(untrained)
loss_of(at_once(inputs), targets).backward()
for k in range(64):
    loss_of(one_by_one(inputs[k : k + 1]), targets[k : k + 1]).backward(1 / 64)

pairs = list(zip(at_once.parameters(), one_by_one.parameters()))
difference = max(float(np.abs(a.grad - b.grad).max()) for a, b in pairs)
print("equal except for rounding:", difference < 1e-6)
print("equal to the last bit:    ", all(same_bits(a.grad, b.grad) for a, b in pairs))
assert difference < 1e-6
assert not all(same_bits(a.grad, b.grad) for a, b in pairs)

# %% [markdown]
# The gradients are equal except for rounding. A computer keeps about seven digits of
# each of these numbers and rounds after every addition, so the order of the additions
# affects the last digit. Remember this: whenever this course says "the same bits", the
# additions are done in the same order.
#
# ## The training loop
#
# Training takes many steps. `optim.SGD` does the update. (SGD stands for stochastic
# gradient descent: going downhill, one random batch at a time.) `data.batches` shuffles
# the samples and splits them into batches. One pass over all samples is an **epoch**.
#
# `init_process_group()` is explained in the next lesson. It returns the group of
# workers, called **ranks**; here there is only one. We need one of its effects: it
# limits matrix multiplication to a single thread, so that sums are always computed in
# the same order.


# %%
def train(seed, epochs=10, batch_size=64, learning_rate=0.5):
    """Return a trained network, and the mean loss of each epoch."""
    with init_process_group():
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        ).initialise(seed)
        optimiser = optim.SGD(model.parameters(), learning_rate)
        losses = []
        for epoch in range(epochs):
            losses.append([])
            for inputs, targets in data.batches(*training, batch_size, seed, epoch):
                model.zero_grad()  # clear the gradients of the last step
                loss = loss_of(model(inputs), targets)  # forward
                loss.backward()  # backward
                optimiser.step()  # update
                losses[-1].append(loss.item())
        return model, [sum(epoch) / len(epoch) for epoch in losses]


model, losses = train(seed=0)
for epoch, loss in enumerate(losses):
    print(f"epoch {epoch}  {loss:5.3f}  {'#' * round(30 * loss)}")
num_steps = 10 * data.num_batches(len(training[0]), 64)
print(f"{num_steps} steps")
assert num_steps == 10 * 23 == 230
assert all(later < earlier for earlier, later in zip(losses, losses[1:5])), (
    "the loss falls"
)
assert losses[-1] < 0.2 < 1.0 < losses[0]

# %% [markdown]
# ## The test
#
# Now the test, on images that the network has never seen. Inside `no_grad()` nothing is
# recorded on the tape, because no gradients are needed.

# %%
with no_grad():
    answers = model(test[0]).numpy().argmax(axis=1)
accuracy = float(np.mean(answers == test[1]))
print(f"{100 * accuracy:.0f} of 100 are read correctly")
assert accuracy > 0.9

wrong = int(np.flatnonzero(answers != test[1])[0])
print(
    f"\nIt takes this {test[1][wrong]} for {answers[wrong]}:\n{picture(test[0][wrong])}"
)
assert answers[wrong] != test[1][wrong]

# %% [markdown]
# ## The same seed, the same bits
#
# Everything random above depends on the seed: the initial parameters and the order of
# the samples. So the same seed gives the same network, and every bit of every parameter
# is equal after 230 steps. Another seed gives another network.

# %%
again, losses_again = train(seed=0)
other, _ = train(seed=1)
is_same = all(
    same_bits(a.data, b.data) for a, b in zip(model.parameters(), again.parameters())
)
is_other_same = any(
    same_bits(a.data, b.data) for a, b in zip(model.parameters(), other.parameters())
)
print("seed 0, again: the same bits?", is_same)
print("seed 1:        the same bits?", is_other_same)
assert is_same and losses_again == losses
assert not is_other_same

# %% [markdown]
# ## What you have learnt
#
# - A step is forward, backward and update, for one batch. Its loss is the mean over the
#   samples.
# - The gradient of a batch is the sum of the gradients of its parts, except for
#   rounding.
# - The same seed and the same order of additions give the same bits.
#
# ## Exercise
#
# 1. Train with `batch_size=1438`, all samples in one batch, and `epochs=100`; an epoch
#    is then a single step. How many steps does it take to get the loss below 0.2? And
#    with `batch_size=8`? Which of the two looks at fewer images?
# 2. Leave out `model.zero_grad()`. What is the gradient of a step then? (See the last
#    section of lesson 01.)
# 3. The coursework task for this lesson is `02_softmax`: turning scores into
#    probabilities, with the gradient.
#
# <details>
# <summary>Answers</summary>
#
# 1. With one large batch the loss falls below 0.2 after about seventy steps, and each
#    of them has looked at all 1,438 images: about 100,000 in all. With batches of 8 the
#    mean loss of the third epoch is below 0.2. That takes more than 500 steps, but only
#    3 × 1,438 images, about 4,300. Small batches look at fewer images and take more
#    steps.
#
# ```python
# _, large = train(seed=0, epochs=100, batch_size=1438)
# _, small = train(seed=0, epochs=4, batch_size=8)
# large_epochs, small_epochs = (
#     1 + [loss < 0.2 for loss in losses].index(True) for losses in (large, small)
# )
# assert 60 < large_epochs < 90 and 2 <= small_epochs <= 4
# assert small_epochs * data.num_batches(1438, 8) > 4 * large_epochs
# assert 10 * small_epochs < large_epochs  # epochs, so images
# ```
#
# 2. It is the sum of the gradients of all steps so far, each computed with the
#    parameters of its own step, because `backward` adds to the existing gradient. So
#    each update also contains all earlier gradients, which are out of date.
#
# ```python
# model = copy.deepcopy(untrained)
# single = []
# for _ in range(2):
#     model.zero_grad()
#     loss_of(model(inputs), targets).backward()
#     single.append(next(iter(model.parameters())).grad.copy())
# loss_of(model(inputs), targets).backward()  # once more, and nothing was cleared
# assert np.allclose(next(iter(model.parameters())).grad, 2 * single[0], rtol=1e-5)
# assert same_bits(*single)
# ```
#
# </details>
#
# Next, `03_ranks_and_messages.py`: several processes, and how they communicate.
