"""Where a computation stands: in which step, microbatch and layer. Random numbers depend on that, and on nothing else.

A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": Philox) is a function of
its key and counter. Here they are (seed, layer) and (step, microbatch, how often this layer has drawn before), so no
schedule, partition, recomputation or thread changes a mask.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from minipipe.autograd.grad_mode import setting
from minipipe.errors import TensorError, whole_number


class Place:
    """Where a computation stands.

    Attributes
    ----------
    seed, step, microbatch : int or None
        None outside :func:`random_key`; then nothing random can be drawn.
    layer : int or None
        The layer of the outermost sequence; None outside of one.
    sequence : int
        How many calls of an outermost sequence came before, under this key: that of a model is 0 in every stage of a
        pipeline, and what comes after it, such as the loss, has 1.
    num_draws : int
        How often random numbers were drawn in this layer.
    """

    __slots__ = ("layer", "microbatch", "num_draws", "seed", "sequence", "step")

    def __init__(self, seed: int | None = None, step: int = 0, microbatch: int = 0, layer: int | None = None) -> None:
        self.seed, self.step, self.microbatch = seed, step, microbatch
        self.layer = layer
        self.sequence = self.num_draws = 0

    def copy(self) -> Place:
        """Return the same place, to come back to."""
        twin = Place(self.seed, self.step, self.microbatch, self.layer)
        twin.sequence, twin.num_draws = self.sequence, self.num_draws
        return twin

    def begin(self, microbatch: int) -> None:
        """Go to the beginning of a microbatch of the same step."""
        self.microbatch, self.layer = microbatch, None
        self.sequence = self.num_draws = 0

    def enter(self, layer: int) -> None:
        """Go to a layer of the outermost sequence."""
        self.layer, self.num_draws = layer, 0

    def leave(self) -> None:
        """Go out of the outermost sequence."""
        self.layer, self.num_draws = None, 0
        self.sequence += 1


_place: ContextVar[Place | None] = ContextVar("place", default=None)


def current_place() -> Place:
    """Return where the computation stands: one place for each thread, or that of :func:`random_key`."""
    place = _place.get()
    if place is None:
        place = Place()
        _place.set(place)
    return place


def next_key() -> tuple[int, int, int, int, int]:
    """Return (seed, layer, step, microbatch, number of the draw) here, different for each draw.

    Raises
    ------
    TensorError
        Code ``no-random-key``.
    """
    place = current_place()
    if place.seed is None:
        raise TensorError(
            "no-random-key",
            "Something random, such as Dropout, was computed in training without a key. A pipeline sets one; in a "
            "loop of your own write: with minipipe.random_key(seed, step): loss = …. Or call model.eval().",
        )
    place.num_draws += 1
    layer = (place.sequence << 32) + (0 if place.layer is None else place.layer + 1)
    return place.seed, layer, place.step, place.microbatch, place.num_draws


def at(place: Place) -> AbstractContextManager[None]:
    """Compute at a place inside this block."""
    return setting(_place, place)


def random_key(seed: int, step: int = 0, microbatch: int = 0) -> AbstractContextManager[None]:
    """Draw random numbers inside this block from (seed, layer, step, microbatch).

    A pipeline does this by itself; in a loop of your own, give the number of the step.

    Parameters
    ----------
    seed, step, microbatch : int
        At least 0.

    Raises
    ------
    ArgumentError
        Code ``value``: when one of them is no such number.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn, random_key
    >>> def masked(step):
    ...     with random_key(0, step):
    ...         return nn.Dropout(0.5)(Tensor(np.ones(8))).numpy().tolist()
    >>> masked(1) == masked(1), masked(1) == masked(2)
    (True, False)
    """
    for name, value in (("seed", seed), ("step", step), ("microbatch", microbatch)):
        whole_number(f"random_key: {name}", value, 0)
    return at(Place(seed, step, microbatch))
