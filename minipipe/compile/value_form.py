"""The form of a value that passes from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.compile.arrivals import OtherForm
from minipipe.compile.dialect import dialect_of
from minipipe.core.autograd.backend import Array
from minipipe.core.execution.payload import Payload
from minipipe.errors import MessageError


class Form(NamedTuple):
    """The form of a value between two stages: everything but its elements.

    Attributes
    ----------
    shapes : tuple of tuple of int
        None for a gradient that does not exist.
    dtypes : tuple of dtype
    requires_grad : tuple of bool
    treedef : object
        The one of :class:`minipipe.core.execution.payload.Payload`.
    """

    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[Any, ...]
    requires_grad: tuple[bool, ...]
    treedef: Any = None

    @classmethod
    def of(cls, payload: Payload) -> Form:
        """Return the form of a payload."""
        return cls(
            _shapes(payload.arrays),
            _dtypes(payload.arrays),
            tuple(payload.requires_grad),
            payload.treedef,
        )

    @classmethod
    def of_variables(cls, variables: Sequence[Any]) -> Form:
        """Return the form of variables of a trace; None for a missing array."""
        requires_grad = (True,) * len(variables)
        return cls(_shapes(variables), _dtypes(variables), requires_grad)

    def new(self, xp: ModuleType = np) -> list[Any]:
        """Return new arrays of this form."""
        return [
            None if shape is None else dialect_of(xp).empty(shape, dtype)
            for shape, dtype in zip(self.shapes, self.dtypes)
        ]

    def names(self, base: str) -> list[str]:
        """Return names of the arrays, for a line of a program."""
        names = enumerate(self.shapes)
        return ["None" if shape is None else f"{base}_{i}" for i, shape in names]

    @property
    def is_plain(self) -> bool:
        """Whether it is one array that is a message (``Payload.to_message``)."""
        is_one = self.treedef is None and self.requires_grad == (True,)
        return is_one and getattr(self.dtypes[0], "kind", "") == "f"

    def arrays(self, payload: Payload, value: Any = None) -> list[Array | None]:
        """Return the arrays of a value of another rank or of an eager stage.

        Parameters
        ----------
        payload : Payload
        value : Value, optional
            The value, if it came in a message of another rank.

        Raises
        ------
        MessageError
            Code ``shape``: the value has another form.
        """
        shapes = _shapes(payload.arrays)
        is_same = shapes == self.shapes and _dtypes(payload.arrays) == self.dtypes
        if value is not None:
            is_same = is_same and tuple(payload.requires_grad) == self.requires_grad
        if is_same:
            return payload.arrays
        message = f"Arrays of shapes {[*shapes]} arrived; expected {[*self.shapes]}"
        message += ", as in earlier batches of the same form."
        if value is None:
            raise MessageError("shape", message)
        raise OtherForm(message, value, payload.to_message())

    def payload(self, arrays: Sequence[Array | None]) -> Payload:
        """Return arrays of this form as a payload."""
        return Payload(list(arrays), list(self.requires_grad), self.treedef)


def _shapes(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(getattr(array, "shape", None) for array in arrays)


def _dtypes(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(getattr(array, "dtype", None) for array in arrays)
