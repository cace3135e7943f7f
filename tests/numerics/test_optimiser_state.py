"""The state of an optimiser: steps, state_dict, load_state_dict and more steps are the
steps of one that went on.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn, optim
from minipipe.errors import ArgumentError

KINDS = {
    "SGD": lambda groups: optim.SGD(groups, 0.1),
    "SGD with momentum": lambda groups: optim.SGD(
        groups, 0.1, momentum=0.9, weight_decay=0.1
    ),
    "Adam": lambda groups: optim.Adam(groups, 0.1, weight_decay=0.1),
    "AdamW": lambda groups: optim.AdamW(groups, 0.1),
    "Muon": lambda groups: optim.Muon(groups, 0.1),
}
SHAPES = [(3, 4), (), (7,)]

pytestmark = pytest.mark.filterwarnings("ignore:optimiser.step")


def made(kind, dtype, values):
    parameters = [nn.Parameter(np.array(own, dtype)) for own in values]
    groups = [
        {"parameters": parameters[:1], "learning_rate": 0.05},
        {"parameters": parameters[1:]},
    ]
    return parameters, kind(groups)


def step(parameters, optimiser, number):
    generator = np.random.default_rng(number)
    for i, parameter in enumerate(parameters):
        gradient = generator.standard_normal(parameter.shape).astype(np.float32)
        # In the parameter's dtype, or float32 for halves; None now and then, so that
        # their counts of steps differ.
        wide = parameter.dtype if parameter.dtype.itemsize > 2 else np.float32
        parameter.grad = None if (i + number) % 4 == 0 else np.asarray(gradient, wide)
    optimiser.groups[0].learning_rate *= 0.9
    optimiser.step()


@given(
    kind=st.sampled_from(list(KINDS.values())),
    dtype=st.sampled_from([np.float32, np.float64, np.float16, ml_dtypes.bfloat16]),
    before=st.integers(0, 3),
    after=st.integers(1, 3),
)
def test_steps_through_a_state_are_the_steps_of_one_that_went_on(
    kind, dtype, before, after
):
    first = [np.random.default_rng(99).standard_normal(shape) for shape in SHAPES]
    whole, one = made(kind, dtype, first)
    for number in range(before):
        step(whole, one, number)
    parts, other = made(kind, dtype, [parameter.data for parameter in whole])
    other.load_state_dict(one.state_dict())
    for number in range(before, before + after):
        step(whole, one, number)
        step(parts, other, number)
    for parameter, twin in zip(whole, parts):
        assert np.asarray(parameter.data).tobytes() == np.asarray(twin.data).tobytes()
    assert str(one.state_dict()) == str(other.state_dict())


def test_a_state_is_a_copy_and_stays_as_it_was():
    parameters, optimiser = made(
        KINDS["Adam"], np.float32, [np.ones(shape) for shape in SHAPES]
    )
    step(parameters, optimiser, 1)
    state = optimiser.state_dict()
    before = str(state)
    step(parameters, optimiser, 2)
    assert str(state) == before
    optimiser.load_state_dict(state)
    step(parameters, optimiser, 3)
    assert str(state) == before


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "the state is a NoneType; expected the result of state_dict"),
        ({}, "the state is empty; expected"),
        (
            {"groups": [], "states": []},
            "the state's groups have [], and this optimiser's [['learning_rate'",
        ),
        ({"groups": [{"beta": 1}], "states": []}, "the state's groups have [['beta']]"),
        (
            optim.SGD([], 0.1).state_dict(),
            "the state is of 0 parameters; this optimiser has 1.",
        ),
    ],
)
def test_a_state_of_another_optimiser_is_refused(state, words):
    optimiser = optim.SGD([nn.Parameter(np.ones(2))], 0.1)
    with pytest.raises(ArgumentError) as caught:
        optimiser.load_state_dict(state)
    assert words in str(caught.value)


def test_a_learning_rate_schedule_goes_on_where_it_stood():
    def schedule(rate):
        optimiser = optim.SGD([], rate)
        return optimiser, optim.LearningRateSchedule(
            optimiser, optim.cosine(20, warmup_steps=3)
        )

    (one, its), (other, others) = schedule(0.3), schedule(0.7)
    for _ in range(5):
        its.step()
    others.load_state_dict(its.state_dict())
    for _ in range(5):
        assert one.learning_rate == other.learning_rate
        its.step()
        others.step()
    before = its.state_dict()
    for step, rates in (
        (1, [0.1, 0.2]),
        (1, [True]),
        (1, [-0.1]),
        (1, None),
        (-1, [0.1]),
        (2.5, [0.1]),
        (True, [0.1]),
    ):
        with pytest.raises(ArgumentError):
            its.load_state_dict({"last_step": step, "first_rates": rates})
        assert its.state_dict() == before
    for wrong in (None, {}, {"first_rates": [0.1]}):
        with pytest.raises(ArgumentError):
            its.load_state_dict(wrong)


def test_a_loss_scale_goes_on_where_it_stood():
    one, other = (
        optim.LossScale(initial, growth_interval=3) for initial in (64.0, 2.0)
    )
    weight = nn.Parameter(np.zeros(1, np.float16))
    for number in range(8):
        if number == 4:
            other.load_state_dict(one.state_dict())
        for scale in (one, other):
            weight.grad = np.array([np.inf if number == 2 else 1.0], np.float32)
            scale.unscale([weight])
        assert number < 4 or one.state_dict() == other.state_dict()
    for wrong in (None, {}, {"value": 1.0}):
        with pytest.raises(ArgumentError, match="the state is"):
            one.load_state_dict(wrong)


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (np.inf, 0),
        (np.nan, 0),
        (0.0, 0),
        (-1.0, 0),
        (True, 0),
        ("1", 0),
        (2.0, -1),
        (2.0, 2.5),
        (2.0, True),
    ],
)
def test_a_loss_scale_takes_no_state_that_it_could_not_have_had(value, steps):
    """The story: inf, 0 and below were taken, and 2.5 updates became 2."""
    scale = optim.LossScale(64.0)
    with pytest.raises(
        ArgumentError, match="^LossScale: (value|num_good_steps) is .*; expected a"
    ):
        scale.load_state_dict({"value": value, "num_good_steps": steps})
    assert scale.state_dict() == {"value": 64.0, "num_good_steps": 0}


def test_a_state_that_cannot_be_taken_changes_nothing():
    """The story: the first group had its new learning rate when that of the second was
    refused.
    """
    parameters, optimiser = made(
        KINDS["Adam"], np.float32, [np.ones(shape) for shape in SHAPES]
    )
    before = str(optimiser.state_dict())
    state = optimiser.state_dict()
    state["groups"][0]["learning_rate"], state["groups"][1]["learning_rate"] = 0.7, -1.0
    with pytest.raises(ArgumentError, match=r"learning_rate is -1\.0"):
        optimiser.load_state_dict(state)
    assert str(optimiser.state_dict()) == before and len(parameters) == 3


def test_a_rule_that_does_not_say_what_it_keeps_is_given_back_what_it_kept():
    class Counting(optim.Optimiser):
        def _update(self, data, gradient, state, group):
            state["seen"] = state.get("seen", -3.5) + 1

    optimiser = Counting([nn.Parameter(np.ones(2))])
    optimiser.load_state_dict({"groups": [{}], "states": [{"seen": -2.5}]})
    assert optimiser.state_dict()["states"] == [{"seen": -2.5}]
