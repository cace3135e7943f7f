"""Batches that differ only by their numbers: what is known of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from minipipe.core.execution.payload import Payload
from minipipe.execution.batch import Batch
from minipipe.execution.objective import BatchObjective
from minipipe.execution.samples import Cut, rows_of


class PlainBatch:
    """A batch of at most one array of inputs and one of targets, as they were given:
    others are often like it.

    Attributes
    ----------
    agreed : (int, int, int)
        The number of samples, the layout, and the form of the inputs on the first rank.
    call : str
    sizes : tuple of int
        The numbers of samples of the microbatches.
    forms : dict of str to (shape, strides, dtype)
        By the noun for an array.
    loss : function or None
    objective : function
        Returns a new objective of its pipeline.
    """

    def __init__(
        self,
        batch: Batch,
        parts: Mapping[str, Payload],
        agreed: tuple[int, ...],
        begins: bool,
    ) -> None:
        self.agreed = agreed
        self._rows = rows_of(batch.sizes)
        self._requires_grad = {noun: part.requires_grad for noun, part in parts.items()}
        self.call = batch.call
        self.sizes = batch.sizes
        self._seed = batch.seed
        self._begins = begins
        self.loss = batch.objective.loss
        self._kind = type(batch.objective)
        self.objective = partial(BatchObjective, **batch.objective.of_pipeline)
        self.forms = {}
        for noun, part in parts.items():
            (array,) = part.arrays
            self.forms[noun] = array.shape, array.strides, array.dtype

    def like(
        self, call: str, inputs: Any, targets: Any, objective: BatchObjective
    ) -> dict[str, Payload] | None:
        """Return the parts of another batch, if it has the same form and is given in
        the same call.
        """
        if (
            call != self.call
            or objective.loss is not self.loss
            or type(objective) is not self._kind
        ):
            return None
        own = {}
        for noun, (shape, strides, dtype) in self.forms.items():
            array = inputs if noun == "inputs" else targets
            if type(array) is not np.ndarray or array.shape != shape:
                return None
            if array.strides != strides or array.dtype != dtype:
                return None
            own[noun] = Payload([array], self._requires_grad[noun])
        return own

    def batch(
        self,
        step: int,
        training_step: int,
        own: Mapping[str, Payload],
        objective: BatchObjective,
    ) -> Batch:
        """Return a batch of the same form."""
        batch, cut = self.batch_of(own)
        batch.step = step
        batch.training_step = training_step
        batch.objective = objective
        cut.pop("inputs", None)
        if self._begins:
            objective.begin(self.sizes, next(iter(cut.values()), None))
        return batch

    def batch_of(self, own: Mapping[str, Payload]) -> tuple[Batch, dict[str, Cut]]:
        """Return a batch of the same form, of no call yet, and its parts."""
        cut = {noun: Cut(part, self._rows) for noun, part in own.items()}
        objective = BatchObjective()
        batch = Batch(
            self.call, self.sizes, cut.get("inputs"), objective, 0, 0, self._seed
        )
        batch.form = self
        return batch, cut

    def empty(self) -> tuple[Batch, dict[str, Cut]]:
        """Return a batch of the same form without arrays, and its parts."""
        return self.batch_of(
            {
                noun: Payload([None], flags)
                for noun, flags in self._requires_grad.items()
            }
        )
