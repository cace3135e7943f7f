"""Groups of parameters: numbers of their own, changes between steps, and what is
refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import nn, optim


def of_values(*values):
    return nn.Parameter(np.array(values))


def test_a_group_has_its_own_numbers_and_the_defaults_for_the_rest():
    p, q = of_values(0.0), of_values(0.0)
    optimiser = optim.SGD(
        [{"parameters": [p]}, {"parameters": [q], "learning_rate": 0.5}],
        0.25,
        momentum=0.5,
    )
    assert [group.hyper_parameters for group in optimiser.groups] == [
        {
            "learning_rate": 0.25,
            "momentum": 0.5,
            "weight_decay": 0.0,
            "nesterov": False,
        },
        {"learning_rate": 0.5, "momentum": 0.5, "weight_decay": 0.0, "nesterov": False},
    ]
    assert [group.parameters for group in optimiser.groups] == [(p,), (q,)]
    assert optimiser.parameters == [p, q]
    p.grad = q.grad = np.ones(1)
    optimiser.step()
    assert (p.data.tolist(), q.data.tolist()) == ([-0.25], [-0.5])
    assert repr(optimiser.groups[1]) == (
        "ParameterGroup(1 parameter, learning_rate=0.5, momentum=0.5, "
        "weight_decay=0.0, nesterov=False)"
    )


def test_a_number_of_a_group_can_change_between_steps():
    p, q = of_values(0.0), of_values(0.0)
    optimiser = optim.SGD([{"parameters": [p]}, {"parameters": iter([q])}], 1.0)
    optimiser.groups[1].learning_rate = 0.125
    p.grad = q.grad = np.ones(1)
    optimiser.step()
    assert (p.data.tolist(), q.data.tolist()) == ([-1.0], [-0.125])


def test_numbers_are_kept_as_python_floats_which_leave_float32_alone():
    (group,) = optim.Adam(
        [of_values(0.0)], np.float64(0.1), betas=[np.float32(0.5), 0]
    ).groups
    group.epsilon = np.float64(1e-3)
    numbers = [group.learning_rate, *group.betas, group.epsilon]
    assert [(type(number), number) for number in numbers] == [
        (float, 0.1),
        (float, 0.5),
        (float, 0.0),
        (float, 1e-3),
    ]


def test_setting_the_learning_rate_sets_every_group_and_reading_it_needs_them_to_agree():
    optimiser = optim.SGD(
        [{"parameters": [of_values(0.0)], "learning_rate": 0.5}, {"parameters": []}],
        0.25,
    )
    with pytest.raises(
        ValueError, match=r"differ: \[0\.5, 0\.25\]\. Read optimiser\.groups\[i\]"
    ):
        _ = optimiser.learning_rate
    optimiser.learning_rate = 0.125
    assert optimiser.learning_rate == 0.125
    assert [group.learning_rate for group in optimiser.groups] == [0.125, 0.125]


def test_a_rank_without_parameters_has_a_learning_rate_too():
    optimiser = optim.Adam(iter([]))
    assert optimiser.learning_rate == 1e-3
    optimiser.learning_rate = 0.5
    optimiser.step()
    assert optimiser.learning_rate == 0.5


def of_shapes(*shapes):
    return [nn.Parameter(np.zeros(shape)) for shape in shapes]


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (
            lambda p, q: [{"parameters": [p], "lr": 0.1}],
            ValueError,
            r"A group of SGD has lr; expected .* learning_rate",
        ),
        (
            lambda p, q: [{"learning_rate": 0.1}],
            ValueError,
            r'A group of SGD has no "parameters"; expected',
        ),
        (
            lambda p, q: [{"parameters": [p], "momentum": 1.0}],
            ValueError,
            r"^momentum is 1\.0; expected",
        ),
        (
            lambda p, q: [{"parameters": [p]}, q],
            TypeError,
            r"1 of 2 items are groups; expected parameters only or",
        ),
        (
            lambda p, q: [{"parameters": p}],
            TypeError,
            r"takes parameters; this is of type Tensor",
        ),
        (
            lambda p, q: [{"parameters": [p.data]}],
            TypeError,
            r"takes parameters; this is of type ndarray",
        ),
        (
            lambda p, q: [p, q, p],
            ValueError,
            r"of shape \(2,\) is in group 0 and again in group 0",
        ),
        (
            lambda p, q: [
                {"parameters": [q]},
                {"parameters": [p]},
                {"parameters": [q]},
            ],
            ValueError,
            (
                r"of shape \(3,\) is in group 0 and again in group 2; each step "
                r"would change it twice"
            ),
        ),
    ],
)
def test_groups_that_are_not_well_formed_are_refused(groups, error, message):
    with pytest.raises(error, match=message):
        optim.SGD(groups(*of_shapes(2, 3)), 0.1)


@pytest.mark.parametrize(
    ("name", "number", "error"),
    [
        ("learning_rate", -1.0, ValueError),
        ("learning_rate", "fast", ValueError),
        ("learning_rate", None, ValueError),
        ("momentum", (0.9,), ValueError),
        ("rate", 0.1, AttributeError),
        ("betas", (0.9, 0.99), AttributeError),  # SGD has none
        ("parameters", [], AttributeError),
    ],
)
def test_a_group_refuses_a_change_that_makes_no_sense_and_stays_as_it_was(
    name, number, error
):
    (group,) = optim.SGD(of_shapes(2), 0.1).groups
    before = dict(vars(group))
    with pytest.raises(error, match=f"^{name} (is|cannot be set)"):
        setattr(group, name, number)
    assert vars(group) == before


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize(
    "wrong",
    [
        {"betas": 0.9},
        {"betas": (0.9,)},
        {"betas": (0.9, 0.99, 0.999)},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"learning_rate": -1e-3},
        {"weight_decay": float("inf")},
    ],
    ids=str,
)
def test_adam_refuses_a_number_out_of_its_range_by_name(kind, wrong):
    ((name, number),) = wrong.items()
    with pytest.raises(ValueError) as caught:
        kind(of_shapes(2), **wrong)
    assert str(caught.value).startswith(f"{name} is {number!r}; expected")


@pytest.mark.parametrize(
    ("betas", "wrong"),
    [((0.9, 1.0), "betas[1] is 1.0"), ((-0.1, 0.9), "betas[0] is -0.1")],
)
def test_adam_refuses_a_beta_out_of_range_by_its_position(betas, wrong):
    with pytest.raises(ValueError) as caught:
        optim.Adam(of_shapes(2), betas=betas)
    assert str(caught.value) == f"{wrong}; expected a number in [0, 1)."
    with pytest.raises(ValueError, match="betas.* is 'a'; expected a number"):
        optim.Adam(of_shapes(2), betas="ab")
