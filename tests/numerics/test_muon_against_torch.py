"""Fifty steps of Muon on matrices against PyTorch's, in float64.

PyTorch's iterates in bfloat16 whatever the parameter is; here it is made to iterate in
float64. Its weights are transposed, from inputs to outputs in the second axis.
"""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import nn, optim
from minipipe.optim import muon

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
if not hasattr(torch.optim, "Muon"):
    pytest.skip("needs torch.optim.Muon, of PyTorch 2.9", allow_module_level=True)

NUM_STEPS = 50
SHAPES = [(3, 2), (2, 5), (4, 4), (1, 3)]
FACTORS = {"jordan": "original", "moonlight": "match_rms_adamw"}


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


def largest_difference(ours, factor, nesterov, num_iterations=5):
    """Train the same matrices with both; return the largest difference."""
    generator = np.random.default_rng(0)
    parameters = [nn.Parameter(generator.standard_normal(shape)) for shape in SHAPES]
    twins = [torch.nn.Parameter(torch.tensor(p.data.T)) for p in parameters]
    numbers = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.05}
    optimiser = ours(
        parameters,
        0.02,
        rate_by_shape=factor,
        num_iterations=num_iterations,
        **numbers,
    )
    reference = torch.optim.Muon(
        twins, 0.02, adjust_lr_fn=FACTORS[factor], ns_steps=num_iterations, **numbers
    )
    for step in range(NUM_STEPS):
        for p, twin in zip(parameters, twins):
            gradient = generator.standard_normal(p.shape) * 10.0 ** (step % 4 - 2)
            has_gradient = generator.random() < 2 / 3
            p.grad = gradient if has_gradient else None
            twin.grad = torch.tensor(gradient.T) if has_gradient else None
        if step % 10 == 9:
            optimiser.learning_rate *= 0.7
            reference.param_groups[0]["lr"] = optimiser.learning_rate
        optimiser.step()
        reference.step()
    pairs = [(p.data, twin.detach().numpy().T) for p, twin in zip(parameters, twins)]
    return max(np.abs(mine - other).max() for mine, other in pairs)


@pytest.mark.parametrize("num_iterations", [1, 5])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("factor", FACTORS)
def test_fifty_steps_are_those_of_pytorch(factor, nesterov, num_iterations):
    assert largest_difference(optim.Muon, factor, nesterov, num_iterations) < 1e-11


def test_the_defaults_are_those_of_pytorch():
    (group,) = optim.Muon([nn.Parameter(np.zeros((2, 2)))]).groups
    theirs = torch.optim.Muon([torch.nn.Parameter(torch.zeros(2, 2))]).param_groups[0]
    assert (group.learning_rate, group.momentum, group.nesterov) == (
        *(theirs["lr"], theirs["momentum"], theirs["nesterov"]),
    )
    assert (group.weight_decay, group.num_iterations) == (
        *(theirs["weight_decay"], theirs["ns_steps"]),
    )
    assert theirs["ns_coefficients"] == muon._COEFFICIENTS


class OfTheFirstAxis(optim.Muon):
    """Takes the shape for one from outputs to inputs, as PyTorch stores weights."""

    def _update_matrix(self, one, data, gradient, state, group):
        before = data.copy()
        super()._update_matrix(one, data, gradient, state, group)
        m, n = data.shape
        decayed = before * (1 - group.learning_rate * group.weight_decay)
        factor = (max(1, m / n) / max(1, n / m)) ** 0.5
        data[...] = decayed + factor * (data - decayed)


class DecaysAfterwards(optim.Muon):
    def _decay(self, data, gradient, group):
        return gradient

    def _update_matrix(self, one, data, gradient, state, group):
        super()._update_matrix(one, data, gradient, state, group)
        data *= 1 - group.learning_rate * group.weight_decay


class WithoutMomentum(optim.Muon):
    def _update_matrix(self, one, data, gradient, state, group):
        super()._update_matrix(one, data, gradient, {}, group)


@pytest.mark.parametrize("mutant", [OfTheFirstAxis, DecaysAfterwards, WithoutMomentum])
def test_a_mutant_is_told_from_pytorch(mutant):
    assert largest_difference(mutant, "jordan", True) > 1e-6
