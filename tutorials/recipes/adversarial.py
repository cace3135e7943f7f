"""Adversarial examples: images changed to fool a classifier, and training with them.

    mpirun -n 4 python tutorials/recipes/adversarial.py    (--quick: one epoch, in seconds)

The first classifier of handwritten digits is trained as usual, the second one also on
changed images. A change moves each pixel along the sign of the loss gradient by at most
0.15 (0 is white, 1 is black). The first classifier gets more than 95 % of the test
images right, and fewer than half of the changed ones. The second classifier gets more
than 65 % of the changed ones right.

What to look at:

- `inputs_require_grad=True`: each step leaves the gradient of the images in
  `pipeline.input_gradients`, on the rank of the first stage. Only this rank reads
  images, so only this rank changes them.
- `accumulate=True` and `scale=`: the gradients of two steps, each with half its weight,
  make one update.

Goodfellow, Shlens, Szegedy 2015, "Explaining and harnessing adversarial examples",
sections 4 and 6.
"""

import sys

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim

NUM_EPOCHS = 1 if "--quick" in sys.argv else 20
COMPILE = "where-possible" if "--compile" in sys.argv else False
LARGEST_CHANGE = 0.15  # of a pixel; pixels are between 0 and 1


def accuracy(scores, labels):
    return np.mean(scores.argmax(axis=1) == labels)


def changed(images, gradient):
    """Return images with each pixel moved so that the loss increases, or None on ranks
    without a gradient.
    """
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
    return Pipeline(
        model,
        group,
        loss=nn.CrossEntropyLoss(),
        num_microbatches=4,
        inputs_require_grad=True,
        compile=COMPILE,
    )


def train(pipeline, training, is_adversarial):
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1, momentum=0.9)
    for epoch in range(NUM_EPOCHS):
        for x, y in data.batches(
            *training, batch_size=64, epoch=epoch, needs=pipeline.needs
        ):
            pipeline.step(x, y, scale=0.5 if is_adversarial else 1.0)
            if is_adversarial:
                pipeline.step(
                    changed(x, pipeline.input_gradients), y, accumulate=True, scale=0.5
                )
            optimiser.step()


def attack(pipeline, images, labels):
    """Return the losses of the images and of the changed images, with the accuracy as a
    metric.
    """
    metrics = {"accuracy": accuracy}
    before = pipeline.step(images, labels, metrics=metrics)  # gradients only, no update
    return before, pipeline.evaluate(
        changed(images, pipeline.input_gradients), labels, metrics=metrics
    )


training, test = data.split_examples(*data.load_digits(), test_fraction=0.2)

with init_process_group() as group:
    for is_adversarial in (False, True):
        pipeline = classifier(group)
        train(pipeline, training, is_adversarial)
        before, after = attack(pipeline, *test)
        if group.rank == 0:
            print(
                "trained on images and changed images:"
                if is_adversarial
                else "trained on images:"
            )
            for name, loss in (("unchanged images", before), ("changed images", after)):
                print(
                    f"  {name:18}  loss {loss:7.4f}, accuracy "
                    f"{100 * loss.metrics['accuracy']:.2f} %",
                    flush=True,
                )
    if group.rank == 0:
        print(
            f"loss of changed images {after!r}, accuracy {after.metrics['accuracy']!r}"
        )
