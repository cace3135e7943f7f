"""A parameter: a tensor that is declared first and filled later."""

from __future__ import annotations

from typing import Any

import numpy as np

from minipipe import backend
from minipipe.autograd import Leaf
from minipipe.backend import Array
from minipipe.errors import ParameterError
from minipipe.nn.initialisers import Initialiser, constant, generator_for
from minipipe.tensor import Tensor

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A tensor that training changes.

    It is declared with a shape and an initialiser and takes no memory until it is filled, so that every rank can
    describe a model that fits on none of them.

    Parameters
    ----------
    shape : tuple of int, or array
        The shape; or values, which fill it at once.
    initialiser : function, optional
        ``(generator, shape) -> values``; zeros by default.
    dtype : dtype
        float32 by default.

    Raises
    ------
    ParameterError
        Code ``uninitialised``, when the values are read before they are there.
    """

    __slots__ = ("declared_dtype", "declared_shape", "initialiser")

    def __init__(
        self, shape: tuple[int, ...] | Array, initialiser: Initialiser | None = None, dtype: Any = None
    ) -> None:
        values = None if isinstance(shape, tuple) else Tensor(shape, requires_grad=True, dtype=dtype).data
        self.declared_shape: tuple[int, ...] = tuple(shape) if values is None else values.shape
        self.declared_dtype = np.dtype(dtype or np.float32) if values is None else values.dtype
        self.initialiser = initialiser or constant(0.0)
        self.node = Leaf()
        if values is not None:
            self.data = backend.copy(values)

    def __getattr__(self, name: str) -> Any:
        # Reached only when the normal look-up found nothing: `data` is not filled.
        if name == "data":
            raise ParameterError(
                "uninitialised",
                f"This parameter of shape {self.declared_shape} has no values yet. Call model.initialise(seed), "
                "call the model once, or give the model to a Pipeline and read pipeline.parameters().",
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis, known before there are values."""
        return self.declared_shape

    @property
    def dtype(self) -> Any:
        """The type of the elements, known before there are values."""
        return self.declared_dtype

    @property
    def nbytes(self) -> int:
        """How many bytes the values take, or will take."""
        return self.size * np.dtype(self.declared_dtype).itemsize

    @property
    def is_filled(self) -> bool:
        """Whether there are values."""
        try:
            object.__getattribute__(self, "data")
        except AttributeError:
            return False
        return True

    def fill(self, seed: int, name: str) -> None:
        """Draw first values, which depend on the seed and the parameter's qualified name alone."""
        values = np.asarray(self.initialiser(generator_for(seed, name), self.shape))
        self.load(values, name)

    def load(self, values: Array, name: str) -> None:
        """Take a copy of values of the same shape, in this parameter's dtype; the gradient is forgotten.

        Raises
        ------
        ParameterError
            Code ``shape``.
        """
        if values.shape != self.shape:
            raise ParameterError("shape", f"{name} has shape {self.shape}; the values given have {values.shape}.")
        self.data = backend.copy(backend.as_array(values, self.declared_dtype))
        self.zero_grad()

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        twin = Parameter(self.declared_shape, self.initialiser, self.declared_dtype)
        if self.is_filled:
            twin.data = backend.copy(self.data)
        memo[id(self)] = twin
        return twin

    def __repr__(self) -> str:
        if not self.is_filled:
            return f"Parameter(shape={self.shape}, dtype={self.dtype}, no values yet)"
        return f"Parameter{super().__repr__().removeprefix('Tensor')}"
