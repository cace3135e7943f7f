"""What optimisers did with the parameters of a pipeline, as far as all ranks must do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref
from zlib import crc32

from minipipe.agreement.description import description
from minipipe.agreement.fingerprint import fingerprint
from minipipe.nn import Parameter
from minipipe.optim import Optimiser
from minipipe.optim.optimiser import num_steps_over_nothing

_NUM_STEPS, _RATE, _SETTINGS = "number of optimiser steps", "learning rate", "optimiser"
_STATE = "loaded state"


class Updates:
    """The steps of the optimisers over a pipeline's parameters on this rank, as the next collective call compares them.

    Compared are how many steps there were and, for each, the optimiser's class, the numbers that its constructor got,
    and those that it used, such as the learning rate; the latter not where the parameters were given in several groups,
    which may differ from rank to rank. Not compared is a rank on which nothing is trained, or that has taken a step
    with an optimiser over no parameters: of two optimisers for two parts of a model, that rank has one only.

    Parameters
    ----------
    parameters : iterable of Parameter
        Of one pipeline on this rank; each learns whom to tell of its steps.

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter([0.0, 0.0])
    >>> updates = Updates([weight])
    >>> weight.grad = weight.data
    >>> optim.SGD([weight], learning_rate=0.5).step()
    >>> updates.marks()["number of optimiser steps"], updates.marks()["learning rate"]
    (1, 0.5)
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._num_steps = self._digest = self._loaded = 0
        self._rate: float | None = None
        self._last: Callable[[], Optimiser | None] = lambda: None
        self._numbers: list[Any] = []
        self._described = b""
        self._is_trained = False
        self._over_nothing = num_steps_over_nothing()
        for parameter in parameters:
            parameter.updates = self
            self._is_trained |= parameter.requires_grad

    def note(self, optimiser: Optimiser) -> None:
        """Note a step, before it is taken. Local; what it costs does not grow with the parameters."""
        numbers = [{**vars(group), "parameters": None} for group in optimiser.groups]
        # Seldom: another optimiser has its turn, or the learning rate has changed.
        if optimiser is not self._last() or numbers != self._numbers:
            # It keeps the parameters, and they keep this: without the weak reference, all stay after the last use.
            self._last, self._numbers = ref(optimiser), numbers
            self._described = description(optimiser.settings, "optimiser").encode()
            self._rate = optimiser.settings.get("learning_rate")
        self._num_steps += 1
        self._digest = crc32(self._described, self._digest)

    def note_state(self, state: Mapping[str, Any]) -> None:
        """Note that values were loaded, by some elements of each array. Local."""
        self._loaded = crc32(str(fingerprint({name: state[name] for name in sorted(state)})).encode(), self._loaded)

    def marks(self) -> dict[str, float | None]:
        """Return what is to be compared, None where nothing is: the number of steps, and a digest of their settings.

        The learning rate of the last one stands apart, so that it can be shown: it is what differs most often.
        """
        is_known = (self._is_trained or self._num_steps) and num_steps_over_nothing() == self._over_nothing
        known = (self._num_steps, self._rate, self._digest) if is_known else (None, None, None)
        return {**dict(zip((_NUM_STEPS, _RATE, _SETTINGS), known)), _STATE: self._loaded}

    def words(self) -> dict[str, str]:
        """Return what no number shows: the settings of the last step."""
        lines = [line.removeprefix("optimiser.") for line in self._described.decode().splitlines()[1:]]
        return {_SETTINGS: ", ".join(lines) or "no step yet"}
