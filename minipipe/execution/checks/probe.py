"""The second run: every layer of this rank's stages is called through a probe, which notes what is not finite."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.random_key import current_place
from minipipe.execution.checks.sightings import Seen, What, kinds_of
from minipipe.execution.microbatch import Batch
from minipipe.execution.payload import Payload
from minipipe.execution.plan import Plan
from minipipe.execution.samples import Samples
from minipipe.execution.stage import Stage
from minipipe.nn import Module, Recompute, auxiliary_losses
from minipipe.nn.auxiliary_loss import add_again
from minipipe.nn.sequential import parameters_of
from minipipe.pytree import rebuilt, tensors_in
from minipipe.tensor import Tensor, record


class Probe:
    """Notes what of a step is not finite on this rank.

    Parameters
    ----------
    plan : Plan

    Attributes
    ----------
    sightings : list of Seen
    """

    def __init__(self, plan: Plan) -> None:
        self.sightings: list[Seen] = []
        self._plan = plan
        self._names = list(plan.owners)
        self._spoilt: set[int] = set()  # parameters whose gradients are not finite since an earlier microbatch

    def note(self, what: What, microbatch: int, layer: int, arrays: Iterable[Array], which: int = -1) -> None:
        """Note arrays that are not finite."""
        kinds = 0
        for array in arrays:
            kinds |= kinds_of(array)
        if kinds:
            self.sightings.append(Seen(what, microbatch, layer, kinds, which))

    def look_at_batch(self, batch: Batch) -> None:
        """Look at the inputs and the targets, as far as this rank has them."""
        for what, given in ((What.INPUTS, batch.inputs), (What.TARGETS, batch.objective.targets)):
            for k, part in enumerate(batch.slices if given is not None else ()):
                cut = given.cut(part)  # type: ignore[union-attr]
                self.note(what, k, -1, cut.arrays, _first_sample(cut))

    def look_at_losses(self, losses: dict[int, float]) -> None:
        """Look at the losses of the microbatches."""
        for k, loss in losses.items():
            self.note(What.LOSS, k, len(self._plan.layers), [np.array(loss)])

    @contextmanager
    def watching(self, stage: Stage) -> Iterator[Any]:
        """Watch the layers of a stage inside this block, which gets what stands for the stage."""
        first, layers = self._plan.partition[stage.index].start, stage.module.layers
        names = {id(parameter.owner): self._names.index(name) for name, parameter in stage.parameters.items()}
        parameters = [
            (first + i, names[id(p.owner)], p) for i, layer in enumerate(layers) for p in parameters_of(layer)
        ]
        for number, name, parameter in parameters:
            self.note(What.PARAMETER, -1, number, [parameter.data], name)

        def look_at_weights(microbatch: int) -> None:
            for number, name, parameter in parameters:
                gradient = parameter.node.grad
                if gradient is not None and id(parameter) not in self._spoilt and kinds_of(gradient):
                    self._spoilt.add(id(parameter))
                    self.note(What.WEIGHT_GRADIENT, microbatch, number, [gradient], name)

        stage.module.layers = [self._watched(layer, first + i) for i, layer in enumerate(layers)]
        try:
            yield WatchedStage(stage, look_at_weights)
        finally:
            stage.module.layers = layers

    def _watched(self, layer: Module, number: int) -> Module:
        """Return a layer of the same type that calls this one and looks at its result.

        The sequence asks for the type: layers that are recomputed have several places for random numbers.
        """
        name = "compute" if isinstance(layer, Recompute) else "forward"
        inner = getattr(layer, name)

        def call(*given: Any, **options: Any) -> Any:
            with auxiliary_losses() as losses:
                result = inner(*given, **options)
            add_again(losses)
            k = current_place().microbatch
            self.note(What.AUXILIARY_LOSS, k, number, [loss.data for loss in losses])
            return self._looked_at(result, k, number)

        twin = copy.copy(layer)
        vars(twin)[name] = call
        return twin

    def _looked_at(self, result: Any, microbatch: int, number: int) -> Any:
        """Return the result, whose gradient is looked at, too."""
        tensors = [result] if isinstance(result, Tensor) else tensors_in(result)
        self.note(What.RESULT, microbatch, number, [tensor.data for tensor in tensors])

        def vjp(gradient: Array) -> Array:
            self.note(What.GRADIENT, microbatch, number, [gradient])
            return gradient

        twins = [record(tensor.data, (tensor, vjp)) for tensor in tensors]
        return twins[0] if isinstance(result, Tensor) else rebuilt(result, twins)


class WatchedStage:
    """Stands for a stage in an executor: after every backward its weight gradients are looked at."""

    def __init__(self, stage: Stage, look: Callable[[int], None]) -> None:
        self._stage, self._look = stage, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def backward(self, microbatch: int, gradient: Payload | None) -> Payload:
        """B."""
        result = self._stage.backward(microbatch, gradient)
        self._look(microbatch)
        return result

    def backward_input(self, microbatch: int, gradient: Payload | None) -> Payload:
        """I, which on a frozen stage is the whole backward."""
        result = self._stage.backward_input(microbatch, gradient)
        self._look(microbatch)
        return result

    def backward_weight(self, *microbatches: int) -> None:
        """W."""
        self._stage.backward_weight(*microbatches)
        self._look(microbatches[-1])


def _first_sample(part: Samples) -> int:
    """Return the first sample of a microbatch with a value that is not finite; -1 where there is none."""
    for i, array in enumerate(part.arrays):
        if i not in part.replicated and kinds_of(array):
            return int(np.argwhere(~np.isfinite(backend.to_numpy(array)))[0][0])
    return -1
