"""A recording of some steps of a program, on one rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class BatchForm(NamedTuple):
    """The part of a batch that a rank reads.

    Attributes
    ----------
    sizes : tuple of int
        The numbers of samples of all microbatches.
    inputs, targets : dict of int to int
        By microbatch, the number of samples; empty if the rank does not read them.
    weights : list of float, or None
        The weights of the losses, if they are equal in all steps.
    """

    sizes: tuple[int, ...]
    inputs: dict[int, int]
    targets: dict[int, int]
    weights: list[float] | None


@dataclass
class RecordedStep:
    """A training step of a program on one rank, and the calls before the next step.

    Attributes
    ----------
    number : int
        The number of earlier steps of the pipeline.
    inputs, targets : dict of int to array
        By microbatch; empty if the rank does not read them.
    weights : list of float
        The weights of the losses of microbatches; empty on ranks without a loss.
    limits : list of float
        The norms to which gradients were clipped.
    updates : list of dict
        The numbers of the optimiser, for each update.
    """

    number: int
    inputs: dict[int, np.ndarray]
    targets: dict[int, np.ndarray]
    weights: list[float]
    limits: list[float] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Recording:
    """Some steps of a program on one rank.

    Attributes
    ----------
    program : str
        The name of the program, for a reader.
    seed : int
        The seed of the random numbers of layers.
    parameters : dict of str to array
        Their values before the first step.
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
    seed: int
    parameters: dict[str, np.ndarray]
    optimiser: str
    states: dict[str, dict[str, Any]]
    steps: list[RecordedStep] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    num_threads: int = 1
    digest: str = ""

    @property
    def form(self) -> BatchForm:
        """The part of each batch that the rank reads."""
        first = self.steps[0]
        inputs = {k: len(array) for k, array in first.inputs.items()}
        targets = {k: len(array) for k, array in first.targets.items()}
        weights = None
        if all(step.weights == first.weights for step in self.steps):
            weights = first.weights
        return BatchForm(self.sizes, inputs, targets, weights)


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
