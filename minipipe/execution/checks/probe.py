"""The second run: a probe checks the result of every layer of this rank and notes
values that are not finite.

The ``watch`` of ``record`` (``autograd/watch.py``) is not sufficient: it does not see a
recomputed stage, nor a layer that breaks the graph, and it does not know which results
of a layer are passed on; a mask of -inf may stay inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import current_place
from minipipe.core.execution.executor import Executor
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import Stage
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.pytree import rebuilt, tensors_in
from minipipe.core.schedules.action import Action
from minipipe.core.tensor import record
from minipipe.execution.batch import Batch
from minipipe.execution.plan import Plan
from minipipe.nn import Parameter
from minipipe.nn.collected_losses import losses_so_far


class Probe:
    """Notes the values of a step that are not finite on this rank, in ``sightings``."""

    def __init__(self, plan: Plan) -> None:
        self.sightings: list[Seen] = []
        self._plan = plan
        self._names = list(plan.owners)
        # of a stage: (layer, number, parameter)
        self._parameters: dict[int, list[tuple[int, int, Parameter]]] = {}
        # parameters whose gradients are not finite since an earlier microbatch
        self._spoilt: set[int] = set()

    def note(
        self,
        what: What,
        microbatch: int,
        layer: int,
        arrays: Iterable[Array],
        which: int = -1,
    ) -> None:
        """Note arrays that are not finite."""
        kinds = 0
        for array in arrays:
            kinds |= kinds_of(array)
        if kinds:
            self.sightings.append(Seen(what, microbatch, layer, kinds, which))

    def look_at_batch(self, batch: Batch) -> None:
        """Look at the inputs and the targets, as far as this rank has them."""
        for what, parts in (
            (What.INPUTS, batch.inputs),
            (What.TARGETS, batch.objective.targets),
        ):
            for k, part in enumerate(parts or ()):
                self.note(what, k, -1, part.arrays, _first_sample(part))

    def look_at_losses(self, losses: dict[int, float]) -> None:
        """Look at the losses of the microbatches."""
        for k, loss in losses.items():
            self.note(What.LOSS, k, len(self._plan.layers), [np.array(loss)])

    @contextmanager
    def watching(self, stage: Stage) -> Iterator[None]:
        """Watch the layers of a stage inside this block."""
        first = self._plan.partition[stage.index].start
        layers = stage.module.layers
        names = {
            id(parameter.owner): self._names.index(name)
            for name, parameter in stage.parameters.items()
        }
        parameters = self._parameters[stage.index] = [
            (first + i, names[id(p.owner)], p)
            for i, layer in enumerate(layers)
            for p in parameters_of(layer)
        ]
        for number, name, parameter in parameters:
            self.note(What.PARAMETER, -1, number, [parameter.data], name)
        stage.module.layer_hook = self._look
        try:
            yield
        finally:
            del stage.module.layer_hook

    def begin(self, executor: Executor, action: Action) -> None:
        """Look at nothing."""

    def end(self, executor: Executor, action: Action) -> None:
        """Look at the weight gradients of a stage, after every backward."""
        if not action.kind.is_backward:
            return
        for number, name, parameter in self._parameters[action.stage]:
            gradient = parameter.node.grad
            if (
                gradient is not None
                and id(parameter) not in self._spoilt
                and kinds_of(gradient)
            ):
                self._spoilt.add(id(parameter))
                self.note(
                    What.WEIGHT_GRADIENT, action.microbatch, number, [gradient], name
                )

    def _look(self, number: int, result: Any) -> Any:
        """Return the result of a layer, with its gradient looked at as well."""
        tensors = tensors_in(result)
        k = current_place().microbatch
        self.note(
            What.AUXILIARY_LOSS, k, number, [loss.data for loss in losses_so_far()]
        )
        self.note(What.RESULT, k, number, [tensor.data for tensor in tensors])

        def vjp(gradient: Array) -> Array:
            self.note(What.GRADIENT, k, number, [gradient])
            return gradient

        return rebuilt(
            result, [record(tensor.data, (tensor, vjp)) for tensor in tensors]
        )


def _first_sample(part: Payload) -> int:
    """Return the first sample of a microbatch with a value that is not finite; -1 if
    there is none.
    """
    for i, array in enumerate(part.arrays):
        if i not in part.replicated and kinds_of(array):
            return int(np.argwhere(~np.isfinite(backend.to_numpy(array)))[0][0])
    return -1


# -- who made it -----------------------------------------------------------------------


NAN = 1
PLUS = 2
MINUS = 4
_WORDS = {NAN: "nan", PLUS: "inf", MINUS: "-inf"}


class What(IntEnum):
    """The kind of a value that is not finite."""

    INPUTS = 0
    TARGETS = 1
    PARAMETER = 2  # of a layer, before the step
    RESULT = 3  # of a layer
    AUXILIARY_LOSS = 4  # of a layer
    LOSS = 5
    GRADIENT = 6  # of the result of a layer
    WEIGHT_GRADIENT = 7  # of a parameter of a layer


class Seen(NamedTuple):
    """The place of a value that is not finite, in numbers that a message can carry.

    Attributes
    ----------
    what : What
    microbatch, layer : int
        -1, if the value has none.
    kinds : int
        The sum of NAN, PLUS and MINUS.
    which : int
        For inputs and targets, the sample in the microbatch (-1 for a replicated
        array); for parameters, the number.
    """

    what: int
    microbatch: int
    layer: int
    kinds: int
    which: int = -1


class Culprit(NamedTuple):
    """The origin of the first value that is not finite.

    Attributes
    ----------
    microbatch, layer : int
        The layer is -1 for the inputs, and the number of layers for the loss.
    is_backward, is_weight : bool
        Whether it was made in the backward, and whether it is the gradient of a
        parameter.
    seen : Seen
        What was made.
    cause : Seen or None
        A parameter of the layer, or the targets, that were not finite before.
    """

    microbatch: int
    layer: int
    is_backward: bool
    is_weight: bool
    seen: Seen
    cause: Seen | None = None


def kinds_of(array: Array) -> int:
    """Return which of nan, inf and -inf are in an array.

    Examples
    --------
    >>> kinds_of(np.array([1.0, np.nan, -np.inf])) == NAN + MINUS
    True
    """
    if not backend.is_floating(array.dtype):
        return 0
    values = backend.to_numpy(array)
    if np.isfinite(values).all():
        return 0
    found = {NAN: np.isnan(values), PLUS: values == np.inf, MINUS: values == -np.inf}
    return sum(kind for kind, where in found.items() if where.any())


def words_of(kinds: int) -> str:
    """Return a description of kinds.

    Examples
    --------
    >>> words_of(NAN + MINUS)
    'nan and -inf'
    """
    return " and ".join(words for kind, words in _WORDS.items() if kinds & kind)


def find_culprit(
    sightings: Iterable[Seen], num_microbatches: int, num_layers: int
) -> Culprit | None:
    """Return who made the first value that is not finite, of the first microbatch in
    which a loss or gradient is not.

    Examples
    --------
    >>> seen = [Seen(What.RESULT, 0, layer, NAN) for layer in (2, 3)] + [
    ...     Seen(What.LOSS, 0, 4, NAN)
    ... ]
    >>> find_culprit(seen, num_microbatches=1, num_layers=4).layer
    2
    """
    places: dict[tuple[int, int, int], Seen] = {}
    for seen in sightings:
        places.setdefault(seen[:3], seen)
    for k in range(num_microbatches):
        found = _before_the_loss(places, k, num_layers) or _behind_the_loss(
            places, k, num_layers
        )
        if found is not None:
            return found
    return None


def _before_the_loss(
    places: dict[tuple[int, int, int], Seen], k: int, num_layers: int
) -> Culprit | None:
    """Return the source of the value of a microbatch's loss."""
    loss = places.get((What.LOSS, k, num_layers))
    if loss is None:
        return None
    found = _begin_of_chain(places, k, num_layers - 1)
    auxiliary = [
        places[place]
        for place in sorted(places)
        if place[:2] == (What.AUXILIARY_LOSS, k)
    ]
    if found is None and auxiliary:
        return Culprit(k, auxiliary[0].layer, False, False, auxiliary[0])
    return found or Culprit(
        k, num_layers, False, False, loss, places.get((What.TARGETS, k, -1))
    )


def _behind_the_loss(
    places: dict[tuple[int, int, int], Seen], k: int, num_layers: int
) -> Culprit | None:
    """Return who made the gradients of a microbatch what they are: in the forward, if
    there it had such values.
    """
    for layer in range(num_layers, -1, -1):
        gradient = places.get((What.GRADIENT, k, layer - 1))
        seen = gradient or places.get((What.WEIGHT_GRADIENT, k, layer))
        if seen is not None:
            before = _begin_of_chain(places, k, layer) or _begin_of_chain(
                places, k, layer - 1
            )
            return before or Culprit(k, layer, True, gradient is None, seen)
    return None


def _begin_of_chain(
    places: dict[tuple[int, int, int], Seen], k: int, layer: int
) -> Culprit | None:
    """Return the source of the first of the neighbouring results that are not finite,
    up to the result of a layer.
    """
    inputs = places.get((What.INPUTS, k, -1))
    # -inf in the inputs is a mask, perhaps
    mask = MINUS if inputs is not None and inputs.kinds & MINUS else 0
    found = None
    while layer >= -1:
        seen = places.get((What.RESULT, k, layer)) if layer >= 0 else inputs
        if seen is None or not seen.kinds & ~mask:
            break
        found = Culprit(
            k, layer, False, False, seen, places.get((What.PARAMETER, -1, layer))
        )
        layer -= 1
    return found
