"""Updates of a pipeline's parameters by optimisers, as far as all ranks must make the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from math import prod
from numbers import Number
from types import FunctionType
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from minipipe.core.autograd.backend import is_array
from minipipe.core.pytree import flattened
from minipipe.core.tensor import Tensor
from minipipe.data import take_last_draw
from minipipe.execution.checks.description import description, names_of
from minipipe.execution.samples import Microbatches, Replicated
from minipipe.nn import Parameter
from minipipe.optim.nothing import steps_over_nothing

if TYPE_CHECKING:
    from minipipe.optim import Optimiser

_NUM_STEPS = "number of optimiser steps"
_RATE = "learning rate"
_SETTINGS = "optimiser"
_STATE = "loaded state"
_GRADIENTS = "state of the gradients"


class Updates:
    """The steps of the optimisers over a pipeline's parameters on this rank, as the
    next collective call compares them.

    The following are compared: the number of steps and, for each, the optimiser's class
    with its code, the numbers that its constructor got, and the numbers that it used,
    such as the learning rate. If the parameters are in several groups, which may differ
    from rank to rank, the factor of a schedule is compared instead of these numbers.
    For a custom class, the attributes are compared that are numbers, texts, functions,
    or tuples of them, except those that it names in ``not_compared``. Also compared are
    the steps that this object took before, and the states that it loaded: another
    object in its place would continue without that state; and whether gradients were
    cleared since the last call.

    A rank is not compared if it trains nothing, or has taken a step with an optimiser
    without parameters: of two optimisers for two parts of a model, that rank has only
    one.

    Parameters
    ----------
    parameters : iterable of Parameter
        Of one pipeline on this rank; each gets a reference to this object.

    Attributes
    ----------
    are_gradients_kept : bool
        Whether none was forgotten, by ``zero_grad()`` or ``grad = None``, since the
        last collective call.

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
        self._settings: dict[str, Any] = {}
        # of which the settings are made, without attributes of the optimiser's own
        self._numbers: list[Any] = []
        self._described = ""
        self._settings_digest = 0
        self._history = (0, 0)
        self.are_gradients_kept = True
        self._is_trained = False
        self._over_nothing = steps_over_nothing.get()
        for parameter in parameters:
            parameter.updates = self
            self._is_trained |= parameter.requires_grad

    def note(self, optimiser: Optimiser) -> None:
        """Note a step, before it is taken. Local; the cost does not depend on the
        number of parameters.
        """
        numbers = [type(optimiser), optimiser.rate_factor, *optimiser.numbers]
        has_own = type(optimiser).__dictoffset__  # minipipe's optimisers have slots
        if numbers != self._numbers or has_own:
            self._numbers = numbers
            self._note_settings(_settings_of(optimiser))
        self._num_steps += 1
        self._history = optimiser.history
        self._digest = crc32(
            f"{self._settings_digest} {self._history}".encode(), self._digest
        )

    def _note_settings(self, settings: dict[str, Any]) -> None:
        # seldom: another optimiser has its turn, or the learning rate has changed
        if settings != self._settings:
            self._settings = settings
            self._described = description(settings, "optimiser")
            self._settings_digest = crc32(self._described.encode())
            self._rate = settings.get("learning_rate")

    def of_run(self, optimiser: Optimiser) -> dict[str, int | None]:
        """Return what of the optimiser of a run is to be compared before it steps, by
        name; None if it trains none.

        Local.
        """
        lines = description(_settings_of(optimiser), "optimiser")
        digest = crc32(f"{lines} {optimiser.history}".encode())
        if not (self._is_trained and optimiser.parameters):
            return {"optimiser of the run": None}
        return {"optimiser of the run": digest}

    def note_state(self, state: Mapping[str, Any]) -> None:
        """Note that values were loaded, by some elements of each array. Local."""
        self._loaded = crc32(
            str(fingerprint({name: state[name] for name in sorted(state)})).encode(),
            self._loaded,
        )

    def marks(self) -> dict[str, float | None]:
        """Return the values to compare, or None: the number of steps, and a digest of
        their settings.

        The learning rate of the last step is separate, so that it can be shown: it
        differs most often. Gradients that are cleared from now on count for the next
        call.
        """
        is_known = (
            self._is_trained or self._num_steps
        ) and steps_over_nothing.get() == self._over_nothing
        found = {
            _NUM_STEPS: self._num_steps,
            _RATE: self._rate,
            _SETTINGS: self._digest,
        }
        found[_GRADIENTS], self.are_gradients_kept = self.are_gradients_kept, True
        return {**(found if is_known else dict.fromkeys(found)), _STATE: self._loaded}

    def words(self) -> dict[str, str]:
        """Return what no number shows: the settings of the last step."""
        lines = [
            line.removeprefix("optimiser.") for line in self._described.splitlines()[1:]
        ]
        before = "its steps before: {}, states loaded: {}".format(*self._history)
        if not lines:
            return {_SETTINGS: "no step yet"}
        return {_SETTINGS: ", ".join([*lines, before])}


def _settings_of(optimiser: Optimiser) -> dict[str, Any]:
    return {
        **optimiser.settings,
        "rate_factor": optimiser.rate_factor,
        **_own(optimiser),
    }


def _own(optimiser: Optimiser) -> dict[str, Any]:
    """Return the attributes of a custom optimiser that are the same on all ranks: not
    arrays, or lists.
    """
    if not type(optimiser).__dictoffset__:
        return {}
    given = vars(optimiser)
    left_out = names_of(getattr(type(optimiser), "not_compared", ()))
    return {
        name: value
        for name, value in given.items()
        if _is_alike(value) and name not in left_out
    }


def _is_alike(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_alike, value))
    return value is None or isinstance(value, Number | str | FunctionType | partial)


# -- a number for a batch --------------------------------------------------------------


_GOLDEN_RATIO = (1 + 5**0.5) / 2
_MOST_ELEMENTS = 32  # of each array, and so at most as many pages of a file


def fingerprint(batch: Any) -> int | None:
    """Return a number for inputs or targets: from their form, shapes, dtypes, and some
    elements of each array.

    Local. Two batches that differ in a few samples may have the same number; two that
    were drawn independently hardly ever do. For arrays of other modules than NumPy only
    structure, shape and dtype count: a GPU would have to wait.

    Parameters
    ----------
    batch : array of shape (samples, ...), pytree, or Microbatches

    Returns
    -------
    int or None
        Above 0, the same in every process. None if the argument cannot be compared.

    Examples
    --------
    >>> x = np.arange(1000.0).reshape(100, 10)
    >>> fingerprint(x) == fingerprint(x.copy()), fingerprint(x) == fingerprint(x + 1)
    (True, False)
    >>> fingerprint(x) == fingerprint((x,)), fingerprint(None)
    (False, None)
    """
    if type(batch) is np.ndarray:  # the quick way for the commonest batch
        form, positions = form_of_array(batch.shape, batch.dtype)
        if positions is not None and batch.flags.c_contiguous:
            return crc32(batch.take(positions).tobytes(), form) or 1
    if batch is None or callable(batch):
        return None
    found = 0
    try:
        for part in batch.parts if isinstance(batch, Microbatches) else [batch]:
            leaves, form = flattened(part)
            if form is not None:
                found = crc32(
                    repr(
                        (form, [isinstance(leaf, Replicated) for leaf in leaves])
                    ).encode(),
                    found,
                )
            for leaf in leaves:
                found = _of_leaf(leaf, found)
    # it is not a batch, and this rank need not have one
    except (TypeError, ValueError, IndexError):
        return None
    return found or 1


def batch_marks(inputs: Any, targets: Any) -> dict[str, int | None]:
    """Return the properties of a batch that all ranks must have alike, None if this
    rank does not know it. Local.

    Where a rank has only the inputs and another only the targets, the draw shows
    whether they belong together.

    Examples
    --------
    >>> list(batch_marks(np.ones(2), None)), batch_marks(None, None)["inputs"]
    (['inputs', 'targets', 'batch of data'], None)
    """
    return {
        "inputs": fingerprint(inputs),
        "targets": fingerprint(targets),
        "batch of data": take_last_draw(),
    }


def _of_leaf(leaf: Any, before: int) -> int:
    if isinstance(leaf, Replicated):
        leaf = leaf.value
    if isinstance(leaf, Tensor):
        leaf = leaf.data
    if is_array(leaf) and not isinstance(leaf, np.ndarray):
        return crc32(f"{tuple(leaf.shape)} {leaf.dtype}".encode(), before)
    array = np.asarray(leaf)
    form, positions = form_of_array(array.shape, array.dtype)
    # Neither way copies the array.
    if array.flags.c_contiguous:
        elements = array.take(positions)
    else:
        elements = array.flat[positions]
    return crc32(elements.tobytes(), form ^ before)


@lru_cache(maxsize=256)
def form_of_array(shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, Any]:
    """Return a number for a shape and a dtype, and the positions of the elements to
    compare.

    For a small array these are all positions. For a large one they are spread: over its
    rows evenly, and over the columns of the last axis in turn, or by multiples of the
    golden ratio if there are many columns. Texts and objects have None, since their
    elements cannot be compared.
    """
    size = prod(shape)
    turns = np.arange(_MOST_ELEMENTS)
    if size <= _MOST_ELEMENTS:
        positions = np.arange(size)
    else:
        width = shape[-1]
        columns = turns % width
        if width > _MOST_ELEMENTS:
            columns = (turns * _GOLDEN_RATIO % 1 * width).astype(np.int64)
        positions = turns * (size // width) // _MOST_ELEMENTS * width + columns
    return crc32(
        f"{shape} {dtype}".encode()
    ), None if dtype.kind in "OSU" else positions
