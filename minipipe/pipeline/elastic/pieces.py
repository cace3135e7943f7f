"""What training has changed so far, by the name of a parameter; and as one array of bytes, to keep and to send."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minipipe.autograd import backend
from minipipe.errors import ArgumentError
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint.state import named

_ALIGNMENT = 64  # in bytes, of each array among the packed ones
_LENGTH = np.dtype("<u8")  # of the description, which it precedes
_ARRAY = "array"  # in the description, what stands for one

Piece = dict[str, Any]
"""Of one parameter: its values, the hyper-parameters of its group, and what the optimiser keeps for it."""


class Made(NamedTuple):
    """What the user's function has made for a group.

    Attributes
    ----------
    pipeline : Pipeline
    optimiser : Optimiser
    others : tuple
        Whatever else training changes, alike on all ranks: with ``state_dict()`` and ``load_state_dict()``.
    """

    pipeline: Pipeline
    optimiser: Optimiser
    others: tuple[Any, ...] = ()

    @classmethod
    def checked(cls, made: Any) -> Made:
        """Return what was made, once it is looked at.

        Raises
        ------
        ArgumentError
            Code ``type``: it is not what ``make`` has to return. Code ``value``: the optimiser changes other
            parameters.
        """
        is_row = isinstance(made, Sequence) and len(made) >= 2
        if not (is_row and isinstance(made[0], Pipeline) and isinstance(made[1], Optimiser)):
            message = f"make(group) returned {made!r:.60}; expected a pipeline and its optimiser, as a tuple."
            raise ArgumentError("type", message)
        for other in made[2:]:
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise ArgumentError(
                    "type",
                    f"make(group) returned {type(other).__name__}, too, which has no state_dict() and "
                    "load_state_dict(): what training changes must be set back after a loss. What it does not change "
                    "belongs outside make.",
                )
        found = cls(made[0], made[1], tuple(made[2:]))
        list(found._of_optimiser())
        return found

    def _of_optimiser(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the group of each parameter, in the optimiser's order."""
        own = dict(self.pipeline.named_parameters())
        for i, group in enumerate(self.optimiser.groups):
            for name, _ in named(own, group, group.parameters):
                yield name, i

    def state(self) -> dict[str, Any]:
        """Return all of it: pieces by name, and what is alike on all ranks. The arrays are no copies. Local."""
        state = self.optimiser.state_dict()
        groups, states = state["groups"], state["states"]
        pieces: dict[str, Piece] = {name: {"value": p.data} for name, p in self.pipeline.named_parameters()}
        for (name, i), kept in zip(self._of_optimiser(), states):
            pieces[name].update(group=groups[i], kept=kept)
        others = [other.state_dict() for other in self.others]
        return {"pieces": pieces, "num_steps": self.pipeline.num_steps, "others": others}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what :meth:`state` returned, from ranks with other stages, perhaps. Local."""
        pieces, groups = state["pieces"], self.optimiser.state_dict()["groups"]
        for name, parameter in self.pipeline.named_parameters():
            parameter.load(pieces[name]["value"], name)
        placed = list(self._of_optimiser())
        for name, i in placed:
            groups[i] = pieces[name]["group"]
        self.optimiser.load_state_dict({"groups": groups, "states": [pieces[name]["kept"] for name, _ in placed]})
        self.pipeline.num_steps = state["num_steps"]
        for other, kept in zip(self.others, state["others"]):
            other.load_state_dict(kept)


def packed(tree: Any) -> np.ndarray:
    """Return dicts and lists of arrays, numbers and strings as one array of bytes: a copy.

    Examples
    --------
    >>> unpacked(packed({"value": np.array([1.5, 2.5]), "kept": {"num_steps": 3}}))
    {'value': array([1.5, 2.5]), 'kept': {'num_steps': 3}}
    """
    arrays: list[np.ndarray] = []

    def described(item: Any) -> Any:
        if backend.is_array(item):
            arrays.append(backend.to_numpy(item))
            return {_ARRAY: [backend.dtype_name(arrays[-1].dtype), arrays[-1].shape]}
        if isinstance(item, Mapping):
            return {name: described(part) for name, part in item.items()}
        return [described(part) for part in item] if isinstance(item, list | tuple) else item

    description = json.dumps(described(tree), default=lambda number: number.item()).encode()
    starts = [_aligned(_LENGTH.itemsize + len(description))]
    for array in arrays:
        starts.append(_aligned(starts[-1] + array.nbytes))
    message = np.empty(starts[-1], np.uint8)
    message[: _LENGTH.itemsize].view(_LENGTH)[0] = len(description)
    message[_LENGTH.itemsize : _LENGTH.itemsize + len(description)] = np.frombuffer(description, np.uint8)
    for start, array in zip(starts, arrays):
        message[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return message


def unpacked(message: np.ndarray) -> Any:
    """Return what was packed; its arrays are views of the message."""
    start = _LENGTH.itemsize
    end = start + int(message[:start].view(_LENGTH)[0])
    position = _aligned(end)

    def rebuilt(item: Any) -> Any:
        nonlocal position
        if isinstance(item, list):
            return [rebuilt(part) for part in item]
        if not isinstance(item, dict):
            return item
        if list(item) != [_ARRAY]:
            return {name: rebuilt(part) for name, part in item.items()}
        dtype, shape = np.dtype(item[_ARRAY][0]), item[_ARRAY][1]
        begin, size = position, dtype.itemsize * math.prod(shape)
        position = _aligned(begin + size)
        return message[begin : begin + size].view(dtype).reshape(shape)

    return rebuilt(json.loads(message[start:end].tobytes()))


def _aligned(position: int) -> int:
    return position + -position % _ALIGNMENT
