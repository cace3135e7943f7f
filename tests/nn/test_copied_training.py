"""A copy of a model with its optimiser trains as the original does, bit for bit, and
leaves the original as it was.
"""

import copy
import pickle

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, nn, optim, spawn
from minipipe.core.autograd import backend
from minipipe.errors import ModelError, TensorError
from tests.half_precision import every_half

IDS = np.arange(5)
LABELS = IDS[::-1].copy()
WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Signs(optim.Optimiser):
    """A rule of one's own, with attributes."""

    def __init__(self, parameters, learning_rate):
        super().__init__(parameters, learning_rate=learning_rate)
        self.num_changes, self.log = 0, []

    def _update(self, data, gradient, state, group):
        state["age"] = state.get("age", 0) + 1
        self.num_changes += 1
        self.log.append(state["age"])
        data -= group.learning_rate * np.sign(gradient) / state["age"]


RULES = {
    "momentum": lambda parameters: optim.SGD(
        parameters, 0.1, momentum=0.9, nesterov=True
    ),
    "Adam": lambda parameters: optim.Adam(parameters, 0.05),
    "AdamW": lambda parameters: optim.AdamW(parameters, 0.05, weight_decay=0.1),
    "Muon": lambda parameters: optim.Muon(parameters, 0.05),
    "own": lambda parameters: Signs(parameters, 0.05),
}


def a_model(dtype=np.float32, is_tied=True):
    embedding = nn.Embedding(5, 4, dtype=dtype)
    last = nn.Unembedding(embedding) if is_tied else nn.Linear(4, 5, dtype=dtype)
    return nn.Sequential(
        embedding, nn.Linear(4, 4, dtype=dtype), nn.Tanh(), nn.Dropout(0.0), last
    ).initialise(2)


def in_groups(model, num_groups):
    parameters = list(model.parameters())
    if num_groups == 1:
        return parameters
    return [
        {"parameters": parameters[:1], "learning_rate": 0.02},
        {"parameters": parameters[1:]},
    ]


class Run:
    """All that a training consists of."""

    def __init__(self, model, optimiser):
        self.model, self.optimiser = model, optimiser
        self.rates = optim.LearningRateSchedule(
            optimiser, optim.cosine(8, warmup_steps=2)
        )
        self.scale, self.loss = (
            optim.LossScale(8.0, growth_interval=2),
            nn.CrossEntropyLoss(label_smoothing=0.1),
        )

    def train(self, num_steps):
        """Return the losses; gradients stay until the next step."""
        losses = []
        for _ in range(num_steps):
            self.optimiser.zero_grad()
            loss = self.loss(self.model(Tensor(IDS)), LABELS)
            self.scale.backward(loss)
            if self.scale.unscale(self.model.parameters()):
                self.optimiser.step()
            self.rates.step()
            losses.append(loss.item())
        return losses

    def state(self):
        """Return all numbers, by their bytes."""
        states = self.optimiser.state_dict()["states"]
        kept = [
            {name: np.asarray(value).tobytes() for name, value in state.items()}
            for state in states
        ]
        values = {
            name: array.tobytes() for name, array in self.model.state_dict().items()
        }
        return (
            values,
            kept,
            self.rates.state_dict(),
            self.scale.state_dict(),
            self.optimiser.history,
        )


def check_trains_alike(run, way, num_steps):
    run.train(num_steps)
    before = run.state()
    twin = way(run)
    assert twin.state() == before
    losses = twin.train(3)
    assert run.state() == before  # the original is as it was
    assert run.train(3) == losses
    assert run.state() == twin.state()


@every_way
@given(
    rule=st.sampled_from(sorted(RULES)),
    dtype=st.sampled_from([np.float32, np.float64]),
    is_tied=st.booleans(),
    num_groups=st.integers(1, 2),
    num_frozen=st.integers(0, 1),
    num_steps=st.integers(0, 3),
)
def test_a_copied_training_goes_on_with_the_bits_of_the_original(
    way, rule, dtype, is_tied, num_groups, num_frozen, num_steps
):
    model = a_model(dtype, is_tied)
    for layer in model[:num_frozen]:
        layer.freeze()
    check_trains_alike(
        Run(model, RULES[rule](in_groups(model, num_groups))), way, num_steps
    )


@every_half
@every_way
def test_the_master_values_of_half_precision_are_copied(half, way):
    model = a_model(half)
    check_trains_alike(Run(model, optim.Adam(model.parameters(), 1e-3)), way, 2)


@every_way
def test_an_optimiser_of_ones_own_keeps_its_attributes(way):
    model = a_model()
    run = Run(model, Signs(model.parameters(), 0.1))
    run.train(2)
    twin = way(run)
    assert (twin.optimiser.num_changes, twin.optimiser.log) == (
        run.optimiser.num_changes,
        run.optimiser.log,
    )
    twin.train(1)
    assert twin.optimiser.log != run.optimiser.log


@every_way
def test_tied_parameters_stay_tied_and_are_updated_once(way):
    model = a_model()
    twin, optimiser = way((model, optim.SGD(model.parameters(), 0.1)))
    first, last = twin[0].weight, twin[-1].weight
    assert last.owner is first and first is not model[0].weight
    assert [id(parameter) for parameter in optimiser.parameters] == [
        id(one) for one in twin.parameters()
    ]
    first.data[0, 0] = 7.0
    assert last.data[0, 0] == 7.0 and model[0].weight.data[0, 0] != 7.0


@every_way
def test_an_optimiser_copied_alone_has_its_own_parameters(way):
    model = a_model()
    twin = way(optim.SGD(model.parameters(), 0.1))
    before = {name: values.copy() for name, values in model.state_dict().items()}
    for parameter in twin.parameters:
        parameter.grad = np.ones(parameter.shape, parameter.dtype)
    twin.step()
    assert all(
        (before[name] == values).all() for name, values in model.state_dict().items()
    )
    assert all(
        (one.data != other.data).all()
        for one, other in zip(model.parameters(), twin.parameters)
    )


@every_way
def test_a_copy_that_was_never_initialised_draws_the_same_first_values(way):
    model = nn.Sequential(
        nn.Linear(3, 4),
        nn.LSTM(4, 2),
        nn.Linear(2, 2, initialiser=nn.initialisers.he_normal(2)),
    )
    twin = way(model)
    assert not any(parameter.is_filled for parameter in twin.parameters())
    expected = model.initialise(5).state_dict()
    assert all(
        (values == expected[name]).all()
        for name, values in twin.initialise(5).state_dict().items()
    )
    again = way(model).initialise(6).state_dict()
    assert all(
        (values == again[name]).all()
        for name, values in model.initialise(6).state_dict().items()
    )


@every_way
def test_gradients_are_not_copied_with_a_parameter_and_are_with_a_tensor(way):
    x, layer = (
        Tensor(np.ones((2, 3)), requires_grad=True, dtype=np.float32),
        nn.Linear(3, 2).initialise(0),
    )
    layer(x).sum().backward()
    y, twin = way((x, layer))
    assert (y.grad == x.grad).all() and not np.shares_memory(y.grad, x.grad)
    assert twin.weight.grad is None and layer.weight.grad is not None
    twin(y).sum().backward()
    assert (y.grad == 2 * x.grad).all() and (
        twin.weight.grad == layer.weight.grad
    ).all()


@every_way
def test_a_model_of_another_array_module_stays_there(way):
    twin = way(nn.Linear(3, 2).to(array_api_strict).initialise(0))
    assert backend.array_module(twin.weight.data) is array_api_strict
    assert (twin.weight.numpy() == nn.Linear(3, 2).initialise(0).weight.numpy()).all()


class Named(nn.Parameter):
    """A parameter of a class of one's own, with an attribute."""


@every_way
def test_a_subclass_of_a_parameter_keeps_its_class_and_attributes(way):
    parameter = Named(np.ones(3))
    parameter.label = ["scale"]
    twin = way(parameter)
    assert (
        type(twin) is Named
        and twin.label == ["scale"]
        and twin.label is not parameter.label
    )


def test_the_optimiser_of_a_pipeline_is_copied_apart_from_it():
    """A step of the copy is none of the pipeline's, whose ranks would compare it."""
    x = np.ones((8, 2), np.float32)

    def train(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), group, loss=nn.MSELoss()
        )
        optimiser = optim.Adam(pipeline.parameters(), 0.1)
        pipeline.step(x, x)
        optimiser.step()
        before = pipeline.state_dict()
        twin = copy.deepcopy(optimiser)
        if group.rank == 0:
            for parameter in twin.parameters:
                parameter.grad = np.ones(parameter.shape, np.float32)
            twin.step()
        after = pipeline.state_dict()
        pipeline.step(x, x)
        optimiser.step()
        return all((before[name] == after[name]).all() for name in before)

    assert spawn(train, 2) == [True, True]


def test_an_optimiser_of_which_ranks_have_shares_is_refused_in_words():
    def refused(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2)), group, loss=nn.MSELoss(), num_microbatches=1
        )
        optimiser = pipeline.sharded(optim.Adam, learning_rate=0.1)
        for way in (copy.copy, *WAYS.values()):
            with pytest.raises(
                ModelError,
                match=r"shard of its state\. state_dict\(\) and load_state_dict",
            ):
                way(optimiser)

    spawn(refused, 1)


def test_ranks_that_share_layers_train_a_copy_alike():
    def train(group):
        model = nn.parallelise(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5)).initialise(0),
            group,
        )
        optimiser = optim.Adam(model.parameters(), 0.1)
        x = Tensor(np.ones((3, 4), np.float32))
        results = []
        for one, its in (copy.deepcopy((model, optimiser)), (model, optimiser)):
            for _ in range(3):
                its.zero_grad()
                (one(x) ** 2).mean().backward()
                its.step()
            results.append(
                {name: values.tobytes() for name, values in one.state_dict().items()}
            )
        return results[0] == results[1]

    assert spawn(train, 2) == [True, True]


class WithGroup(nn.Module):
    """A layer of one's own over the ranks of a group."""

    def __init__(self, group):
        self.group, self.scale = group, nn.Parameter([2.0])

    def forward(self, x):
        return x * self.scale * self.group.size


def test_a_layer_that_refers_to_a_group_runs_in_a_pipeline_and_is_copied():
    def predict(group):
        model = nn.Sequential(WithGroup(group), nn.Identity())
        assert copy.deepcopy(model)[0].group is group
        return (
            Pipeline(model, group, num_microbatches=1)
            .predict(np.ones((1, 1), np.float32))
            .tolist()
        )

    assert spawn(predict, 2) == [[[4.0]], [[4.0]]]


class Keeps(nn.Module):
    """A layer that keeps its last result."""

    def __init__(self):
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        self.last = self.inner(x)
        return self.last


@every_way
def test_a_layer_that_keeps_a_result_is_refused_in_words(way):
    model = nn.Sequential(Keeps())
    model(Tensor(np.ones((1, 2), np.float32)))
    with pytest.raises(
        TensorError, match=r"the result of a computation, .* x\.detach\(\)"
    ):
        way(model)
    with pytest.raises(
        ModelError,
        match=(
            r"A layer of stage 0 cannot be copied: This tensor is the result "
            r".*detach"
        ),
    ):
        spawn(lambda group: Pipeline(model, group), 1)
    model[0].last = model[0].last.detach()
    assert way(model)[0].last.shape == (1, 2)
