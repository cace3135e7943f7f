"""Past bugs of fully sharded replicas, found by an attack: layers that do with their
parameters what they like.
"""

import math

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Tensor, nn, optim, schedules, simulate, spawn
from minipipe.errors import ArgumentError, NotFiniteError, RankError
from tests.launch import covering, for_each, slowly

X, Y = np.random.default_rng(0).standard_normal((2, 8, 4))


def linear():
    return nn.Linear(4, 4, dtype=np.float64)


def pipeline_of(
    layers,
    group,
    fully_sharded=True,
    loss=None,
    num_microbatches=1,
    pipeline=1,
    **options,
):
    grid = Grid(group, pipeline=pipeline, data=2, fully_sharded=fully_sharded)
    options |= {"loss": loss or nn.MSELoss(), "num_microbatches": num_microbatches}
    return Pipeline(nn.Sequential(*layers), grid, **options)


def gradients(layers, **options):
    """Return the whole gradients of a step by name, of whole replicas and of sharded
    ones.
    """

    def step(group, fully_sharded):
        made = pipeline_of(layers(), group, fully_sharded, **options)
        made.step(X, Y)
        found = [(name, p.grad, p.joined) for name, p in made.named_parameters()]
        return {
            name: None if grad is None else joined(grad) for name, grad, joined in found
        }

    return [
        spawn(lambda group, one=one: step(group, one), 2)[0] for one in (False, True)
    ]


def assert_alike(whole, shares):
    assert whole.keys() == shares.keys()
    for name, gradient in whole.items():
        assert (gradient is None) == (shares[name] is None), name
        assert gradient is None or np.allclose(
            gradient, shares[name], rtol=1e-12, atol=1e-12
        ), name


class Of(nn.Module):
    """A layer of some parameters and a function of it and its input."""

    def __init__(self, function, count=1):
        self.w = [
            nn.Parameter(1.5 + i + np.arange(16.0).reshape(4, 4) / 16)
            for i in range(count)
        ]
        self.function = function

    def forward(self, x):
        return self.function(self, x)


class Penalised(nn.Module):
    """Adds a loss of a parameter itself, which no other result needs."""

    def __init__(self):
        self.w = nn.Parameter(np.eye(4) + 0.1)
        self.add = nn.AuxiliaryLoss(lambda w: (w * w).sum())

    def forward(self, x):
        self.add(self.w)
        return x @ self.w


class Listing(nn.Module):
    """Asks itself for its parameters while it computes."""

    def __init__(self):
        self.inner = linear()
        self.add = nn.AuxiliaryLoss(lambda total: total)

    def forward(self, x):
        named = dict(self.named_parameters())
        assert self.num_parameters == 20 and all(
            isinstance(p, nn.Parameter) for p in named.values()
        )
        self.add(sum(((p * p).sum() for p in self.parameters()), Tensor(np.zeros(()))))
        return x @ named["inner.weight"]


class Thrice(nn.Module):
    """Adds three losses, whose sum depends on their order."""

    def __init__(self):
        self.w = nn.Parameter(np.ones((4, 4)))
        self.add = nn.AuxiliaryLoss(lambda loss: loss)

    def forward(self, x):
        for factor in (1e17, -1e17, 1.0):
            self.add(self.w.sum() * factor)
        return x @ self.w


class Twice(nn.Module):
    """Has one parameter in two places."""

    def __init__(self):
        p = nn.Parameter(np.eye(4) + 0.1)
        self.w = [p, p]

    def forward(self, x):
        return x @ self.w[0] @ self.w[1]


def chosen(layer, x):
    return x @ layer.w[int(x.data[0, 0] > 0)]  # the replicas choose differently


def passed(layer, x):
    return x @ layer.w[0] if x.data[0, 0] > 0 else x


LAYERS = {
    "a loss": lambda: [
        nn.AuxiliaryLoss(Of(lambda own, x: (x @ own.w[0] @ own.w[0]).mean())),
        linear(),
    ],
    "a recomputed loss": lambda: [
        nn.Recompute(
            nn.Sequential(
                linear(),
                nn.AuxiliaryLoss(Of(lambda own, x: (x @ own.w[0] @ own.w[0]).mean())),
            )
        ),
        linear(),
    ],
    "a penalty": lambda: [linear(), Penalised(), linear()],
    "a list": lambda: [linear(), Listing()],
    "two places": lambda: [Twice(), linear()],
    "a quotient": lambda: [linear(), Of(lambda own, x: x / own.w[0][0]), linear()],
    "a choice": lambda: [Of(chosen, 4), linear()],
    "a choice of two": lambda: [Of(chosen, 2), linear()],
    "a choice of none": lambda: [linear(), Of(passed), linear()],
}


@pytest.mark.parametrize(
    ("schedule", "layers"), covering(["1f1b", "zb-h1"], LAYERS.values(), strength=1)
)
def test_gradients_are_those_of_whole_replicas(layers, schedule):
    assert (X[0, 0] > 0) != (X[4, 0] > 0)
    assert_alike(*gradients(layers, schedule=schedule))


def test_losses_of_a_layer_keep_their_order():
    def loss(group, fully_sharded):
        return float(pipeline_of([Thrice(), linear()], group, fully_sharded).step(X, Y))

    whole, shares = (
        spawn(lambda group, one=one: loss(group, one), 2) for one in (False, True)
    )
    assert whole == shares


def test_values_cannot_be_changed_while_the_layer_computes():
    def change(own, x):
        own.w[0].data[0, 0] = 7.0
        return x @ own.w[0]

    with pytest.raises(ValueError, match="read-only"):
        gradients(lambda: [Of(change)])


def test_costs_are_measured_and_then_it_trains_on():
    def measure(group, fully_sharded):
        made = pipeline_of(
            [linear() for _ in range(4)],
            group,
            fully_sharded,
            pipeline=2,
            num_microbatches=2,
        )
        before = float(made.step(X, Y))
        costs = made.measure_costs(X, Y, num_steps=1)
        return (
            before,
            float(made.step(X, Y)),
            simulate(schedules.zb_h1(2, 4), costs).unit,
            costs.activation,
        )

    whole, shares = (
        spawn(lambda group, one=one: measure(group, one), 4)[0] for one in (False, True)
    )
    assert whole == shares and whole[0] == whole[1] and whole[2] == "s"


@pytest.mark.parametrize("where", ["inputs", slowly("targets")])
def test_what_is_not_finite_is_named_as_without_shares(where):
    def attempt(group, fully_sharded):
        made = pipeline_of(
            [linear(), linear()], group, fully_sharded, num_microbatches=2
        )
        batch = {"inputs": X.copy(), "targets": Y.copy()}
        batch[where][-1, 0] = np.inf
        with pytest.raises(NotFiniteError) as caught, np.errstate(all="ignore"):
            made.step(*batch.values())
        return str(caught.value)

    whole, shares = (
        spawn(lambda group, one=one: attempt(group, one), 2)[0] for one in (False, True)
    )
    assert whole == shares and "microbatch 3" in shares


def test_halves_of_which_only_the_sum_overflows_are_added_in_float32():
    def step(group):
        layer = nn.Linear(
            1,
            1,
            bias=False,
            initialiser=nn.initialisers.constant(1.0),
            dtype=np.float16,
        )
        made = pipeline_of([layer], group, loss=nn.MSELoss("sum"))
        made.step(np.full((2, 1), 150.0, np.float16), np.zeros((2, 1), np.float16))
        return [p.joined(p.grad) for p in made.parameters()]

    assert [found[0].item() for found in spawn(step, 2)] == [
        pytest.approx(90_000, rel=1e-3)
    ] * 2


# -- refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [{"data": 2, "fully_sharded": True}, {"tensor": 2}], ids=str
)
def test_ranks_with_other_first_values_are_refused_and_not_mixed(sizes):
    def make(group):
        model = nn.Sequential(nn.Embedding(8, 4)).initialise(group.rank)
        return Pipeline(model, Grid(group, **sizes), loss=nn.CrossEntropyLoss())

    with pytest.raises(RankError, match=r"first values of 0.weight on rank 1 differ"):
        spawn(make, 2)


DIVISIONS = {
    "divided": ({"tensor": 2}, lambda model, grid: nn.parallelise(model, grid.tensor)),
    "fully sharded": (
        {"data": 2, "fully_sharded": True},
        lambda model, grid: nn.fully_shard(model, grid.data),
    ),
    "divided, on sharded replicas": (
        {"data": 2, "tensor": 2, "fully_sharded": True},
        lambda model, grid: nn.parallelise(model, grid.tensor),
    ),
}


def of_a_divided_model(division, seed_of, is_filled_first):
    """Return a function that makes a pipeline of a model that has its values, and is
    divided by its owner.
    """
    sizes, divide = DIVISIONS[division]

    def make(group):
        grid = Grid(group, **sizes)
        seed = seed_of(group.rank)
        model = nn.Sequential(
            nn.Embedding(8, 4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 8)
        )
        model = (
            divide(model.initialise(seed), grid)
            if is_filled_first
            else divide(model, grid).initialise(seed)
        )
        return Pipeline(model, grid, loss=nn.CrossEntropyLoss(), num_microbatches=1)

    return make, math.prod(
        size for name, size in sizes.items() if name != "fully_sharded"
    )


@pytest.mark.parametrize("is_filled_first", [True, False])
@pytest.mark.parametrize("division", DIVISIONS)
def test_a_divided_model_with_values_keeps_them_and_ranks_with_other_values_are_refused(
    division, is_filled_first
):
    plain = (
        nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 8))
        .initialise(3)
        .state_dict()
    )
    make, num_ranks = of_a_divided_model(division, lambda rank: 3, is_filled_first)
    for state in spawn(lambda group: make(group).state_dict(), num_ranks):
        assert {
            name: (state[name] == values).all() for name, values in plain.items()
        } == dict.fromkeys(plain, True)
    make, _ = of_a_divided_model(division, lambda rank: rank, is_filled_first=True)
    with pytest.raises(RankError, match=r"first values of 0.weight"):
        spawn(make, num_ranks)


class Marked(nn.Parameter):
    """A parameter that carries a mark for the optimiser."""


@for_each(sizes={name: sizes for name, (sizes, _) in DIVISIONS.items()})
def test_a_parameter_of_ones_own_class_keeps_its_attributes(sizes):
    """Without them the optimiser would take it for another group, and decay it."""

    def train(where):
        model = nn.Sequential(linear(), nn.Tanh(), linear())
        model.layers[0].bias = Marked(np.ones(4))
        model.layers[0].bias.is_decayed = False
        pipeline = Pipeline(model, where, loss=nn.MSELoss(), num_microbatches=1)
        decayed, others = [], []
        for parameter in pipeline.parameters():
            (decayed if getattr(parameter, "is_decayed", True) else others).append(
                parameter
            )
        groups = [{"parameters": decayed, "weight_decay": 0.5}, {"parameters": others}]
        optimiser = optim.SGD(groups, 0.1)
        for _ in range(3):
            pipeline.step(X, Y)
            optimiser.step()
        return pipeline.state_dict()

    (expected,) = spawn(train, 1)
    num_ranks = math.prod(
        size for name, size in sizes.items() if name != "fully_sharded"
    )
    for state in spawn(lambda group: train(Grid(group, **sizes)), num_ranks):
        for name, values in expected.items():
            assert np.allclose(state[name], values, rtol=1e-12, atol=1e-12)


def sharded(group, **options):
    model = nn.fully_shard(nn.Sequential(linear(), linear()), group)
    return Pipeline(model, group, loss=nn.MSELoss(), **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (sharded, "Stage 0 of 1f1b is on 1 rank, but its parameters have 2 shards"),
        (
            lambda group: sharded(
                group, replicas=2, partition="measured", sample=(X, Y)
            ),
            "cannot be measured on one rank",
        ),
        (lambda group: nn.fully_shard([linear()], group), "fully_shard takes a model"),
    ],
)
def test_a_model_that_is_sharded_already_is_asked_itself(make, words):
    with pytest.raises(ArgumentError, match=words):
        spawn(make, 2)


def test_so_it_is_of_versions_of_weights():
    def make(group):
        grid = Grid(group, pipeline=2, data=2)
        model = nn.fully_shard(nn.Sequential(linear(), linear()), grid.data)
        return Pipeline(
            model, grid, loss=nn.MSELoss(), schedule="pipedream", num_microbatches=2
        )

    with pytest.raises(ArgumentError, match="keeps versions of weights"):
        spawn(make, 4)


def test_one_that_is_sharded_already_is_not_sharded_again():
    def train(group, is_given):
        grid = Grid(group, data=2, fully_sharded=True)
        model = nn.Sequential(linear(), linear())
        made = Pipeline(
            nn.fully_shard(model, grid.data) if is_given else model,
            grid,
            loss=nn.MSELoss(),
        )
        optimiser = optim.SGD(made.parameters(), learning_rate=0.1)
        losses = []
        for _ in range(2):
            losses.append(float(made.step(np.tile(X, (2, 1)), np.tile(Y, (2, 1)))))
            optimiser.step()
        return losses

    given, plain = (
        spawn(lambda group, one=one: train(group, one), 2)[0] for one in (True, False)
    )
    assert given == plain
