"""What advice is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from minipipe.nn import Sequential
from minipipe.tuning.layers import MakeOptimiser

# Options of a pipeline that are chosen, which one rank cannot run for several.
PLANNED = ("schedule", "num_microbatches", "chunks_per_rank", "partition", "layer_costs")


@dataclass(frozen=True)
class Question:
    """A model and a batch, and what a choice must keep to.

    Attributes
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or bundle
        A batch, as for :meth:`minipipe.Pipeline.step`.
    options : mapping
        Those of a pipeline that are not chosen, such as ``loss``, ``seed`` and ``device``.
    optimiser : function, optional
        ``parameters -> Optimiser``, for its state.
    memory_limit : float
        Bytes of each rank; infinite where there is no limit.
    num_microbatches, chunks_per_rank, partition, recompute
        Only choices with these. None where all are weighed.
    own : mapping, optional
        Options of a pipeline: a choice that was made already, to be weighed beside the others.
    """

    model: Sequential
    inputs: Any
    targets: Any
    options: Mapping[str, Any]
    optimiser: MakeOptimiser | None = None
    memory_limit: float = inf
    num_microbatches: int | None = None
    chunks_per_rank: int | None = None
    partition: Sequence[range] | None = None
    recompute: bool | None = None
    own: Mapping[str, Any] | None = None
