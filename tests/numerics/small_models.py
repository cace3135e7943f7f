"""Modules to try: one of every kind of attribute, one with tied parameters, a small
MLP.
"""

from __future__ import annotations

import numpy as np

from minipipe import Tensor, nn


class Block(nn.Module):
    """A module of one's own: a parameter, a module, a list and a tuple of them, and
    what is neither.
    """

    def __init__(self) -> None:
        self.scale = nn.Parameter(np.ones(3, np.float32))
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.branches = [
            nn.Linear(3, 3, bias=False),
            nn.Parameter((2, 2), nn.initialisers.constant(0.0)),
        ]
        self.pair = (nn.Identity(), nn.Linear(3, 1))
        self.width = 3

    def forward(self, x: Tensor) -> Tensor:
        return self.pair[1](self.branches[0](self.inner(x) * self.scale))


class Tied(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        self.encoder = nn.Linear(3, 3)
        self.decoder = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)
    )


def values(module: nn.Module) -> dict[str, bytes]:
    return {
        name: parameter.data.tobytes() for name, parameter in module.named_parameters()
    }
