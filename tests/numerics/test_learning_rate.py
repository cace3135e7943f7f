"""Learning rates that change: the factors as values, against PyTorch, and what sets
them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn, optim

# Learning rates are set without a gradient to be used.
pytestmark = pytest.mark.filterwarnings("ignore:optimiser.step")


def factors(factor, num_steps):
    return [factor(step) for step in range(num_steps)]


# -- the factors -----------------------------------------------------------------------


def test_the_warm_up_rises_to_1_and_the_fall_begins_at_1():
    #      warm-up            fall                        final
    assert factors(optim.linear(8, warmup_steps=4, final=0.5), 10) == [
        *[0.25, 0.5, 0.75, 1.0],
        *[1.0, 0.875, 0.75, 0.625],
        *[0.5, 0.5],
    ]


def test_the_cosine_is_half_way_at_half_time():
    np.testing.assert_allclose(
        factors(optim.cosine(6, final=0.2), 8),
        [
            1.0,
            0.6 + 0.2 * math.sqrt(3),
            0.8,
            0.6,
            0.4,
            0.6 - 0.2 * math.sqrt(3),
            0.2,
            0.2,
        ],
        rtol=1e-15,
    )


def test_a_step_decay_falls_after_every_so_many_steps():
    assert factors(optim.step_decay(3, 0.5), 8) == [
        1.0,
        1.0,
        1.0,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
    ]


def test_a_constant_factor_is_1():
    assert factors(optim.constant(), 3) == [1.0, 1.0, 1.0]


@given(st.sampled_from([optim.cosine, optim.linear]), st.integers(1, 40), st.data())
def test_a_factor_rises_through_the_warm_up_never_rises_after_it_and_ends_at_final(
    kind, num_steps, data
):
    warmup_steps = data.draw(st.integers(0, num_steps))
    final = data.draw(st.floats(0, 1))
    values = factors(kind(num_steps, warmup_steps, final), num_steps + 3)
    rise, fall = values[:warmup_steps], values[warmup_steps:]
    assert rise == [(step + 1) / warmup_steps for step in range(warmup_steps)]
    assert all(earlier >= later - 1e-15 for earlier, later in zip(fall, fall[1:]))
    assert fall[-3:] == [final] * 3
    assert warmup_steps == num_steps or fall[0] == 1.0


@pytest.mark.parametrize("kind", [optim.cosine, optim.linear])
@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"num_steps": 0}, "num_steps is 0; expected a whole number, at least 1."),
        ({"num_steps": 2.5}, "num_steps is 2.5; expected a whole number"),
        (
            {"num_steps": 4, "warmup_steps": 5},
            (
                "warmup_steps is 5; expected a whole number, 0 to 4. The warm-up is "
                "a part of num_steps."
            ),
        ),
        ({"num_steps": 4, "warmup_steps": -1}, "warmup_steps is -1; expected"),
        ({"num_steps": 4, "final": -0.1}, "final is -0.1; expected"),
        ({"num_steps": 4, "final": 1.5}, "final is 1.5; expected"),
        ({"num_steps": 4, "final": math.nan}, "final is nan; expected"),
    ],
)
def test_a_fall_that_makes_no_sense_is_refused(kind, given_, message):
    with pytest.raises(ValueError) as caught:
        kind(**given_)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("every", (0, 0.5)), ("factor", (1, 0.0)), ("factor", (1, 1.1))],
)
def test_a_step_decay_that_makes_no_sense_is_refused(name, numbers):
    with pytest.raises(
        ValueError, match=f"^{name} is {numbers[name == 'factor']}; expected"
    ):
        optim.step_decay(*numbers)


# -- against PyTorch -------------------------------------------------------------------


def in_pytorch(make, num_steps):
    torch = pytest.importorskip(
        "torch", reason="needs PyTorch: pip install '.[oracle]'"
    )
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(torch.optim.lr_scheduler, optimiser)
    rates = []
    for _ in range(num_steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def warm_up_then_cosine(lr_scheduler, optimiser):
    parts = [
        lr_scheduler.LinearLR(optimiser, start_factor=1 / 5, total_iters=4),
        lr_scheduler.CosineAnnealingLR(optimiser, T_max=25, eta_min=0.1),
    ]
    return lr_scheduler.SequentialLR(optimiser, parts, milestones=[5])


@pytest.mark.filterwarnings(
    "ignore:The epoch parameter in `scheduler.step"
)  # of PyTorch's, within SequentialLR
@pytest.mark.parametrize(
    ("factor", "theirs"),
    [
        (optim.cosine(30), lambda lr, o: lr.CosineAnnealingLR(o, T_max=30)),
        (
            optim.cosine(30, final=0.1),
            lambda lr, o: lr.CosineAnnealingLR(o, T_max=30, eta_min=0.1),
        ),
        (optim.cosine(30, warmup_steps=5, final=0.1), warm_up_then_cosine),
        (
            optim.linear(30),
            lambda lr, o: lr.LinearLR(
                o, start_factor=1.0, end_factor=0.0, total_iters=30
            ),
        ),
        (
            optim.linear(30, final=0.1),
            lambda lr, o: lr.LinearLR(
                o, start_factor=1.0, end_factor=0.1, total_iters=30
            ),
        ),
        (optim.step_decay(7, 0.3), lambda lr, o: lr.StepLR(o, step_size=7, gamma=0.3)),
        (optim.constant(), lambda lr, o: lr.ConstantLR(o, factor=1.0)),
    ],
)
def test_a_factor_is_that_of_pytorch(factor, theirs):
    np.testing.assert_allclose(
        factors(factor, 31), in_pytorch(theirs, 31), rtol=1e-12, atol=1e-15
    )


# -- what sets them --------------------------------------------------------------------


def two_groups():
    groups = [
        {"parameters": [nn.Parameter(np.zeros(1))], "learning_rate": 0.5},
        {"parameters": []},
    ]
    return optim.SGD(groups, 2.0)


def rates(optimiser):
    return [group.learning_rate for group in optimiser.groups]


def test_every_group_gets_its_own_first_rate_times_the_factor():
    optimiser = two_groups()
    schedule = optim.LearningRateSchedule(optimiser, optim.linear(4, warmup_steps=2))
    seen = []
    for _ in range(5):
        seen.append((schedule.last_step, rates(optimiser)))
        optimiser.step()
        schedule.step()
    assert seen == [
        (0, [0.25, 1.0]),
        (1, [0.5, 2.0]),
        (2, [0.5, 2.0]),
        (3, [0.25, 1.0]),
        (4, [0.0, 0.0]),
    ]


def test_a_rate_that_is_set_by_hand_lasts_until_the_next_step():
    optimiser = two_groups()
    schedule = optim.LearningRateSchedule(optimiser, optim.constant())
    optimiser.learning_rate = 7.0
    schedule.step()
    assert rates(optimiser) == [0.5, 2.0]


def test_a_factor_below_0_is_refused_when_it_comes():
    schedule = optim.LearningRateSchedule(two_groups(), lambda step: 1.0 - 2 * step)
    with pytest.raises(ValueError, match=r"^learning_rate is -0\.5; expected"):
        schedule.step()


def test_a_factor_is_a_function():
    with pytest.raises(
        TypeError, match="takes a function of the step, .*; this is of type float"
    ):
        optim.LearningRateSchedule(two_groups(), 0.5)
