"""Batches, and how one is divided into microbatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from minipipe import backend
from minipipe.backend import Array
from minipipe.batch import Pieces, Samples
from minipipe.errors import MicrobatchError, TensorError
from minipipe.pipeline.partition import partition_evenly
from minipipe.pipeline.payload import Payload


@dataclass
class Batch:
    """One batch, as far as this rank has it.

    Attributes
    ----------
    slices : list of slice
        The microbatches, along the first axis.
    inputs, targets : Samples, Pieces or None
        Arrays of shape (samples, ...), where this rank has the first (the last) stage.
    step : int
        The number of this call of step, evaluate or predict. It travels with every message, so that ranks out of step
        are noticed.
    training_step : int
        Counts the steps that were taken before; random numbers in the model depend on it, and on the seed.
    seed : int
    shares : list of float
        By microbatch, its share of the loss of the batch; known where the targets are.
    """

    slices: list[slice]
    inputs: Samples | Pieces | None
    targets: Samples | Pieces | None
    step: int
    training_step: int
    seed: int
    shares: list[float]

    def input(self, microbatch: int) -> Payload:
        """Return a microbatch of the inputs, as the first stage takes it."""
        assert self.inputs is not None
        arrays, form = self.inputs.cut(self.slices[microbatch])
        return Payload(arrays, [False] * len(arrays), form)

    def target(self, microbatch: int) -> Samples:
        """Return a microbatch of the targets."""
        assert self.targets is not None
        return self.targets.cut(self.slices[microbatch])

    @property
    def arrays(self) -> list[Array]:
        """The inputs and targets that this rank has."""
        return [array for given in (self.inputs, self.targets) if given is not None for array in given.arrays]


def divided(num_samples: int, count: int, *given: Samples | Pieces | None) -> list[slice]:
    """Return the microbatches: as they were given, or else of equal sizes.

    Raises
    ------
    MicrobatchError
        Codes ``wrong-number``, and those of :func:`split_microbatches`.
    """
    pieces = [own for own in given if isinstance(own, Pieces)]
    if not pieces:
        return _split_before(num_samples, count)
    if len(pieces[0].parts) != count:
        message = f"{len(pieces[0].parts)} microbatches were given, but the schedule has {count}."
        raise MicrobatchError(
            "wrong-number", f"{message} Give num_microbatches={len(pieces[0].parts)} to the pipeline."
        )
    return pieces[0].slices


def split_microbatches(num_samples: int, num_microbatches: int) -> list[slice]:
    """Divide samples among microbatches: sizes differ by at most one, none is empty, nothing is dropped.

    Parameters
    ----------
    num_samples : int
        In the batch.
    num_microbatches : int

    Returns
    -------
    list of slice
        Of the first axis; the first ones are longer where they do not divide.

    Raises
    ------
    MicrobatchError
        Codes ``out-of-range`` and ``too-few-samples``.

    Examples
    --------
    >>> split_microbatches(4, 2)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    if num_microbatches < 1:
        raise MicrobatchError("out-of-range", f"num_microbatches is {num_microbatches}; expected at least 1.")
    if num_samples < num_microbatches:
        raise MicrobatchError(
            "too-few-samples",
            f"A batch of {num_samples} samples cannot make {num_microbatches} microbatches, each of at least one. "
            "Use larger batches or fewer microbatches.",
        )
    return [slice(part.start, part.stop) for part in partition_evenly(num_samples, num_microbatches)]


def joined(parts: list[Payload]) -> Payload:
    """Return the outputs of microbatches behind each other, in NumPy's memory."""
    shapes = [[array.shape[1:] for array in part.arrays] for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        message = f"The outputs of the microbatches have shapes {shapes} behind their samples, so they make no array"
        raise TensorError("shape", f"{message}; predict those of one length at a time.")
    arrays = [np.concatenate(list(map(backend.to_numpy, pieces))) for pieces in zip(*(part.arrays for part in parts))]
    return Payload(arrays, [backend.is_floating(array.dtype) for array in arrays], parts[0].form)


def shares(
    slices: list[slice], loss: Callable, weight: Callable[[Any], float] | None, targets: Samples | Pieces
) -> list[float]:
    """Return each microbatch's share of the loss of the batch: by its weight or, without one, by its samples.

    Parameters
    ----------
    slices : list of slice
    loss : function
        May have a method ``weight(targets)``, for what its mean is over, and a ``reduction``: if that is ``"sum"``,
        each share is 1.
    weight : function, optional
        Instead of the loss' own.
    targets : Samples or Pieces

    Raises
    ------
    MicrobatchError
        Code ``no-weight``.

    Examples
    --------
    Of four samples, the second half counts three times as much.

    >>> import numpy as np
    >>> from minipipe.batch import samples
    >>> shares([slice(0, 2), slice(2, 4)], max, np.sum, samples([1, 1, 3, 3], "targets"))
    [0.25, 0.75]
    """
    if weight is None and getattr(loss, "reduction", "mean") == "sum":
        return [1.0] * len(slices)
    weight = weight or getattr(loss, "weight", None)
    if not callable(weight):
        return [(part.stop - part.start) / slices[-1].stop for part in slices]
    weights = [float(weight(targets.cut(part).rebuilt())) for part in slices]
    if not all(0 <= w < inf for w in weights) or not sum(weights):
        message = f"The targets of this batch count {weights}, by microbatch; expected at least 0, and not 0 for all."
        raise MicrobatchError("no-weight", f"{message} Is everything ignored, or the loss_weight not a number?")
    return [w / sum(weights) for w in weights]


_split_before = lru_cache(maxsize=64)(split_microbatches)  # batches are often alike
