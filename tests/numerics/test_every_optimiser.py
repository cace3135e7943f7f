"""What holds for every optimiser: its own bits, in place, in the parameter's dtype and
array module.
"""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest

from minipipe import nn, optim
from minipipe.errors import ArgumentError
from minipipe.tuning.memory import state_bytes

START = [1.0, -2.0, 0.5]
GRADIENT = [0.5, 1.0, -1.0]
EVERY_KIND = {
    "SGD": lambda parameters: optim.SGD(parameters, 0.1),
    "SGD with weight decay": lambda parameters: optim.SGD(
        parameters, 0.1, weight_decay=0.1
    ),
    "SGD with momentum": lambda parameters: optim.SGD(
        parameters, 0.1, momentum=0.9, weight_decay=0.1
    ),
    "SGD, Nesterov": lambda parameters: optim.SGD(
        parameters, 0.1, 0.9, weight_decay=0.1, nesterov=True
    ),
    "Adam": lambda parameters: optim.Adam(parameters, 0.1),
    "Adam with weight decay": lambda parameters: optim.Adam(
        parameters, 0.1, weight_decay=0.1
    ),
    "AdamW": lambda parameters: optim.AdamW(parameters, 0.1, weight_decay=0.1),
    "AdamW, Nesterov": lambda parameters: optim.AdamW(
        parameters, 0.1, weight_decay=0.1, nesterov=True
    ),
    "Muon": lambda parameters: optim.Muon(parameters, 0.1),
    "Muon, Jordan": lambda parameters: optim.Muon(
        parameters, 0.1, nesterov=False, rate_by_shape="jordan"
    ),
    "Muon without matrices": lambda parameters: optim.Muon(
        parameters, 0.1, orthogonal=False
    ),
}
SHAPES = [(3, 4), (), (7,), (0, 2), (2, 3, 2)]
every_kind = pytest.mark.parametrize("kind", EVERY_KIND.values(), ids=EVERY_KIND)

# Now and then no parameter at all has a gradient, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:optimiser.step")


def trained(kind, dtype=np.float64, xp=np, which=None, num_steps=5):
    """Return the parameters of SHAPES, those in ``which`` trained together, with
    gradients that are None at times.
    """
    which = range(len(SHAPES)) if which is None else which
    generator = np.random.default_rng(0)
    numbers = [
        generator.standard_normal((1 + num_steps, *shape)).astype(dtype)
        for shape in SHAPES
    ]
    parameters = [nn.Parameter(xp.asarray(own[0, ...])) for own in numbers]
    optimiser = kind([parameters[i] for i in which])
    for step in range(num_steps):
        for i in which:
            has_gradient = (i + step) % 4 != 0
            parameters[i].grad = (
                xp.asarray(numbers[i][1 + step, ...]) if has_gradient else None
            )
        optimiser.step()
    return parameters


def bits(parameters):
    return [
        (np.asarray(p.data).dtype.name, p.shape, np.asarray(p.data).tobytes())
        for p in parameters
    ]


@every_kind
def test_the_bits_of_a_parameter_do_not_depend_on_what_else_the_rank_holds(kind):
    together = bits(trained(kind))
    assert len(set(together)) == len(SHAPES)
    for i in range(len(SHAPES)):
        assert bits(trained(kind, which=[i]))[i] == together[i]
    assert bits(trained(kind, which=[4, 2, 0, 3, 1])) == together


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_kind
def test_arrays_of_the_array_api_standard_get_the_bits_of_numpy(kind, dtype):
    on_strict = trained(kind, dtype, array_api_strict)
    assert all(p.data.__array_namespace__() is array_api_strict for p in on_strict)
    assert bits(on_strict) == bits(trained(kind, dtype))


@every_kind
def test_everything_that_is_kept_has_the_dtype_of_the_parameter(kind):
    p = nn.Parameter(np.array(START, np.float32))
    p.grad = np.ones(3, np.float64)
    optimiser = kind([p])
    optimiser.step()
    optimiser.step()
    kept = [
        value
        for state in optimiser._states.values()
        for value in state.values()
        if hasattr(value, "dtype")
    ]
    assert {array.dtype for array in [p.data, *kept]} == {np.dtype(np.float32)}


@every_kind
def test_every_optimiser_changes_the_array_in_place_and_leaves_the_gradient_alone(kind):
    p = nn.Parameter(np.array(START))
    array, gradient = p.data, np.array(GRADIENT)
    p.grad = gradient
    optimiser = kind([p])
    optimiser.step()
    optimiser.step()
    assert p.data is array and array.tolist() != START
    assert p.grad is gradient and gradient.tolist() == GRADIENT


@every_kind
def test_the_size_of_the_blocks_changes_no_bit(kind, monkeypatch):
    whole = bits(trained(kind))
    # none, one and several blocks, the last one short
    monkeypatch.setattr("minipipe.core.sgd._BLOCK_SIZE", 5)
    assert bits(trained(kind)) == whole


@every_kind
def test_an_array_in_another_order_is_changed_in_place_too(kind, monkeypatch):
    """The story: in blocks it would be flattened into a copy, and the change would be
    lost.
    """
    monkeypatch.setattr("minipipe.core.sgd._BLOCK_SIZE", 5)
    values, gradient = np.arange(12.0).reshape(3, 4), np.ones((3, 4))
    straight, turned = nn.Parameter(values), nn.Parameter(values)
    turned.data = np.asfortranarray(values)
    straight.grad, turned.grad = gradient, np.asfortranarray(gradient)
    kind([straight, turned]).step()
    assert turned.data.tolist() == straight.data.tolist() != values.tolist()


def test_a_new_rule_is_one_method():
    class SignDescent(optim.Optimiser):
        def _update(self, data, gradient, state, group):
            data -= group.learning_rate * np.sign(gradient)
            state["num_steps"] = state.get("num_steps", 0) + group.stride

    p = nn.Parameter(np.array([1.0, 1.0]))
    optimiser = SignDescent([p], learning_rate=0.5, stride=3)
    for gradient in ([9.0, -0.1], [1.0, 1.0]):
        p.grad = np.array(gradient)
        optimiser.step()
    assert p.data.tolist() == [0.0, 1.0]
    assert list(optimiser._states.values()) == [{"num_steps": 6}]


@every_kind
def test_the_size_of_its_state_is_known_before_there_are_values(kind):
    declared = [
        nn.Parameter(shape, nn.initialisers.constant(0.0), dtype)
        for shape in SHAPES
        for dtype in (np.float32, np.float64)
    ]
    declared[0].requires_grad = False
    predicted = state_bytes(kind, declared)
    assert not any(parameter.is_filled for parameter in declared)
    for parameter in declared:
        parameter.fill(0, "any")
        parameter.grad = (
            np.ones_like(parameter.data) if parameter.requires_grad else None
        )
    optimiser = kind(declared)
    optimiser.step()
    kept = [
        a
        for state in optimiser._states.values()
        for a in state.values()
        if isinstance(a, np.ndarray)
    ]
    assert predicted == sum(array.nbytes for array in kept)


def test_what_makes_no_optimiser_has_no_state():
    with pytest.raises(
        ArgumentError, match="optimiser is 3; expected a function that makes one"
    ) as caught:
        state_bytes(3, [nn.Parameter([0.0, 0.0])])
    assert (
        caught.value.code == "type"
        and state_bytes(None, [nn.Parameter([0.0, 0.0])]) == 0
    )
