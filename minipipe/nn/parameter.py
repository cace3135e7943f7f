"""A parameter: a tensor that is declared first and filled later."""

from __future__ import annotations

from numbers import Integral
from types import ModuleType
from typing import Any

import numpy as np

from minipipe import backend
from minipipe.autograd import Leaf
from minipipe.autograd.grad_mode import next_order
from minipipe.backend import Array
from minipipe.errors import ParameterError, TensorError
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
        Codes ``uninitialised``, when the values are read before they are there; ``shape``.

    Examples
    --------
    >>> from minipipe import nn
    >>> weight = nn.Parameter((2, 3), nn.initialisers.constant(0.5))
    >>> weight.nbytes, weight.is_filled
    (24, False)
    >>> weight.fill(seed=0, name="weight")
    >>> weight
    Parameter([[0.5, 0.5, 0.5],
               [0.5, 0.5, 0.5]], requires_grad=True)
    """

    __slots__ = ("_by_layer", "_own", "declared_dtype", "declared_shape", "initialiser", "xp")

    def __init__(
        self, shape: tuple[int, ...] | Array, initialiser: Initialiser | None = None, dtype: Any = None
    ) -> None:
        if isinstance(shape, tuple) and not all(isinstance(length, Integral) and int(length) >= 0 for length in shape):
            raise ParameterError(
                "shape", f"The shape is {shape}; expected whole numbers, or values as a list or array."
            )
        values = None if isinstance(shape, tuple) else Tensor(shape, requires_grad=True, dtype=dtype).data
        self.declared_shape: tuple[int, ...] = tuple(shape) if values is None else values.shape
        self.declared_dtype = np.dtype(dtype or np.float32) if values is None else values.dtype
        self.initialiser = initialiser or constant(0.0)
        self.xp = np if values is None else backend.array_module(values)
        self.node: Leaf = Leaf(self.declared_shape)
        self._own = self.node
        self._by_layer: dict[int, Leaf] = {}
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
        return super().__getattr__(name)

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
        return self.size * backend.numpy_dtype(self.declared_dtype).itemsize

    @property
    def is_filled(self) -> bool:
        """Whether there are values."""
        try:
            object.__getattribute__(self, "data")
        except AttributeError:
            return False
        return True

    # -- gradients, layer by layer where layers share the parameter ------------------------------------------

    def use_leaf_of(self, layer: int | None) -> None:
        """Let the gradients of what is recorded from now on add up for one layer by itself, or (None) for no layer."""
        self.node = self._own if layer is None else self._by_layer.setdefault(layer, Leaf(self.declared_shape))

    @property
    def grad(self) -> Array | None:
        """The gradient, of shape ``shape``: the sum of those of all layers, in their order. None before ``backward``.

        Where layers share the parameter, each call adds them up; assign to it to change it.
        """
        total = self._own.grad
        if not self._by_layer:
            return total
        for layer in sorted(self._by_layer):
            share = self._by_layer[layer].grad
            if share is not None:
                total = share if total is None else total + share
        return total

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        if gradient is not None and gradient.shape != self.shape:
            raise TensorError("shape", f"The gradient has shape {gradient.shape}; the parameter has {self.shape}.")
        self.zero_grad()
        self._own.grad = gradient

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self._own.grad = None
        for leaf in self._by_layer.values():
            leaf.grad = None

    def grad_of_layer(self, layer: int) -> Array | None:
        """The gradient that came through one of the layers that share the parameter."""
        return self._by_layer[layer].grad if layer in self._by_layer else None

    def note_change(self, order: int | None = None) -> None:
        """Note that the values were changed: a graph that was recorded before is out of date.

        Parameters
        ----------
        order : int, optional
            When, on the scale of :attr:`Node.order <minipipe.autograd.Node>`; now by default.
        """
        order = next_order() if order is None else order
        self._own.changed = order
        for leaf in self._by_layer.values():
            leaf.changed = order

    # -- values ---------------------------------------------------------------------------------------------

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
        self.data = backend.copy(backend.moved(values, self.xp, self.declared_dtype))
        self.zero_grad()
        self.note_change()

    def move(self, xp: ModuleType) -> None:
        """Keep the values in another array module from now on; the gradient is forgotten."""
        self.xp = xp
        if self.is_filled and backend.array_module(self.data) is not xp:
            self.data = backend.moved(self.data, xp)
            self.zero_grad()

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        twin = Parameter(self.declared_shape, self.initialiser, self.declared_dtype)
        twin.xp = self.xp
        if self.is_filled:
            twin.data = backend.copy(self.data)
        memo[id(self)] = twin
        return twin

    def __repr__(self) -> str:
        if not self.is_filled:
            return f"Parameter(shape={self.shape}, dtype={self.dtype}, no values yet)"
        return super().__repr__()
