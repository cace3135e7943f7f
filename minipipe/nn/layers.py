"""Layers, and the sequence of them that a pipeline cuts into stages."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

from minipipe import functional
from minipipe.errors import MinipipeError, TensorError
from minipipe.nn.initialisers import Initialiser, he_uniform
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter
from minipipe.tensor import Tensor, as_tensor

__all__ = ["Flatten", "Identity", "Linear", "ReLU", "Sequential", "Sigmoid", "Tanh"]


class Linear(Module):
    """x @ weight + bias over the last axis of x.

    Parameters
    ----------
    in_features, out_features : int
        Lengths of the last axis before and after.
    bias : bool
        Whether there is a bias.
    initialiser : function, optional
        First values of the weight; by default :func:`~minipipe.nn.initialisers.he_uniform`. The bias begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (in_features, out_features)
        In PyTorch it is the transpose; here it multiplies as it stands.
    bias : Parameter of shape (out_features,), or None
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(value, Integral) or value < 0:
                raise ValueError(f"Linear: {name} is {value!r}; expected a whole number (64 // 2, not 64 / 2).")
        self.weight = Parameter((in_features, out_features), initialiser or he_uniform(in_features), dtype)
        self.bias = Parameter((out_features,), dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., in_features) to (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)

    def describe(self) -> str:
        """Name both lengths."""
        return ", ".join(map(str, self.weight.shape)) + ("" if self.bias is not None else ", bias=False")


class Identity(Module):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the very same tensor."""
        return x


class ReLU(Module):
    """x where it is positive, 0 elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.relu(x)


class Tanh(Module):
    """The hyperbolic tangent of each element."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.tanh(x)


class Sigmoid(Module):
    """1 / (1 + e^-x) of each element."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.sigmoid(x)


class Flatten(Module):
    """All axes but the first made one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (n, ...) to (n, k)."""
        return functional.reshape(x, (len(x), -1))


class Sequential(Module):
    """Layers, each applied to the result of the one before: what a pipeline cuts into stages.

    What passes from one layer to the next, activation or gradient, is made contiguous whether or not a pipeline cuts
    there, so that no cut changes a bit (see :func:`minipipe.functional.contiguous`).

    Parameters
    ----------
    *layers : Module

    Examples
    --------
    >>> Sequential(Flatten(), Linear(64, 10))
    Sequential(
      0: Flatten()
      1: Linear(64, 10)
    )
    """

    def __init__(self, *layers: Module) -> None:
        for i, layer in enumerate(layers):
            if not isinstance(layer, Module):
                raise TypeError(
                    f"Sequential takes modules, one argument each; number {i} is {type(layer).__name__}. "
                    "Write Sequential(*layers) to give a list."
                )
        self.layers = list(layers)
        self.first_layer = 0  # the number of the first one, where these are part of a longer sequence

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for i, layer in enumerate(self.layers):
            yield str(i), layer

    def forward(self, x: Tensor) -> Tensor:
        """Apply every layer in turn."""
        x = as_tensor(x)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            try:
                x = layer(x)
            except MinipipeError as error:
                error.add_note(f"in layer {self.first_layer + i}, {layer!r}")
                raise
            if not isinstance(x, Tensor):
                raise TensorError(
                    "not-a-tensor",
                    f"Layer {self.first_layer + i}, {layer!r}, returned {type(x).__name__}; a layer returns a Tensor.",
                )
            if i < last:
                x = functional.contiguous(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __getitem__(self, index: int | slice) -> Module:
        return Sequential(*self.layers[index]) if isinstance(index, slice) else self.layers[index]
