"""A function that a program assigned to a layer computes, in a copy of the layer, with
the copy's parameters.
"""

import copy
import types
from functools import partial

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Tensor, functional, nn, optim, spawn
from tests.launch import covering

F8 = {"dtype": np.float64}
X = np.random.default_rng(0).standard_normal((8, 4))


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2.0


def by_method(layer):
    old = layer.forward
    layer.forward = lambda x: old(x) * 2.0


def by_layer(layer):
    layer.forward = lambda x: functional.linear(x, layer.weight, layer.bias) * 2.0


def by_parameters(layer):
    weight, bias = layer.weight, layer.bias
    layer.forward = lambda x: functional.linear(x, weight, bias) * 2.0


def by_default(layer):
    layer.forward = lambda x, old=layer.forward: old(x) * 2.0


def by_name(layer):
    def forward(x, *, old=layer.forward):
        return old(x) * 2.0

    layer.forward = forward


def twice(layer):
    inner = layer.forward
    layer.forward = lambda x: inner(x) * 4.0
    outer = layer.forward
    layer.forward = lambda x: outer(x) * 0.5


def bound(layer):
    layer.forward = types.MethodType(
        lambda self, x: nn.Linear.forward(self, x) * 2.0, layer
    )


def partly(layer):
    layer.forward = partial(
        lambda x, weight, bias: functional.linear(x, weight, bias) * 2.0, **vars(layer)
    )


def recursive(layer):
    old = layer.forward

    def forward(x, is_outer=True):
        return forward(x, False) * 2.0 if is_outer else old(x)

    layer.forward = forward


PATCHES = [
    by_method,
    by_layer,
    by_parameters,
    by_default,
    by_name,
    twice,
    bound,
    partly,
    recursive,
]


def model_with(middle):
    return nn.Sequential(nn.Linear(4, 6, **F8), middle, nn.Linear(6, 4, **F8))


def patched(patch):
    layer = nn.Linear(6, 6, **F8)
    patch(layer)
    return model_with(layer)


def trained(make_model, where):
    pipeline = Pipeline(make_model(), where, loss=nn.MSELoss(), num_microbatches=2)
    optimiser = optim.SGD(pipeline.parameters(), 0.1)
    for _ in range(3):
        pipeline.step(X, X)
        optimiser.step()
    return pipeline.state_dict()


@pytest.mark.parametrize(("patch", "num_ranks"), covering(PATCHES, [1, 2], strength=1))
def test_a_pipeline_trains_a_layer_with_a_forward_that_was_assigned_as_a_subclass(
    patch, num_ranks
):
    (expected,) = spawn(
        lambda group: trained(lambda: model_with(Doubled(6, 6, **F8)), group), 1
    )
    for state in spawn(lambda group: trained(lambda: patched(patch), group), num_ranks):
        equal = {
            name: np.array_equal(state[name], values)
            for name, values in expected.items()
        }
        assert equal == dict.fromkeys(expected, True)


@pytest.mark.parametrize(
    "sizes", [{"tensor": 2}, {"data": 2, "fully_sharded": True}], ids=str
)
@pytest.mark.parametrize("patch", [by_method, by_default])
def test_so_does_a_grid(patch, sizes):
    (expected,) = spawn(
        lambda group: trained(lambda: model_with(Doubled(6, 6, **F8)), group), 1
    )
    for state in spawn(
        lambda group: trained(lambda: patched(patch), Grid(group, **sizes)), 2
    ):
        for name, values in expected.items():
            assert np.allclose(state[name], values, rtol=1e-12, atol=1e-12)


def test_a_copy_leaves_the_original_and_what_is_outside_alone():
    outside, calls = nn.Linear(6, 6, **F8).initialise(1), []
    layer = nn.Linear(6, 6, **F8).initialise(0)
    layer.forward = lambda x: calls.append(1) or outside(x)
    plain = layer.tool = lambda x: x
    twin = copy.deepcopy(layer)
    x = Tensor(np.ones((1, 6)))
    assert np.array_equal(twin(x).numpy(), outside(x).numpy())
    assert calls == [1] and twin.forward is layer.forward and twin.tool is plain


def test_a_function_may_refer_to_a_later_module_of_what_is_copied():
    first, later = nn.Linear(2, 2, **F8), nn.Linear(2, 2, **F8)
    first.forward = lambda x: functional.linear(x, later.weight)
    twin = copy.deepcopy(nn.Sequential(first, later).initialise(0))
    twin(Tensor(np.ones((1, 2)))).sum().backward()
    assert later.weight.grad is None
    (one, other) = (
        functional.linear(Tensor(np.eye(2)), layer.weight).numpy()
        for layer in (twin[1], later)
    )
    assert np.array_equal(one, other) and np.array_equal(
        twin[0](Tensor(np.eye(2))).numpy(), one
    )
    twin[1].weight.data[...] = 0
    assert not twin[0](Tensor(np.eye(2))).numpy().any()


def test_a_name_without_a_value_stays_one():
    layer = nn.Linear(6, 6, **F8).initialise(0)
    old = layer.forward
    layer.forward = lambda x: old(x) if x is not None else later
    twin = copy.deepcopy(layer)
    with pytest.raises(NameError, match="later"):
        twin.forward(None)
    later = 5
    assert twin.forward(None) == later


def test_a_counter_in_a_closure_stays_one():
    layer, count = nn.Linear(6, 6, **F8).initialise(0), 0
    old = layer.forward

    def forward(x):
        nonlocal count
        count += 1
        return old(x)

    layer.forward = forward
    copy.deepcopy(layer)(Tensor(np.ones((1, 6))))
    layer(Tensor(np.ones((1, 6))))
    assert count == 2


class Slotted(nn.Module):
    __slots__ = ("table",)

    def __init__(self):
        self.table, self.inner = [1, 2], nn.Linear(2, 2)


def test_slots_are_copied_too():
    layer = Slotted()
    twin = copy.deepcopy(layer)
    assert (
        twin.table == [1, 2]
        and twin.table is not layer.table
        and twin.inner is not layer.inner
    )
