"""Modules and layers: names, first values, modes, looks, and what each layer
computes.
"""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor, functional, nn
from minipipe.errors import TensorError
from tests.numerics.small_models import Block, Tied, mlp, values

# -- names -----------------------------------------------------------------------------


def test_names_are_the_path_through_attributes_lists_and_tuples():
    assert [name for name, _ in Block().named_parameters()] == [
        "scale",
        "inner.0.weight",
        "inner.0.bias",
        "branches.0.weight",
        "branches.1",
        "pair.1.weight",
        "pair.1.bias",
    ]
    assert [name for name, _ in nn.Sequential(nn.ReLU(), Block()).named_parameters()][
        :2
    ] == [
        "1.scale",
        "1.inner.0.weight",
    ]


def test_modules_are_found_wherever_parameters_are():
    assert [type(module).__name__ for module in Block().modules()] == [
        "Block",
        "Sequential",
        "Linear",
        "Tanh",
        "Linear",
        "Identity",
        "Linear",
    ]


def test_a_parameter_under_two_names_comes_once_under_the_first():
    model = Tied()
    assert [name for name, _ in model.named_parameters()] == [
        "encoder.weight",
        "encoder.bias",
    ]
    assert model.num_parameters == 12
    shared = nn.Linear(2, 2)
    assert [
        name
        for name, _ in nn.Sequential(shared, nn.Linear(2, 2), shared).named_parameters()
    ] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


# -- first values ----------------------------------------------------------------------


def test_building_twice_gives_the_same_model():
    assert values(mlp().initialise(5)) == values(mlp().initialise(5))


def test_equal_layers_start_different_and_so_do_equal_models_of_other_seeds():
    model, other = mlp().initialise(5), mlp().initialise(6)
    assert values(model)["2.weight"] != values(model)["4.weight"]
    assert values(model)["2.weight"] != values(other)["2.weight"]


def test_first_values_depend_on_the_seed_and_the_qualified_name_alone():
    # Whatever stands around a layer: its neighbours, the order of filling, the rank
    # that fills it.
    alone = nn.Sequential(nn.Identity(), nn.Identity(), nn.Linear(3, 3)).initialise(5)
    assert values(alone)["2.weight"] == values(mlp().initialise(5))["2.weight"]
    one = mlp()
    for name, parameter in reversed(list(one.named_parameters())):
        parameter.fill(5, name)
    assert values(one) == values(mlp().initialise(5))


def test_a_name_is_that_in_the_outermost_module_also_inside_others():
    inner = nn.Sequential(nn.Linear(3, 3))
    outer = nn.Sequential(nn.Identity(), inner).initialise(5)
    assert (
        values(outer)["1.0.weight"]
        != values(nn.Sequential(nn.Linear(3, 3)).initialise(5))["0.weight"]
    )


def test_the_first_call_fills_with_seed_0_and_later_calls_leave_the_values():
    model, x = mlp(), np.ones((2, 4), np.float32)
    first = model(x).numpy()
    assert values(model) == values(mlp().initialise(0))
    np.testing.assert_array_equal(model(x).numpy(), first)


def test_the_first_call_fills_only_what_has_no_values():
    model = mlp()
    model[2].weight.load(np.full((3, 3), 2.0), "2.weight")
    model(np.ones((2, 4), np.float32))
    assert (model[2].weight.data == 2.0).all()
    assert values(model)["0.weight"] == values(mlp().initialise(0))["0.weight"]


def test_initialise_again_starts_anew_and_forgets_gradients():
    model = mlp().initialise(1)
    model(np.ones((2, 4), np.float32)).sum().backward()
    assert model[0].weight.grad is not None
    assert model.initialise(1) is model
    assert values(model) == values(mlp().initialise(1))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_linear_layer_starts_uniform_within_the_bound_of_he_and_its_bias_at_zero():
    layer = nn.Linear(50, 40).initialise(0)
    bound = (6 / 50) ** 0.5
    assert abs(layer.weight.data).max() <= bound
    # of 2000 draws; all below has probability 1e-9
    assert abs(layer.weight.data).max() > 0.99 * bound
    assert abs(layer.weight.data.std() - bound / 3**0.5) < 0.03 * bound
    assert not layer.bias.data.any()
    assert layer.weight.dtype == layer.bias.dtype == np.float32


def test_an_initialiser_and_a_dtype_can_be_given():
    layer = nn.Linear(
        2, 3, bias=False, initialiser=nn.initialisers.constant(0.5), dtype=np.float64
    ).initialise()
    assert layer.bias is None
    assert layer.weight.dtype == np.float64 and (layer.weight.data == 0.5).all()
    assert layer(np.ones((1, 2))).dtype == np.float64


# -- train, eval, looks ----------------------------------------------------------------


def test_train_and_eval_reach_every_module_inside():
    model = nn.Sequential(Block(), nn.Sequential(nn.ReLU(), Tied()))
    modules = list(model.modules())
    assert all(module.is_training for module in modules)
    assert model.eval() is model and not any(module.is_training for module in modules)
    assert model.train() is model and all(module.is_training for module in modules)
    model[1].eval()
    assert [
        module.is_training
        for module in (model, model[0], model[1], model[1][1].encoder)
    ] == [
        True,
        True,
        False,
        False,
    ]
    assert nn.ReLU().is_training  # not shared through the class


def test_zero_grad_forgets_every_gradient():
    model = mlp()
    model(np.ones((2, 4), np.float32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_prints_as_it_is_written():
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(4, 3, bias=False),
        nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()),
        Tied(),
        nn.Identity(),
        nn.Linear(3, 0),
    )
    expected = """\
Sequential(
  0: Flatten()
  1: Linear(4, 3, bias=False)
  2: Sequential(
    0: Linear(3, 3)
    1: Sigmoid()
  )
  3: Tied(
    encoder: Linear(3, 3)
    decoder: Linear(3, 3)
  )
  4: Identity()
  5: Linear(3, 0)
)"""
    assert repr(model) == expected
    assert repr(model.initialise()) == expected
    assert repr(nn.Sequential()) == "Sequential()"
    assert repr(nn.CrossEntropyLoss()) == "CrossEntropyLoss()"


# -- layers ----------------------------------------------------------------------------

X = np.array([[-1.0, 0.0, 2.0], [0.5, -3.0, 1.0]])


LAYERS = {
    "Identity": (nn.Identity, X),
    "ReLU": (nn.ReLU, [[0.0, 0.0, 2.0], [0.5, 0.0, 1.0]]),
    "Tanh": (nn.Tanh, np.tanh(X)),
    "Sigmoid": (nn.Sigmoid, 1 / (1 + np.exp(-X))),
    "Flatten": (nn.Flatten, X),
    "Linear": (
        lambda: nn.Linear(
            3, 2, initialiser=nn.initialisers.constant(2.0), dtype=np.float64
        ),
        [[2, 2], [-3, -3]],
    ),
}


@pytest.mark.parametrize("make, expected", LAYERS.values(), ids=LAYERS)
def test_a_layer_computes_what_its_name_says(make, expected):
    np.testing.assert_allclose(make()(Tensor(X)).numpy(), expected, rtol=1e-14)


def test_flatten_keeps_the_first_axis():
    assert nn.Flatten()(Tensor(np.zeros((2, 3, 4)))).shape == (2, 12)


def test_losses_are_means_over_the_batch():
    scores, labels = Tensor(np.log([[1.0, 3.0], [1.0, 1.0]])), [1, 0]
    np.testing.assert_allclose(
        nn.CrossEntropyLoss()(scores, labels).item(), (np.log(4 / 3) + np.log(2)) / 2
    )
    prediction, target = Tensor([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, 0.0]]
    assert nn.MSELoss()(prediction, target).item() == 4.0
    assert list(nn.MSELoss().parameters()) == []


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(TypeError, match="Empty does not define forward"):
        Empty()(1)


def test_parameters_in_dicts_and_nested_lists_are_found():
    class Nested(nn.Module):
        def __init__(self):
            self.heads = {"left": nn.Linear(2, 2), "right": [nn.Linear(2, 2)]}

    names = [name for name, _ in Nested().named_parameters()]
    assert names == [
        "heads.left.weight",
        "heads.left.bias",
        "heads.right.0.weight",
        "heads.right.0.bias",
    ]


def test_a_module_takes_keywords():
    class Scaled(nn.Module):
        def forward(self, x, factor):
            return x * factor

    assert Scaled()(Tensor([1.0, 2.0]), factor=3).numpy().tolist() == [3, 6]


@pytest.mark.parametrize("widths", [(8, 64 / 2), (8.0, 4), (-1, 4), ("8", 4)])
def test_lengths_that_are_no_whole_numbers_are_refused(widths):
    with pytest.raises(ValueError, match="expected a whole number"):
        nn.Linear(*widths)


class HandsOnTwo(nn.Module):
    def __init__(self):
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        y = self.layer(x)
        return y, y


@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 3), nn.GELU(), nn.LayerNorm(3), nn.Residual(nn.Identity())]
)
def test_a_tuple_of_tensors_where_one_belongs_is_refused(layer):
    """NumPy stacked the two into one array, the graph behind them was gone, and the
    first layer never learnt.
    """
    model, x = nn.Sequential(HandsOnTwo(), layer), np.ones((8, 6), np.float32)
    with pytest.raises(
        TensorError, match="A tuple of tensors was passed; expected one tensor"
    ) as caught:
        model(x)
    assert caught.value.code == "wrong-number"
    with pytest.raises(
        TensorError, match=r"A list of tensors .* nn.Take\('x'\) selects one"
    ):
        functional.add(Tensor(x), [Tensor(x)])
