"""A recording of some steps of a program, on one rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class RecordedStep:
    """A training step of a program on one rank, and the calls before the next step.

    Attributes
    ----------
    number : int
        The number of earlier steps of the pipeline.
    batch : dict of str to dict of int to array
        Inputs, x, and targets, y, by microbatch; empty if the rank does not read them.
    weights : list of float
        The weights of the losses of microbatches; empty on ranks without a loss.
    limits : list of float
        The norms to which gradients were clipped.
    updates : list of dict
        The numbers of the optimiser, for each update.
    """

    number: int
    batch: dict[str, dict[int, np.ndarray]]
    weights: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Recording:
    """Some steps of a program on one rank.

    Attributes
    ----------
    program : str
        The name of the program, for a reader.
    parameters : dict of str to array
        Their values before the first step.
    seed : int
        The seed of the random numbers of layers.
    optimiser : str
        The name of its class.
    states : dict of str to dict
        By parameter, the state of the optimiser before the first step.
    steps : list of RecordedStep
    sizes : tuple of int
        The numbers of samples of the microbatches.
    num_threads : int
        The threads of the library for matrix products.
    digest : str
        The digest of the parameters after the last step.
    """

    program: str
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    seed: int = 0
    optimiser: str = ""
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: list[RecordedStep] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    num_threads: int = 1
    digest: str = ""

    @property
    def batch(self) -> dict[str, dict[int, np.ndarray]]:
        """The part of a batch that the rank reads, in the first step."""
        return self.steps[0].batch

    @property
    def weights(self) -> list[float] | None:
        """The weights of the losses, if they are equal in all steps."""
        weights = self.steps[0].weights
        if any(step.weights != weights for step in self.steps):
            return None
        return weights


def digest_of(parameters: Mapping[str, np.ndarray]) -> str:
    """Return a digest of the bits of parameters.

    Examples
    --------
    >>> digest_of({"0.weight": np.zeros(2, np.float32)})
    'af5570f5a1810b7a'
    """
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(parameters[name].tobytes())
    return digest.hexdigest()[:16]
