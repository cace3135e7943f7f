"""A parameter that stands in several places: one value, a leaf for each use, one sum in
the order of declaration.
"""

import copy
import gc
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from minipipe import Plan, Tensor, nn, optim, schedules
from minipipe.core.nn.parameter import Alias
from minipipe.errors import ArgumentError
from minipipe.testing import check_same_as_one_process

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8


def two_layers():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return first, second


def test_a_parameter_that_is_assigned_again_is_tied_where_it_is_declared():
    first, second = two_layers()
    assert type(first.weight) is nn.Parameter and isinstance(second.weight, Alias)
    assert second.weight.owner is first.weight and (
        first.weight.use,
        second.weight.use,
    ) == (0, 1)
    first.weight = first.weight  # no other place
    assert type(first.weight) is nn.Parameter


def test_an_alias_has_everything_of_its_owner_but_its_leaf():
    first, second = two_layers()
    assert not second.weight.is_filled and "no values yet" in repr(second.weight)
    nn.Sequential(first, second).initialise(3)
    assert second.weight.is_filled and second.weight.data is first.weight.data
    assert (second.weight.shape, second.weight.dtype, second.weight.nbytes) == (
        (4, 4),
        np.float32,
        64,
    )
    second.weight.load(np.ones((4, 4)), "weight")
    assert (
        first.weight.data == 1
    ).all() and second.weight.node is not first.weight.node
    second.weight.data = np.zeros((4, 4), np.float32)
    assert (first.weight.data == 0).all()


def test_gradients_add_up_use_by_use():
    first, second = two_layers()
    model = nn.Sequential(first, nn.Tanh(), second).initialise(0)
    for k in range(3):
        model(X + k).sum().backward()
    total = first.weight.grad_of_use(0) + first.weight.grad_of_use(1)
    assert (first.weight.grad == total).all() and (second.weight.grad == total).all()
    second.weight.zero_grad()
    assert first.weight.grad is None
    second.weight.grad = np.ones((4, 4), np.float32)
    assert (first.weight.grad == 1).all()


def test_a_module_used_twice_is_a_twin_with_aliases_the_second_time():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), nn.Residual(layer), layer).initialise(0)
    assert model[0] is layer and model[3] is not layer
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    assert model[3].weight.data is layer.weight.data
    model(X).sum().backward()
    assert [layer.weight.grad_of_use(use) is not None for use in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    optim.SGD(model.parameters(), 0.1).step()
    assert (model[3](Tensor(X)).numpy() == layer(Tensor(X)).numpy()).all()


def test_a_layer_without_parameters_may_stand_twice_as_it_is():
    activation = nn.Tanh()
    model = nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 4), activation)
    assert model[1] is model[3]


def test_the_layer_that_was_given_is_left_as_it_was():
    layer = nn.Linear(4, 4)
    wrapped = nn.Residual(layer)
    model = nn.Sequential(layer, wrapped)
    assert type(next(wrapped.parameters())) is nn.Parameter
    assert isinstance(next(model[1].parameters()), Alias)


class WithContainers(nn.Module):
    def __init__(self, weight):
        self.weights, self.by_name = [weight], {"w": (weight,)}

    def forward(self, x):
        return x @ self.weights[0] + x @ self.by_name["w"][0]


def test_a_parameter_in_lists_and_dicts_of_several_layers_is_tied_too():
    weight = nn.Parameter((4, 4), nn.initialisers.normal(0.5))
    model = nn.Sequential(WithContainers(weight), WithContainers(weight)).initialise(0)
    assert model[0].weights[0] is weight and isinstance(model[1].weights[0], Alias)
    assert isinstance(model[1].by_name["w"][0], Alias)
    model(X).sum().backward()
    assert weight.grad.shape == (4, 4) and model.num_parameters == 16


def test_an_alias_trains_where_its_owner_is_in_no_model():
    embedding = nn.Embedding(5, 4)
    head = nn.Sequential(nn.Linear(4, 4), nn.Unembedding(embedding)).initialise(0)
    assert [name for name, _ in head.named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.weight",
    ]
    before = embedding.weight.data.copy()
    head(X).sum().backward()
    optim.SGD(head.parameters(), 0.1).step()
    assert not (embedding.weight.data == before).all()


def test_a_deep_copy_ties_the_copies_to_each_other():
    model = nn.Sequential(*two_layers()).initialise(0)
    twin = copy.deepcopy(model)
    assert (
        twin[1].weight.owner is twin[0].weight and twin[0].weight is not model[0].weight
    )
    # its owner comes along, though no module here has it
    alone = copy.deepcopy(model[1])
    assert alone.weight.use == 1 and (alone.weight.data == model[0].weight.data).all()
    assert not np.shares_memory(alone.weight.data, model[0].weight.data)


def test_an_optimiser_refuses_a_parameter_beside_its_alias():
    first, second = two_layers()
    with pytest.raises(ArgumentError, match="each step would change it twice"):
        optim.SGD([first.weight, second.weight], 0.1)


def check_on_two_ranks(model):
    inputs, targets = np.tile(X, (4, 1)), np.ones((8, 4), np.float32)
    check_same_as_one_process(
        model, nn.MSELoss(), inputs, targets, schedules.one_f_one_b(2, 4)
    )


class Holds(nn.Module):
    def __init__(self):
        self.parts, self.inner, self.weights = [], None, []

    def forward(self, x):
        for part in (*self.parts, *([self.inner] if self.inner else [])):
            x = part(x)
        return x @ self.weights[0] if self.weights else x


def share_by_assignment(first, last):
    last.inner = nn.Linear(4, 4, bias=False)
    last.inner.weight = first.weight


def share_a_module(first, last):
    last.inner = first


def share_in_a_list_of_modules(first, last):
    last.parts.append(first)


def share_in_a_list_of_parameters(first, last):
    last.weights.append(first.weight)


SHARED_LATER = [
    share_by_assignment,
    share_a_module,
    share_in_a_list_of_modules,
    share_in_a_list_of_parameters,
]


@pytest.mark.parametrize("share", SHARED_LATER)
def test_whatever_layers_come_to_share_after_the_sequence_was_made_is_tied_in_a_pipeline(
    share,
):
    """The story: a copy forgot that its parameters were placed, no alias was made, and
    copies on two ranks drifted.
    """
    model = copy.deepcopy(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Holds()))
    share(model[0], model[2])
    before = list(model[0].weight.leaves)
    check_on_two_ranks(model)
    assert "0.weight" in Plan(model, num_ranks=2).shared
    gc.collect()
    assert len(model[0].weight.leaves) <= len(before) + 1  # those of a plan go with it


def test_leaves_of_aliases_that_are_gone_are_gone():
    embedding = nn.Embedding(5, 4)
    for _ in range(100):
        nn.Unembedding(embedding)
    gc.collect()
    assert len(embedding.weight.leaves) == 1
    # numbers do not depend on when garbage is collected
    assert nn.Unembedding(embedding).weight.use == 101


Pair = namedtuple("Pair", "first second")


def test_a_namedtuple_and_a_dict_of_parts_keep_their_types():
    class Block(nn.Module):
        def __init__(self):
            self.pair = Pair(nn.Linear(4, 4), nn.Linear(4, 4))
            self.named = OrderedDict(a=nn.Linear(4, 4))

        def forward(self, x):
            return self.named["a"](self.pair.second(self.pair.first(x)))

    block = Block()
    model = nn.Sequential(block, nn.Tanh(), block)
    assert type(model[2].pair) is Pair and type(model[2].named) is OrderedDict
    check_on_two_ranks(model)


def test_parameters_are_told_apart_by_identity_in_lists():
    """The story: with values compared, `parameter in decayed` was wrong for one element
    and an error for more.
    """
    a, b = nn.Parameter(np.zeros(1)), nn.Parameter(np.zeros(1))
    assert a in [a] and b not in [a] and a != b and (a == b) is False
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    decayed = [layer.weight for layer in model]
    assert [p.shape for p in model.parameters() if p not in decayed] == [(4,), (4,)]
    assert (nn.Parameter([1.0, 2.0]) == 1).numpy().tolist() == [True, False]
    assert (nn.Parameter([1.0, 2.0]) == None) is False  # noqa: E711


def test_a_state_of_tensors_is_a_state():
    layer, other = nn.Linear(4, 4).initialise(0), nn.Linear(4, 4)
    other.load_state_dict(dict(layer.named_parameters()))
    assert (other.weight.data == layer.weight.data).all()
