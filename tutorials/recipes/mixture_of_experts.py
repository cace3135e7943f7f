"""Mixtures of experts, with and without an auxiliary loss for equally busy experts.

    mpirun -n 4 python tutorials/recipes/mixture_of_experts.py      (--quick: one epoch, in seconds)

The model has two mixtures of eight experts. In each mixture, a gate sends an image to
one of the experts. Without a correction, a gate prefers a few experts, which then learn
more and are preferred even more.

What to look at:

- `nn.AuxiliaryLoss` adds a function of its input to the loss, on any stage: here the
  imbalance of a gate.
- The model returns a dict, a pytree: the scores, and the choices of each gate, which
  travel with them through the stages. The loss uses one entry, and the metrics of
  `evaluate` use the others.
- With the auxiliary loss no expert gets more than a quarter of the images. Without it
  one expert gets more than a quarter, and others get few.

Fedus, Zoph, Shazeer 2022, "Switch transformers: scaling to trillion parameter models",
section 2.
"""

import sys

import numpy as np

from minipipe import Pipeline, Tensor, data, functional, init_process_group, nn, optim

NUM_EPOCHS = 1 if "--quick" in sys.argv else 20
COMPILE = "where-possible" if "--compile" in sys.argv else False
NUM_EXPERTS, WIDTH = 8, 64


def imbalance(probabilities):
    """Return 1 if each expert gets equally many samples, otherwise more: equation 4 of
    the paper.
    """
    fraction = np.bincount(
        probabilities.numpy().argmax(axis=1), minlength=NUM_EXPERTS
    ) / len(probabilities)
    return (
        NUM_EXPERTS * (probabilities.mean(axis=0) * fraction.astype(np.float32)).sum()
    )


class Mixture(nn.Module):
    """A layer that adds the output of one expert to each sample, and an entry with the
    chosen experts.
    """

    def __init__(self, name, balance):
        self.name = name
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Sequential(
            nn.Linear(WIDTH, NUM_EXPERTS), nn.Function(functional.softmax)
        )
        self.balance = nn.AuxiliaryLoss(imbalance, weight=balance)
        self.experts = [
            nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
            for _ in range(NUM_EXPERTS)
        ]

    def forward(self, entries):
        x = self.norm(entries["x"])
        probabilities = self.balance(self.gate(x))
        chosen = probabilities.numpy().argmax(axis=1)
        order = np.argsort(chosen, kind="stable")  # groups the samples by expert
        parts = np.split(order, np.searchsorted(chosen[order], range(1, NUM_EXPERTS)))
        results = functional.concatenate(
            [expert(x[part]) for expert, part in zip(self.experts, parts)]
        )
        weight = probabilities[np.arange(len(chosen)), chosen].reshape(
            -1, 1
        )  # the gate gets its gradient through this factor
        change = results[np.argsort(order)] * weight
        return {**entries, "x": entries["x"] + change, self.name: Tensor(chosen)}


def loss(outputs, labels):
    return functional.cross_entropy(outputs["x"], labels)


def accuracy(outputs, labels):
    return np.mean(outputs["x"].argmax(axis=1) == labels)


def fraction_of(expert):
    """Return a metric: the fraction of samples that an expert gets, over both
    mixtures.
    """
    return lambda outputs, _: np.mean(
        [outputs[name] == expert for name in ("first", "second")]
    )


METRICS = {"accuracy": accuracy} | {
    f"expert {k}": fraction_of(k) for k in range(NUM_EXPERTS)
}


def train(group, balance, training, test):
    model = nn.Sequential(
        nn.On("x", nn.Linear(64, WIDTH)),
        Mixture("first", balance),
        Mixture("second", balance),
        nn.On("x", nn.LayerNorm(WIDTH)),
        nn.On("x", nn.Linear(WIDTH, 10)),
    )
    pipeline = Pipeline(model, group, loss=loss, num_microbatches=4, compile=COMPILE)
    optimiser = optim.AdamW(pipeline.parameters(), learning_rate=2e-3)
    for epoch in range(NUM_EPOCHS):
        for x, y in data.batches(
            *training, batch_size=128, epoch=epoch, needs=pipeline.needs
        ):
            pipeline.step({"x": x}, y, wait=False)
            optimiser.step()
    return pipeline.evaluate({"x": test[0]}, test[1], metrics=METRICS)


images, labels = data.load_digits()
training, test = data.split_examples(images.reshape(-1, 64), labels, test_fraction=0.2)

with init_process_group() as group:
    for balance in (0.0, 0.02):
        result = train(group, balance, training, test)
        if group.rank == 0:
            right, *fractions = result.metrics.values()
            busy = " ".join(f"{100 * each:3.0f}" for each in fractions)
            print(
                f"weight of the balance {balance}: accuracy {100 * right:.2f} %, "
                f"experts busy with {busy} %"
            )
    if group.rank == 0:
        print(
            f"loss {result!r}, accuracy {right!r}, largest fraction {max(fractions)!r}"
        )
