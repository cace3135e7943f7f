"""A small program of every rank, with one thing that is different on one rank. For
test_refused.py and over MPI.
"""

import sys
from functools import partial

import numpy as np

from minipipe import (
    Microbatches,
    Pipeline,
    Replicated,
    functional,
    init_process_group,
    nn,
    optim,
)
from minipipe.errors import RankError
from tests.execution.checks.changes import (
    Powers,
    Renamed,
    X,
    Y,
    another,
    behind_an_empty_cell,
    drawn,
    forgets_all,
    forgets_one,
    goes_back,
    read_from,
    sets_power,
    window,
)

SLOW = partial(optim.SGD, learning_rate=0.1)
LABELS = np.arange(8) % 2


class Scaled(nn.Module):
    """A layer of one's own."""

    not_compared = ("notes",)

    def __init__(self, factor=2.0, kept=3, table=(1.0, 2.0), notes=None):
        self.factor, self._kept, self.table, self.notes = (
            factor,
            kept,
            np.array(table),
            notes,
        )

    def forward(self, x):
        return x * self.factor


class ScaledElse(Scaled):
    def forward(self, x):
        return x + self.factor


def shift(amount):
    return nn.Function(lambda x: x + amount)


class Weighted:
    """A loss of one's own."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, outputs, targets):
        return ((outputs - targets) ** 2).mean() * self.factor


def squares(factor):
    return lambda outputs, targets: ((outputs - targets) ** 2).mean() * factor


def absolute(outputs, targets):
    return functional.relu(outputs - targets).mean()


def model_of(*more, initialiser=None, dtype=None, bias=True):
    """Return a model with parameters on each of 4 ranks: one without has no optimiser's
    steps to compare.
    """
    second, third, last = (nn.Linear(4, width, dtype=dtype) for width in (4, 4, 2))
    first = nn.Linear(4, 4, bias, initialiser, dtype)
    return nn.Sequential(first, second, *more, third, last)


def loaded(change):
    """Return a model with values, the same on all ranks but for what ``change`` does to
    them.
    """
    model = model_of().initialise(3)
    change(model)
    return model


def program(
    group,
    model=model_of,
    loss=nn.MSELoss,
    options=None,
    batch=(X, Y),
    optimiser=None,
    rate=None,
    begin=None,
    update=lambda pipeline, rule, number: rule,
    evaluation=None,
    step=None,
    max_norm=1.0,
    num_optimiser_steps=1,
    num_batches=3,
):
    """Train, evaluate, and return the values: what every case changes one argument of,
    on one rank.

    ``update`` is called before each update, and returns the optimiser; ``batch`` may be
    a function of pipeline and number.
    """
    pipeline = Pipeline(
        model(), group, loss=loss(), **{"num_microbatches": 4, **(options or {})}
    )
    if begin is not None:
        begin(pipeline)
    rule = (optimiser or SLOW)(pipeline.parameters())
    falls = None if rate is None else optim.LearningRateSchedule(rule, rate)
    batch_of = batch if callable(batch) else lambda pipeline, number: batch
    for number in range(num_batches):
        pipeline.step(*batch_of(pipeline, number), **(step or {}))
        pipeline.clip_grad_norm(max_norm)
        rule = update(pipeline, rule, number)
        for _ in range(num_optimiser_steps):
            rule.step()
        if falls is not None:
            falls.step()
    pipeline.evaluate(*batch_of(pipeline, 0), **(evaluation or {}))
    return pipeline.state_dict()


def freed(model):
    model[0].bias.requires_grad = False


def raised(model):
    model[0].weight.data[1, 2] += 1e-3


ADAM = partial(optim.Adam, learning_rate=0.1)


def in_a_group(given):
    return optim.SGD([{"parameters": given, "momentum": 0.5}], learning_rate=0.1)


STATE = model_of().initialise(5).state_dict()
OTHER_STATE = {name: values + 1 for name, values in STATE.items()}

# By name: what the error says is different, the arguments of one rank, and those of the
# others.
CASES = {
    # values
    "initialise with another seed": (
        "first values of 0.weight",
        {"model": lambda: model_of().initialise(1)},
        {"model": lambda: model_of().initialise(0)},
    ),
    "values on one rank alone": (
        "first values of",
        {"model": lambda: loaded(lambda model: None)},
        {},
    ),
    "one element of a parameter": (
        "first values of 0.weight",
        {"model": lambda: loaded(raised)},
        {"model": lambda: loaded(lambda model: None)},
    ),
    "another state in the pipeline": (
        "loaded state",
        {"begin": lambda pipeline: pipeline.load_state_dict(OTHER_STATE)},
        {"begin": lambda pipeline: pipeline.load_state_dict(STATE)},
    ),
    "a state on one rank alone": (
        "loaded state",
        {"begin": lambda pipeline: pipeline.load_state_dict(STATE)},
        {},
    ),
    "another seed": ("seed", {"options": {"seed": 1}}, {}),
    "another dropout seed": ("dropout_seed", {"options": {"dropout_seed": 1}}, {}),
    # the model
    "another initialiser": (
        "model",
        {"model": lambda: model_of(initialiser=nn.initialisers.normal(0.1))},
        {},
    ),
    "a number of the initialiser": (
        "model",
        {"model": lambda: model_of(initialiser=nn.initialisers.normal(0.1))},
        {"model": lambda: model_of(initialiser=nn.initialisers.normal(0.2))},
    ),
    "LayerNorm's epsilon": (
        "model",
        {"model": lambda: model_of(nn.LayerNorm(4, epsilon=1e-3))},
        {"model": lambda: model_of(nn.LayerNorm(4))},
    ),
    "a probability": (
        "model",
        {"model": lambda: model_of(nn.Dropout(0.1))},
        {"model": lambda: model_of(nn.Dropout(0.2))},
    ),
    "no bias": ("model", {"model": lambda: model_of(bias=False)}, {}),
    "another layer": (
        "model",
        {"model": lambda: model_of(nn.ReLU())},
        {"model": lambda: model_of(nn.Tanh())},
    ),
    "one layer more": ("model", {"model": lambda: model_of(nn.ReLU())}, {}),
    "dtype": ("model", {"model": lambda: model_of(dtype=np.float64)}, {}),
    "a frozen parameter": (
        "model",
        {"model": lambda: loaded(freed)},
        {"model": lambda: loaded(lambda model: None)},
    ),
    "eval() of the model": ("model", {"model": lambda: model_of().eval()}, {}),
    "an attribute": (
        "model",
        {"model": lambda: model_of(Scaled(3.0))},
        {"model": lambda: model_of(Scaled(2.0))},
    ),
    "an attribute with an underscore": (
        "model",
        {"model": lambda: model_of(Scaled(kept=4))},
        {"model": lambda: model_of(Scaled())},
    ),
    "an array": (
        "model",
        {"model": lambda: model_of(Scaled(table=(1.0, 3.0)))},
        {"model": lambda: model_of(Scaled())},
    ),
    "the code of a layer": (
        "model",
        {"model": lambda: model_of(ScaledElse())},
        {"model": lambda: model_of(Scaled())},
    ),
    "the closure of a function": (
        "model",
        {"model": lambda: model_of(shift(1.0))},
        {"model": lambda: model_of(shift(2.0))},
    ),
    "a closure behind an empty cell": (
        "model",
        {"model": lambda: model_of(nn.Function(behind_an_empty_cell(1.0)))},
        {"model": lambda: model_of(nn.Function(behind_an_empty_cell(2.0)))},
    ),
    "the code of a function": (
        "model",
        {"model": lambda: model_of(nn.Function(lambda x: x * 2))},
        {"model": lambda: model_of(nn.Function(lambda x: x + 2))},
    ),
    "a function of minipipe": (
        "model",
        {"model": lambda: model_of(nn.Function(functional.relu))},
        {"model": lambda: model_of(nn.Function(functional.tanh))},
    ),
    # loss and options
    "another loss": ("loss", {"loss": lambda: absolute}, {}),
    "an attribute of the loss": (
        "loss",
        {"loss": lambda: Weighted(2.0)},
        {"loss": Weighted},
    ),
    "the reduction of the loss": (
        "loss",
        {"loss": partial(nn.MSELoss, reduction="sum")},
        {},
    ),
    "the closure of the loss": (
        "loss",
        {"loss": lambda: squares(2.0)},
        {"loss": lambda: squares(1.0)},
    ),
    "class weights": (
        "loss",
        {
            "loss": partial(nn.CrossEntropyLoss, class_weights=np.array([1.0, 2.0])),
            "batch": (X, LABELS),
        },
        {
            "loss": partial(nn.CrossEntropyLoss, class_weights=np.array([1.0, 3.0])),
            "batch": (X, LABELS),
        },
    ),
    "label smoothing": (
        "loss",
        {
            "loss": partial(nn.CrossEntropyLoss, label_smoothing=0.1),
            "batch": (X, LABELS),
        },
        {"loss": nn.CrossEntropyLoss, "batch": (X, LABELS)},
    ),
    "loss_weight": ("loss_weight", {"options": {"loss_weight": np.size}}, {}),
    "another loss_weight": (
        "loss_weight",
        {"options": {"loss_weight": lambda targets: len(targets)}},
        {"options": {"loss_weight": lambda targets: 2.0 * len(targets)}},
    ),
    "stack_weight_gradients": (
        "stack_weight_gradients",
        {"options": {"stack_weight_gradients": True}},
        {},
    ),
    "inputs_require_grad": (
        "inputs_require_grad",
        {"options": {"inputs_require_grad": True}},
        {},
    ),
    "number of microbatches": ("schedule", {"options": {"num_microbatches": 8}}, {}),
    "schedule": ("schedule", {"options": {"schedule": "gpipe"}}, {}),
    "check_agreement": ("check_agreement", {"options": {"check_agreement": False}}, {}),
    # batches
    "other inputs": ("inputs", {"batch": (X + 1, Y)}, {}),
    "other targets": ("targets", {"batch": (X, Y + 1)}, {}),
    "the order of a batch": ("inputs", {"batch": (X[::-1], Y)}, {}),
    "another number of samples": ("inputs", {"batch": (X[:4], Y[:4])}, {}),
    "the dtype of a batch": ("inputs", {"batch": (X.astype(np.float64), Y)}, {}),
    "a replicated number": (
        "targets",
        {
            "loss": lambda: lambda y, t: (y - t[0]).mean() * t[1],
            "batch": (X, (Y, Replicated(2.0))),
        },
        {
            "loss": lambda: lambda y, t: (y - t[0]).mean() * t[1],
            "batch": (X, (Y, Replicated(3.0))),
        },
    ),
    "cut microbatches": (
        "inputs",
        {"batch": (Microbatches([X[:2] + 1] * 4), Microbatches([Y[:2]] * 4))},
        {"batch": (Microbatches([X[:2]] * 4), Microbatches([Y[:2]] * 4))},
    ),
    "scale": ("scale", {"step": {"scale": 2.0}}, {}),
    "metrics": (
        "request for metrics and outputs",
        {"step": {"metrics": {"a": absolute}}},
        {},
    ),
    "outputs everywhere": (
        "request for metrics and outputs",
        {"step": {"outputs": "everywhere"}},
        {},
    ),
    "eval() of the pipeline": ("mode", {"begin": lambda pipeline: pipeline.eval()}, {}),
    "evaluate as in training": ("mode", {"evaluation": {"is_training": True}}, {}),
    "the epoch of a batch": (
        "batch of data",
        {"batch": drawn(epoch=1)},
        {"batch": drawn()},
    ),
    "the seed of a batch": (
        "batch of data",
        {"batch": drawn(seed=1)},
        {"batch": drawn()},
    ),
    "the size of a batch": ("batch of data", {"batch": drawn(8)}, {"batch": drawn()}),
    "the start of a batch": (
        "batch of data",
        {"batch": read_from(1)},
        {"batch": read_from(0)},
    ),
    "the key of a text": ("batch of data", {"batch": window(1)}, {"batch": window(0)}),
    # what changes between the calls
    "number of steps": (
        "number of training steps",
        {"begin": lambda pipeline: setattr(pipeline, "num_steps", 5)},
        {},
    ),
    "forgotten gradients": ("state of the gradients", {"update": forgets_all}, {}),
    "one forgotten gradient": ("state of the gradients", {"update": forgets_one}, {}),
    "a new optimiser": (
        "optimiser",
        {"optimiser": ADAM, "update": another},
        {"optimiser": ADAM},
    ),
    "a new optimiser without a state": ("optimiser", {"update": another}, {}),
    "a state of the optimiser": (
        "optimiser",
        {"optimiser": ADAM, "update": goes_back(to=0)},
        {"optimiser": ADAM},
    ),
    "another state of the optimiser": (
        "optimiser",
        {"optimiser": ADAM, "update": goes_back(to=0)},
        {"optimiser": ADAM, "update": goes_back(to=1)},
    ),
    # optimisers
    "a number of one's own rule": (
        "optimiser",
        {"optimiser": partial(Powers, power=0.6)},
        {"optimiser": Powers},
    ),
    "a pair of one's own rule": (
        "optimiser",
        {"optimiser": partial(Powers, ranges=(0, 2))},
        {"optimiser": Powers},
    ),
    "a number of one's own rule, later": (
        "optimiser",
        {"optimiser": Powers, "update": sets_power(0.6)},
        {"optimiser": Powers},
    ),
    "the code of one's own rule": (
        "optimiser",
        {"optimiser": Renamed},
        {"optimiser": Powers},
    ),
    "learning rate": (
        "learning rate",
        {"optimiser": partial(optim.SGD, learning_rate=0.2)},
        {},
    ),
    "momentum": (
        "optimiser",
        {"optimiser": partial(optim.SGD, learning_rate=0.1, momentum=0.9)},
        {},
    ),
    "weight decay": (
        "optimiser",
        {"optimiser": partial(optim.SGD, learning_rate=0.1, weight_decay=0.1)},
        {},
    ),
    "another optimiser": (
        "optimiser",
        {"optimiser": partial(optim.AdamW, learning_rate=0.1)},
        {"optimiser": partial(optim.Adam, learning_rate=0.1)},
    ),
    "betas": (
        "optimiser",
        {"optimiser": partial(optim.Adam, learning_rate=0.1, betas=(0.9, 0.99))},
        {"optimiser": partial(optim.Adam, learning_rate=0.1)},
    ),
    "the defaults of groups": (
        "learning rate",
        {
            "optimiser": lambda given: optim.SGD(
                [{"parameters": given, "momentum": 0.5}], learning_rate=0.2
            )
        },
        {
            "optimiser": lambda given: optim.SGD(
                [{"parameters": given, "momentum": 0.5}], learning_rate=0.1
            )
        },
    ),
    "a schedule of rates": (
        "learning rate",
        {"rate": optim.cosine(10)},
        {"rate": optim.cosine(20)},
    ),
    "a schedule of the rates of groups": (
        "optimiser",
        {"optimiser": in_a_group, "rate": optim.cosine(10)},
        {"optimiser": in_a_group, "rate": optim.cosine(20)},
    ),
    "a schedule on one rank alone": ("learning rate", {"rate": optim.linear(5)}, {}),
    "number of updates": ("number of optimiser steps", {"num_optimiser_steps": 2}, {}),
    "no update": ("number of optimiser steps", {"num_optimiser_steps": 0}, {}),
    "max_norm": ("max_norm", {"max_norm": 2.0}, {}),
}


def run_on(group, name, rank):
    """Run the program on a rank of a group, with what is different on ``rank``; the
    default case is "nothing".
    """
    _, other, usual = CASES.get(name, ("", {}, {}))
    return program(group, **(other if group.rank == rank else usual))


def run_all_alike(group):
    """Run what every case has on one rank on all of them, and what it has on the others."""
    for _, other, usual in CASES.values():
        for changes in (other, usual):
            program(group, **changes)


if __name__ == "__main__":
    with init_process_group() as ranks:
        if sys.argv[1:] == ["all alike"]:
            run_all_alike(ranks)
        for case in sys.argv[1:]:
            try:
                run_on(ranks, case, rank=ranks.size - 1)
            except RankError as error:
                if ranks.rank == ranks.size - 1:
                    print(error.code, error, flush=True)
                raise
