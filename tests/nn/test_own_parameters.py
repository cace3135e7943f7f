"""Parameters of a subclass of a container: a sequence, a recomputation, a layer around
layers.
"""

import copy

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Plan, Tensor, functional, nn, optim, spawn
from minipipe.errors import ArgumentError, ModelError, RankError
from minipipe.testing import check_same_as_one_process, same_bits
from tests.launch import for_each, slowly
from tests.strategies import build

F8 = {"dtype": np.float64}
WIDTH = 4
X, Y = np.random.default_rng(0).standard_normal((2, 8, WIDTH))


def linear():
    return nn.Linear(WIDTH, WIDTH, **F8)


def scale(values=(0.5, 1.5, -1.0, 2.0)):
    return nn.Parameter(np.array(values))


class ScaledSequence(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = scale()

    def forward(self, x):
        return super().forward(x) * self.scale


class ScaledBefore(nn.Sequential):
    """Sets its parameters first, and more of them: in a list, and in a module."""

    def __init__(self, *layers):
        self.scales = [scale(), {"second": scale((1.0, 2.0, 3.0, 4.0))}]
        self.norm = nn.LayerNorm(WIDTH, **F8)
        super().__init__(*layers)

    def forward(self, x):
        return self.norm(super().forward(x) * self.scales[0]) + self.scales[1]["second"]


class ScaledRecompute(nn.Recompute):
    def __init__(self, module):
        super().__init__(module)
        self.scale = scale()

    def forward(self, x):
        return super().forward(x) * self.scale


class ScaledInside(nn.Recompute):
    """Recomputes with its own parameter, too."""

    def __init__(self, module):
        super().__init__(module)
        self.scale = scale()

    def forward(self, x):
        return super().forward(x) + functional.tanh(x * self.scale)


class ScaledResidual(nn.Residual):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = scale()

    def forward(self, x):
        return super().forward(x) * self.scale


class Sharing(nn.Sequential):
    """Uses the weight of a layer a second time."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.again = self.layers[0].weight

    def forward(self, x):
        return super().forward(x) @ self.again


LAYERS = {  # a layer, and the names that it adds to those of the layers inside
    "a sequence": (lambda: ScaledSequence(linear(), nn.Tanh()), ["scale"]),
    "a sequence that sets them first": (
        lambda: ScaledBefore(linear(), nn.Tanh()),
        ["scales.0", "scales.1.second", "norm.weight", "norm.bias"],
    ),
    "a recomputation": (lambda: ScaledRecompute(linear()), ["scale"]),
    "a recomputation of a sequence": (
        lambda: ScaledInside(nn.Sequential(linear(), nn.Tanh())),
        ["scale"],
    ),
    "a residual": (lambda: ScaledResidual(linear()), ["scale"]),
    "a sequence in a recomputation": (
        lambda: nn.Recompute(ScaledSequence(linear())),
        ["scale"],
    ),
    "a sequence in a sequence": (
        lambda: ScaledSequence(ScaledSequence(linear()), nn.Tanh()),
        ["0.scale", "scale"],
    ),
    "a sequence that shares": (lambda: Sharing(linear(), nn.Tanh()), []),
}


def model_with(layer):
    return nn.Sequential(linear(), layer, linear())


@for_each(case=LAYERS)
def test_they_are_enumerated_saved_loaded_and_copied(case):
    make, names = case
    model = model_with(make()).initialise(1)
    own = [name for name, _ in model.named_parameters()]
    assert set(own) >= {f"1.{name}" for name in names} and len(own) == len(set(own))
    state = {name: values + 1 for name, values in model.state_dict().items()}
    assert list(state) == own and model.num_parameters == sum(
        values.size for values in state.values()
    )
    twin = copy.deepcopy(model)
    twin.load_state_dict(state)
    assert all(
        same_bits(value, state[name]) for name, value in twin.state_dict().items()
    )
    assert not any(
        parameter.requires_grad
        for parameter in copy.deepcopy(model).freeze().parameters()
    )


@for_each(case=LAYERS)
def test_they_are_trained(case):
    make, _ = case
    model = model_with(make()).initialise(1)
    before = model.state_dict()
    optimiser = optim.SGD(model.parameters(), 0.1)
    ((model(Tensor(X)) - Y) * (model(Tensor(X)) - Y)).mean().backward()
    optimiser.step()
    assert not any(
        same_bits(value, before[name]) for name, value in model.state_dict().items()
    )


@pytest.mark.parametrize(
    "schedule", ["1f1b", "zb-h1", *map(slowly, ["gpipe", "interleaved-1f1b"])]
)
@for_each(case=LAYERS)
def test_a_pipeline_with_them_has_the_bits_of_one_process(case, schedule):
    make, _ = case
    model = nn.Sequential(linear(), make(), linear(), make(), linear())
    check_same_as_one_process(model, nn.MSELoss(), X, Y, build(schedule, 2, 2))


GRIDS = {
    "replicas": {"data": 2},
    "fully sharded": {"data": 2, "fully_sharded": True},
    "tensor": {"tensor": 2},
}


@pytest.mark.parametrize(
    "grid_name", ["fully sharded", slowly("replicas"), slowly("tensor")]
)
@for_each(case=LAYERS)
def test_they_are_trained_on_every_grid(case, grid_name):
    (make, _), grid = case, GRIDS[grid_name]

    def train(where, num_microbatches):
        pipeline = Pipeline(
            model_with(make()).initialise(1),
            where,
            loss=nn.MSELoss(),
            num_microbatches=num_microbatches,
        )
        optimiser = optim.Adam(pipeline.parameters(), 0.1)
        losses = []
        for _ in range(2):
            losses.append(float(pipeline.step(X, Y)))
            optimiser.step()
        return losses, pipeline.state_dict()

    ((losses, state),) = spawn(lambda group: train(group, 2), 1)
    for found, values in spawn(
        lambda group: train(Grid(group, **grid), 2 // grid.get("data", 1)), 2
    ):
        assert (
            np.allclose(found, losses, rtol=1e-12, atol=1e-12)
            and values.keys() == state.keys()
        )
        assert all(
            np.allclose(values[name], value, rtol=1e-9, atol=1e-9)
            for name, value in state.items()
        )


@for_each(case={name: case for name, case in LAYERS.items() if case[1]})
def test_ranks_that_have_other_values_are_refused(case):
    make, names = case

    def start(group):
        model = model_with(make()).initialise(1)
        parameter = dict(model.named_parameters())[f"1.{names[0]}"]
        parameter.data = parameter.data + group.rank
        Pipeline(model, group, loss=nn.MSELoss(), replicas=2)

    with pytest.raises(
        RankError, match=f"The first values of 1.{names[0]} on rank 1 differ"
    ):
        spawn(start, 2)


def test_they_count_where_stages_are_balanced():
    wide = ScaledSequence(nn.Tanh())
    wide.scale = nn.Parameter(np.ones((50, WIDTH)))
    plan = Plan(nn.Sequential(linear(), linear(), wide), num_ranks=2)
    assert plan.partition == (range(2), range(2, 3)) and "200" in str(plan)


# -- sequences that a pipeline would take apart ----------------------------------------


class Named(nn.Sequential):
    """Only sets itself up, and keeps a layer under a second name."""

    def __init__(self):
        self.first = linear()
        super().__init__(self.first, nn.Tanh(), linear())


def test_a_second_name_of_a_layer_renames_nothing():
    names = [name for name, _ in Named().named_parameters()]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    check_same_as_one_process(Named(), nn.MSELoss(), X, Y, build("1f1b", 2, 2))


def beside(model, **attributes):
    vars_of = vars(model)
    for name, value in attributes.items():
        setattr(model, name, value)
        assert vars_of[name] is value
    return model


@for_each(
    make={
        "a parameter": lambda: beside(Named(), scale=scale()),
        "a layer": lambda: beside(Named(), norm=nn.LayerNorm(WIDTH)),
        "a list": lambda: beside(nn.Sequential(linear(), linear()), scales=[scale()]),
        "a parameter of a sequence inside": lambda: nn.Sequential(
            beside(nn.Sequential(linear(), nn.Tanh()), scale=scale()), linear()
        ),
    }
)
def test_a_parameter_that_no_layer_has_is_refused(make):
    with pytest.raises(ModelError, match="belongs to none of its layers") as caught:
        Plan(make(), num_ranks=2)
    assert caught.value.code == "unsupported"


def replaced(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@for_each(
    make={
        "a class with a forward": lambda: ScaledSequence(linear(), linear()),
        "a class with a call": lambda: type(
            "Calls", (Named,), {"__call__": lambda self, x: x}
        )(),
        "a class with other layers": lambda: type(
            "Flat", (Named,), {"flat_layers": property(lambda self: [])}
        )(),
        "an instance with a forward": lambda: replaced(Named(), forward=lambda x: x),
        "an instance with a hook": lambda: replaced(
            Named(), layer_hook=lambda number, x: x
        ),
    }
)
def test_a_sequence_with_code_of_its_own_is_no_model_of_a_pipeline(make):
    with pytest.raises(ModelError, match="with a forward of its own") as caught:
        Plan(make(), num_ranks=2)
    assert caught.value.code == "type"


@for_each(
    make={
        "a sequence with a forward": lambda inner: replaced(
            inner, forward=lambda x: inner.layers[0](x) * 2.0
        ),
        "a sequence with a hook": lambda inner: replaced(
            inner, layer_hook=lambda number, x: x * (number + 2.0)
        ),
        "a recomputation with a forward": lambda inner: replaced(
            nn.Recompute(inner), forward=lambda x: x * 2.0
        ),
    }
)
def test_code_of_an_instance_inside_is_run(make):
    inner = make(nn.Sequential(nn.Tanh(), nn.ReLU()))
    model, x = (
        nn.Sequential(nn.Identity(), inner),
        Tensor(X, dtype=np.float32),
    )  # without parameters, the dtype of a pipeline
    assert same_bits(model(x).numpy(), inner.forward(x).numpy())

    def predict(group):
        return Pipeline(
            nn.Sequential(nn.Identity(), inner), group, loss=nn.MSELoss()
        ).predict(X)

    assert same_bits(spawn(predict, 2)[0], model(x).numpy())


def test_two_parameters_of_one_name_are_refused():
    layer = nn.Recompute(linear())
    layer.weight = scale()
    with pytest.raises(
        ArgumentError, match="Recompute has two parameters named weight"
    ):
        list(layer.named_parameters())
