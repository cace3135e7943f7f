"""Adversarial examples: images changed along the gradient of the loss, and training against such changes.

    mpirun -n 4 python tutorials/recipes/adversarial.py    (--quick: one epoch, in seconds)

One classifier of handwritten digits is trained as usual, another one also on images that are changed to fool it. No
pixel changes by more than 0.15, where white is 0 and black is 1. The first classifier gets more than 95 % of the test
images right, and less than half of the changed ones; the second gets more than 65 % of these. What to look at:

- `inputs_require_grad=True`: each step leaves the gradient of the images in `pipeline.input_gradients`, on the rank of
  the first stage. Images are read on the same rank, so it alone has to change them.
- `accumulate=True` and `scale=`: the gradients of two steps, each with half its weight, make one update.

Goodfellow, Shlens, Szegedy 2015, "Explaining and harnessing adversarial examples", sections 4 and 6.
"""

import sys

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim

NUM_EPOCHS = 1 if "--quick" in sys.argv else 20
LARGEST_CHANGE = 0.15  # of a pixel, which is 0 to 1


def accuracy(scores, labels):
    return np.mean(scores.argmax(axis=1) == labels)


def changed(images, gradient):
    """Return images in which each pixel has moved so that the loss rises; None on ranks that have no gradient."""
    if gradient is None:
        return None
    return np.clip(images + LARGEST_CHANGE * np.sign(gradient), 0, 1)


def classifier(group):
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    return Pipeline(model, group, loss=nn.CrossEntropyLoss(), num_microbatches=4, inputs_require_grad=True)


def train(pipeline, training, is_adversarial):
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1, momentum=0.9)
    for epoch in range(NUM_EPOCHS):
        for x, y in data.batches(*training, batch_size=64, epoch=epoch, needs=pipeline.needs):
            pipeline.step(x, y, scale=0.5 if is_adversarial else 1.0)
            if is_adversarial:
                pipeline.step(changed(x, pipeline.input_gradients), y, accumulate=True, scale=0.5)
            optimiser.step()


def attack(pipeline, images, labels):
    """Return the loss of the images and of the changed ones, each with the accuracy as a metric."""
    metrics = {"accuracy": accuracy}
    before = pipeline.step(images, labels, metrics=metrics)  # without an update
    return before, pipeline.evaluate(changed(images, pipeline.input_gradients), labels, metrics=metrics)


training, test = data.split_examples(*data.load_digits(), test_fraction=0.2)

with init_process_group() as group:
    for is_adversarial in (False, True):
        pipeline = classifier(group)
        train(pipeline, training, is_adversarial)
        before, after = attack(pipeline, *test)
        if group.rank == 0:
            print("trained on images and changed images:" if is_adversarial else "trained on images:")
            for name, loss in (("images as they are", before), ("changed images", after)):
                print(f"  {name:18}  loss {loss:7.4f}, accuracy {100 * loss.metrics['accuracy']:.2f} %", flush=True)
    if group.rank == 0:
        print(f"loss of changed images {after!r}, accuracy {after.metrics['accuracy']!r}")
