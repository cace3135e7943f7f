"""What was seen that is not finite, and which layer made it.

Between two layers there is a result and, in backward, its gradient. Seen from the loss, the results of neighbouring
layers that are not finite make a chain; it begins at the layer that made it::

    inputs ──> 0 ──> 1 ──> 2 ──> 3 ──> loss           results of 2, 3 and the loss are nan: layer 2 made it
     fine      fine  fine  nan   nan   nan

What is not finite elsewhere, such as a missing number that a layer replaces, ends before the loss and is left alone.
The same holds for a gradient, seen from the first layer of the way back at which it is not finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array

NAN, PLUS, MINUS = 1, 2, 4
_WORDS = {NAN: "nan", PLUS: "inf", MINUS: "-inf"}


class What(IntEnum):
    """What was seen."""

    INPUTS = 0
    TARGETS = 1
    PARAMETER = 2  # of a layer, before the step
    RESULT = 3  # of a layer
    AUXILIARY_LOSS = 4  # of a layer
    LOSS = 5
    GRADIENT = 6  # of the result of a layer
    WEIGHT_GRADIENT = 7  # of a parameter of a layer


class Seen(NamedTuple):
    """Where something is not finite, in numbers that travel.

    Attributes
    ----------
    what : What
    microbatch, layer : int
        -1, where it has none.
    kinds : int
        The sum of NAN, PLUS and MINUS.
    which : int
        Of inputs and targets the sample in the microbatch (-1 for a replicated array), of parameters the number.
    """

    what: int
    microbatch: int
    layer: int
    kinds: int
    which: int = -1


class Culprit(NamedTuple):
    """Who made the first value that is not finite.

    Attributes
    ----------
    microbatch, layer : int
        The layer is -1 for the inputs, and the number of layers for the loss.
    is_backward, is_weight : bool
        Whether it was made in the backward, and whether it is the gradient of a parameter.
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
    """Return what of nan, inf and -inf is in an array.

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
    """Return kinds in words.

    Examples
    --------
    >>> words_of(NAN + MINUS)
    'nan and -inf'
    """
    return " and ".join(words for kind, words in _WORDS.items() if kinds & kind)


def find_culprit(sightings: Iterable[Seen], num_microbatches: int, num_layers: int) -> Culprit | None:
    """Return who made the first value that is not finite, of the first microbatch in which a loss or gradient is not.

    Examples
    --------
    >>> seen = [Seen(What.RESULT, 0, layer, NAN) for layer in (2, 3)] + [Seen(What.LOSS, 0, 4, NAN)]
    >>> find_culprit(seen, num_microbatches=1, num_layers=4).layer
    2
    """
    places: dict[tuple[int, int, int], Seen] = {}
    for seen in sightings:
        places.setdefault(seen[:3], seen)
    for k in range(num_microbatches):
        found = _before_the_loss(places, k, num_layers) or _behind_the_loss(places, k, num_layers)
        if found is not None:
            return found
    return None


def _before_the_loss(places: dict[tuple[int, int, int], Seen], k: int, num_layers: int) -> Culprit | None:
    """Return who made the loss of a microbatch what it is."""
    loss = places.get((What.LOSS, k, num_layers))
    if loss is None:
        return None
    found = _begin_of_chain(places, k, num_layers - 1)
    auxiliary = [places[place] for place in sorted(places) if place[:2] == (What.AUXILIARY_LOSS, k)]
    if found is None and auxiliary:
        return Culprit(k, auxiliary[0].layer, False, False, auxiliary[0])
    return found or Culprit(k, num_layers, False, False, loss, places.get((What.TARGETS, k, -1)))


def _behind_the_loss(places: dict[tuple[int, int, int], Seen], k: int, num_layers: int) -> Culprit | None:
    """Return who made the gradients of a microbatch what they are: in the forward, if there it had such values."""
    for layer in range(num_layers, -1, -1):
        gradient = places.get((What.GRADIENT, k, layer - 1))
        seen = gradient or places.get((What.WEIGHT_GRADIENT, k, layer))
        if seen is not None:
            before = _begin_of_chain(places, k, layer) or _begin_of_chain(places, k, layer - 1)
            return before or Culprit(k, layer, True, gradient is None, seen)
    return None


def _begin_of_chain(places: dict[tuple[int, int, int], Seen], k: int, layer: int) -> Culprit | None:
    """Return who made the first of the neighbouring results that are not finite, up to that of a layer."""
    inputs = places.get((What.INPUTS, k, -1))
    mask = MINUS if inputs is not None and inputs.kinds & MINUS else 0  # -inf in the inputs is a mask, perhaps
    found = None
    while layer >= -1:
        seen = places.get((What.RESULT, k, layer)) if layer >= 0 else inputs
        if seen is None or not seen.kinds & ~mask:
            break
        found = Culprit(k, layer, False, False, seen, places.get((What.PARAMETER, -1, layer)))
        layer -= 1
    return found
