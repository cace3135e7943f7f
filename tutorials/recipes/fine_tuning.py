"""Fine-tuning: a network trained on the digits 0 to 4 learns the digits 5 to 9.

    mpirun -n 4 python tutorials/recipes/fine_tuning.py    (--quick: one epoch, in seconds)

It learns them from 90 images, with a new last layer. The convolutions are frozen. The
new layer gets more than 90 % of the other 800 images right. On top of untrained
convolutions its loss is larger.

What to look at:

- `state_dict()` returns the whole model on every rank, so it fits any other partition
  and number of ranks.
- Call `freeze()` before you make the pipeline, which then leaves out unneeded actions.
  The two printed schedules show it: a stage that trains nothing has no W, and the
  stages before the first trained one have no backward at all and receive no gradients.
"""

import sys

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim
from minipipe.schedules import ActionKind

NUM_EPOCHS = 1 if "--quick" in sys.argv else 8
COMPILE = "where-possible" if "--compile" in sys.argv else False


def accuracy(scores, labels):
    return np.mean(scores.argmax(axis=1) == labels)


def network():
    layers = []
    for channels, next_channels in ((1, 16), (16, 32), (32, 32)):
        layers += [
            nn.Conv2d(channels, next_channels, 3, padding="same"),
            nn.GroupNorm(4, next_channels),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), head())


def head():
    return nn.Linear(32 * 4 * 4, 5)


def make_pipeline(model, group):
    return Pipeline(
        model,
        group,
        loss=nn.CrossEntropyLoss(),
        schedule="zb-h1",
        num_microbatches=4,
        compile=COMPILE,
    )


def with_new_head(state=None):
    """Return a network with a new last layer and frozen other layers, with the values
    in ``state`` if it is set.
    """
    model = network()
    if state is not None:
        model.load_state_dict(state)
    model[:-1].freeze()
    return nn.Sequential(*model[:-1], head())


def train(pipeline, examples, num_epochs):
    optimiser = optim.AdamW(pipeline.parameters(), learning_rate=3e-3)
    for epoch in range(num_epochs):
        for x, y in data.batches(
            *examples, batch_size=32, epoch=epoch, needs=pipeline.needs
        ):
            pipeline.step(x, y, wait=False)
            optimiser.step()


def describe(pipeline):
    sent = [action.kind for row in pipeline.plan.program.actions for action in row]
    activations, gradients = (
        sent.count(ActionKind.SEND_F),
        sent.count(ActionKind.SEND_B),
    )
    return (
        f"{pipeline.schedule}\n{activations} activations sent forward, {gradients} "
        "gradients sent back\n"
    )


images, labels = data.load_digits()
images = images[:, None]  # one channel: (n, 1, 8, 8)
is_known = labels < 5
few, others = data.split_examples(
    images[~is_known], labels[~is_known] - 5, test_fraction=0.9
)

with init_process_group() as group:
    pipeline = make_pipeline(network(), group)
    train(pipeline, (images[is_known], labels[is_known]), NUM_EPOCHS)
    state = pipeline.state_dict()
    if group.rank == 0:
        print(f"While everything is trained:\n{describe(pipeline)}", flush=True)
    results = []
    for model in (with_new_head(), with_new_head(state)):
        pipeline = make_pipeline(model, group)
        train(pipeline, few, 2 * NUM_EPOCHS)
        results.append(pipeline.evaluate(*others, metrics={"accuracy": accuracy}))
    if group.rank == 0:
        untrained, trained = results
        print(f"While only the head is trained:\n{describe(pipeline)}")
        print(
            f"on top of untrained layers: loss {untrained!r}, accuracy "
            f"{untrained.metrics['accuracy']!r}"
        )
        print(
            f"on top of trained layers: loss {trained!r}, accuracy "
            f"{trained.metrics['accuracy']!r}"
        )
