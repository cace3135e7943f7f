"""Fifty steps of every optimiser against PyTorch's, in float64, with anything that may
change changing.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn, optim
from tests.strategies import examples

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")

NUM_STEPS = 50
SHAPES = [(3, 2), (4,), ()]
SPELLINGS = {"learning_rate": "lr", "epsilon": "eps", "parameters": "params"}
ADAM_NUMBERS = {
    # At beta2 = 0 every element is divided by its own last gradient, which may be
    # rounding error alone.
    "betas": st.tuples(
        st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.9, 0.99, 0.999])
    ),
    "epsilon": st.sampled_from([1e-8, 1e-3, 1.0]),
    "weight_decay": st.sampled_from([0.0, 1e-2, 0.5]),
}
NUMBERS = {
    "SGD": {
        "momentum": st.sampled_from([0.0, 0.5, 0.99]),
        "weight_decay": st.sampled_from([0.0, 1e-4, 0.5]),
    },
    "Adam": ADAM_NUMBERS,
    "AdamW": ADAM_NUMBERS,
}

# Now and then no parameter at all has a gradient, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:optimiser.step")


@st.composite
def settings_of(draw, kind, **others):
    """Draw the defaults, and a group for each parameter that replaces some of them."""
    numbers = {"learning_rate": st.floats(1e-3, 1.0), **NUMBERS[kind], **others}
    defaults = draw(st.fixed_dictionaries(numbers))
    groups = [draw(st.fixed_dictionaries({}, optional=numbers)) for _ in SHAPES]
    return defaults, groups


def in_pytorch(numbers):
    return {SPELLINGS.get(name, name): value for name, value in numbers.items()}


def largest_difference(ours, theirs, defaults, groups, seed):
    """Train the same parameters with both; return the largest difference relative to
    the largest value.

    A parameter has no gradient at a third of the steps, and every tenth step all
    learning rates change.
    """
    generator = np.random.default_rng(seed)
    parameters = [nn.Parameter(generator.standard_normal(shape)) for shape in SHAPES]
    twins = [torch.nn.Parameter(torch.from_numpy(p.data.copy())) for p in parameters]
    optimiser = ours(
        [{"parameters": [p], **own} for p, own in zip(parameters, groups)], **defaults
    )
    reference = theirs(
        [{"params": [t], **in_pytorch(own)} for t, own in zip(twins, groups)],
        **in_pytorch(defaults),
    )
    for step in range(NUM_STEPS):
        for p, twin in zip(parameters, twins):
            gradient = generator.standard_normal(p.shape) * 10.0 ** generator.integers(
                -3, 2
            )
            has_gradient = generator.random() < 2 / 3
            p.grad = np.asarray(gradient) if has_gradient else None
            twin.grad = (
                torch.as_tensor(gradient, dtype=torch.float64) if has_gradient else None
            )
        if step % 10 == 9:
            for group, twin_group in zip(optimiser.groups, reference.param_groups):
                group.learning_rate = twin_group["lr"] = (
                    group.learning_rate * generator.uniform(0.5, 1.2)
                )
        optimiser.step()
        reference.step()
    pairs = [(p.data, twin.detach().numpy()) for p, twin in zip(parameters, twins)]
    return max(
        np.abs(mine - other).max() / max(1.0, np.abs(other).max())
        for mine, other in pairs
    )


@pytest.fixture(autouse=True)
def in_float64():
    """PyTorch's NAdam keeps a product of beta1 in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def steady(*parameters, **numbers):
    """PyTorch's NAdam raises beta1 to its value slowly; with this decay, at once."""
    return torch.optim.NAdam(*parameters, momentum_decay=1e6, **numbers)


NESTEROV = {  # ours by class, theirs; without a momentum PyTorch's SGD refuses it
    "SGD": partial(torch.optim.SGD, momentum=0.5, nesterov=True),
    "Adam": steady,
    "AdamW": partial(steady, decoupled_weight_decay=True),
}


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_fifty_steps_are_those_of_pytorch(kind, nesterov):
    ours, theirs = (
        getattr(optim, kind),
        NESTEROV[kind] if nesterov else getattr(torch.optim, kind),
    )
    has_momentum = (
        {"momentum": st.sampled_from([0.5, 0.99])} if nesterov and kind == "SGD" else {}
    )

    @examples(40)
    @given(settings_of(kind, **has_momentum), st.integers(0, 2**32 - 1))
    def compare(drawn, seed):
        assert (
            largest_difference(partial(ours, nesterov=nesterov), theirs, *drawn, seed)
            < 1e-12
        )

    compare()


def test_the_defaults_are_those_of_pytorch():
    for kind in (optim.Adam, optim.AdamW):
        p = nn.Parameter(np.zeros(1))
        (group,) = kind([p]).groups
        (theirs,) = getattr(torch.optim, kind.__name__)(
            [torch.zeros(1, requires_grad=True)]
        ).param_groups
        ours = in_pytorch(group.hyper_parameters)
        assert ours.pop("nesterov") is False and ours.items() <= theirs.items()


# -- mutants: each of these must be noticed --------------------------------------------


class WithoutBiasCorrection(optim.Adam):
    def _update(self, data, gradient, state, group):
        if state:
            state["num_steps"] = 10**6
        super()._update(data, gradient, state, group)


class CountsStepsWithoutGradient(optim.Adam):
    def step(self):
        for parameter in self.parameters:
            state = self._states[id(parameter)]
            if state and parameter.grad is None:
                state["num_steps"] += 1
        super().step()


class LearningRateInTheVelocity(optim.SGD):
    def _update(self, data, gradient, state, group):
        velocity = state.get("velocity", 0.0)
        state["velocity"] = group.momentum * velocity + group.learning_rate * gradient
        data -= state["velocity"]


@pytest.mark.parametrize(
    ("mutant", "theirs", "defaults"),
    [
        (WithoutBiasCorrection, "Adam", {}),
        (CountsStepsWithoutGradient, "Adam", {}),
        (optim.Adam, "AdamW", {"weight_decay": 0.1}),  # weight decay in the gradient
        (optim.AdamW, "Adam", {"weight_decay": 0.1}),
        (LearningRateInTheVelocity, "SGD", {"momentum": 0.9}),
    ],
)
def test_a_mutant_is_told_from_pytorch(mutant, theirs, defaults):
    numbers = {"learning_rate": 0.1, **defaults}
    original = getattr(optim, theirs)
    assert (
        largest_difference(
            original, getattr(torch.optim, theirs), numbers, [{}] * len(SHAPES), 0
        )
        < 1e-12
    )
    assert (
        largest_difference(
            mutant, getattr(torch.optim, theirs), numbers, [{}] * len(SHAPES), 0
        )
        > 1e-6
    )
