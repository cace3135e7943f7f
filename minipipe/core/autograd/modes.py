"""How results are recorded here, and from which key random numbers are drawn: two
context variables.

A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
2, 3": Philox) is a function of its key and counter. Here they are (seed, layer) and
(step, microbatch, number of the draw in this layer), so no schedule, partition,
recomputation or thread changes a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from minipipe.core.errors import TensorError
from minipipe.core.specs import INDEX


class Mode(NamedTuple):
    """The settings by which operations record.

    Attributes
    ----------
    is_enabled : bool
        Whether they record a graph.
    creation : iterator of int
        Numbers the results, even if nothing is recorded: a module that is computed a
        second time to be recorded gets the numbers of the first time.
    watch : function or None
        ``(values, arrays) -> Kept``: returns saved values that raise an error once an
        array has changed.
    """

    is_enabled: bool
    creation: Iterator[int]
    watch: Callable[[tuple[Any, ...], list[Any]], Any] | None = None


_FIRST = Mode(True, count())
current_mode: ContextVar[Mode] = ContextVar("mode", default=_FIRST)

mode = current_mode.get
"""Return how operations record here."""


class setting(ContextDecorator):  # noqa: N801
    """Sets a context variable inside a block. No generator, which takes four times as
    long, in every step.
    """

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable = variable
        self._value = value

    def _recreate_cm(self) -> setting:
        # a separate setting for each call of a decorated function
        return setting(self._variable, self._value)

    def __enter__(self) -> Any:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def enable_grad() -> setting:
    """Record the graph inside this block, even inside :func:`no_grad`."""
    now = mode()
    enabled = now if now.is_enabled else now._replace(is_enabled=True)
    return setting(current_mode, enabled)


def no_grad() -> setting:
    """Record no graph inside this block, in this thread.

    Examples
    --------
    >>> from minipipe import Tensor, no_grad
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> with no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return setting(current_mode, mode()._replace(is_enabled=False))


def record_again(first: int) -> setting:
    """Record the graph inside this block, and number the results from ``first``."""
    again = mode()._replace(is_enabled=True, creation=count(first))
    return setting(current_mode, again)


def next_order() -> int:
    """Return the number of a new result, larger than those before it; in
    :func:`record_again` the earlier ones.
    """
    return next(mode().creation)


def is_grad_enabled() -> bool:
    """Tell whether operations record their graph here (see :func:`no_grad`)."""
    return mode().is_enabled


class Key(NamedTuple):
    """The key and the counter of one draw of random numbers."""

    seed: int | None
    layer: int
    step: int
    microbatch: int
    draw: int


@dataclass(slots=True, eq=False)
class RandomKey:
    """The key of the random numbers that are drawn at some place: its step, microbatch
    and layer.

    Attributes
    ----------
    seed, step, microbatch : int or None
        None outside :func:`random_key`; then drawing is refused.
    layer : int or None
        The layer of the outermost sequence; None outside of one.
    sequence : int
        The number of earlier calls of an outermost sequence under this key: 0 for the
        model, in every stage of a pipeline, and 1 for the loss after it.
    num_draws : int
        The number of draws in this layer so far.
    """

    seed: int | None = None
    step: int = 0
    microbatch: int = 0
    layer: int | None = None
    sequence: int = 0
    num_draws: int = 0

    def copy(self) -> RandomKey:
        """Return a copy, to return to."""
        return replace(self)

    def begin(self, microbatch: int) -> None:
        """Go to the beginning of a microbatch of the same step."""
        self.microbatch = microbatch
        self.layer = None
        self.sequence = self.num_draws = 0

    def enter(self, layer: int) -> None:
        """Go to a layer of the outermost sequence."""
        self.layer = layer
        self.num_draws = 0

    def leave(self) -> None:
        """Go out of the outermost sequence."""
        self.layer = None
        self.num_draws = 0
        self.sequence += 1


_key: ContextVar[RandomKey | None] = ContextVar("random key", default=None)


def current_place() -> RandomKey:
    """Return the random key of the current computation: the one of :func:`random_key`,
    or else one for each thread.
    """
    key = _key.get()
    if key is None:
        key = RandomKey()
        _key.set(key)
    return key


def next_key() -> Key:
    """Return (seed, layer, step, microbatch, number of the draw) here, different for
    each draw.

    Raises
    ------
    TensorError
        Code ``missing``.
    """
    key = current_place()
    if key.seed is None:
        raise TensorError(
            "missing",
            "Random numbers were drawn in training, for instance by Dropout, without "
            "a key. A pipeline sets one. In your own loop write with "
            "minipipe.random_key(seed, step): loss = …, or call model.eval().",
        )
    key.num_draws += 1
    layer = (key.sequence << 32) + (0 if key.layer is None else key.layer + 1)
    return Key(key.seed, layer, key.step, key.microbatch, key.num_draws)


def at(key: RandomKey) -> setting:
    """Draw random numbers from a key inside this block."""
    return setting(_key, key)


def random_key(seed: int, step: int = 0, microbatch: int = 0) -> setting:
    """Draw random numbers inside this block from (seed, layer, step, microbatch).

    A pipeline does this by itself; in your own loop, pass the number of the step.

    Parameters
    ----------
    seed, step, microbatch : int
        At least 0.

    Raises
    ------
    ArgumentError
        Code ``value``: when an argument is not such a number.

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
        INDEX.check(f"random_key: {name}", value)
    return at(RandomKey(seed, step, microbatch))
