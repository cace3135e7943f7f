"""SGD and Adam against the formulas, written out here for each element."""

from __future__ import annotations

import re
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn, optim
from minipipe.errors import ParameterError
from tests.strategies import examples

START = [1.0, -2.0, 0.5]
GRADIENTS = [[0.5, 1.0, -1.0], [0.25, -1.0, 2.0], [1.0, 0.0, -0.5], [-2.0, 0.5, 0.125]]


def parameter(values: list[float], dtype: type = np.float64) -> nn.Parameter:
    return nn.Parameter(np.array(values, dtype))


def after_steps(
    optimiser: optim.Optimiser,
    p: nn.Parameter,
    gradients: list[list[float]] = GRADIENTS,
) -> list[float]:
    for gradient in gradients:
        p.grad = np.array(gradient, p.dtype)
        optimiser.step()
    return p.data.tolist()


def by_hand(
    learning_rate: float, momentum: float, weight_decay: float, nesterov: bool = False
) -> list[float]:
    #   v <- momentum v + (gradient + weight_decay p)        v = 0 before the first step
    #   p <- p - learning_rate v
    #
    # With Nesterov's momentum, after Sutskever et al. 2013, equations 3 and 4; theta +
    # momentum v is what we call p:
    #   v <- momentum v - learning_rate gradient(theta + momentum v)
    #   theta <- theta + v
    finished = []
    for start, gradients in zip(START, zip(*GRADIENTS)):
        p, v = start, 0.0
        for gradient in gradients:
            g = gradient + weight_decay * p
            if nesterov:
                theta = p - momentum * v
                v = momentum * v - learning_rate * g
                p = (theta + v) + momentum * v
            else:
                v = momentum * v + g
                p = p - learning_rate * v
        finished.append(p)
    return finished


def test_one_plain_step_goes_down_the_gradient():
    p = parameter([1.0, 2.0])
    assert after_steps(optim.SGD([p], 0.5), p, [[1.0, -4.0]]) == [0.5, 4.0]


@examples(60)
@given(
    st.floats(1e-3, 1.0),
    st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    st.sampled_from([0.0, 1e-4, 0.1, 2.0]),
    st.booleans(),
)
def test_momentum_and_weight_decay_follow_the_formulas(
    learning_rate, momentum, weight_decay, nesterov
):
    p, numbers = parameter(START), (learning_rate, momentum, weight_decay, nesterov)
    given_ = after_steps(optim.SGD([p], *numbers), p)
    np.testing.assert_allclose(given_, by_hand(*numbers), rtol=1e-12, atol=1e-13)


def adam_by_hand(
    learning_rate, betas, epsilon, weight_decay=0.0, decoupled=0.0, nesterov=False
) -> list[float]:
    # Kingma & Ba 2015, algorithm 1, with the weight decay of Loshchilov & Hutter 2019,
    # algorithm 2: coupled, decoupled; and with the momentum of Dozat 2016, algorithm 2.
    beta1, beta2 = betas
    finished = []
    for p, gradients in zip(START, zip(*GRADIENTS)):
        m = v = 0.0
        for t, gradient in enumerate(gradients, start=1):
            g = gradient + weight_decay * p
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            corrected_m, corrected_v = m / (1 - beta1**t), v / (1 - beta2**t)
            if nesterov:
                corrected_m = beta1 * m / (1 - beta1 ** (t + 1)) + (1 - beta1) * g / (
                    1 - beta1**t
                )
            p = p - learning_rate * (
                corrected_m / (sqrt(corrected_v) + epsilon) + decoupled * p
            )
        finished.append(p)
    return finished


@examples(60)
@given(
    st.floats(1e-3, 1.0),
    st.tuples(st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 0.9, 0.999])),
    st.sampled_from([1e-8, 1e-3, 1.0]),
    st.sampled_from([0.0, 1e-4, 0.1]),
    st.booleans(),
)
def test_adam_and_adamw_follow_the_formulas(
    learning_rate, betas, epsilon, weight_decay, nesterov
):
    numbers = (learning_rate, betas, epsilon)
    p, q = parameter(START), parameter(START)
    np.testing.assert_allclose(
        after_steps(optim.Adam([p], *numbers, weight_decay, nesterov), p),
        adam_by_hand(*numbers, weight_decay, nesterov=nesterov),
        rtol=1e-11,
        atol=1e-11,
    )
    np.testing.assert_allclose(
        after_steps(optim.AdamW([q], *numbers, weight_decay, nesterov), q),
        adam_by_hand(*numbers, decoupled=weight_decay, nesterov=nesterov),
        rtol=1e-11,
        atol=1e-11,
    )


def test_each_parameter_has_a_velocity_of_its_own():
    p, q = parameter(START), parameter([0.0, 0.0])
    optimiser = optim.SGD([p, q], 0.1, momentum=0.9)
    for gradient in GRADIENTS:
        p.grad, q.grad = np.array(gradient), np.array([1.0, 0.0])
        optimiser.step()
    np.testing.assert_allclose(p.data, by_hand(0.1, 0.9, 0.0))
    np.testing.assert_allclose(q.data, [-0.1 * (1 + 1.9 + 2.71 + 3.439), 0.0])


def test_the_learning_rate_can_change_between_steps_and_the_velocity_stays():
    p = parameter([0.0])
    optimiser = optim.SGD([p], 1.0, momentum=0.5)
    after_steps(optimiser, p, [[1.0]])  # v = 1, p = -1
    optimiser.learning_rate = 0.1
    assert after_steps(optimiser, p, [[1.0]]) == [-1.0 - 0.1 * 1.5]


def test_a_learning_rate_of_0_leaves_the_values_as_they_are():
    p = parameter(START)
    assert after_steps(optim.SGD([p], 0.0, momentum=0.5), p) == START


def test_a_parameter_without_a_gradient_stays_as_it_is_even_with_weight_decay():
    p, q = parameter(START), parameter(START)
    p.grad = np.ones(3)
    optim.SGD([p, q], 0.1, momentum=0.9, weight_decay=0.1).step()
    assert q.data.tolist() == START and p.data.tolist() != START


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_leaves_the_gradient_alone_and_changes_the_array_in_place(
    momentum, weight_decay
):
    p = parameter(START)
    array, gradient = p.data, np.array(GRADIENTS[0])
    p.grad = gradient
    optimiser = optim.SGD([p], 0.1, momentum=momentum, weight_decay=weight_decay)
    optimiser.step()
    optimiser.step()
    assert p.grad is gradient and gradient.tolist() == GRADIENTS[0]
    assert p.data is array


@pytest.mark.parametrize("number", [0.25, np.float32(0.25), np.float64(0.25)])
def test_float32_parameters_stay_float32_whatever_type_the_numbers_have(number):
    p = parameter(START, np.float32)
    optimiser = optim.SGD([p], number, momentum=number, weight_decay=number)
    np.testing.assert_allclose(
        after_steps(optimiser, p), by_hand(0.25, 0.25, 0.25), rtol=1e-6
    )
    assert p.data.dtype == np.float32


def test_no_parameters_are_fine():
    optimiser = optim.SGD(nn.ReLU().parameters(), 0.1, momentum=0.9)
    optimiser.step()
    optimiser.zero_grad()
    assert optimiser.parameters == []


def test_a_generator_of_parameters_is_read_once_and_kept():
    model = nn.Linear(2, 2).initialise()
    optimiser = optim.SGD(model.parameters(), 1.0)
    model(np.ones((1, 2), np.float32)).sum().backward()
    for _ in range(2):
        optimiser.step()
    assert model.bias.data.tolist() == [-2.0, -2.0]


@pytest.mark.filterwarnings("ignore:optimiser.step")
def test_zero_grad_forgets_every_gradient_and_keeps_the_velocity():
    p = parameter([0.0])
    optimiser = optim.SGD([p], 1.0, momentum=0.5)
    after_steps(optimiser, p, [[1.0]])
    optimiser.zero_grad()
    assert p.grad is None
    optimiser.step()
    assert p.data.tolist() == [-1.0]
    assert after_steps(optimiser, p, [[0.0]]) == [-1.5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": float("inf")},
        {"learning_rate": -0.1},
        {"learning_rate": float("nan")},
        {"momentum": -0.1},
        {"momentum": 1.0},
        {"momentum": float("nan")},
        {"weight_decay": -1e-9},
        {"weight_decay": float("nan")},
    ],
    ids=str,
)
def test_a_number_out_of_its_range_is_refused_by_name(wrong):
    ((name, number),) = wrong.items()
    with pytest.raises(ValueError, match=f"^{name} is {number}; expected"):
        optim.SGD([parameter(START)], **{"learning_rate": 0.1, **wrong})


def test_gradient_descent_solves_a_least_squares_problem():
    # (X w - y)^2 has its minimum where X^T X w = X^T y.
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(20, 3)), generator.normal(size=(20, 1))
    model = nn.Linear(3, 1, bias=False, dtype=np.float64).initialise()
    optimiser, loss = optim.SGD(model.parameters(), 0.2, momentum=0.5), nn.MSELoss()
    for _ in range(200):
        optimiser.zero_grad()
        loss(model(Tensor(x)), y).backward()
        optimiser.step()
    np.testing.assert_allclose(
        model.weight.data, np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-10
    )


def test_adam_solves_a_badly_scaled_problem_that_stops_gradient_descent():
    # The loss is sum(scale * p^2) / 2; gradient descent diverges at learning rates
    # above 2 / 1e4.
    scale = np.array([1e4, 1.0, 1e-4])
    p = parameter([1.0, 1.0, 1.0])
    optimiser = optim.Adam([p], 0.1)
    schedule = optim.LearningRateSchedule(optimiser, optim.cosine(400))
    for _ in range(400):
        p.grad = scale * p.data
        optimiser.step()
        schedule.step()
    np.testing.assert_allclose(p.data, 0, atol=1e-2)


@pytest.mark.parametrize(
    "parameters", [nn.Linear(2, 2).initialise().weight, nn.Sequential(nn.Linear(2, 2))]
)
def test_what_is_no_list_of_parameters_is_refused(parameters):
    """The story: SGD(model.weight, …) took the rows of the weight, and trained
    nothing.
    """
    with pytest.raises(TypeError, match=r"Give model\.parameters\(\)"):
        optim.SGD(parameters, 0.1)


@pytest.mark.filterwarnings("ignore:optimiser.step")
def test_parameters_without_values_are_refused_at_the_first_step():
    """The story: SGD(model.parameters()) beside a pipeline, which trains copies; the
    loss never fell.
    """
    model = nn.Sequential(nn.Linear(2, 2))
    optimiser = optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ParameterError, match=r"pipeline\.parameters\(\)"):
        optimiser.step()
    model.initialise()
    optimiser.step()


def test_an_optimiser_that_finds_no_gradient_at_all_says_so():
    """It was given model.parameters() beside a pipeline; the model had values, and the
    loss never fell.
    """
    model = nn.Sequential(nn.Linear(6, 3)).initialise(0)
    optimiser = optim.SGD(model.parameters(), 0.1)
    with pytest.warns(UserWarning) as caught:
        optimiser.step()
    assert len(caught) == 1
    assert re.search(
        "none of its 2 parameters has a gradient.*pipeline.parameters",
        str(caught[0].message),
    )
